"""A collector of OpenTelemetry: decodes spans of OTLP over HTTP and writes each as a line of JSON.

collector.py PORT SPANS_FILE
"""
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data):
    """The fields of a message, by number; each a list of integers or bytes."""
    all_fields, at = {}, 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
        elif tag & 7 == 1:
            value, at = int.from_bytes(data[at : at + 8], "little"), at + 8
        elif tag & 7 == 2:
            length, at = varint(data, at)
            value, at = data[at : at + length], at + length
            assert len(value) == length
        else:
            raise ValueError(f"wire type {tag & 7}")
        all_fields.setdefault(tag >> 3, []).append(value)
    return all_fields


def attributes(encoded):
    found = {}
    for one in map(fields, encoded):
        value = fields(one[2][0])
        number, value = next(iter(value.items()))
        value = value[0]
        # A text, a truth value, a whole number; a number with a fraction stays as its bits.
        found[one[1][0].decode()] = value.decode() if number == 1 else bool(value) if number == 2 else value
    return found


def spans(data):
    for resource_spans in map(fields, fields(data)[1]):
        resource = attributes(fields(resource_spans[1][0])[1])
        for scope_spans in map(fields, resource_spans[2]):
            scope = fields(scope_spans[1][0])[1][0].decode()
            for span in map(fields, scope_spans[2]):
                status = fields(span.get(15, [b""])[0])
                yield {
                    "resource": resource,
                    "scope": scope,
                    "trace": span[1][0].hex(),
                    "id": span[2][0].hex(),
                    "parent": span.get(4, [b""])[0].hex(),
                    "name": span[5][0].decode(),
                    "kind": span[6][0],
                    "took": 0 < span[7][0] <= span[8][0],
                    "attributes": attributes(span.get(9, [])),
                    "status": [status.get(3, [0])[0], status.get(2, [b""])[0].decode()],
                }


class Collector(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        about = {"path": self.path, "type": self.headers["Content-Type"], "token": self.headers["Authorization"]}
        with open(sys.argv[2], "a") as out:
            for span in spans(body):
                out.write(json.dumps(about | span) + "\n")
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Collector)
threading.Timer(60, lambda: os._exit(0)).start()
server.serve_forever()
