"""Sends floods of HTTP/2 frames to a gateway: floods.py ADDRESS:PORT PID

Each must end with GOAWAY ENHANCE_YOUR_CALM, or where `bounded` says so with any end, and the process must not grow by
more than 8 MiB meanwhile.
"""

import itertools
import socket
import struct
import sys
import time

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
CALM = 11
AUTHORITY = b"\x01\x05flood"
GET = b"\x82\x86\x84" + AUTHORITY
POST = b"\x83\x86\x84" + AUTHORITY


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def streams():
    number = 1
    while True:
        yield number
        number += 2


def pings():
    while True:
        yield frame(PING, 0, 0, b"8 bytes!")


def settings():
    while True:
        yield frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65535))


def priorities():
    while True:
        yield frame(PRIORITY, 0, 3, struct.pack(">IB", 0, 16))


def windows():
    while True:
        yield frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1))


def unknown():
    while True:
        yield frame(0xF0, 0, 0, b"x" * 50)


def empty_data():
    yield frame(HEADERS, END_HEADERS, 1, POST)
    while True:
        yield frame(DATA, 0, 1)


def rapid_reset():
    for stream in streams():
        yield frame(HEADERS, END_HEADERS | END_STREAM, stream, GET) + frame(RST_STREAM, 0, stream, struct.pack(">I", 8))


def made_you_reset():
    for stream in streams():
        yield frame(HEADERS, END_HEADERS | END_STREAM, stream, GET) + frame(
            WINDOW_UPDATE, 0, stream, struct.pack(">I", (1 << 31) - 1)
        )


def malformed():
    for stream in streams():
        yield frame(HEADERS, END_HEADERS | END_STREAM, stream, GET + b"\x00\x0aconnection\x05close")


def disagreeing():
    for stream in streams():
        yield frame(HEADERS, END_HEADERS | END_STREAM, stream, GET + b"\x00\x04host\x05other")


def continuations():
    yield frame(HEADERS, END_STREAM, 1, GET)
    while True:
        yield frame(CONTINUATION, 0, 1, b"\x00\x01a\x01b")


def empty_continuations():
    yield frame(HEADERS, END_STREAM, 1, GET)
    while True:
        yield frame(CONTINUATION, 0, 1)


def header_bomb():
    """One long field in the table, then blocks that name it many times over, a byte each."""
    value = b"v" * 3800
    entry = b"\x40\x01n" + b"\x7f" + bytes([(len(value) - 127) & 127 | 128, (len(value) - 127) >> 7]) + value
    yield frame(HEADERS, END_HEADERS | END_STREAM, 1, GET + entry)
    for stream in streams():
        if stream > 1:
            yield frame(HEADERS, END_HEADERS | END_STREAM, stream, GET + b"\xbe" * 16000)


def unread():
    """Asks, and takes nothing of the answers."""
    for stream in streams():
        yield frame(HEADERS, END_HEADERS | END_STREAM, stream, GET)


def many_trailers():
    """Requests that wait for their answers, each with as many trailers as it may have."""
    post = b"\x83\x86\x04\x05/hold" + AUTHORITY
    # Each field is new to the table, and named by one byte from then on.
    fields = [b"\x40\x08x-%06d\x01v" % number for number in range(60)]
    for stream in range(1, 256, 2):
        table = b"".join(fields) if stream == 1 else b""
        rest = b"".join(bytes([0x80 | 62 + number % 60]) for number in range(1000 - (60 if table else 0)))
        yield frame(HEADERS, END_HEADERS, stream, post) + frame(HEADERS, END_HEADERS | END_STREAM, stream, table + rest)


def different_trailers():
    """The same with fields that all differ."""
    post = b"\x83\x86\x04\x05/hold" + AUTHORITY
    fields = b"".join(b"\x00\x07x-%05d\x01v" % number for number in range(1000))
    for stream in range(1, 256, 2):
        yield frame(HEADERS, END_HEADERS, stream, post) + frame(HEADERS, END_HEADERS | END_STREAM, stream, fields)


def large_trailers():
    """Trailers as large as they may be, of a few bytes that name one long field many times. The requests
    are delayed, so that none of it goes on to the upstream."""
    post = b"\x83\x86\x04\x06/later" + AUTHORITY
    entry = b"\x40\x01n" + b"\x7f\xd9\x1c" + b"v" * 3800
    for stream in range(1, 256, 2):
        fields = entry if stream == 1 else b"\xbe" * 15
        yield frame(HEADERS, END_HEADERS, stream, post) + frame(HEADERS, END_HEADERS | END_STREAM, stream, fields)


def tiny_pieces():
    """Unread bodies, a byte in each frame. They take no more memory than others."""
    post = b"\x83\x86\x04\x06/later" + AUTHORITY
    for stream in range(1, 256, 2):
        yield frame(HEADERS, END_HEADERS, stream, post)
        for _ in range(500):
            yield frame(DATA, 0, stream, b"x")


def huge_head():
    """A list of fields that is far larger than any that is taken."""
    entry = b"\x40\x01n" + b"\x7f\xd9\x1c" + b"v" * 3800
    yield frame(HEADERS, 0, 1, GET + entry)
    while True:
        yield frame(CONTINUATION, 0, 1, b"\xbe" * 16000)


# These end by themselves, and what they have begun stays open for a moment.
SHORT = [many_trailers, different_trailers, tiny_pieces]

# Those of which the log must tell: it tells of ten refusals in a second.
TOLD = [huge_head, empty_continuations, pings, made_you_reset, many_trailers, large_trailers]

FLOODS = [
    *((make, None if make in SHORT else CALM) for make in TOLD), (settings, CALM), (priorities, CALM), (windows, CALM), (unknown, CALM),
    (empty_data, CALM), (rapid_reset, CALM), (malformed, CALM), (disagreeing, CALM), (continuations, CALM),
    (header_bomb, None), (unread, None), *((make, None) for make in SHORT if make not in TOLD),
]


def memory(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


class Client:
    def __init__(self, address):
        self.socket = socket.create_connection(address)
        self.socket.settimeout(20)
        self.got, self.code, self.over = b"", None, False

    def take(self):
        while len(self.got) >= 9:
            length = int.from_bytes(self.got[:3], "big")
            if len(self.got) < 9 + length:
                return
            kind, payload = self.got[3], self.got[9 : 9 + length]
            self.got = self.got[9 + length :]
            if kind == GOAWAY:
                self.code = int.from_bytes(payload[4:8], "big")

    def read(self):
        try:
            bytes_ = self.socket.recv(65536)
        except (BlockingIOError, InterruptedError, TimeoutError):
            return False
        except OSError:
            bytes_ = b""
        self.over |= not bytes_
        self.got += bytes_
        self.take()
        return bool(bytes_)


def flood(address, make, reads):
    """The code of GOAWAY, if one came, and whether the connection ended."""
    client = Client(address)
    small = struct.pack(">HI", 4, 0) if not reads else b""
    client.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, small))
    frames, sent = make(), 0
    while sent < 300_000 and not client.over and client.code in (None, 0):
        part = b"".join(itertools.islice(frames, 20))
        if not part:
            return hold(client)
        sent += 20
        try:
            client.socket.sendall(part)
        except OSError:
            break
        client.socket.setblocking(False)
        while reads and client.read():
            pass
        client.socket.settimeout(20)
    end = time.monotonic() + 20
    client.socket.settimeout(1)
    while client.code in (None, 0) and not client.over and time.monotonic() < end:
        client.read()
    return client.code, client.over, sent


def hold(client):
    """Until the gateway has taken all that was sent."""
    end = time.monotonic() + 3
    client.socket.settimeout(0.2)
    while not client.over and time.monotonic() < end:
        client.read()
    HELD.append(client)
    return client.code, client.over, 256


HELD = []


def settled(pid, before):
    """How much the memory has grown, once the gateway is through with what it still had to do."""
    end = time.monotonic() + 10
    while (grown := memory(pid) - before) >= 8192 and time.monotonic() < end:
        time.sleep(0.1)
    return grown


def main():
    host, port = sys.argv[1].rsplit(":", 1)
    pid = int(sys.argv[2])
    address = (host, int(port))
    failed = False
    for make, wanted in FLOODS:
        if make in TOLD:
            time.sleep(1.1)
        before = memory(pid)
        code, over, sent = flood(address, make, make is not unread)
        grown = settled(pid, before)
        good = grown < 8192 and (wanted is None or code == wanted)
        failed |= not good
        print(f"{'ok' if good else 'NOT'} {make.__name__}: code {code}, closed {over}, {sent} frames, {grown} KiB more")
    # And it still serves.
    client = Client(address)
    client.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0) + frame(HEADERS, 5, 1, GET))
    client.socket.settimeout(20)
    answered = False
    while not answered and not client.over:
        client.got += client.socket.recv(65536)
        answered = bytes([HEADERS]) in client.got
    print("ok still serves" if answered else "NOT serving")
    sys.exit(failed or not answered)


if __name__ == "__main__":
    main()
