#!/usr/bin/env bash
# Makes what people install of a release binary: a tarball, a Debian package, and debug information
# in a tarball of its own.
#
#   tools/dist.sh BINARY DEBUG-INFORMATION FOLDER
set -euo pipefail

binary=$1
debug=$2
out=$3

version=$("$binary" --version | awk '{ print $2 }')
architecture=$(dpkg --print-architecture)
name=berth-$version-linux-$architecture
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# The same files get the same bytes: one owner, one order, the time of the last commit.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH
reproducible=(--owner=0 --group=0 --numeric-owner --sort=name "--mtime=@$SOURCE_DATE_EPOCH")

install_tree() { # ROOT: everything under usr and etc, as the Debian package has it
	local root=$1
	install -Dm755 "$binary" "$root/usr/bin/berth"
	strip --strip-unneeded "$root/usr/bin/berth"
	install -Dm644 deploy/systemd/berth.service "$root/usr/lib/systemd/system/berth.service"
	install -Dm644 deploy/berth.toml "$root/etc/berth/berth.toml"
	install -d "$root"/usr/share/{bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d,man/man1}
	"$binary" completions bash >"$root/usr/share/bash-completion/completions/berth"
	"$binary" completions zsh >"$root/usr/share/zsh/vendor-completions/_berth"
	"$binary" completions fish >"$root/usr/share/fish/vendor_completions.d/berth.fish"
	"$binary" man --out "$root/usr/share/man/man1" 2>/dev/null
	gzip -9n "$root"/usr/share/man/man1/*.1
	install -Dm644 README.md "$root/usr/share/doc/berth/README.md"
	gzip -9nc CHANGELOG.md >"$root/usr/share/doc/berth/changelog.gz"
	{
		echo 'Berth is licensed under the Apache License 2.0 or the MIT License, as you choose.'
		echo
		cat LICENSE-MIT
		echo
		cat LICENSE-APACHE
	} >"$root/usr/share/doc/berth/copyright"
	chmod 644 "$root/usr/share/doc/berth"/* "$root"/usr/share/*/*/berth* "$root/usr/share/zsh/vendor-completions/_berth"
}

shared_libraries() { # BINARY: the packages whose libraries it needs, as a Depends field
	mkdir -p "$folder/shlibdeps/debian"
	printf 'Source: berth\n\nPackage: berth\nArchitecture: any\n' >"$folder/shlibdeps/debian/control"
	(cd "$folder/shlibdeps" && dpkg-shlibdeps -O "$1") | sed -n 's/^shlibs:Depends=//p'
}

mkdir -p "$out"
root=$folder/deb
install_tree "$root"

# The tarball has the same files in one folder, with the program at its top.
tree=$folder/$name
mkdir -p "$tree"
cp -a "$root/usr/bin/berth" README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT "$tree/"
cp -a "$root/usr/share/man/man1" "$tree/man1"
mkdir "$tree/completions" "$tree/systemd"
cp -a "$root/usr/share/bash-completion/completions/berth" "$tree/completions/berth.bash"
cp -a "$root/usr/share/zsh/vendor-completions/_berth" "$root/usr/share/fish/vendor_completions.d/berth.fish" "$tree/completions/"
cp -a deploy/systemd/berth.service deploy/berth.toml "$tree/systemd/"
tar "${reproducible[@]}" -C "$folder" -cf - "$name" | gzip -9n >"$out/$name.tar.gz"

if [ -e "$debug" ]; then
	tar "${reproducible[@]}" -C "$(dirname "$debug")" -cf - "$(basename "$debug")" | gzip -9n >"$out/$name-debug.tar.gz"
fi

mkdir -p "$root/DEBIAN"
sed -e "s/@VERSION@/$version/" -e "s/@ARCHITECTURE@/$architecture/" \
	-e "s/@DEPENDS@/$(shared_libraries "$root/usr/bin/berth")/" \
	-e "s/@INSTALLED_KIB@/$(du -sk --exclude=DEBIAN "$root" | cut -f1)/" \
	deploy/debian/control.in >"$root/DEBIAN/control"
install -m644 deploy/debian/conffiles "$root/DEBIAN/conffiles"
install -m755 deploy/debian/{postinst,prerm,postrm} "$root/DEBIAN/"
dpkg-deb --root-owner-group --build "$root" "$out/berth_${version}_$architecture.deb" >/dev/null

(cd "$out" && sha256sum "$name".tar.gz "$name"-debug.tar.gz berth_"${version}_$architecture".deb berth_client-"$version"-*.whl 2>/dev/null >SHA256SUMS) || true
ls -l "$out"
