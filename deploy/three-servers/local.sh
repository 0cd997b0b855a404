#!/usr/bin/env bash
# Three servers on one temporary PostgreSQL behind nginx, all on this machine, for trying out.
# Everything is in one folder and ends with this script.
#
#   deploy/three-servers/local.sh [--berth PATH] [--port PORT] [--folder FOLDER]
#
# The balancer listens on PORT (7070), the servers on the three ports after it. FOLDER holds data,
# logs, process ids (server-N.pid) and the admin's client.toml; one is made when none is named.
# Prints "ready" when everything answers.

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
berth=
port=7070
folder=

usage() {
    sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || usage
    case $1 in
        --berth) berth=$2 ;;
        --port) port=$2 ;;
        --folder) folder=$2 ;;
        *) usage ;;
    esac
    shift 2
done

fail() {
    echo "local.sh: $1" >&2
    exit 1
}

if [ -z "$berth" ]; then
    target=${CARGO_TARGET_DIR:-$here/../../target}
    for candidate in "$target/release/berth" "$target/debug/berth" "$(command -v berth || true)"; do
        if [ -x "$candidate" ]; then
            berth=$candidate
            break
        fi
    done
fi
[ -x "$berth" ] || fail "no berth binary: build one (cargo build), or name it with --berth"
nginx=$(PATH=$PATH:/usr/sbin command -v nginx) || fail "nginx is missing: apt-get install nginx-light"
initdb=$(ls -d /usr/lib/postgresql/*/bin/initdb 2>/dev/null | sort -V | tail -n 1 || true)
[ -n "$initdb" ] || initdb=$(command -v initdb) || fail "PostgreSQL is missing: apt-get install postgresql"
bin=$(dirname "$initdb")

if [ -n "$folder" ]; then
    mkdir -p "$folder"
    folder=$(cd "$folder" && pwd)
    keep=yes
else
    folder=$(mktemp -d)
    keep=
fi

# PostgreSQL refuses to run as root.
as_owner=()
if [ "$(id -u)" -eq 0 ]; then
    as_owner=(setpriv --reuid=postgres --regid=postgres --clear-groups --)
    chmod o+x "$folder"
fi

started=()
database=
stop_all() {
    trap - EXIT INT TERM
    # Balancer first, so that nobody sees a server go; then servers, then what they stand on.
    for process in "${started[@]}"; do
        kill "$process" 2>/dev/null || true
        while kill -0 "$process" 2>/dev/null; do sleep 0.1; done
    done
    if [ -n "$database" ]; then
        "${as_owner[@]}" "$bin/pg_ctl" stop --pgdata "$folder/database" --mode fast --silent || true
    fi
    [ -n "$keep" ] || rm -rf "$folder"
}
trap stop_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir -p "$folder/database" "$folder/socket"
if [ "$(id -u)" -eq 0 ]; then
    chown postgres:postgres "$folder/database" "$folder/socket"
fi
if [ ! -e "$folder/database/PG_VERSION" ]; then
    (cd /; "${as_owner[@]}" "$initdb" --pgdata "$folder/database" --username berth --auth trust \
        --encoding UTF8 --no-locale --no-sync) >"$folder/initdb.log" 2>&1 ||
        fail "initdb failed: $(tail -n 3 "$folder/initdb.log")"
fi
# Only a socket: no port is taken, and nobody else reaches it.
options="-c listen_addresses= -c unix_socket_directories=$folder/socket -c max_connections=200"
(cd /; "${as_owner[@]}" "$bin/pg_ctl" start --pgdata "$folder/database" --wait --silent \
    --log "$folder/socket/postgres.log" --options "$options") ||
    fail "PostgreSQL did not start: $(tail -n 3 "$folder/socket/postgres.log")"
database=yes
psql() {
    "$bin/psql" --host "$folder/socket" --username berth --no-psqlrc --quiet "$@"
}
if [ -z "$(psql --dbname postgres -Atc "SELECT 1 FROM pg_database WHERE datname = 'berth'")" ]; then
    psql --dbname postgres --command 'CREATE DATABASE berth'
fi
url="postgres://berth@/berth?host=$folder/socket"

answers() {
    local tries=0
    until curl --silent --fail --max-time 2 --output /dev/null "$1"; do
        tries=$((tries + 1))
        [ "$tries" -lt 300 ] || fail "$1 does not answer; the logs are in $folder"
        if [ -n "${2:-}" ] && ! kill -0 "$2" 2>/dev/null; then
            fail "a server ended: $(tail -n 3 "$3")"
        fi
        sleep 0.2
    done
}

servers=()
for number in 1 2 3; do
    at=127.0.0.1:$((port + number))
    # The first makes the admin's token, for the balancer's address: see below.
    BERTH_CONFIG=$folder/server-$number.toml "$berth" up --listen "$at" \
        --data-dir "$folder/server-$number" --database-url "$url" \
        >"$folder/server-$number.log" 2>&1 &
    server=$!
    servers+=("$server")
    started=("$server" "${started[@]}")
    echo "$server" >"$folder/server-$number.pid"
    # One after the other: the first makes the tables.
    answers "http://$at/readyz" "$server" "$folder/server-$number.log"
done
if [ -e "$folder/server-1.toml" ]; then
    (umask 077; sed "s|^url = .*|url = \"http://127.0.0.1:$port\"|" "$folder/server-1.toml" >"$folder/client.toml")
fi

mkdir -p "$folder/nginx/temp"
sed -e "s/127\.0\.0\.1:7070/127.0.0.1:$port/" \
    -e "s/127\.0\.0\.1:7071/127.0.0.1:$((port + 1))/" \
    -e "s/127\.0\.0\.1:7072/127.0.0.1:$((port + 2))/" \
    -e "s/127\.0\.0\.1:7073/127.0.0.1:$((port + 3))/" \
    "$here/nginx.conf" >"$folder/nginx/nginx.conf"
"$nginx" -p "$folder/nginx" -c "$folder/nginx/nginx.conf" -e "$folder/nginx/error.log" -g 'daemon off;' &
balancer=$!
started=("$balancer" "${started[@]}")
echo "$balancer" >"$folder/nginx.pid"
answers "http://127.0.0.1:$port/readyz" "$balancer" "$folder/nginx/error.log"

echo "balancer  http://127.0.0.1:$port"
echo "servers   ${servers[*]} on ports $((port + 1)) to $((port + 3)), logs in $folder"
echo "try       BERTH_CONFIG=$folder/client.toml $berth nodes list"
echo "ready"
# Servers may be stopped and started by hand; this goes on until it is stopped itself.
wait "$balancer"
