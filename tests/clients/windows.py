"""Bodies that no upstream reads, on many streams: windows.py ADDRESS:PORT TLS-ADDRESS:PORT PID PORT MIB

The upstream listens here, on PORT, and reads nothing of what is sent to /stall. Whatever the clients send, the gateway
must not grow by more than MIB, and it goes on serving /echo: to others, and on the same connections.
"""

import socket
import struct
import sys
import threading
import time

from http3 import Connection

HOST, PORT = sys.argv[1].split(":")
ADDRESS, TLS, PID, UPSTREAM, MIB = (HOST, int(PORT)), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
CONNECTIONS, STREAMS = 60, 100
DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 7, 8


def stall():
    listener = socket.create_server(("127.0.0.1", UPSTREAM), backlog=4096)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    kept = []
    while True:
        kept.append(listener.accept()[0])


threading.Thread(target=stall, daemon=True).start()


def memory():
    with open(f"/proc/{PID}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def post(path, stream):
    return frame(HEADERS, 4, stream, b"\x83\x86\x04" + bytes([len(path)]) + path + b"\x41\x01a")


class Client:
    """Sends as much as the windows allow, as every client must."""

    def __init__(self):
        self.socket = socket.create_connection(ADDRESS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.whole, self.first, self.streams, self.came = 65535, 65535, {}, b""
        self.statuses, self.broken = {}, None
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))

    def read(self, seconds):
        self.socket.settimeout(seconds)
        try:
            more = self.socket.recv(65536)
        except TimeoutError:
            return False
        assert more, "the connection was closed"
        self.came += more
        while len(self.came) >= 9 + int.from_bytes(self.came[:3], "big"):
            length, kind, flags = int.from_bytes(self.came[:3], "big"), self.came[3], self.came[4]
            stream = int.from_bytes(self.came[5:9], "big")
            payload, self.came = self.came[9 : 9 + length], self.came[9 + length :]
            if kind == SETTINGS and not flags & 1:
                for at in range(0, length, 6):
                    name, value = struct.unpack(">HI", payload[at : at + 6])
                    if name == 4:
                        self.first = value
                self.socket.sendall(frame(SETTINGS, 1, 0))
            elif kind == WINDOW_UPDATE and stream == 0:
                self.whole += int.from_bytes(payload, "big")
            elif kind == WINDOW_UPDATE:
                self.streams[stream] = self.streams.get(stream, self.first) + int.from_bytes(payload, "big")
            elif kind == HEADERS:
                self.statuses[stream] = payload[0]
            assert kind not in (RST_STREAM, GOAWAY), (kind, payload)
        return True

    def fill(self, stream):
        """All that may be sent on a stream."""
        while (n := min(self.whole, self.streams.get(stream, self.first), 16000)) > 0:
            try:
                self.socket.sendall(frame(DATA, 0, stream, b"x" * n))
            except OSError:
                # What the gateway said last tells why.
                while self.read(1):
                    pass
                raise
            self.whole -= n
            self.streams[stream] = self.streams.get(stream, self.first) - n

    def send(self, stream):
        """A small body."""
        self.socket.sendall(post(b"/echo", stream))
        end = time.monotonic() + 20
        while self.whole < 10 and time.monotonic() < end:
            self.read(1)
        assert self.whole >= 10, "no window for another stream"
        self.whole -= 10
        self.socket.sendall(frame(DATA, 1, stream, b"0123456789"))
        while stream not in self.statuses and time.monotonic() < end:
            self.read(1)
        assert self.statuses.get(stream) == 0x88, self.statuses


def settle(client):
    while client.read(0.05):
        pass


def served():
    """A client that the gateway serves. One that has waited long to be accepted, as on a machine that is busy with
    something else, is told so with 503 and asks once more."""
    for _ in range(20):
        client = Client()
        settle(client)
        if not client.came.startswith(b"HTTP/1.1 503 "):
            return client
        client.socket.close()
    raise AssertionError("the gateway refuses everybody")


def give_back():
    """Connections that had many bodies each, and stay: the next one gets what they have used up."""
    stay = []
    for number in range(9):
        client = served()
        for stream in range(1, 41, 2):
            client.socket.sendall(post(b"/sink", stream))
        end = time.monotonic() + 20
        # The library tells of a larger window when it is worth a frame.
        while client.whole < 10 * client.first and time.monotonic() < end:
            client.read(0.2)
        assert client.whole >= 10 * client.first, f"connection {number} may send only {client.whole} bytes"
        for stream in range(1, 41, 2):
            client.socket.sendall(frame(DATA, 1, stream))
        while len(client.statuses) < 20 and time.monotonic() < end:
            client.read(0.2)
        assert set(client.statuses.values()) == {0x88}, client.statuses
        # One body more uses up what was promised for them.
        client.socket.sendall(post(b"/sink", 41))
        sent, size = 0, 40 * client.first
        while sent < size:
            n = min(client.whole, client.streams.get(41, client.first), 16000, size - sent)
            if n > 0:
                client.socket.sendall(frame(DATA, 0, 41, b"x" * n))
                client.whole -= n
                client.streams[41] = client.streams.get(41, client.first) - n
                sent += n
            else:
                assert client.read(20), "no window"
        client.socket.sendall(frame(DATA, 1, 41))
        while 41 not in client.statuses:
            assert client.read(20), "no answer"
        assert client.whole < 4 * client.first, f"the window stays at {client.whole} bytes"
        stay.append(client)


give_back()
print("given back: ok")

before = memory()
kept = []
for number in range(10):
    client = Connection(TLS).shake()
    for _ in range(STREAMS):
        stream = client.request("POST", "/stall", ends=False)
        client.send(stream, b"x" * 60000)
    # What is lost on the way, or waits for a window, goes out in time.
    for _ in range(400):
        client.read(0.001)
    assert client.closed is None, client.closed
    kept.append(client)
time.sleep(1)
grown = memory() - before
assert grown < MIB, f"HTTP/3 clients made it grow by {grown:.0f} MiB"
other = Connection(TLS).shake()
number = other.request("POST", "/echo", ends=False)
other.send(number, b"0123456789", ends=True)
assert other.answer(number).head[":status"] == "200"
print("HTTP/3: ok")
for client in kept:
    client.end()

before = memory()
clients = []
for number in range(CONNECTIONS):
    client = served()
    for stream in range(1, 2 * STREAMS, 2):
        client.socket.sendall(post(b"/stall", stream))
    settle(client)
    for stream in range(1, 2 * STREAMS, 2):
        client.fill(stream)
    clients.append(client)
    if number == 0:
        # There was room for this one, though a busy gateway may tell of it later: what its streams left unread does
        # not hold up another.
        end = time.monotonic() + 20
        while sum(client.streams.values()) > 0 and time.monotonic() < end:
            client.read(1)
            for stream in range(1, 2 * STREAMS, 2):
                client.fill(stream)
        sent = STREAMS * client.first - sum(client.streams.values())
        assert sent == STREAMS * client.first, f"the first connection could send only {sent} bytes"
        client.send(2 * STREAMS + 1)
time.sleep(1)
grown = memory() - before
assert grown < MIB, f"HTTP/2 clients made it grow by {grown:.0f} MiB"
served().send(1)
print("HTTP/2: ok")
