#!/bin/sh
# Stops the gateway before its files go. dpkg calls this with `remove`, rpm with 0; an upgrade leaves it running.
set -e
case "$1" in
    remove | 0) ;;
    *) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
    systemctl stop sluice.service || true
    # dpkg keeps the choice of the administrator until the purge.
    [ "$1" = remove ] || systemctl disable sluice.service >/dev/null 2>&1 || true
fi
