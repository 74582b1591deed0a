"""A server of envoy.service.ext_proc.v3 with grpcio, and requests through a gateway whose exchanges it processes: ext_proc.py ADDRESS:PORT PORT

The second port is where the server is to listen. The upstream answers with JSON of the request.
"""

import http.client
import json
import socket
import sys
import time
from concurrent import futures

import grpc
from protobuf import number, part, parts

REQUEST_HEADERS, RESPONSE_HEADERS, REQUEST_BODY, RESPONSE_BODY, REQUEST_TRAILERS, RESPONSE_TRAILERS = range(2, 8)
IMMEDIATE = 7
seen = []
# Streams whose end the server has seen.
ended = []


def headers_of(message):
    """The names and values of HttpHeaders or HttpTrailers, and whether nothing follows."""
    inner = parts(message)
    headers = {}
    for header in parts(inner[1][0]).get(1, []):
        header = parts(header)
        headers[header[1][0].decode()] = header.get(3, [b""])[0].decode()
    return headers, inner.get(3, [0])[0] == 1


def set_header(name, value, action=0):
    return part(1, part(1, part(1, name) + part(3, value)) + number(3, action))


def common(changes=b"", body=None, status=0, clear=False):
    out = number(1, status) + part(2, changes)
    if body is not None:
        out += part(3, part(1, body))
    if clear:
        out += part(3, number(2, 1))
    return part(1, out)


def answer(kind, inner):
    """The answer to a message of a kind."""
    return part(kind - 1, inner)


def immediate(status, body=b"", headers=b""):
    return part(IMMEDIATE, part(1, number(1, status)) + part(2, headers) + part(3, body))


def process(messages, context):
    mode = ""
    for message in messages:
        message = parts(message)
        kind = next(kind for kind in range(2, 8) if kind in message)
        body = message[kind][0]
        if kind == REQUEST_HEADERS:
            headers, ends = headers_of(body)
            mode = headers.get("x-mode", "")
            seen.append((mode, headers, ends))
            if mode == "slow":
                time.sleep(2)
            elif mode == "error":
                context.abort(grpc.StatusCode.INTERNAL, "no")
            elif mode == "end":
                return
            elif mode == "malformed":
                yield b"\x0a\xff"
            elif mode == "nothing":
                yield b""
            elif mode == "huge":
                yield answer(kind, common(set_header(b"x-a", b"a" * 5_000_000)))
            elif mode == "large":
                yield answer(kind, common(body=b"a" * 3_000_000))
                continue
            elif mode == "invalid":
                yield answer(kind, common(set_header(b"x-a", b"a\r\nb: c")))
            elif mode == "many":
                yield answer(kind, common(b"".join(set_header(b"x-%d" % at, b"a") for at in range(1001))))
            elif mode == "order":
                yield answer(RESPONSE_HEADERS, common())
            elif mode == "twice":
                yield answer(kind, common())
                yield answer(kind, common())
                continue
            elif mode == "delays":
                for _ in range(200):
                    yield part(10, b"")
            elif mode == "delay":
                yield part(10, b"\x08\x01")
            elif mode == "deny":
                yield immediate(429, b"no more", set_header(b"retry-after", b"7"))
            elif mode == "deny-badly":
                yield immediate(99, b"no", set_header(b"x-bad", b"a\r\nb: c") + set_header(b"x-good", b"g"))
            elif mode == "replace":
                yield answer(kind, common(set_header(b"x-added", b"replaced"), b"another body", 1))
                continue
            elif mode == "override":
                yield answer(kind, common()) + part(9, number(2, 2) + number(3, 2))
                continue
            if mode == "path":
                yield answer(kind, common(set_header(b":path", b"/changed?x=1") + set_header(b":method", b"PUT") + set_header(b"host", b"other")))
                continue
            changes = set_header(b"x-added", (headers[":method"] + " " + headers[":path"]).encode())
            changes += set_header(b"x-there", b"no", 1) + set_header(b"x-absent", b"no", 3) + set_header(b"x-twice", b"2", 0)
            changes += part(1, part(1, part(1, b"x-list") + part(3, b"b")) + part(2, b"\x08\x01")) + part(2, b"x-secret")
            yield answer(kind, common(changes))
        elif kind == RESPONSE_HEADERS:
            headers, ends = headers_of(body)
            if mode == "deny-response":
                yield immediate(418, b"tea")
            elif mode == "slow-response":
                time.sleep(2)
            elif mode == "replace-response":
                yield answer(kind, common(body=b"all new", status=1))
                continue
            changes = set_header(b"x-seen", headers[":status"].encode()) + part(2, b"x-up")
            if mode == "status":
                changes += set_header(b":status", b"203")
            yield answer(kind, common(changes))
        elif kind == REQUEST_BODY:
            inner = parts(body)
            data, ends = inner.get(1, [b""])[0], inner.get(2, [0])[0]
            seen.append(("body", data, ends))
            if b"forbidden" in data:
                yield immediate(403, b"forbidden")
            elif mode == "clear":
                yield answer(kind, common(clear=True))
            elif mode == "as-is":
                yield answer(kind, common())
            elif mode == "slow-body":
                time.sleep(2)
            else:
                yield answer(kind, common(set_header(b"x-length", b"%d" % len(data)), b"[" + data.upper() + b"]"))
        elif kind == RESPONSE_BODY:
            inner = parts(body)
            data = inner.get(1, [b""])[0]
            if mode == "late":
                yield immediate(503, b"late")
            elif mode == "as-is":
                yield answer(kind, common())
            else:
                yield answer(kind, common(set_header(b"x-body", b"%d" % len(data)), b"<" + data + b">"))
        elif kind == RESPONSE_TRAILERS:
            trailers, _ = headers_of(body)
            yield answer(kind, part(1, set_header(b"x-trailer", trailers["x-trailer"].upper().encode()) + set_header(b"x-more", b"m")))
        elif kind == REQUEST_TRAILERS:
            trailers, _ = headers_of(body)
            yield answer(kind, part(1, set_header(b"x-trailer", trailers["x-trailer"].upper().encode())))
    ended.append(mode)


class Handlers(grpc.GenericRpcHandler):
    def service(self, details):
        if details.method == "/envoy.service.ext_proc.v3.ExternalProcessor/Process":
            return grpc.stream_stream_rpc_method_handler(process)
        return None


def main():
    options = [("grpc.max_receive_message_length", 1 << 26), ("grpc.max_send_message_length", 1 << 26)]
    server = grpc.server(futures.ThreadPoolExecutor(40), options=options)
    server.add_generic_rpc_handlers((Handlers(),))
    assert server.add_insecure_port("127.0.0.1:" + sys.argv[2])
    server.start()

    def send(method, path, mode=None, body=None, headers=()):
        connection = http.client.HTTPConnection(sys.argv[1], timeout=20)
        connection.request(method, path, body, dict(headers) | ({"X-Mode": mode} if mode else {}))
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()

    def echoed(*args, **kwargs):
        status, headers, body = send(*args, **kwargs)
        assert status == 200, (status, body)
        return json.loads(body), headers

    # Headers.
    sent = {"X-Secret": "s", "X-List": "a", "X-There": "yes", "X-Twice": "1", "X-Forwarded-For": "1.2.3.4", "X-Forwarded-Proto": "https"}
    got, headers = echoed("GET", "/headers/%61?b=c", headers=sent)
    fields = got["headers"]
    assert seen[-1][1]["x-forwarded-for"] == "127.0.0.1" and seen[-1][1]["x-forwarded-proto"] == "http", seen[-1]
    assert fields["x-added"] == "GET /headers/a?b=c" and "x-secret" not in fields, fields
    assert (fields["x-there"], fields["x-twice"]) == ("yes", "2") and "x-absent" not in fields, fields
    assert fields["x-list"] in ("a,b", "a, b", ["a", "b"]), fields
    assert headers["X-Seen"] == "200" and headers["X-Up"] is None, headers
    assert seen[-1][2] and "host" not in seen[-1][1] and seen[-1][1][":authority"] == sys.argv[1], seen[-1]
    got, _ = echoed("GET", "/headers/a", "path")
    assert (got["method"], got["target"]) == ("GET", "/changed?x=1") and got["headers"]["host"] == sys.argv[1], got
    assert send("GET", "/headers/a", "status")[0] == 203
    assert send("POST", "/headers/a", body="x")[0] == 200 and not seen[-1][2], seen[-1]

    # Immediate responses.
    status, headers, body = send("GET", "/headers/a", "deny")
    assert (status, headers["Retry-After"], body) == (429, "7", "no more"), (status, body)
    assert send("GET", "/headers/a", "deny-response")[::2] == (418, "tea")
    # It is one where failures are ignored, too, though its status and a header are invalid.
    status, headers, body = send("GET", "/lax/a", "deny-badly")
    assert (status, headers["X-Good"], headers["X-Bad"], body) == (500, "g", None, "no"), (status, headers, body)
    # The end of the stream: the rest passes without the server.
    assert "x-added" not in echoed("GET", "/headers/a", "end")[0]["headers"]
    assert echoed("POST", "/buffered/a", "end", "text")[0]["body"] == "text"
    # Other bodies.
    got, _ = echoed("POST", "/headers/a", "replace", "a body that is longer")
    assert got["body"] == "another body" and got["headers"]["x-added"] == "replaced", got
    assert send("GET", "/headers/a", "replace-response")[::2] == (200, "all new")

    # Buffered bodies.
    def chunks(*pieces):
        for piece in pieces:
            yield piece.encode()
            time.sleep(0.05)

    status, headers, body = send("POST", "/buffered/a", body=chunks("some ", "text"))
    assert status == 200 and headers["X-Body"] is None and body.startswith("<{") and body.endswith("}>"), body
    got = json.loads(body[1:-1])
    assert got["body"] == "[SOME TEXT]" and got["headers"]["x-length"] == "9", got
    assert seen[-1] == ("body", b"some text", 1), seen[-1]
    assert json.loads(send("POST", "/buffered/a", "clear", "text")[2][1:-1])["body"] == ""
    assert send("POST", "/buffered/a", body="forbidden text")[::2] == (403, "forbidden")
    assert send("POST", "/buffered/a", body="a" * 20_000)[0] == 413
    assert send("POST", "/buffered/a", "late", "text")[::2] == (503, "late")
    assert send("GET", "/buffered/long", "as-is")[0] == 502
    # Trailers.
    with socket.create_connection(sys.argv[1].split(":"), timeout=20) as connection:
        connection.sendall(
            b"POST /buffered/trailers HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTE: trailers\r\nTrailer: X-Trailer\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n4\r\ntext\r\n0\r\nX-Trailer: abc\r\n\r\n"
        )
        got = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b"<alphabeta>" in got, got
    trailers = got.split(b"alphabeta")[1].lower().split(b"\r\n")
    assert b"DEF" in got and b"x-trailer: def" in trailers and b"x-more: m" in trailers, got
    # By the answer to the headers.
    got, headers = echoed("POST", "/override/a", "override", "text")
    assert got["body"] == "[TEXT]" and headers["X-Seen"] is None, (got, headers)
    assert echoed("POST", "/headers/a", "override", "text")[0]["body"] == "text"

    # Streamed bodies.
    got = send("POST", "/streamed/a", body=chunks("some ", "text"))
    assert got[0] == 200 and '"[SOME ]' in got[2] and "[TEXT]" in got[2], got
    large = "x" * 3_000_000
    assert echoed("POST", "/streamed/a", "as-is", large)[0]["body"] == large
    # The stream ends with its last message.
    until = time.monotonic() + 20
    while "as-is" not in ended and time.monotonic() < until:
        time.sleep(0.01)
    assert "as-is" in ended, ended
    # A response without a body has no message for it, and HEAD keeps its length.
    before = len(seen)
    response = send("HEAD", "/streamed/a")
    assert response[0] == 200 and int(response[1]["Content-Length"]) > 0 and len(seen) == before + 1, (response, seen[before:])
    status, _, body = send("POST", "/streamed/a", body=large)
    assert status == 200 and body.count("X") == len(large), (status, len(body))
    assert send("POST", "/streamed/a", body=chunks("some ", "forbidden text"))[0] == 403
    assert send("POST", "/quick/a", "slow-body", chunks("some ", "text"))[0] == 500

    # Servers that are slow, wrong or hostile.
    for mode in ("slow", "slow-response"):
        assert send("GET", "/quick/a", mode)[0] == 500, mode
        assert send("GET", "/quick-lax/a", mode)[0] == 200, mode
    for mode in ("error", "malformed", "nothing", "huge", "invalid", "many", "order", "twice", "delays"):
        assert send("GET", "/headers/a", mode)[0] == 500, mode
        assert send("GET", "/lax/a", mode)[0] == 200, mode
    assert echoed("GET", "/headers/a", "delay")[1]["X-Seen"] == "200"
    assert echoed("GET", "/headers/a", "large")[1]["X-Seen"] == "200"
    assert send("GET", "/other/a")[0] == 500
    with futures.ThreadPoolExecutor(20) as pool:
        modes = ["deny", None, "end"]
        statuses = list(pool.map(lambda at: send("POST", "/streamed/a", modes[at % 3], "text")[0], range(150)))
    assert statuses == [429, 200, 200] * 50, statuses

    server.stop(0).wait()
    assert send("GET", "/headers/a")[0] == 500
    assert send("GET", "/lax/a")[0] == 200
    print("ext-proc: ok")


main()
