#!/usr/bin/env bash
# Generates the code of the client from an OpenAPI document, a file or a server's:
#
#   clients/python/generate.sh openapi.json
#   clients/python/generate.sh http://127.0.0.1:7717/openapi.json
#
# Needs openapi-python-client and ruff on the PATH.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
output=$here/src/berth_client/generated

case $1 in
http*) source=(--url "$1") ;;
*) source=(--path "$1") ;;
esac
log=$(mktemp)
trap 'rm -f "$log"' EXIT
openapi-python-client generate "${source[@]}" --output-path "$output" --overwrite --meta none >"$log" 2>&1 ||
	{ cat "$log" >&2; exit 1; }
# Bodies that are not JSON (TOML, CSV, exports) have no functions; nothing else may be left out.
if grep -A2 'Unable to process\|Failure to process' "$log" >&2; then
	echo 'the generator left out a schema' >&2
	exit 1
fi
touch "$output/py.typed"
