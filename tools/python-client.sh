#!/usr/bin/env bash
# Checks the OpenAPI document of a running server, builds the Python client from it, and runs the
# client's tests with what was built.
#
#   tools/python-client.sh BERTH VENV
set -euo pipefail

berth=$1
venv=$(cd "$2" && pwd)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

. "$here/server.sh"
start_server "$berth" --no-sign-in

export PATH=$venv/bin:$PATH
curl -sf "$url/openapi.json" >"$folder/openapi.json"
openapi-spec-validator "$folder/openapi.json"
cp -r "$here/../clients/python" "$folder/client"
"$folder/client/generate.sh" "$folder/openapi.json"
ruff check --quiet "$folder/client"
pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	--target "$folder/installed" "$folder/client"
cd "$folder/client/tests"
BERTH_URL=$url PYTHONPATH=$folder/installed python3 -m pytest --quiet -p no:cacheprovider .
