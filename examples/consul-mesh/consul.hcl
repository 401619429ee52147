# Beside the rest of Consul's configuration, on the hosts of databases and of
# applications: sidecars get what they need from the agent on their host.
ports { grpc = 8502 }
connect { enabled = true }
