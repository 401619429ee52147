#!/bin/sh
# Prints the configuration of a sidecar's Envoy, by the ID of its service:
# sidecar.sh pgsteer:main:n1 > /etc/envoy/envoy.yaml
exec consul connect envoy -sidecar-for "$1" -bootstrap
