"""A collector of OpenTelemetry with grpcio and the messages of opentelemetry-proto: otlp_grpc.py PORT SPANS_FILE [TLS_PORT CERTIFICATE KEY]

Writes each span as a line of JSON. The end of a span's name decides the answer: `busy` gets UNAVAILABLE with a delay of
0 s, once; `full` RESOURCE_EXHAUSTED without one; `wait` the same with a delay of 0 s, once; `part` is rejected in a
partial success; `bad` gets INVALID_ARGUMENT, with the client's token in its message; `hung` gets no answer in time.
"""

import json
import os
import sys
import threading
import time
from concurrent import futures

import grpc
from google.protobuf import any_pb2, duration_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as services
from protobuf import part

seen = set()


def retry_at_once():
    """google.rpc.Status with google.rpc.RetryInfo of 0 s."""
    delay = duration_pb2.Duration(seconds=0).SerializeToString()
    info = any_pb2.Any(type_url="type.googleapis.com/google.rpc.RetryInfo", value=part(1, delay))
    return ("grpc-status-details-bin", part(3, info.SerializeToString()))


def attributes(all_of_them):
    values = {one.key: one.value for one in all_of_them}
    return {key: getattr(value, value.WhichOneof("value")) for key, value in values.items()}


class Collector(services.TraceServiceServicer):
    def Export(self, request, context):
        about = dict(context.invocation_metadata())
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    kind = span.name.rsplit("/", 1)[-1]
                    is_first = kind not in seen
                    seen.add(kind)
                    self.write(kind, resource, scope, span, about, context)
                    if kind in ("busy", "wait") and is_first:
                        context.set_trailing_metadata((retry_at_once(),))
                        code = grpc.StatusCode.UNAVAILABLE if kind == "busy" else grpc.StatusCode.RESOURCE_EXHAUSTED
                        context.abort(code, "later")
                    if kind == "full":
                        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
                    if kind == "bad":
                        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "what is " + about["authorization"])
                    if kind == "hung":
                        time.sleep(5)
                    if kind == "part":
                        rejected = messages.ExportTracePartialSuccess(rejected_spans=1, error_message="too old")
                        return messages.ExportTraceServiceResponse(partial_success=rejected)
        return messages.ExportTraceServiceResponse()

    def write(self, kind, resource, scope, span, about, context):
        line = {
            "kind": kind,
            "name": span.name,
            "trace": span.trace_id.hex(),
            "resource": attributes(resource.resource.attributes),
            "scope": scope.scope.name,
            "attributes": attributes(span.attributes),
            "took": 0 < span.start_time_unix_nano <= span.end_time_unix_nano,
            "token": about.get("authorization"),
            "peer": context.peer(),
            "deadline": context.time_remaining() is not None,
        }
        with open(sys.argv[2], "a") as out:
            out.write(json.dumps(line) + "\n")


server = grpc.server(futures.ThreadPoolExecutor(8))
services.add_TraceServiceServicer_to_server(Collector(), server)
assert server.add_insecure_port("127.0.0.1:" + sys.argv[1])
if sys.argv[3:]:
    certificate, key = (open(path, "rb").read() for path in sys.argv[4:6])
    credentials = grpc.ssl_server_credentials([(key, certificate)])
    assert server.add_secure_port("127.0.0.1:" + sys.argv[3], credentials)
server.start()
threading.Timer(60, lambda: os._exit(0)).start()
server.wait_for_termination()
