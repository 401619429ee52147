#!/bin/sh
# For databases without Consul agents: registers a terminating gateway at its address
# and prints its Envoy's configuration: gateway.sh 10.0.0.9:8443 > /etc/envoy/envoy.yaml
exec consul connect envoy -gateway=terminating -register -service pg-gateway -address "$1" -bootstrap
