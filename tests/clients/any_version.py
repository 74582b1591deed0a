"""A client of each version of HTTP, to servers of each: any_version.py ADDRESS:PORT ADDRESS:PORT

The addresses are the gateway's, in clear text and for TLS and HTTP/3. Below /h1, /https, /h2c and /h2 it asks itself, by
that version, for /echo and /trailers, and notes in each answer what was spoken.
"""

import http.client
import os
import sys

from http2 import Connection as Http2
from http3 import Connection as Http3

PLAIN, TLS = sys.argv[1:3]
# What the second gateway is spoken to with, and so sees.
BACKS = {
    "h1": ("HTTP/1.1", "http"),
    "https": ("HTTP/1.1", "https"),
    "h2c": ("HTTP/2.0", "h2c"),
    "h2": ("HTTP/2.0", "h2"),
}


def by_http1(method, path, body):
    connection = http.client.HTTPConnection(PLAIN, timeout=20)
    # A body of unknown length goes in chunks.
    pieces = [body[at : at + 30_000] for at in range(0, len(body), 30_000)]
    connection.request(method, path, iter(pieces) if body else None, {"TE": "trailers"}, encode_chunked=True)
    answer = connection.getresponse()
    spoken = answer.headers["X-Spoken"], answer.headers["X-Scheme"]
    # Trailers are behind what this package reads.
    return answer.status, spoken, answer.read(), None


def by_streams(connect):
    def ask(method, path, body):
        one = connect()
        fields = [("te", "trailers")]
        number = one.request(method, path, fields, ends=not body)
        for at in range(0, len(body), 30_000):
            one.send(number, body[at : at + 30_000])
        if body:
            one.send(number, b"", ends=True)
        answer = one.answer(number)
        assert answer.ended, answer.reset
        spoken = answer.head.get("x-spoken"), answer.head.get("x-scheme")
        return int(answer.head[":status"]), spoken, bytes(answer.data), answer.trailers

    return ask


def check(name, ask):
    body = os.urandom(100_000).hex().encode()
    for back, expected in BACKS.items():
        status, spoken, data, _ = ask("POST", f"/{back}/echo", body)
        assert status == 200 and body in data, (back, status, data[:300])
        assert spoken == expected, (back, spoken)
        # A server that speaks HTTP/2 is none of gRPC for that.
        assert b"application/grpc" not in data, (back, data[:600])
        status, _, data, trailers = ask("GET", f"/{back}/trailers", b"")
        assert (status, data) == (200, b"ab"), (back, status, data)
        assert trailers is None or trailers == {"x-checksum": "7"}, (back, trailers)
        assert trailers or ask is by_http1, back
        status, _, data, _ = ask("GET", f"/{back}/none", b"")
        assert status == 404, (back, status, data)
    print(f"{name}: ok")


check("HTTP/1.1", by_http1)
check("HTTP/2", by_streams(lambda: Http2(PLAIN)))
check("HTTP/3", by_streams(lambda: Http3(TLS).shake()))
