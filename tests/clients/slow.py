"""Clients that take their last answers slowly while the gateway ends: slow.py http2|http3 ADDRESS:PORT PID

Route: /big (600 kB), which the gateway can have passed on to the kernel, or to QUIC, before the client has read it.
"""

import os
import signal
import socket
import sys
import time

WHAT, ADDRESS, PID = sys.argv[1], sys.argv[2], int(sys.argv[3])

# Longer than a gateway waits for one that has everything; shorter than for one that has not.
PAUSE = 3


def over_http2():
    from h2.settings import SettingCodes
    from http2 import Connection

    class Narrow(socket.socket):
        """One of little room, of which the kernel takes what it is given."""

        def __init__(self, *rest, **named):
            super().__init__(*rest, **named)
            self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 128 << 10)

    wide, socket.socket = socket.socket, Narrow
    one = Connection(ADDRESS)
    socket.socket = wide
    one.inner.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20})
    one.inner.increment_flow_control_window(1 << 20)
    number = one.request("GET", "/big")
    one.until(lambda: one.streams[number].head)
    time.sleep(0.5)
    os.kill(PID, signal.SIGQUIT)
    time.sleep(PAUSE)
    # To a socket that is closed, this is a reason for a reset.
    one.socket.sendall(b"\0\0\x08\x06\0\0\0\0\0" + b"12345678")
    time.sleep(0.5)
    answer = one.answer(number)
    assert answer.ended and len(answer.data) == 600_000, (answer.reset, len(answer.data))
    while not one.closed:
        one.read()
    assert one.goaways and all(code == 0 for _, code in one.goaways), one.goaways


def over_http3():
    from http3 import Connection, Gone

    one = Connection(ADDRESS).shake()
    number = one.request("GET", "/big")
    one.until(lambda: one.streams[number].data)
    os.kill(PID, signal.SIGQUIT)
    # Nothing is read, and nothing acknowledged.
    time.sleep(PAUSE)
    answer = one.answer(number)
    assert answer.ended and len(answer.data) == 600_000, (answer.reset, len(answer.data))
    try:
        one.until(lambda: False)
    except Gone as gone:
        assert gone.args[0][0] == 0x100, gone


{"http2": over_http2, "http3": over_http3}[WHAT]()
print("ok")
