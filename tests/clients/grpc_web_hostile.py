"""gRPC-Web over every version of HTTP, with clients and a server that do what they like: grpc_web_hostile.py ADDRESS:PORT ADDRESS:PORT PORT

The addresses are the gateway's, in clear text and for TLS and HTTP/3. A server of HTTP/2 listens here on the port; what it
does is the last part of a call's path. Routes: /web/* and /short/* (bodies of at most 1,000 bytes) by the plugin.
"""

import base64
import socket
import struct
import sys
import threading
import time

import h2.config
import h2.connection
import h2.events
import h2.exceptions

from http2 import Connection as Http2
from http3 import Connection as Http3

PLAIN, TLS, PORT = sys.argv[1], sys.argv[2], int(sys.argv[3])
WEB, TEXT = "application/grpc-web+proto", "application/grpc-web-text"


def framed(message, kind=0):
    return bytes([kind]) + struct.pack(">I", len(message)) + message


# The server.

seen = []
HEAD = [(":status", "200"), ("content-type", "application/grpc")]


def act(inner, stream, what, body):
    """Answers a whole call."""
    if what == "echo":
        inner.send_headers(stream, HEAD)
        inner.send_data(stream, body)
        return inner.send_headers(stream, [("grpc-status", "0"), ("x-late", "yes")], end_stream=True)
    if what == "silent":
        return None
    if what == "reset":
        inner.send_headers(stream, HEAD)
        inner.send_data(stream, body)
        return inner.reset_stream(stream, 2)
    if what == "untold":
        # A body and no trailers.
        inner.send_headers(stream, HEAD)
        return inner.send_data(stream, body, end_stream=True)
    if what == "short":
        # Fewer bytes than were said.
        inner.send_headers(stream, [*HEAD, ("content-length", "100")])
        inner.send_data(stream, b"abc")
        return inner.send_headers(stream, [("grpc-status", "0")], end_stream=True)
    if what == "html":
        inner.send_headers(stream, [(":status", "503"), ("content-type", "text/html")])
        return inner.send_data(stream, b"<p>no</p>", end_stream=True)
    if what == "trailers":
        # Names and values that would end a line in a body of HTTP/1.1's kind, where they may stand in one of HTTP/2.
        inner.send_headers(stream, HEAD)
        inner.send_data(stream, body)
        late = [(f"x-{number}", "\x80:\t" + "v" * 100) for number in range(50)]
        return inner.send_headers(stream, [("grpc-status", "0"), ("grpc-message", "a: b%0D%0Ac"), *late], end_stream=True)
    if what == "bomb":
        inner.send_headers(stream, HEAD)
        late = [(f"x-{number}", "v" * 1000) for number in range(200)]
        return inner.send_headers(stream, late, end_stream=True)
    raise AssertionError(what)


def serve(client):
    config = h2.config.H2Configuration(client_side=False, header_encoding="utf-8", validate_outbound_headers=False)
    inner = h2.connection.H2Connection(config)
    inner.initiate_connection()
    client.sendall(inner.data_to_send())
    calls = {}
    try:
        while came := client.recv(65536):
            for event in inner.receive_data(came):
                if isinstance(event, h2.events.RequestReceived):
                    head = dict(event.headers)
                    calls[event.stream_id] = [head[":path"].rsplit("/", 1)[1], b""]
                    seen.append(head["content-type"])
                elif isinstance(event, h2.events.DataReceived):
                    calls[event.stream_id][1] += event.data
                    inner.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, h2.events.StreamEnded):
                    act(inner, event.stream_id, *calls[event.stream_id])
            client.sendall(inner.data_to_send())
    except (OSError, h2.exceptions.ProtocolError):
        pass
    client.close()


def listen():
    listener = socket.create_server(("127.0.0.1", PORT), backlog=100)
    while True:
        threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()


# The clients: each call gives its status, fields, body, and whether it ended as it should.


class Answer:
    def __init__(self, status, fields, body, whole):
        self.status, self.fields, self.body, self.whole = status, fields, body, whole


class ByHttp1:
    def __init__(self):
        self.socket = None

    def call(self, path, body, kind, method="POST", ends=True, fields=()):
        host, port = PLAIN.rsplit(":", 1)
        with socket.create_connection((host, int(port)), 20) as sock:
            lines = [f"{method} {path} HTTP/1.1", "Host: a", f"Content-Type: {kind}", "Connection: close"]
            lines += [f"{name}: {value}" for name, value in fields]
            if method == "POST" and not any(name == "content-length" for name, _ in fields):
                lines.append(f"Content-Length: {len(body) + (0 if ends else 10)}")
            sock.sendall("\r\n".join([*lines, "", ""]).encode() + body)
            if not ends:
                sock.shutdown(socket.SHUT_WR)
            got = b""
            try:
                while part := sock.recv(65536):
                    got += part
            except ConnectionError:
                pass
        head, _, rest = got.partition(b"\r\n\r\n")
        if not head:
            return Answer(None, {}, b"", False)
        lines = head.decode().split("\r\n")
        found = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if found.get("transfer-encoding") == "chunked":
            data, whole = b"", False
            while rest:
                size, _, rest = rest.partition(b"\r\n")
                if int(size, 16) == 0:
                    whole = True
                    break
                data, rest = data + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        else:
            data, whole = rest, len(rest) == int(found.get("content-length", -1))
        return Answer(int(lines[0].split()[1]), found, data, whole)


class ByStreams:
    def __init__(self, connect):
        self.connect, self.one = connect, None

    def call(self, path, body, kind, method="POST", ends=True, fields=()):
        if self.one is None or self.one.closed or self.one.goaways:
            self.one = self.connect()
        one = self.one
        number = one.request(method, path, [("content-type", kind), *fields], ends=not body and ends)
        if body:
            try:
                one.send(number, body, ends=ends)
            except h2.exceptions.StreamClosedError:
                # It was answered before all of it was there.
                pass
        if not ends:
            if isinstance(one, Http3):
                one.quic.reset_stream(number, 0x10c)
            else:
                one.inner.reset_stream(number, 8)
            one.flush()
            return Answer(None, {}, b"", False)
        stream = one.answer(number)
        head = stream.head or {}
        status = int(head[":status"]) if head else None
        return Answer(status, head, bytes(stream.data), stream.ended and stream.reset is None)


CLIENTS = {
    "HTTP/1.1": ByHttp1,
    "HTTP/2": lambda: ByStreams(lambda: Http2(PLAIN)),
    "HTTP/3": lambda: ByStreams(lambda: Http3(TLS).shake()),
}


def parts(body):
    found = []
    while body:
        kind, length = body[0], struct.unpack(">I", body[1:5])[0]
        assert len(body) >= 5 + length, (kind, length, len(body))
        found.append((kind, body[5 : 5 + length]))
        body = body[5 + length :]
    return found


def decoded(text):
    return b"".join(base64.b64decode(text[at : at + 4]) for at in range(0, len(text), 4))


def works(name, client):
    for kind in (WEB, TEXT):
        message = bytes(range(256)) * 40
        body = framed(message)
        answer = client.call("/web/a.B/echo", base64.b64encode(body) if kind == TEXT else body, kind)
        assert answer.status == 200 and answer.whole and answer.fields["content-type"] == kind, (name, kind, vars(answer))
        data, end = parts(decoded(answer.body) if kind == TEXT else answer.body)
        assert data == (0, message) and end[0] == 0x80, (name, kind)
        assert b"grpc-status:0\r\n" in end[1] and b"x-late:yes\r\n" in end[1], (name, end)
    assert set(seen) == {"application/grpc"}, set(seen)


def clients(name, client):
    """What is no call of gRPC-Web is refused, or goes to the server for it to refuse, which gets bytes and no more."""
    good = base64.b64encode(framed(b"abc"))
    for what, body, kind, wanted in [
        ("no base64", b"!!!!", TEXT, 400),
        ("base64 that breaks off", good[:-3], TEXT, 400),
        ("base64 with more behind it", good + b"\0", TEXT, 400),
        ("padding in the middle of nothing", b"====", TEXT, (200, 400)),
        ("no body", b"", WEB, 400),
        ("another type", b"abc", "application/grpc-web+json", 400),
        ("two types", b"abc", WEB + ", text/plain", 400),
        ("a message of a gigabyte that is not there", b"\0\x40\0\0\0abc", WEB, 200),
        ("half a message's head", b"\0\0", WEB, 200),
        ("a message of trailers", framed(b"grpc-status: 0", 0x80), WEB, 200),
    ]:
        answer = client.call("/web/a.B/echo", body, kind)
        assert answer.status in (wanted if isinstance(wanted, tuple) else (wanted,)), (name, what, vars(answer))
        assert answer.whole, (name, what)
    assert client.call("/short/a.B/echo", b"x" * 1001, WEB).status == 400
    assert client.call("/short/a.B/echo", b"x" * 100_000, WEB).status in (400, None)
    assert client.call("/web/a.B/echo", b"", WEB, method="GET").status == 405
    for _ in range(20):
        client.call("/web/a.B/echo", framed(b"abc"), WEB, ends=False)
    if name != "HTTP/1.1":
        # There it would be where the request ends.
        assert client.call("/web/a.B/echo", framed(b"abc"), WEB, fields=[("content-length", "5")]).status in (400, None)
    works(name, client)


def servers(name, client):
    """Whatever a server does, the answer is one of gRPC-Web, or is seen to be broken."""
    call = lambda what, body=framed(b"abc"): client.call(f"/web/a.B/{what}", body, WEB)
    answer = call("silent")
    assert answer.status == 504 and answer.whole, (name, vars(answer))
    assert not call("reset").whole or call("reset").status != 200, name
    answer = call("untold")
    assert answer.whole and parts(answer.body)[-1][0] == 0x80, (name, answer.body)
    assert b"grpc-status:0" not in parts(answer.body)[-1][1], (name, answer.body)
    answer = call("short")
    assert not answer.whole or answer.status == 502, (name, vars(answer))
    answer = call("html")
    assert answer.status == 503, (name, vars(answer))
    answer = call("trailers")
    assert answer.whole, name
    _, (kind, lines) = parts(answer.body)
    assert kind == 0x80 and lines.count(b"\r\n") == 52 and b"grpc-message:a: b%0D%0Ac\r\n" in lines, (name, lines[:300])
    answer = call("bomb")
    assert not answer.whole or answer.status == 502, (name, vars(answer))
    works(name, client)


def main():
    threading.Thread(target=listen, daemon=True).start()
    time.sleep(0.2)
    for name, make in CLIENTS.items():
        for what in (works, clients, servers):
            what(name, make())
        print(f"{name}: ok", flush=True)


main()
