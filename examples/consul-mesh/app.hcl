# On an application's host: consul services register app.hcl
service {
  name = "app"
  port = 8080
  connect {
    sidecar_service {
      proxy {
        upstreams = [
          { destination_name = "main-rw", local_bind_port = 5000 },
          { destination_name = "main-ro", local_bind_port = 5001 },
        ]
      }
    }
  }
}
