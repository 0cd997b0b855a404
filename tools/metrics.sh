#!/usr/bin/env bash
# Checks the metrics of a running server with promtool, and that the documents and the dashboard name
# metrics that exist.
#
#   tools/metrics.sh BERTH
set -euo pipefail

berth=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

. "$here/tools/server.sh"
start_server "$berth" --no-sign-in

# A grant and a refusal, so that both are counted.
json='content-type: application/json'
curl -sf -X PUT "$url/v1/nodes/n1" -H "$json" -o /dev/null \
	-d '{"id":"n1","capacity":{"cpu_milli":4000,"memory_mib":4096,"disk_mib":100000,"bandwidth_mbps":1000}}'
for memory in 1024 65536; do
	curl -s -X POST "$url/v1/placements" -H "$json" -o /dev/null \
		-d '{"tenant":"acme","instances":[{"resources":{"cpu_milli":1000,"memory_mib":'$memory'}}]}'
done
# The evacuation check has its own pace.
for _ in $(seq 100); do
	curl -sf -D "$folder/headers" "$url/metrics" >"$folder/metrics"
	if grep -q '^berth_nodes_evacuable ' "$folder/metrics"; then break; fi
	sleep 0.1
done
grep -qi '^content-type: text/plain' "$folder/headers" || { echo 'metrics: not text/plain' >&2; exit 1; }
promtool check metrics <"$folder/metrics"
curl -sf -H 'Accept: application/openmetrics-text' "$url/metrics" | tail -n 1 | grep -qx '# EOF' ||
	{ echo 'metrics: no OpenMetrics for a client that accepts it' >&2; exit 1; }

# Counted only when they happen, which they do not here.
rare='berth_conflicts_total berth_loop_failures_total berth_migrations_total berth_permits_total
berth_limited_requests_total berth_wire_requests_total'
sed -n 's/^# TYPE \([a-z_]*\) .*/\1/p' "$folder/metrics" | sort -u >"$folder/served"
{ cat "$folder/served"; tr ' ' '\n' <<<"$rare"; } | sort -u >"$folder/exist"
sed -n '/^| Metric | Labels/,/^$/p' "$here/docs/operations.md" | cut -d'|' -f2 |
	grep -oE '(berth|process)_[a-z_]+' | sort -u >"$folder/documented"
grep -oE '(berth|process)_[a-z_]+' "$here/deploy/grafana/berth.json" | sed 's/_bucket$//' |
	sort -u >"$folder/shown"
status=0
report() {
	if [ -n "$1" ]; then
		printf '%s\n%s\n' "$2" "$1" >&2
		status=1
	fi
}
report "$(comm -23 "$folder/served" "$folder/documented")" 'served, but not in docs/operations.md:'
report "$(comm -23 "$folder/documented" "$folder/exist")" 'in docs/operations.md, but not served:'
report "$(comm -23 "$folder/shown" "$folder/exist")" 'in the dashboard, but not served:'
exit "$status"
