"""gRPC through a gateway, with grpcio on both sides: grpc_calls.py ADDRESS:PORT PORT

The second port is where the gateway's upstream is to listen. `/t.T/*` leads there, `/web/*` by the grpc-web plugin.
"""

import base64
import http.client
import queue
import struct
import sys
import threading
from concurrent import futures

import grpc

NAME = "/t.T/"
begun, cancelled = threading.Event(), threading.Event()


def unary(request, context):
    context.send_initial_metadata((("early", "yes"),))
    context.set_trailing_metadata((("late", "yes"), ("late-bin", b"\x00\xff")))
    if request == b"fail":
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now: 100% \u00e9")
    if request == b"timeout?":
        return b"some" if context.time_remaining() < 100 else b"none"
    return request[::-1]


def down(request, _context):
    yield from (b"%d" % number for number in range(int(request)))


def up(requests, _context):
    return b"".join(requests)


def both(requests, _context):
    yield from (b"<" + request + b">" for request in requests)


def slow(_request, context):
    context.add_callback(cancelled.set)
    begun.set()
    cancelled.wait(30)
    return b""


def only_trailers(_request, context):
    context.abort(grpc.StatusCode.NOT_FOUND, "nothing")


class Handlers(grpc.GenericRpcHandler):
    def service(self, details):
        return {
            NAME + "Unary": grpc.unary_unary_rpc_method_handler(unary),
            NAME + "Down": grpc.unary_stream_rpc_method_handler(down),
            NAME + "Up": grpc.stream_unary_rpc_method_handler(up),
            NAME + "Both": grpc.stream_stream_rpc_method_handler(both),
            NAME + "Slow": grpc.unary_unary_rpc_method_handler(slow),
            NAME + "OnlyTrailers": grpc.unary_unary_rpc_method_handler(only_trailers),
        }.get(details.method)


def failure(call, *args, **more):
    try:
        call(*args, **more)
    except grpc.RpcError as error:
        return error
    raise AssertionError("it was to fail")


def native(address):
    channel = grpc.insecure_channel(address)
    one = channel.unary_unary(NAME + "Unary")
    answer, call = one.with_call(b"abc")
    assert answer == b"cba"
    assert ("early", "yes") in call.initial_metadata(), call.initial_metadata()
    assert set(call.trailing_metadata()) == {("late", "yes"), ("late-bin", b"\x00\xff")}, call.trailing_metadata()
    large = bytes(range(256)) * 12_000
    assert one(large) == large[::-1]
    assert one(b"timeout?", timeout=50) == b"some"
    assert [int(part) for part in channel.unary_stream(NAME + "Down")(b"1000")] == list(range(1000))
    assert channel.stream_unary(NAME + "Up")(iter([b"a" * 1000] * 500)) == b"a" * 500_000
    questions = queue.Queue()
    answers = channel.stream_stream(NAME + "Both")(iter(questions.get, None))
    for number in range(50):
        # Each waits for the one before, so nothing may be held back.
        questions.put(b"%d" % number)
        assert next(answers) == b"<%d>" % number
    questions.put(None)
    assert list(answers) == []
    failed = failure(one, b"fail")
    assert (failed.code(), failed.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "not now: 100% \u00e9")
    assert ("late", "yes") in failed.trailing_metadata()
    failed = failure(channel.unary_unary(NAME + "OnlyTrailers"), b"")
    assert (failed.code(), failed.details()) == (grpc.StatusCode.NOT_FOUND, "nothing")
    assert failure(channel.unary_unary(NAME + "None"), b"").code() == grpc.StatusCode.UNIMPLEMENTED
    cancelled.clear()
    failed = failure(channel.unary_unary(NAME + "Slow"), b"", timeout=0.5)
    assert failed.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert cancelled.wait(20), "the server was not told of the deadline"
    cancelled.clear()
    begun.clear()
    call = channel.unary_unary(NAME + "Slow").future(b"")
    assert begun.wait(20)
    call.cancel()
    assert cancelled.wait(20), "the server was not told that the client cancelled"
    with futures.ThreadPoolExecutor(40) as pool:
        assert set(pool.map(lambda _: one(b"abc"), range(1000))) == {b"cba"}
    # What the gateway has to say itself.
    failed = failure(channel.unary_unary("/other/Call"), b"")
    assert failed.code() == grpc.StatusCode.UNIMPLEMENTED and "404 Route Not Found" in failed.details(), failed
    failed = failure(channel.unary_unary("/closed/Call"), b"")
    assert failed.code() == grpc.StatusCode.UNAVAILABLE and "502 Bad Gateway" in failed.details(), failed
    failed = failure(channel.unary_unary("/key/Call"), b"")
    assert failed.code() == grpc.StatusCode.UNAUTHENTICATED and "Missing API key" in failed.details(), failed
    print("gRPC: ok")


def frames(body):
    found = []
    while body:
        kind, length = body[0], struct.unpack(">I", body[1:5])[0]
        found.append((kind, body[5 : 5 + length]))
        body = body[5 + length :]
    return found


def base64_parts(text):
    return b"".join(base64.b64decode(text[at : at + 4]) for at in range(0, len(text), 4))


def web(address):
    connection = http.client.HTTPConnection(address, timeout=20)

    def call(method, message, kind):
        body = b"\x00" + struct.pack(">I", len(message)) + message
        text = "text" in kind
        connection.request("POST", "/web" + method, base64.b64encode(body) if text else body, {"Content-Type": kind})
        answer = connection.getresponse()
        body = answer.read()
        assert answer.headers["Content-Type"] == kind, answer.headers
        return answer, frames(base64_parts(body) if text else body)

    for kind in ["application/grpc-web", "application/grpc-web+proto", "application/grpc-web-text"]:
        answer, (message, end) = call(NAME + "Unary", b"abc", kind)
        assert message == (0, b"cba") and answer.headers["early"] == "yes", (message, answer.headers)
        assert end[0] == 0x80 and b"grpc-status:0\r\n" in end[1] and b"late:yes\r\n" in end[1], end
        answer, found = call(NAME + "Down", b"100", kind)
        assert found[:-1] == [(0, b"%d" % number) for number in range(100)]
        answer, found = call(NAME + "OnlyTrailers", b"", kind)
        assert (answer.headers["grpc-status"], found) == ("5", []), (answer.headers, found)
    print("gRPC-Web: ok")


def main():
    server = grpc.server(futures.ThreadPoolExecutor(60))
    server.add_generic_rpc_handlers((Handlers(),))
    assert server.add_insecure_port("127.0.0.1:" + sys.argv[2])
    server.start()
    native(sys.argv[1])
    web(sys.argv[1])
    server.stop(0)


main()
