# Who may reach the databases: consul config write intentions.hcl
# Intentions are checked for the service itself, whatever an upstream is called.
Kind = "service-intentions"
Name = "main"
Sources = [
  { Name = "app", Action = "allow" },
]
