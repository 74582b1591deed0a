"""gRPC from an HTTP/3 client to a real server: http3_grpc.py ADDRESS:PORT PORT

The server listens on the second port. Route: /t.T/* by gRPC.
"""

import struct
import sys
from concurrent import futures

import grpc

from http3 import Connection

FIELDS = [("content-type", "application/grpc"), ("te", "trailers")]


class Service(grpc.GenericRpcHandler):
    def service(self, call):
        if call.method == "/t.T/Twice":
            return grpc.unary_unary_rpc_method_handler(lambda message, _: message * 2)
        if call.method == "/t.T/Chat":
            return grpc.stream_stream_rpc_method_handler(lambda messages, _: (message.upper() for message in messages))
        if call.method == "/t.T/Fail":
            return grpc.unary_unary_rpc_method_handler(lambda _, context: context.abort(grpc.StatusCode.DATA_LOSS, "lost"))
        return None


def packed(message):
    return b"\0" + struct.pack(">I", len(message)) + message


server = grpc.server(futures.ThreadPoolExecutor(4))
server.add_generic_rpc_handlers((Service(),))
server.add_insecure_port(f"127.0.0.1:{sys.argv[2]}")
server.start()

one = Connection(sys.argv[1]).shake()


def call(path, message):
    number = one.request("POST", path, FIELDS, ends=False)
    one.send(number, packed(message), ends=True)
    return one.answer(number)


twice = call("/t.T/Twice", b"ab" * 50_000)
assert twice.head[":status"] == "200" and twice.head["content-type"].startswith("application/grpc"), twice.head
assert twice.data == packed(b"ab" * 100_000) and twice.trailers["grpc-status"] == "0", twice.trailers
failed = call("/t.T/Fail", b"")
ending = failed.trailers or failed.head
assert ending["grpc-status"] == "15" and ending["grpc-message"] == "lost", (failed.head, failed.trailers)
# Each message goes on as it comes, both ways.
number = one.request("POST", "/t.T/Chat", FIELDS, ends=False)
stream, expected = one.streams[number], b""
for word in (b"one", b"two", b"three"):
    one.send(number, packed(word))
    expected += packed(word.upper())
    one.until(lambda: stream.data == expected)
one.send(number, b"", ends=True)
assert one.answer(number).trailers["grpc-status"] == "0", stream.trailers
# What the gateway says itself.
none = call("/n.N/None", b"")
assert none.head[":status"] == "200" and none.head["grpc-status"] == "12" and not none.data, none.head
one.end()
server.stop(None)
print("gRPC: ok")
