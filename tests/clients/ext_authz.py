"""A server of envoy.service.auth.v3 with grpcio, and requests through a gateway that asks it: ext_authz.py ADDRESS:PORT PORT

The second port is where the server is to listen. The gateway asks it about `/a/*`, with bodies of up to 8 bytes.
"""

import http.client
import sys
from concurrent import futures

import grpc
from protobuf import number, part, parts


def header(name, value):
    return part(1, part(1, name) + part(2, value))


def answers(request, context):
    """The answer, and for some requests an error behind it."""
    answer = check(request)
    yield answer
    if b"/late" in request:
        context.abort(grpc.StatusCode.INTERNAL, "late")


def check(request):
    request = parts(parts(parts(parts(request)[1][0])[4][0])[2][0])
    headers = {}
    for entry in request[3]:
        entry = parts(entry)
        headers[entry[1][0]] = entry.get(2, [b""])[0]
    if headers.get(b"x-token") == b"good":
        seen = request[4][0] + b"|" + request.get(11, [b""])[0]
        ok = part(2, header(b"x-seen", seen)) + part(5, b"x-token") + part(6, header(b"x-checked", b"yes"))
        return part(1, b"") + part(3, ok)
    if headers.get(b"x-token") == b"broken":
        return b"\x0b"
    denied = part(1, number(1, 401)) + part(2, header(b"www-authenticate", b"Token")) + part(3, b"no token")
    return part(1, number(1, 7)) + part(2, denied)


class Handlers(grpc.GenericRpcHandler):
    def service(self, details):
        if details.method == "/envoy.service.auth.v3.Authorization/Check":
            return grpc.unary_stream_rpc_method_handler(answers)
        return None


def main():
    server = grpc.server(futures.ThreadPoolExecutor(20))
    server.add_generic_rpc_handlers((Handlers(),))
    assert server.add_insecure_port("127.0.0.1:" + sys.argv[2])
    server.start()

    def send(method, path, token=None, body=None):
        connection = http.client.HTTPConnection(sys.argv[1], timeout=20)
        connection.request(method, path, body, {"X-Token": token} if token else {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()

    status, headers, body = send("GET", "/a/%62?c=d", "good")
    assert status == 200 and headers["X-Checked"] == "yes", (status, headers)
    assert '/a/b?c=d|"' in body and "x-token" not in body, body
    status, headers, body = send("POST", "/a/b", "good", "a body")
    assert status == 200 and "/a/b|a body" in body, body
    assert send("POST", "/a/b", "good", "a long body")[0] == 413
    status, headers, body = send("GET", "/a/b")
    assert (status, headers["WWW-Authenticate"], body) == (401, "Token", "no token"), (status, headers, body)
    assert send("GET", "/a/b", "broken")[0] == 403
    assert send("GET", "/a/late", "good")[0] == 503
    with futures.ThreadPoolExecutor(20) as pool:
        statuses = list(pool.map(lambda at: send("GET", "/a/b", "good" if at % 2 else None)[0], range(200)))
    assert statuses == [401, 200] * 100, statuses
    assert send("GET", "/other/b", "good")[0] == 403
    server.stop(0).wait()
    assert send("GET", "/a/b", "good")[0] == 503
    assert send("GET", "/lax/b")[0] == 200
    print("ext-authz: ok")


main()
