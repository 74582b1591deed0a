#!/bin/sh
# try.sh SLUICE FOLDER: starts the gateway with a config.yaml and an apisix.yaml of the chart, mounted as Kubernetes mounts
# ConfigMaps, and replaces apisix.yaml as Kubernetes does: the change is live without a restart.
# To be run in namespaces of its own: unshare --mount --net --pid --fork.
set -eu
sluice=$1 folder=$2
ip link set lo up

mkdir "$folder/mounted" "$folder/mounted/..first" "$folder/mounted/..second"
cp "$folder/config.yaml" "$folder/apisix.yaml" "$folder/mounted/..first"
cp "$folder/config.yaml" "$folder/mounted/..second"
sed 's/body: served/body: changed/' "$folder/apisix.yaml" > "$folder/mounted/..second/apisix.yaml"
ln -s ..first "$folder/mounted/..data"
ln -s ..data/config.yaml "$folder/mounted/config.yaml"
ln -s ..data/apisix.yaml "$folder/mounted/apisix.yaml"

"$sluice" run "$folder/mounted" --data "$folder/data" &
gateway=$!

# until WORDS… holds, for at most 20 s
await() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        if [ $tries -gt 200 ] || ! kill -0 $gateway; then
            echo "try.sh: in vain: $*" >&2
            exit 1
        fi
        sleep 0.1
    done
}
answers() {
    [ "$(curl --silent http://127.0.0.1:9080/)" = "$1" ]
}

await curl --silent --fail --output /dev/null http://127.0.0.1:7085/status/ready
curl --silent --fail --output /dev/null http://127.0.0.1:7085/status
await answers served
ln -s ..second "$folder/mounted/..new"
mv -T "$folder/mounted/..new" "$folder/mounted/..data"
await answers changed
kill -QUIT $gateway
wait $gateway
echo "try.sh: served apisix.yaml, and its change"
