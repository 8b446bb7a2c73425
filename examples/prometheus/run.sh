#!/usr/bin/env bash
# A host with Prometheus: a service, `dormouse serve` beside it, and Prometheus that scrapes it. Prints the CPU time per
# request of each route, in seconds, and ends everything that it started.
#
#   examples/prometheus/run.sh
#
# Needs prometheus and promtool. DORMOUSE names another program than the one that cargo builds.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib.sh"

start service "$dormouse" teaparty --load 200 --for 10m
service=$!
# Only this service: without its number, all of the host that have dormouse are served.
start serve "$dormouse" serve "$service" --listen 127.0.0.1:0 --token-file "$work/token"
target=$(await serve 's|^listening on http://\([0-9.:]*\)/.*|\1|p')

cp "$here/rules.yml" "$work"
sed "s|127.0.0.1:9464|$target|" "$here/prometheus.yml" >"$work/prometheus.yml"
start prometheus prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/data" \
  --web.listen-address=127.0.0.1:0
prometheus=$(await prometheus 's|.*msg="Listening on" address=\([0-9.:]*\).*|\1|p')

ask() { promtool query instant "http://$prometheus" group:dormouse_cpu_per_request:seconds 2>&1; }
until ask | grep -q "GET /blend"; do
  alive
  sleep 0.5
done
ask
