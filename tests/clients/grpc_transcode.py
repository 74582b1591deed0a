"""JSON to gRPC through a gateway, with grpcio as the server: grpc_transcode.py ADDRESS:PORT PORT

The second port is where the gateway's upstream is to listen; the paths are those of the case. Messages are encoded by hand.
"""

import http.client
import json
import sys
import threading
import urllib.parse
from concurrent import futures

import grpc

ADDRESS, PORT = sys.argv[1], sys.argv[2]
STATUS = "CA4SDk91dCBvZiBzZXJ2aWNlGiYKHHR5cGUuZ29vZ2xlYXBpcy5jb20vdC5EZXRhaWwSBggBEgJubw"
seen, release = {}, threading.Event()


def varint(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def text(number, value):
    return varint(number << 3 | 2) + varint(len(value)) + value


def echo(request, context):
    seen.update(context.invocation_metadata(), message=request)
    return request


def fails(_request, context):
    # The status that stands in the details; grpcio sends the bytes behind names that end in -bin as base64.
    raw = b"\x08\x0e\x12\x0eOut of service" + text(3, text(1, b"type.googleapis.com/t.Detail") + text(2, b"\x08\x01\x12\x02no"))
    context.set_trailing_metadata((("grpc-status-details-bin", raw),))
    context.abort(grpc.StatusCode.UNAVAILABLE, "Out of service")


def fails_late(request, context):
    context.send_initial_metadata(())
    fails(request, context)


def slow(_request, context):
    release.wait(20)
    return b""


def many(request, context):
    yield text(1, b"first")
    # The client has the first message before there is a second one.
    assert release.wait(20)
    yield text(1, b"x" * 200_000)
    if request:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too much")


class Handlers(grpc.GenericRpcHandler):
    def service(self, details):
        return {
            "/t.T/Echo": grpc.unary_unary_rpc_method_handler(echo),
            "/t.T/Fails": grpc.unary_unary_rpc_method_handler(fails),
            "/t.T/FailsLate": grpc.unary_unary_rpc_method_handler(fails_late),
            "/t.T/Slow": grpc.unary_unary_rpc_method_handler(slow),
            "/t.T/Many": grpc.unary_stream_rpc_method_handler(many),
        }.get(details.method)


def start(method, path, body=None, **headers):
    connection = http.client.HTTPConnection(ADDRESS, timeout=20)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    return connection.getresponse()


def call(method, path, body=None, **headers):
    answer = start(method, path, body, **headers)
    return answer.status, answer.headers["Content-Type"], answer.read().decode(), answer.headers


def unary():
    kind = "application/json"
    for method, path, body, headers in [
        ("GET", "/echo?text=a%20b&numbers=1&numbers=2", None, {}),
        ("POST", "/echo", "text=a+b&numbers=1&numbers=2", {}),
        ("POST", "/echo", '{"text": "a b", "numbers": [1, 2], "other": {}}', {"Content_Type": kind}),
        ("PATCH", "/echo", b'{"text": "a b", "numbers": [1, 2]}', {"Content_Type": kind + "; charset=utf-8"}),
    ]:
        status, got, answer, _ = call(method, path, body, **headers)
        assert (status, got) == (200, kind), (status, got, answer)
        # A list without values stands there, too.
        assert json.loads(answer) == {"text": "a b", "numbers": [1, 2], "inner": []}, answer
        assert seen["message"] == text(1, b"a b") + (text(2, b"\x01\x02") if headers else b"\x10\x01\x10\x02"), seen
    long = {"text": "y" * 300_000, "inner": [{"text": "z", "numbers": [], "inner": []}] * 20_000, "numbers": []}
    status, got, body, _ = call("POST", "/echo", json.dumps(long), Content_Type=kind)
    assert status == 200 and json.loads(body) == long, (status, body[:200])
    status, got, body, _ = call("POST", "/echo", '{"text": {"a": 1}}', Content_Type=kind)
    assert (status, got) == (400, kind) and "field text: expected no object" in body, body
    assert call("POST", "/small", '{"text": "12345678"}', Content_Type=kind)[0] == 413
    assert call("GET", "/small?text=" + "a" * 100)[0] == 502
    assert call("GET", "/missing-method")[0] == 503 and call("GET", "/missing-proto")[0] == 503
    print("messages: ok")


def failures():
    for path in ["/fails", "/fails-late"]:
        status, got, body, headers = call("GET", path)
        assert (status, got, body) == (503, "application/json", ""), (path, status, got, body)
        assert (headers["grpc-status"], headers["grpc-message"]) == ("14", "Out of service"), headers
        assert headers["grpc-status-details-bin"].rstrip("=") == STATUS, headers
        status, got, body, _ = call("GET", path + "-shown")
        shown = {"error": {"code": 14, "message": "Out of service", "details": [{"code": 1, "message": "no"}]}}
        assert (status, json.loads(body)) == (503, shown), (path, status, body)
    assert call("GET", "/unimplemented")[0] == 501
    assert call("GET", "/slow")[0] == 504
    assert call("GET", "/closed")[0] == 502
    print("failures: ok")


def streams():
    release.clear()
    answer = start("GET", "/many")
    assert answer.headers["Content-Type"] == "application/x-ndjson", answer.headers
    assert json.loads(answer.readline()) == {"text": "first"}
    release.set()
    assert json.loads(answer.readline()) == {"text": "x" * 200_000}
    assert answer.read() == b""
    lines = start("GET", "/many?text=a").read().splitlines()
    assert json.loads(lines[2]) == {"error": {"code": 8, "message": "too much", "details": []}}, lines[2]
    with futures.ThreadPoolExecutor(20) as pool:
        texts = [urllib.parse.quote("n %d" % number) for number in range(400)]
        answers = pool.map(lambda text: json.loads(call("GET", "/echo?text=" + text)[2])["text"], texts)
        assert list(answers) == ["n %d" % number for number in range(400)]
    print("streams: ok")


def main():
    server = grpc.server(futures.ThreadPoolExecutor(40))
    server.add_generic_rpc_handlers((Handlers(),))
    assert server.add_insecure_port("127.0.0.1:" + PORT)
    server.start()
    unary()
    failures()
    release.set()
    streams()
    server.stop(0)


main()
