#!/bin/sh
# Prints Envoy's configuration: bootstrap.sh > /etc/envoy/envoy.yaml
exec pgsteer envoy-bootstrap --node-id "$(hostname)" --clusters main --server 127.0.0.1:7434 --check
