#!/bin/sh
# dpkg calls this with `remove` and `purge`, rpm with 0 for a removal. Resources, keys and logs stay until a purge,
# which rpm does not have.
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
if [ "$1" = purge ]; then
    if command -v deb-systemd-helper >/dev/null; then
        deb-systemd-helper purge sluice.service >/dev/null || true
    fi
    rm -rf /var/lib/sluice /var/log/sluice /etc/sluice
fi
