#!/bin/sh
# rootfs.sh BINARY FOLDER: the layers of the image as folders below FOLDER, for `cargo x package` and for the Dockerfile.
# The licences are beside BINARY.
#
#   base  the shared libraries the binary needs, authorities for TLS, the user: changes rarely
#   app   the binary, its configuration and licence
#   data  the data folder, which belongs to the user of the image
#
# Runs on Debian, whose package ca-certificates has the authorities. Those that this machine added itself stay out.
set -eu
umask 022
binary=$1
out=$2
here=$(dirname "$0")
authorities=/usr/share/ca-certificates/mozilla

mkdir -p "$out/base/etc/ssl/certs" "$out/base/usr/bin" "$out/base/usr/share/doc" "$out/base/var/lib" "$out/base/tmp"
chmod 1777 "$out/base/tmp"
echo 'sluice:x:65532:65532:Sluice:/var/lib/sluice:/sbin/nologin' > "$out/base/etc/passwd"
echo 'sluice:x:65532:' > "$out/base/etc/group"
if ! [ -d "$authorities" ]; then
    echo "rootfs.sh: $authorities is missing; install the Debian package ca-certificates" >&2
    exit 1
fi
cat "$authorities"/*.crt > "$out/base/etc/ssl/certs/ca-certificates.crt"
ldd "$binary" | sed -n -e 's/^.* => \(\/[^ ]*\) .*$/\1/p' -e 's/^[[:space:]]*\(\/[^ ]*\) (.*$/\1/p' > "$out/libraries"
if ! grep -q / "$out/libraries"; then
    echo "rootfs.sh: ldd names no library of $binary" >&2
    exit 1
fi
while read -r library; do
    install -D -m 0755 "$library" "$out/base$library"
done < "$out/libraries"
rm "$out/libraries"
for package in libc6 libgcc-s1 ca-certificates; do
    install -D -m 0644 "/usr/share/doc/$package/copyright" "$out/base/usr/share/doc/$package/copyright"
done

install -D -m 0755 "$binary" "$out/app/usr/bin/sluice"
install -D -m 0644 "$here/config.yaml" "$out/app/etc/sluice/config.yaml"
for licence in LICENSE THIRD-PARTY-LICENSES; do
    install -D -m 0644 "$(dirname "$binary")/$licence" "$out/app/usr/share/doc/sluice/$licence"
done

mkdir -p "$out/data/var/lib/sluice"
chmod 0700 "$out/data/var/lib/sluice"
