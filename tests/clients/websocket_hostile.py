"""WebSocket tunnels whose ends do what they like: websocket_hostile.py ADDRESS:PORT ADDRESS:PORT PORT PID

The addresses are the gateway's, in clear text and for TLS and HTTP/3. Servers listen here on the port: what they do once a
tunnel is open is the last part of its path. To the gateway a tunnel is bytes, whatever HTTP carries it: they arrive as
they are, cost what their bounds say, and harm nobody else.
"""

import base64
import hashlib
import os
import random
import socket
import struct
import sys
import threading
import time

import h2.exceptions

from http2 import Connection as Http2
from http3 import Connection as Http3
from http3 import Gone

PLAIN, TLS, PORT, PID = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
PATIENCE = 30
# Paths of tunnels that have ended, as their server saw it, and what came before a 101.
ended, early = [], []


def memory():
    for line in open(f"/proc/{PID}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024


def until(what, holds):
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def reset(sock):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


# The servers.


def serve(sock):
    head = b""
    while b"\r\n\r\n" not in head:
        part = sock.recv(1)
        if not part:
            return
        head += part
    path = head.split(b" ", 2)[1].decode()
    what = path.rsplit("/", 1)[1]
    key = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key:"))[18:].strip()
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    if what == "late":
        early.append(soon(sock))
    if what == "refuse":
        sock.sendall(b"HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno")
        # The connection may be kept; another request on it would be what the client said behind its own.
        early.append(soon(sock))
        return
    if what == "liar":
        accept = base64.b64encode(b"x" * 20)
    sock.sendall(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
        + accept + b"\r\n\r\n"
    )
    if what == "cut":
        # The head of a frame of 2^62 bytes, some of them, and the end.
        sock.sendall(b"\x82\x7f" + struct.pack(">Q", 1 << 62) + b"x" * 1000)
        sock.shutdown(socket.SHUT_WR)
    elif what == "reset":
        sock.sendall(b"\x82\x10abc")
        sock.recv(1)
        return reset(sock)
    elif what == "endless":
        try:
            while True:
                sock.sendall(os.urandom(65536))
        except OSError:
            ended.append(path)
            return
    try:
        while data := sock.recv(65536):
            if what != "deaf" and what != "cut":
                sock.sendall(data)
            elif what == "deaf":
                time.sleep(PATIENCE)
    except OSError:
        pass
    ended.append(path)


def soon(sock):
    """What comes within a moment."""
    sock.settimeout(0.5)
    try:
        return sock.recv(1000)
    except TimeoutError:
        return b""
    finally:
        sock.settimeout(PATIENCE * 2)


def listen(listener):
    while True:
        sock, _ = listener.accept()
        sock.settimeout(PATIENCE * 2)
        threading.Thread(target=one, args=(sock,), daemon=True).start()


def one(sock):
    try:
        serve(sock)
    except OSError:
        pass
    sock.close()


# The clients: `send`, `receive` so many bytes, `over` when the other side has ended, `leave` without a word.


class ByHttp1:
    def __init__(self, path, first=b""):
        host, port = PLAIN.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), PATIENCE)
        self.socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: server.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode() + first
        )
        head = b""
        while b"\r\n\r\n" not in head:
            part = self.socket.recv(1)
            assert part, head
            head += part
        self.status = int(head.split()[1])

    def send(self, data):
        self.socket.sendall(data)

    def receive(self, size):
        got = b""
        while len(got) < size:
            part = self.socket.recv(size - len(got))
            assert part, (len(got), size)
            got += part
        return got

    def over(self):
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionError:
            return "broken"
        return "ended"

    def leave(self):
        reset(self.socket)


class ByStream:
    """`connect` makes a connection; `fields` and `extra` go into the request."""

    def __init__(self, connect, path, first=b"", fields=(("sec-websocket-version", "13"),), method="CONNECT", protocol="websocket"):
        self.connection = connect()
        extra = [(":protocol", protocol)] if protocol else []
        self.number = self.connection.request(method, path, fields, ends=False, extra=extra)
        self.stream = self.connection.streams[self.number]
        if first:
            self.send(first)
        self.connection.until(lambda: self.stream.head or self.stream.over)
        self.status = int(self.stream.head[":status"]) if self.stream.head else None

    def send(self, data):
        self.connection.send(self.number, data)

    def receive(self, size):
        self.connection.until(lambda: len(self.stream.data) >= size or self.stream.over)
        assert len(self.stream.data) >= size, (len(self.stream.data), size, self.stream.reset)
        got, self.stream.data = bytes(self.stream.data[:size]), self.stream.data[size:]
        return got

    def over(self):
        self.connection.until(lambda: self.stream.over)
        return "ended" if self.stream.ended else "broken"

    def leave(self):
        if isinstance(self.connection, Http3):
            self.connection.cancel(self.number)
        elif not self.stream.over:
            self.connection.inner.reset_stream(self.number, 8)
            self.connection.flush()


def http2():
    one = Http2(PLAIN)
    one.until(lambda: one.inner.remote_settings.get(8) == 1)
    return one


def http3():
    return Http3(TLS).shake()


CLIENTS = {
    "HTTP/1.1": ByHttp1,
    "HTTP/2": lambda path, first=b"": ByStream(http2, path, first),
    "HTTP/3": lambda path, first=b"": ByStream(http3, path, first),
}


def random_frames(count, rng):
    """Frames of all opcodes, whole and in parts, masked and not, with reserved bits: what no endpoint need understand."""
    for _ in range(count):
        size = rng.choice([0, 0, 1, 125, 126, 127, 1000, rng.randrange(3000)] + ([65535, 65536] if rng.random() < 0.02 else []))
        first, masked = rng.randrange(256), rng.choice([0, 0x80])
        length = bytes([masked | size]) if size < 126 else bytes([masked | 126]) + struct.pack(">H", size) if size < 65536 else bytes([masked | 127]) + struct.pack(">Q", size)
        yield bytes([first]) + length + (rng.randbytes(4) if masked else b"") + rng.randbytes(size)


def frames(name, tunnel):
    """10,000 of them there and back, cut anywhere, and then noise; each byte arrives."""
    rng = random.Random(9)
    for kind in ("frames", "noise"):
        end = tunnel("/ws/echo")
        assert end.status in (101, 200), (name, end.status)
        if kind == "frames":
            data = b"".join(random_frames(10_000 if name != "HTTP/3" else 2_000, rng))
        else:
            data = rng.randbytes(300_000)
        at = 0
        while at < len(data):
            part = data[at : at + rng.choice([1, 13, 1400, 30_000, 60_000])]
            end.send(part)
            assert end.receive(len(part)) == part, (name, kind, at)
            at += len(part)
        end.leave()


def ends(name, tunnel):
    """However one side goes, the other hears of it."""
    assert tunnel("/ws/cut").receive(1010)[:2] == b"\x82\x7f"
    end = tunnel("/ws/cut")
    end.receive(1010)
    # Its side is over, ours is not; then we go within a frame.
    end.send(b"\x82\xff" + struct.pack(">Q", 1 << 63) + b"abcd" + b"y" * 100)
    end.leave()
    end = tunnel("/ws/reset")
    end.receive(5)
    end.send(b"x")
    end.over()
    for path in ("/ws/echo", "/ws/deaf"):
        before = ended.count("/ws/echo")
        end = tunnel(path)
        end.send(b"\x81\xfe\xff\xffabcd")
        end.leave()
        if path == "/ws/echo":
            until(f"{name}: the server hears of the end", lambda: ended.count("/ws/echo") > before)


def before_the_tunnel(name, tunnel):
    """What a client sends before there is a tunnel waits for it, and is no request to anybody."""
    early.clear()
    # Over HTTP/1.1 bytes behind an upgrade are a pipelined request, or nothing; they must not come before the 101.
    first = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
    end = tunnel("/ws/late", first)
    assert end.status in (101, 200), (name, end.status)
    assert early == [b""], (name, early)
    assert end.receive(len(first)) == first, name
    end.leave()
    early.clear()
    end = tunnel("/ws/refuse", first)
    assert end.status == 403, (name, end.status)
    end.leave()
    until("the server has listened", lambda: early)
    assert early == [b""], (name, early)
    # Over HTTP/1.1 the client sees the key itself, elsewhere it has none.
    assert tunnel("/ws/liar").status == (101 if name == "HTTP/1.1" else 502), name


def bounded(name, tunnel):
    """A server that sends without end to clients that take nothing, and clients that send to one that takes nothing."""
    before = memory()
    held = [tunnel("/ws/endless") for _ in range(10)]
    for _ in range(10):
        end = tunnel("/ws/deaf")
        held.append(end)
        sock = end.socket if name == "HTTP/1.1" else None
        if sock:
            sock.settimeout(0.2)
            try:
                while True:
                    sock.sendall(b"\0" * 100_000)
            except TimeoutError:
                pass
        elif name == "HTTP/2":
            while (room := end.connection.inner.local_flow_control_window(end.number)) > 0:
                end.connection.inner.send_data(end.number, b"\0" * min(room, 16_384))
                end.connection.flush()
        else:
            end.send(b"\0" * 1_000_000)
    time.sleep(0.5)
    grown = memory() - before
    assert grown < 40, (name, grown)
    assert CLIENTS["HTTP/1.1"]("/ws/echo").status == 101
    before = ended.count("/ws/endless")
    for end in held:
        end.leave()
        if name == "HTTP/3":
            end.connection.end()
    until(f"{name}: the servers hear of the end", lambda: ended.count("/ws/endless") >= before + 10)


def heads(name, connect, broken):
    """What asks for a tunnel in a way that is none gets none."""
    version = ("sec-websocket-version", "13")
    for what, options in {
        "another protocol": {"protocol": "connect-udp"},
        "no protocol": {"protocol": None},
        "not by CONNECT": {"method": "GET"},
        "a length": {"fields": (version, ("content-length", "5"))},
        "another version": {"fields": (("sec-websocket-version", "99"),)},
        "fields of a connection": {"fields": (version, ("connection", "upgrade"))},
        "an upgrade": {"fields": (version, ("upgrade", "websocket"))},
    }.items():
        try:
            end = ByStream(connect, "/ws/echo", **options)
        except (Gone, AssertionError, OSError, h2.exceptions.ProtocolError):
            # The connection was ended.
            continue
        if end.status == 200:
            # It is for the server to say what it makes of it; the tunnel is one like any other.
            end.send(b"abc")
            assert end.receive(3) == b"abc", (name, what)
        assert what in ("another version",) or end.status != 200, (name, what, end.status)
    # Streams that are opened and reset at once are a flood like any other.
    one = connect()
    try:
        for _ in range(2000):
            number = one.request("CONNECT", "/ws/echo", (version,), ends=False, extra=[(":protocol", "websocket")])
            if isinstance(one, Http3):
                one.cancel(number)
                one.read(0.001)
            else:
                one.inner.reset_stream(number, 8)
                one.flush()
                one.socket.setblocking(False)
                try:
                    one.read()
                except BlockingIOError:
                    pass
                one.socket.setblocking(True)
            if one.goaways or one.closed:
                break
    except broken:
        pass
    assert CLIENTS["HTTP/1.1"]("/ws/echo").status == 101


def main():
    listener = socket.create_server(("127.0.0.1", PORT), backlog=200)
    threading.Thread(target=listen, args=(listener,), daemon=True).start()
    for name, tunnel in CLIENTS.items():
        for what in (frames, ends, before_the_tunnel, bounded):
            what(name, tunnel)
        if name != "HTTP/1.1":
            heads(name, http2 if name == "HTTP/2" else http3, (Gone, OSError, h2.exceptions.ProtocolError))
        print(f"{name}: ok", flush=True)
    # The servers end with the process.
    os._exit(0)


main()
