# Starts a server for a check, on a free port and in a folder that are its own. To be sourced:
#
#   start_server BERTH [OPTION...]
#
# sets $url, $folder and $server (its process), exports a HOME of its own, and stops the server and
# removes the folder when the script ends.
# shellcheck shell=bash

folder=$(mktemp -d)
server=

stop_server() {
	if [ -n "$server" ]; then
		kill "$server" 2>/dev/null || true
		wait "$server" 2>/dev/null || true
	fi
	rm -rf "$folder"
}
trap stop_server EXIT

start_server() {
	local berth=$1 port
	shift
	port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
	url=http://127.0.0.1:$port
	export HOME=$folder XDG_CONFIG_HOME=$folder/config XDG_DATA_HOME=$folder/data
	"$berth" up --data-dir "$folder/berth" --listen "127.0.0.1:$port" "$@" >"$folder/log" 2>&1 &
	server=$!
	for _ in $(seq 300); do
		if curl --fail --silent --output /dev/null "$url/readyz"; then return; fi
		sleep 0.1
	done
	echo 'the server did not become ready:' >&2
	cat "$folder/log" >&2
	exit 1
}
