"""A tunnel and a stream whose ends never close, when the gateway is told to stop: endless.py PORT STREAM_PORT FAR_PORT PID SIGNAL

What both routes lead to is to listen on the third port. Neither that server nor the clients close a connection by
themselves or answer a Close frame; that a connection has ended they see only when the gateway ends it.
"""

import base64
import hashlib
import os
import signal
import socket
import struct
import sys
import threading
import time

HOST = "127.0.0.1"
PROXY, STREAM, FAR, PID = map(int, sys.argv[1:5])
SIGNAL = getattr(signal, "SIG" + sys.argv[5])
# More than the limit of the case, which the log names.
PATIENCE = 40
PING = b"\x81\x84\0\0\0\0ping"
PONG = b"\x81\x04pong"
CLOSE = b"\x88\x02" + struct.pack(">H", 1001)
KEY = base64.b64encode(b"0123456789abcdef")
ACCEPT = base64.b64encode(hashlib.sha1(KEY + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())

# What came to the servers' ends, once the gateway has ended them.
ended = {}


def until(what, holds):
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def rest(end):
    """All that comes until the other side ends it."""
    came = b""
    try:
        while part := end.recv(4096):
            came += part
    except ConnectionResetError:
        pass
    return came


def head(end):
    came = b""
    while not came.endswith(b"\r\n\r\n"):
        part = end.recv(1)
        assert part, came
        came += part
    return came


def serve(end):
    name = "stream"
    if end.recv(1, socket.MSG_PEEK) == b"G":
        name = "tunnel"
        head(end)
        end.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + ACCEPT + b"\r\n\r\n"
        )
    for _ in range(1 + (name == "stream")):
        assert end.recv(len(PING), socket.MSG_WAITALL) == PING
        end.sendall(PONG)
    ended[name] = rest(end)


def serve_all(listener):
    while True:
        threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()


def ask(end):
    end.sendall(PING)
    assert end.recv(len(PONG), socket.MSG_WAITALL) == PONG


def refused():
    try:
        socket.create_connection((HOST, PROXY)).close()
    except ConnectionError:
        return True
    return False


def gone():
    try:
        with open(f"/proc/{PID}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


threading.Thread(target=serve_all, args=[socket.create_server((HOST, FAR))], daemon=True).start()
tunnel, stream = [socket.create_connection((HOST, port), PATIENCE) for port in (PROXY, STREAM)]
tunnel.sendall(
    b"GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + KEY + b"\r\n\r\n"
)
assert head(tunnel).startswith(b"HTTP/1.1 101 ")
ask(tunnel)
ask(stream)
os.kill(PID, SIGNAL)
until("nobody is taken any more", refused)
ask(stream)
print("the stream goes on")
assert (came := rest(tunnel)) == CLOSE, came
assert (came := rest(stream)) == b"", came
until("the servers' ends end", lambda: len(ended) == 2)
# Its frame is masked.
assert (len(ended["tunnel"]), ended["tunnel"][:2]) == (8, b"\x88\x82"), ended
assert ended["stream"] == b"", ended
print("all are ended")
until("the process ends", gone)
print("and it is gone")
