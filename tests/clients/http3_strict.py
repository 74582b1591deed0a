"""What an HTTP/3 client may not send, and what it may not cost: http3_strict.py ADDRESS:PORT PID PORT

Routes: /echo, /hold (never answers), /big (4 MB, from a server here on the second port).
"""

import http.server
import sys
import threading
import time

from aioquic.buffer import encode_uint_var

from bad_heads import HEADS, fields
from http3 import Connection, Gone, frame

ADDRESS, PID, PORT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


class Big(http.server.BaseHTTPRequestHandler):
    """Has much to say, and does not mind who stops listening."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        try:
            self.send_response(200)
            self.send_header("Content-Length", "4000000")
            self.end_headers()
            for _ in range(100):
                self.wfile.write(b"x" * 40_000)
        except OSError:
            self.close_connection = True

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass


threading.Thread(target=Server(("127.0.0.1", PORT), Big).serve_forever, daemon=True).start()

MESSAGE_ERROR, FRAME_UNEXPECTED, FRAME_ERROR = 0x10e, 0x105, 0x106
DATA, HEADERS, SETTINGS, GOAWAY = 0, 1, 4, 7


def memory():
    for line in open(f"/proc/{PID}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024


def section(list_of_fields):
    """A list of fields as literals, whatever is in it."""
    out = b"\0\0"
    for name, value in list_of_fields:
        for at, text in enumerate((name.encode("latin1"), value.encode("latin1"))):
            first, bits = (0x20, 3) if at == 0 else (0, 7)
            most = (1 << bits) - 1
            if len(text) < most:
                out += bytes([first | len(text)])
            else:
                out += bytes([first | most])
                rest = len(text) - most
                while rest >= 128:
                    out += bytes([rest & 127 | 128])
                    rest >>= 7
                out += bytes([rest])
            out += text
    return out


def malformed():
    """Each is an error of its stream alone; the connection goes on."""
    one = Connection(ADDRESS).shake()
    for what, head in HEADS.items():
        stream = one.answer(one.raw(frame(HEADERS, section(head)), ends=True))
        code = stream.head and stream.head[":status"]
        assert stream.reset == MESSAGE_ERROR, (what, stream.reset, code)
    # A body that is not as long as it was said to be.
    for length, body in [("5", b"1234"), ("3", b"1234")]:
        head = section(fields(("content-length", length), method="POST"))
        stream = one.answer(one.raw(frame(HEADERS, head) + frame(DATA, body), ends=True))
        assert stream.reset == MESSAGE_ERROR or stream.head[":status"] == "400", (stream.reset, stream.head)
    # Trailers with what belongs into a head.
    head = section(fields(method="POST"))
    tail = section([(":path", "/")])
    stream = one.answer(one.raw(frame(HEADERS, head) + frame(DATA, b"1") + frame(HEADERS, tail), ends=True))
    assert stream.reset == MESSAGE_ERROR, (stream.reset, stream.head)
    # A request that ends before it has begun.
    stream = one.answer(one.raw(b"", ends=True))
    assert stream.reset == 0x10d, stream.reset
    # What is unknown is passed over.
    stream = one.answer(one.raw(frame(0x21, b"grease") + frame(HEADERS, section(fields())) + frame(0x2f, b""), ends=True))
    assert stream.head[":status"] == "200", stream.reset
    assert one.closed is None
    one.end()
    print("malformed: ok")


def foreign():
    """Each ends the connection, and is told why."""
    head = frame(HEADERS, section(fields(method="POST")))
    streams = {
        "DATA first": (frame(DATA, b"1"), FRAME_UNEXPECTED),
        "SETTINGS": (frame(SETTINGS), FRAME_UNEXPECTED),
        "GOAWAY": (head + frame(GOAWAY, b"\0"), FRAME_UNEXPECTED),
        "PUSH_PROMISE": (head + frame(5, b"\0"), FRAME_UNEXPECTED),
        "HTTP/2's PING": (head + frame(6, b"12345678"), FRAME_UNEXPECTED),
        "DATA behind trailers": (head + frame(HEADERS, section([("a", "b")])) + frame(DATA, b"1"), FRAME_UNEXPECTED),
        "a frame that is cut off": (head + frame(DATA, b"123", length=10), FRAME_ERROR),
        "half a frame's head": (head + b"\0\x40", FRAME_ERROR),
        "half a list of fields": (frame(HEADERS, b"\0", length=9), FRAME_ERROR),
        "a field of a table": (frame(HEADERS, b"\0\0\x80"), 0x200),
        "a list that needs a table": (frame(HEADERS, b"\2\0\x80"), 0x200),
        "bad Huffman": (frame(HEADERS, b"\0\0\x51\x81\0"), 0x200),
        "a number without end": (frame(HEADERS, b"\0\0" + b"\xff" * 30), 0x200),
    }
    one_way = {
        "a second control stream": (b"\0" + frame(SETTINGS), 0x103),
        "a push": (b"\1\0", 0x103),
    }
    for what, (data, code) in streams.items():
        one = Connection(ADDRESS).shake()
        one.raw(data, ends=True)
        gone(one, what, code)
    for what, (data, code) in one_way.items():
        one = Connection(ADDRESS).shake()
        one.one_way(data)
        gone(one, what, code)
    control, decoder = "_local_control_stream_id", "_local_decoder_stream_id"
    encoder = "_local_encoder_stream_id"
    for what, stream, data, ends, code in [
        ("SETTINGS again", control, frame(SETTINGS), False, FRAME_UNEXPECTED),
        ("HEADERS there", control, frame(HEADERS, b"\0\0"), False, FRAME_UNEXPECTED),
        ("a long GOAWAY", control, frame(GOAWAY, length=1 << 20), False, 0x107),
        ("a control stream's end", control, b"", True, 0x104),
        ("an entry for a table", encoder, b"\x41a\x01b", False, 0x201),
        ("an acknowledgement of none", decoder, b"\x80", False, 0x202),
    ]:
        one = Connection(ADDRESS).shake()
        one.quic.send_stream_data(getattr(one.http, stream), data, end_stream=ends)
        one.flush()
        gone(one, what, code)
    print("foreign: ok")


def gone(one, what, code):
    try:
        one.until(lambda: False, 10)
    except Gone as ended:
        assert ended.args[0][0] == code, (what, ended)
    else:
        raise AssertionError(what)


def large_heads():
    one = Connection(ADDRESS).shake()
    # One that is said to be a gigabyte, and one that is a little too much.
    said = one.answer(one.raw(frame(HEADERS, b"\0\0", length=1 << 30)))
    assert said.head[":status"] == "431", (said.reset, said.head)
    over = one.answer(one.raw(frame(HEADERS, section(fields(*[(f"x-{at}", "y" * 4000) for at in range(60)]))), ends=True))
    assert over.head[":status"] == "431", (over.reset, over.head)
    many = one.answer(one.raw(frame(HEADERS, section(fields(*[(f"x-{at}", "y") for at in range(150)]))), ends=True))
    assert many.head[":status"] in ("400", "431"), (many.reset, many.head)
    # Two bytes for each field of sixty.
    bomb = one.answer(one.raw(frame(HEADERS, section(fields()) + b"\xff\x23" * 30_000), ends=True))
    assert bomb.head[":status"] == "431", (bomb.reset, bomb.head)
    # An unknown frame of any length is passed over as it comes, and not gathered.
    before = memory()
    number = one.raw(frame(0x21, b"", length=1 << 40))
    for _ in range(100):
        one.raw(b"x" * 100_000, number=number)
        one.read(0.01)
        if one.closed is not None:
            break
    assert memory() - before < 8, (before, memory())
    one.end()
    print("large heads: ok")


def stalled():
    """Clients that take nothing or send no end: memory is bounded, and others are served."""
    before = memory()
    slow = []
    for _ in range(20):
        one = Connection(ADDRESS, max_stream_data=100_000, max_data=200_000).shake()
        for _ in range(20):
            one.request("GET", "/big")
        one.read(0.05)
        # From here on it reads nothing.
        slow.append(one)
    half = Connection(ADDRESS).shake()
    for _ in range(100):
        number = half.request("POST", "/hold", ends=False)
        half.send(number, b"x" * 100_000)
        half.read(0.005)
    other = Connection(ADDRESS).shake()
    assert other.get("/echo").head[":status"] == "200"
    grown = memory() - before
    assert grown < 64, grown
    for one in [half, other, *slow]:
        one.end()
    print("stalled: ok")


def floods():
    """Those that ask for nothing, and those that take back what they asked for."""
    def reset(one):
        # The package would break off what it has not been allowed to begin.
        while one.closed is None and one.quic.get_next_available_stream_id() // 4 >= one.quic._remote_max_streams_bidi:
            one.read(0.01)
        number = one.request("GET", "/hold")
        one.cancel(number)

    def refuse(one):
        one.raw(frame(HEADERS, section(fields(("connection", "close")))), ends=True)

    def empty(one):
        if not hasattr(one, "number"):
            one.number = one.raw(frame(HEADERS, section(fields(method="POST", path="/hold"))))
        one.raw(frame(DATA) * 50, number=one.number)

    def unknown(one):
        one.quic.send_stream_data(one.http._local_control_stream_id, frame(0x21) * 50)
        one.flush()

    before = memory()
    for what in (reset, refuse, empty, unknown):
        one = Connection(ADDRESS).shake()
        end = time.monotonic() + 30
        while one.closed is None:
            assert time.monotonic() < end, what.__name__
            for _ in range(10):
                what(one)
            one.read(0.002)
        assert one.closed[0] == 0x107, (what.__name__, one.closed)
        one.socket.close()
    grown = memory() - before
    assert grown < 8, grown
    # Requests that are all served are none.
    one = Connection(ADDRESS).shake()
    for _ in range(30):
        numbers = [one.request("GET", "/echo") for _ in range(50)]
        assert all(one.answer(number).head[":status"] == "200" for number in numbers)
    one.end()
    print("floods: ok")


def handshakes():
    """Handshakes that do not go on cost little, and from some number on nothing."""
    before = memory()
    begun = []
    for _ in range(300):
        one = Connection(ADDRESS)
        one.silent = True
        begun.append(one)
    # Somebody who is where it says still gets in.
    other = Connection(ADDRESS).shake()
    assert other.retried, "its address was not asked for"
    assert other.get("/echo").head[":status"] == "200"
    other.end()
    grown = memory() - before
    assert grown < 24, grown
    for one in begun:
        one.socket.close()
    print("handshakes: ok")


malformed()
foreign()
large_heads()
stalled()
floods()
handshakes()
