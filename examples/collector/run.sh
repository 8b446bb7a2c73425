#!/usr/bin/env bash
# A host with a Collector: a service, and `dormouse serve` beside it, which pushes to the Collector as the standard
# variables say. Prints the requests of each route as the Collector has them, and ends everything that it started.
#
#   OTELCOL=path/to/otelcol examples/collector/run.sh
#
# DORMOUSE names another program than the one that cargo builds.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib.sh"

sed "s|127.0.0.1:4318|127.0.0.1:0|" "$here/collector.yml" >"$work/collector.yml"
start collector "${OTELCOL:-otelcol}" --config "$work/collector.yml"
collector=$(await collector 's|.*Starting HTTP server.*"endpoint": "\([0-9.:]*\)".*|\1|p')

start service "$dormouse" teaparty --load 200 --for 10m
service=$!
export OTEL_EXPORTER_OTLP_ENDPOINT=http://$collector OTEL_EXPORTER_OTLP_COMPRESSION=gzip OTEL_METRIC_EXPORT_INTERVAL=1000
# Only this service: without its number, all of the host that have dormouse are served.
start serve "$dormouse" serve "$service" --listen 127.0.0.1:0 --token-file "$work/token"

# The points of one metric of the last push: the group, and its value.
ask() {
  awk '/-> Name: /{on = $3 == "dormouse.requests"} !on {next} /-> group: /{group = $0} /-> outcome: /{outcome = $0}
    /^Value: / && outcome ~ /completed/{value[group] = $2}
    END {for (group in value) print group, value[group]}' "$work/collector.log" |
    sed 's/.*Str(\(.*\)) /\1 /' | sort
}
until ask | grep -q "GET /blend [1-9]"; do
  alive
  sleep 0.5
done
ask
