#!/bin/sh
# try.sh ROOT USER HEALTH COMMAND LAYER…: unpacks the layers of an image below ROOT and runs COMMAND there as a container
# would: as USER, with a read-only root and a data volume. It serves one request and reports itself healthy.
# To be run in namespaces of its own: unshare --mount --net --pid --fork. COMMAND and HEALTH are words without quotes.
set -eu
root=$1 user=$2 health=$3 command=$4
shift 4

ip link set lo up
mount --make-rprivate /
mount -t tmpfs image "$root"
for layer in "$@"; do
    tar --extract --gzip --same-owner --same-permissions --numeric-owner --directory "$root" --file "$layer"
done
mkdir -p "$root/proc" "$root/dev"
mount -o remount,ro "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=0755 dev "$root/dev"
for device in null zero random urandom; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"
# A new volume has the owner and mode of the folder in the image.
mount -t tmpfs -o "mode=$(stat -c %a "$root/var/lib/sluice"),uid=$(stat -c %u "$root/var/lib/sluice"),gid=$(stat -c %g "$root/var/lib/sluice")" \
    data "$root/var/lib/sluice"
for licence in LICENSE THIRD-PARTY-LICENSES; do
    if ! [ -s "$root/usr/share/doc/sluice/$licence" ]; then
        echo "try.sh: the image lacks $licence" >&2
        exit 1
    fi
done
if touch "$root/etc/written" 2> /dev/null; then
    echo "try.sh: the root file system is writable" >&2
    exit 1
fi

# Words instead of a function, which would be a process between this one and the gateway.
contained="env --ignore-environment PATH=/usr/sbin:/usr/bin:/sbin:/bin SLUICE_ADMIN_KEY=key-of-this-try-0001
    setpriv --no-new-privs chroot --userspec=$user --groups= $root"

$contained $command &
gateway=$!
tries=0
until curl --silent --fail --output /dev/null http://127.0.0.1:7085/status/ready; do
    tries=$((tries + 1))
    if [ $tries -gt 200 ] || ! kill -0 $gateway; then
        echo "try.sh: the gateway is not ready" >&2
        exit 1
    fi
    sleep 0.1
done
if ! grep -q "^Uid:[[:space:]]*${user%%:*}[[:space:]]" "$root/proc/$gateway/status"; then
    echo "try.sh: the gateway does not run as $user" >&2
    exit 1
fi
curl --silent --show-error --fail -X PUT http://127.0.0.1:9180/apisix/admin/routes/1 -H "X-API-KEY: key-of-this-try-0001" \
    -d '{"uri": "/*", "plugins": {"fault-injection": {"abort": {"http_status": 200, "body": "served"}}}}'
echo
[ "$(curl --silent --show-error --fail http://127.0.0.1:9080/)" = served ]
$contained $health
kill -QUIT $gateway
wait $gateway
if $contained $health 2> /dev/null; then
    echo "try.sh: a stopped gateway is reported as healthy" >&2
    exit 1
fi
echo "try.sh: served a request as user $user"
