"""What an HTTP/2 client may not send: http2_strict.py ADDRESS:PORT

Routes: /echo, whose server must see nothing, and /good and /body, which answer. Each request that is none must be refused
by itself, as the next one on its connection shows, or with its connection.
"""

import socket
import struct
import sys
import time

from bad_heads import HEADS, fields
from floods import CONTINUATION, DATA, GOAWAY, HEADERS, RST_STREAM, SETTINGS, frame

HOST, PORT = sys.argv[1].rsplit(":", 1)
PROTOCOL_ERROR = 1
END_STREAM, END_HEADERS = 1, 4


def block(list_of_fields):
    """A list of fields as literals that no table takes, whatever is in it."""
    out = b""
    for field in list_of_fields:
        out += b"\0"
        for text in (part.encode("latin1") for part in field):
            if len(text) < 127:
                out += bytes([len(text)]) + text
                continue
            rest = len(text) - 127
            out += b"\x7f"
            while rest >= 128:
                out += bytes([rest & 127 | 128])
                rest >>= 7
            out += bytes([rest]) + text
    return out


class Client:
    def __init__(self):
        self.socket = socket.create_connection((HOST, int(PORT)), 20)
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))
        self.stream, self.got, self.gone = -1, b"", None

    def send(self, *frames):
        """Frames of a new stream, each its kind, flags and payload."""
        self.stream += 2
        self.socket.sendall(b"".join(frame(kind, flags, self.stream, payload) for kind, flags, payload in frames))
        return self

    def outcome(self):
        """`reset` and why, `status` and which, or `gone` and why if the connection ended."""
        status = None
        while True:
            while len(self.got) < 9 or len(self.got) < 9 + int.from_bytes(self.got[:3], "big"):
                part = self.socket.recv(65536)
                if not part:
                    return "gone", self.gone
                self.got += part
            length = int.from_bytes(self.got[:3], "big")
            kind, flags, payload = self.got[3], self.got[4], self.got[9 : 9 + length]
            stream = struct.unpack(">I", self.got[5:9])[0]
            self.got = self.got[9 + length :]
            if kind == GOAWAY:
                self.gone = struct.unpack(">I", payload[4:8])[0]
            elif stream != self.stream:
                continue
            elif kind == RST_STREAM:
                # An answer may come before what is told of the rest of its request.
                return ("status", status) if status else ("reset", struct.unpack(">I", payload)[0])
            elif kind == HEADERS and status is None:
                # One byte where the table has the status, as for 200, 204, 206, 304, 400, 404 and 500, else a literal.
                known = {0x88: 200, 0x8c: 400, 0x8d: 404, 0x8e: 500}
                status = known.get(payload[0], payload[:6])
                if flags & END_STREAM:
                    return "status", status
            elif kind == DATA and flags & END_STREAM:
                return "status", status


def serves(client):
    found = client.send((HEADERS, END_HEADERS | END_STREAM, block(fields(path="/good")))).outcome()
    return found == ("status", 200)


def refused(what, client, *frames):
    """Gives a connection that is good for more."""
    how, why = client.send(*frames).outcome()
    if how == "gone":
        assert why == PROTOCOL_ERROR, (what, how, why)
        client = Client()
    else:
        assert (how, why) in (("reset", PROTOCOL_ERROR), ("status", 400)), (what, how, why)
    assert serves(client), what
    return client


def malformed():
    client = Client()
    for what, head in HEADS.items():
        client = refused(what, client, (HEADERS, END_HEADERS | END_STREAM, block(head)))
    # These may be on their way to a server before they are known to be none.
    post = block(fields(method="POST", path="/body"))
    five = block(fields(("content-length", "5"), method="POST", path="/body"))
    tail = lambda *given: (HEADERS, END_HEADERS | END_STREAM, block(given))
    for what, frames in {
        "less than was said": [(HEADERS, END_HEADERS, five), (DATA, END_STREAM, b"1234")],
        "more than was said": [(HEADERS, END_HEADERS, five), (DATA, END_STREAM, b"123456")],
        "nothing of what was said": [(HEADERS, END_HEADERS, five), (DATA, END_STREAM, b"")],
        "trailers in upper case": [(HEADERS, END_HEADERS, post), (DATA, 0, b"1"), tail(("X-Upper", "1"))],
        "trailers of a connection": [(HEADERS, END_HEADERS, post), (DATA, 0, b"1"), tail(("transfer-encoding", "chunked"))],
        "trailers that end nothing": [(HEADERS, END_HEADERS, post), (HEADERS, END_HEADERS, block([("a", "b")]))],
    }.items():
        client = refused(what, client, *frames)
    # Pseudo-headers in trailers never come out of the gateway's library: nobody sees them, and the rest is as it was.
    pseudo = [(HEADERS, END_HEADERS, post), (DATA, 0, b"1"), tail((":path", "/"), ("a", "b"))]
    assert client.send(*pseudo).outcome() in (("status", 200), ("reset", PROTOCOL_ERROR)) and serves(client)
    print("malformed: ok")


def slow():
    """A head that comes a byte at a time has the time of a head; a body that does not come has that of a body."""
    client = Client()
    client.stream = 1
    client.socket.sendall(frame(HEADERS, END_STREAM, 1, b""))
    begun = time.monotonic()
    try:
        for byte in block(fields()) * 100:
            client.socket.sendall(frame(CONTINUATION, 0, 1, bytes([byte])))
            time.sleep(0.05)
            assert time.monotonic() - begun < 30, "a head without end"
    except OSError:
        pass
    stalled = Client()
    stalled.send((HEADERS, END_HEADERS, block(fields(method="POST", path="/body"))), (DATA, 0, b"1"))
    assert serves(Client())
    how, why = stalled.outcome()
    assert how in ("status", "reset", "gone") and (how, why) != ("status", 200), (how, why)
    print("slow: ok")


malformed()
slow()
