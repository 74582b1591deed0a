#!/bin/sh
# dpkg calls this with `configure` and, for an upgrade, the version that was replaced; rpm with the number of
# versions that are installed now.
set -e
case "$1" in
    configure | 1) ;;
    [2-9]*) ;;
    *) exit 0 ;;
esac
systemd=
if [ -d /run/systemd/system ]; then
    systemd=yes
    systemctl daemon-reload || true
fi

# The user's choice to enable the service or not is kept; a first installation enables it, as is usual.
if [ "$1" = configure ] && command -v deb-systemd-helper >/dev/null; then
    if deb-systemd-helper --quiet was-enabled sluice.service; then
        deb-systemd-helper enable sluice.service >/dev/null || true
    else
        deb-systemd-helper update-state sluice.service >/dev/null || true
    fi
elif [ "$1" = 1 ] && [ -n "$systemd" ]; then
    systemctl preset sluice.service >/dev/null 2>&1 || true
fi

# A running gateway starts the new program, which takes over without losing a connection. If the new one does not
# start, the old one continues. The installation is complete in both cases.
failed=
if [ -n "$systemd" ]; then
    if systemctl is-active --quiet sluice.service; then
        systemctl reload sluice.service || failed=yes
    elif [ "$1" = configure ]; then
        # Debian starts services; those that are disabled, or forbidden by policy-rc.d, are not started.
        deb-systemd-invoke start sluice.service || true
    fi
elif sluice status /etc/sluice >/dev/null 2>&1; then
    sluice upgrade /etc/sluice || failed=yes
fi
if [ -n "$failed" ]; then
    echo "sluice: the gateway still runs its previous version; its log says why. Run 'systemctl reload sluice'" >&2
    echo "again, or 'systemctl restart sluice', which closes connections." >&2
fi
