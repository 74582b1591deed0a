#!/bin/sh
# Stands in for systemctl where `cargo x package --check` installs packages: no systemd runs in that folder. It does
# to the gateway what the unit says, and writes down its arguments.
echo "$*" >>/tmp/systemctl.log
pid=$(sluice status /etc/sluice --json 2>/dev/null | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p')
case "$1" in
    is-active) [ -n "$pid" ] ;;
    reload) setpriv --reuid=sluice --regid=sluice --init-groups -- sluice upgrade /etc/sluice ;;
    show) echo "${pid:-0}" ;;
    stop)
        [ -n "$pid" ] || exit 0
        kill "$pid"
        # It returns when the service has stopped.
        for _ in $(seq 200); do
            kill -0 "$pid" 2>/dev/null || exit 0
            sleep 0.1
        done
        exit 1
        ;;
esac
