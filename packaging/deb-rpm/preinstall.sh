#!/bin/sh
# Makes the user before the files are unpacked that belong to it. The user stays after a removal: an id that is
# given to another user later would own files that were left behind.
set -e
if ! getent group sluice >/dev/null; then
    groupadd --system sluice
fi
if ! getent passwd sluice >/dev/null; then
    nologin=/usr/sbin/nologin
    [ -x "$nologin" ] || nologin=/sbin/nologin
    useradd --system --gid sluice --home-dir /var/lib/sluice --no-create-home --shell "$nologin" \
        --comment "Sluice API gateway" sluice
fi
