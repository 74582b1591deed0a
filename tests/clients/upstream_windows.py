"""An HTTP/2 upstream looks at what it may send: upstream_windows.py ADDRESS:PORT PORT MIB

It listens on PORT and counts how much the gateway promises to take, on all connections together, beyond what every
connection has. Requests for /hold are answered when they are let go.
"""

import socket
import struct
import sys
import threading
import time

from http2 import Connection

PROXY, PORT, MOST = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) << 20
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
FIRST = 65535


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


class Served:
    """One connection of the gateway's."""

    def __init__(self, client):
        self.client, self.window, self.windows, self.first = client, FIRST, {}, FIRST
        self.lock = threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        got = b""
        while more := self.client.recv(65536):
            got += more
            if got.startswith(b"PRI"):
                got = got[24:]
                self.client.sendall(frame(SETTINGS, 0, 0, struct.pack(">HI", 3, 1000)))
            while len(got) >= 9 and len(got) >= 9 + int.from_bytes(got[:3], "big"):
                length = int.from_bytes(got[:3], "big")
                self.take(got[3], got[4], int.from_bytes(got[5:9], "big"), got[9 : 9 + length])
                got = got[9 + length :]

    def take(self, kind, flags, stream, payload):
        with self.lock:
            if kind == SETTINGS and not flags & 1:
                for at in range(0, len(payload), 6):
                    name, value = struct.unpack(">HI", payload[at : at + 6])
                    if name == 4:
                        self.first = value
                self.client.sendall(frame(SETTINGS, 1, 0))
            elif kind == PING and not flags & 1:
                self.client.sendall(frame(PING, 1, 0, payload))
            elif kind == WINDOW_UPDATE and stream == 0:
                self.window += int.from_bytes(payload, "big")
            elif kind == WINDOW_UPDATE:
                self.windows[stream] = self.windows.get(stream, self.first) + int.from_bytes(payload, "big")
            elif kind == HEADERS:
                begun.append((self, stream))
            self.lock.notify_all()

    def answer(self, stream, size):
        """A response of so many bytes, as the windows allow."""
        self.client.sendall(frame(HEADERS, 4, stream, b"\x88"))
        while size:
            with self.lock:
                room = lambda: min(self.window, self.windows.get(stream, self.first), 16000, size)
                assert self.lock.wait_for(lambda: room() > 0, 20), "no window"
                n = room()
                self.window -= n
                self.windows[stream] = self.windows.get(stream, self.first) - n
                size -= n
                self.client.sendall(frame(DATA, 0 if size else 1, stream, b"x" * n))


served = []
# Connections and streams in the order in which they came.
begun = []


def listen():
    listener = socket.create_server(("127.0.0.1", PORT))
    while True:
        served.append(Served(listener.accept()[0]))


def until(what, holds):
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def promised():
    return sum(one.window - FIRST for one in served)


def ask(count):
    """So many requests at a time, each of which has come to the upstream."""
    before = len(begun)
    client = Connection(PROXY)
    numbers = [client.request("POST", "/hold", [("content-type", "application/grpc")]) for _ in range(count)]
    until("the requests do not come", lambda: len(begun) >= before + count)
    return client, numbers


threading.Thread(target=listen, daemon=True).start()
time.sleep(0.2)
# Each wants 64 KiB, and there is not so much for all of them.
first, numbers = ask(90)
until("it does not grow", lambda: promised() > MOST // 2)
assert promised() <= MOST + 65536 * len(served), promised()
print("bounded: ok")
# One answer uses up what was promised for all; then the next ones get it.


def answer_all(client, numbers, size):
    for owner, stream in begun[-len(numbers) :]:
        threading.Thread(target=owner.answer, args=(stream, size), daemon=True).start()
    for number in numbers:
        stream = client.answer(number)
        assert len(stream.data) == size, len(stream.data)


answer_all(first, numbers, 1000)
# Those that have no window of the usual size share connections, sixteen at a time.
assert 1 < len(served) <= 6, len(served)
answer_all(*ask(1), 2 * MOST)
until("it stays", lambda: promised() < MOST // 2)
again, numbers = ask(90)
until("it does not grow again", lambda: promised() > MOST // 2)
assert promised() <= MOST + 65536 * len(served), promised()
print("given back: ok")
