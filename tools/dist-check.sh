#!/usr/bin/env bash
# Tries what `make dist` made in a clean Debian root: install the package, start the server, place an
# instance, read a manual page and completions, remove the package. Needs root and debootstrap.
#
#   tools/dist-check.sh FOLDER-OF-PACKAGES FOLDER-OF-THE-ROOT
set -euo pipefail

packages=$1
root=$2

fail() {
	echo "dist-check: $*" >&2
	exit 1
}

if [ ! -e "$root/ready" ]; then
	rm -rf "$root"
	codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
	mirror=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' | awk -v release="$codename" '$1 == release && !seen++ { print $2 }')
	debootstrap --variant=minbase --include=curl,ca-certificates,man-db,bash-completion \
		"$codename" "$root" "$mirror" >"$root.log" 2>&1 ||
		{ tail -5 "$root.log" >&2; fail "debootstrap failed; see $root.log"; }
	touch "$root/ready"
fi

mount -t proc proc "$root/proc" 2>/dev/null || true
server=
cleanup() {
	[ -z "$server" ] || kill "$server" 2>/dev/null || true
	umount "$root/proc" 2>/dev/null || true
}
trap cleanup EXIT

inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "$@"; }

deb=$(ls "$packages"/berth_*.deb)
cp "$deb" "$root/berth.deb"
inside dpkg -i /berth.deb
[ -z "$(inside dpkg --verify berth)" ] || fail 'dpkg --verify finds differences'
inside berth --version
inside berth config check /etc/berth/berth.toml >/dev/null || fail 'the settings that are shipped are refused'
# Debian's images leave manual pages out when they install packages, unless told otherwise.
[ "$(dpkg-deb --contents "$deb" | grep -c 'man1/berth.*\.1\.gz')" -gt 20 ] || fail 'manual pages are missing'
inside bash -c '. /usr/share/bash-completion/bash_completion && _completion_loader berth; complete -p berth' >/dev/null ||
	fail 'bash does not find the completions'

port=$((20000 + RANDOM % 20000))
chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/root BERTH_CONFIG=/tmp/client.toml \
	berth up --listen "127.0.0.1:$port" --data-dir /tmp/berth-data >"$root.server.log" 2>&1 &
server=$!
for _ in $(seq 100); do
	if inside curl -fsS "http://127.0.0.1:$port/readyz" >/dev/null 2>&1; then break; fi
	sleep 0.2
done
inside curl -fsS "http://127.0.0.1:$port/readyz" >/dev/null || { cat "$root.server.log" >&2; fail 'the server does not become ready'; }
command_line() { inside BERTH_CONFIG=/tmp/client.toml berth "$@"; }
command_line nodes register node-1 --cpu 16 --memory 64GiB --disk 100GiB >/dev/null
command_line place --tenant demo --cpu 2 --memory 4GiB | grep -q node-1 || fail 'nothing was placed on node-1'
kill -TERM "$server"
wait "$server" || fail "the server did not stop cleanly: $?"
server=

inside dpkg --purge berth >/dev/null
[ ! -e "$root/usr/bin/berth" ] || fail 'the program is still there after the package was removed'

# The tarball runs where it is unpacked, with nothing installed.
tarball=$(ls "$packages"/berth-*-linux-*.tar.gz | grep -v debug)
rm -rf "$root/unpacked" && mkdir "$root/unpacked"
tar -xzf "$tarball" -C "$root/unpacked" --strip-components=1
inside /unpacked/berth --version >/dev/null || fail 'the program of the tarball does not run'
echo 'dist-check: package and tarball work in a clean root'
