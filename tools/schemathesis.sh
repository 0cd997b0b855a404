#!/usr/bin/env bash
# Tries a running server with requests made from its own OpenAPI document: no answer may be a server
# error, and every answer must be as the document says.
#
#   tools/schemathesis.sh BERTH SCHEMATHESIS [EXAMPLES]
set -euo pipefail

berth=$1
schemathesis=$2
examples=${3:-20}

. "$(dirname "${BASH_SOURCE[0]}")/server.sh"
start_server "$berth"
for _ in $(seq 100); do
	# It may be ready a moment before it has stored its token.
	if [ -e "$XDG_CONFIG_HOME/berth/client.toml" ]; then break; fi
	sleep 0.1
done

# Something to find: a node, an instance, a group, a token of each kind.
token=$(grep --only-matching --extended-regexp 'berth_[0-9a-f]{16}_[0-9a-f]{64}' "$XDG_CONFIG_HOME/berth/client.toml" | head -n 1)
auth="authorization: Bearer $token"
json='content-type: application/json'
curl -sf -X PUT "$url/v1/nodes/0" -H "$auth" -H "$json" \
	-d '{"id":"0","capacity":{"cpu_milli":64000,"memory_mib":262144,"disk_mib":1000000,"bandwidth_mbps":10000},"zone":"z","rack":"r"}' >/dev/null
curl -sf -X POST "$url/v1/placements" -H "$auth" -H "$json" \
	-d '{"tenant":"0","instances":[{"resources":{"cpu_milli":1000,"memory_mib":1024},"count":3}]}' >/dev/null
curl -sf -X PUT "$url/v1/groups/0" -H "$auth" -H "$json" -d '{"kind":"apart","strength":"soft","topology":"node"}' >/dev/null

# Streams have no end, and a wrong method is answered by the router for all paths alike.
# Data that the document cannot rule out (a policy that means nothing, say) is refused by the server.
status=0
"$schemathesis" run "$url/openapi.json" \
	--header "$auth" \
	--checks not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance,use_after_free \
	--exclude-path-regex '/stream$' \
	--phases examples,coverage,fuzzing \
	--max-examples "$examples" --request-timeout 30 --seed "${SEED:-1}" --no-color || status=$?
if ! kill -0 "$server" 2>/dev/null; then
	echo 'the server did not survive:' >&2
	cat "$folder/log" >&2
	exit 1
fi
if grep --extended-regexp 'ERROR|panicked|broke off' "$folder/log" >&2; then
	status=1
fi
exit "$status"
