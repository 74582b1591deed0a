"""gRPC over TLS with clients and with servers: grpc_tls.py ADDRESS:PORT PORT CERTIFICATES

The second port is where the gateway's upstream is to listen.
"""

import queue
import sys
from concurrent import futures

import grpc


def certificate(name):
    with open(f"{sys.argv[3]}/{name}", "rb") as file:
        return file.read()


def unary(request, context):
    if request == b"fail":
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now")
    return request[::-1]


def both(requests, _context):
    yield from requests


class Handlers(grpc.GenericRpcHandler):
    def service(self, details):
        return {
            "/t.T/Unary": grpc.unary_unary_rpc_method_handler(unary),
            "/t.T/Both": grpc.stream_stream_rpc_method_handler(both),
        }.get(details.method)


def main():
    server = grpc.server(futures.ThreadPoolExecutor(20))
    server.add_generic_rpc_handlers((Handlers(),))
    pair = (certificate("server-rsa.key"), certificate("server-rsa.crt"))
    assert server.add_secure_port("127.0.0.1:" + sys.argv[2], grpc.ssl_server_credentials([pair]))
    server.start()
    trusted = grpc.ssl_channel_credentials(certificate("ca.crt"))
    options = [("grpc.ssl_target_name_override", "server.test")]
    channel = grpc.secure_channel(sys.argv[1], trusted, options)
    one = channel.unary_unary("/t.T/Unary")
    assert one(b"abc", timeout=20) == b"cba"
    assert one(b"x" * 1_000_000 + b"y", timeout=20) == b"y" + b"x" * 1_000_000
    questions = queue.Queue()
    answers = channel.stream_stream("/t.T/Both")(iter(questions.get, None), timeout=20)
    for number in range(20):
        questions.put(b"%d" % number)
        assert next(answers) == b"%d" % number
    questions.put(None)
    assert list(answers) == []
    try:
        one(b"fail", timeout=20)
        raise AssertionError("it was to fail")
    except grpc.RpcError as error:
        assert (error.code(), error.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "not now"), error
    server.stop(0)
    print("gRPC over TLS: ok")


main()
