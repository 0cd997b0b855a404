#!/usr/bin/env bash
# Generates a Python client from the OpenAPI document of a running server, and places, waits and reads
# a refusal with it.
#
#   tools/python-client.sh BERTH VENV
set -euo pipefail

berth=$1
venv=$(cd "$2" && pwd)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

folder=$(mktemp -d)
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=http://127.0.0.1:$port
server=

stop() {
	if [ -n "$server" ]; then
		kill "$server" 2>/dev/null || true
		wait "$server" 2>/dev/null || true
	fi
	rm -rf "$folder"
}
trap stop EXIT

export HOME=$folder XDG_CONFIG_HOME=$folder/config XDG_DATA_HOME=$folder/data
"$berth" up --data-dir "$folder/berth" --listen "127.0.0.1:$port" --no-sign-in >"$folder/log" 2>&1 &
server=$!
for _ in $(seq 300); do
	if curl --fail --silent --output /dev/null "$url/readyz"; then break; fi
	sleep 0.1
done

curl -sf "$url/openapi.json" >"$folder/openapi.json"
"$venv/bin/openapi-spec-validator" "$folder/openapi.json"
# The generator names an object inside an alternative twice, and then leaves the alternative out.
python3 - "$folder/openapi.json" <<'PYTHON'
import json, sys

def loosen(schema):
    for name, part in list(schema.get("properties", {}).items()):
        part = part.get("items", part) if part.get("type") == "array" else part
        if part.get("type") == "object" and "properties" not in part:
            schema["properties"][name] = {"description": schema["properties"][name].get("description", "")}

document = json.load(open(sys.argv[1]))
for schema in document["components"]["schemas"].values():
    for alternative in schema.get("oneOf", []):
        loosen(alternative)
json.dump(document, open(sys.argv[1], "w"))
PYTHON
export PATH=$venv/bin:$PATH
# Warnings are about bodies that are not JSON (TOML, CSV, metrics): such routes are left out.
openapi-python-client generate --path "$folder/openapi.json" --output-path "$folder/berth_api_client" \
	--meta none >"$folder/generated" 2>&1 || { cat "$folder/generated" >&2; exit 1; }
PYTHONPATH=$folder python3 "$here/python-client-test.py" "$url"
