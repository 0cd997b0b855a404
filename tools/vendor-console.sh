#!/usr/bin/env bash
# Fetches the libraries of the console from the npm registry, in the versions below, into
# crates/berth-server/console/vendor, and writes VENDORED there: what is from where, with hashes.
#
# Usage: tools/vendor-console.sh           fetch, and write VENDORED
#        tools/vendor-console.sh --check   compare what is there with VENDORED; needs no network
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=crates/berth-server/console/vendor

preact=11.2.0
htm=3.1.1
uplot=1.6.32

if [ "${1:-}" = --check ]; then
	cd "$folder"
	sed -n 's/^    \([0-9a-f]\{64\}\)  \([^ ]*\)$/\1  \2/p' VENDORED | sha256sum --check --quiet
	exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$work" && npm init -y >/dev/null &&
	npm install --silent --ignore-scripts "preact@$preact" "htm@$htm" "uplot@$uplot")
from=$work/node_modules

# Only two changes: a bare import becomes a relative one, because import maps need a script in the
# page, and no file names a source map that is not there.
adapt() {
	sed -e 's#from"preact"#from"./preact.js"#g' -e "s#from 'preact'#from './preact.js'#g" \
		-e '/^\/\/# sourceMappingURL=/d' -e 's#//\# sourceMappingURL=.*$##' "$1" >"$folder/$2"
}
adapt "$from/preact/dist/preact.mjs" preact.js
adapt "$from/preact/hooks/dist/hooks.mjs" hooks.js
adapt "$from/htm/dist/htm.mjs" htm.js
adapt "$from/uplot/dist/uPlot.esm.js" uplot.js
adapt "$from/uplot/dist/uPlot.min.css" uplot.css
cp "$from/preact/LICENSE" "$folder/LICENSE-preact"
cp "$from/htm/LICENSE" "$folder/LICENSE-htm"
cp "$from/uplot/LICENSE" "$folder/LICENSE-uplot"

integrity() {
	(cd "$work" && node -p "require('./package-lock.json').packages['node_modules/$1'].integrity")
}
{
	echo 'Libraries of the console, fetched by tools/vendor-console.sh. Do not edit them here.'
	for package in "preact $preact MIT" "htm $htm Apache-2.0" "uplot $uplot MIT"; do
		read -r name version licence <<<"$package"
		echo
		echo "$name $version, $licence (LICENSE-$name)"
		echo "  package $(integrity "$name")"
	done
	echo
	echo 'sha256 of the files here:'
	(cd "$folder" && sha256sum -- *.js *.css LICENSE-* | sed 's/^/    /')
} >"$folder/VENDORED"
