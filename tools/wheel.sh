#!/usr/bin/env bash
# Builds the Python client as a wheel, generated from the OpenAPI document of the program that is
# packaged with it. The client has the version of the program.
#
#   tools/wheel.sh BERTH VENV FOLDER
set -euo pipefail

berth=$1
venv=$(cd "$2" && pwd)
mkdir -p "$3"
out=$(cd "$3" && pwd)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=$("$berth" --version | awk '{ print $2 }')

. "$here/server.sh"
start_server "$berth" --no-sign-in

export PATH=$venv/bin:$PATH
# The same files get the same bytes.
SOURCE_DATE_EPOCH=$(git -C "$here" log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH
curl -sf "$url/openapi.json" >"$folder/openapi.json"
cp -r "$here/../clients/python" "$folder/client"
sed -i "s/^version = .*/version = \"$version\"/" "$folder/client/pyproject.toml"
"$folder/client/generate.sh" "$folder/openapi.json"
cd "$folder/client"
hatchling build -t wheel -d "$out" >/dev/null

# It can be imported from nothing but the wheel and what it depends on.
wheel=$(ls "$out"/berth_client-"$version"-*.whl)
pip install --quiet --disable-pip-version-check --no-deps --target "$folder/installed" "$wheel"
cd "$folder"
PYTHONPATH=$folder/installed python3 -c 'from berth_client import Berth, Refused; import berth_client.generated.models'
