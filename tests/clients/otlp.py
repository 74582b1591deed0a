"""A collector of OpenTelemetry for logs and metrics, with grpcio and the messages of opentelemetry-proto:
otlp.py HTTP_PORT GRPC_PORT RECORDS_FILE

Writes each log record, and each metric, as a line of JSON. The end of a log record's `url.path` decides the answer:
`busy` gets UNAVAILABLE (503) with a delay of 0 s, once; `part` is rejected in a partial success, with the client's token
in its message; `bad` gets INVALID_ARGUMENT (400); `hung` gets no answer in time. Exports of metrics that are still under
way when the next one begins are written as `{"overlap": true}`.
"""

import json
import os
import sys
import threading
import time
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2_grpc as logs_service
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_service
from protobuf import part

lock = threading.Lock()
seen = set()
exporting = 0


def write(line):
    with lock, open(sys.argv[3], "a") as out:
        out.write(json.dumps(line) + "\n")


def plain(value):
    """An AnyValue as it is."""
    kind = value.WhichOneof("value")
    if kind == "kvlist_value":
        return attributes(value.kvlist_value.values)
    if kind == "array_value":
        return [plain(one) for one in value.array_value.values]
    return getattr(value, kind) if kind else None


def attributes(all_of_them):
    return {one.key: plain(one.value) for one in all_of_them}


def take_logs(request, about):
    """The kind of answer."""
    kinds = set()
    for resource in request.resource_logs:
        for scope in resource.scope_logs:
            for record in scope.log_records:
                all_of_them = attributes(record.attributes)
                kinds.add(all_of_them.get("url.path", "").rsplit("/", 1)[-1])
                write(about | {
                    "resource": attributes(resource.resource.attributes),
                    "scope": scope.scope.name,
                    "body": plain(record.body),
                    "attributes": all_of_them,
                    "severity": [record.severity_number, record.severity_text],
                    "trace": record.trace_id.hex(),
                    "span": record.span_id.hex(),
                    "flags": record.flags,
                    "time": record.time_unix_nano,
                    "records": len(scope.log_records),
                })
    with lock:
        first = {kind for kind in kinds if (about["path"], kind) not in seen}
        seen.update((about["path"], kind) for kind in kinds)
    if "hung" in kinds:
        time.sleep(5)
    if "busy" in first:
        return "busy"
    return "bad" if "bad" in kinds else "part" if "part" in kinds else "good"


def take_metrics(request, about, size):
    global exporting
    with lock:
        exporting += 1
        overlaps = exporting > 1
    if overlaps:
        write({"overlap": True})
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                write(about | {
                    "resource": attributes(resource.resource.attributes),
                    "scope": scope.scope.name,
                    "metric": MessageToDict(metric, preserving_proto_field_name=True),
                    "size": size,
                })
    if os.path.exists("slow"):
        time.sleep(1)
    with lock:
        exporting -= 1


def partial(about):
    rejected = logs.ExportLogsPartialSuccess(rejected_log_records=1, error_message="too old, " + str(about["token"]))
    return logs.ExportLogsServiceResponse(partial_success=rejected)


class Http(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        about = {"path": self.path, "type": self.headers["Content-Type"], "token": self.headers["Authorization"]}
        answer = (200, logs.ExportLogsServiceResponse())
        if self.path == "/v1/logs":
            kind = take_logs(logs.ExportLogsServiceRequest.FromString(body), about)
            if kind != "good":
                answer = {"busy": (503, answer[1]), "bad": (400, answer[1]), "part": (200, partial(about))}[kind]
        elif self.path == "/v1/metrics":
            take_metrics(metrics.ExportMetricsServiceRequest.FromString(body), about, len(body))
        status, message = answer
        message = message.SerializeToString()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(message)))
        self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(message)

    def log_message(self, *_):
        pass


def about_call(context):
    return {"path": "grpc", "token": dict(context.invocation_metadata()).get("authorization")}


class Logs(logs_service.LogsServiceServicer):
    def Export(self, request, context):
        about = about_call(context)
        kind = take_logs(request, about)
        if kind == "busy":
            delay = duration_pb2.Duration(seconds=0).SerializeToString()
            info = any_pb2.Any(type_url="type.googleapis.com/google.rpc.RetryInfo", value=part(1, delay))
            context.set_trailing_metadata((("grpc-status-details-bin", part(3, info.SerializeToString())),))
            context.abort(grpc.StatusCode.UNAVAILABLE, "later")
        if kind == "bad":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "what is " + str(about["token"]))
        return partial(about) if kind == "part" else logs.ExportLogsServiceResponse()


class Metrics(metrics_service.MetricsServiceServicer):
    def Export(self, request, context):
        take_metrics(request, about_call(context), request.ByteSize())
        return metrics.ExportMetricsServiceResponse()


server = grpc.server(futures.ThreadPoolExecutor(8))
logs_service.add_LogsServiceServicer_to_server(Logs(), server)
metrics_service.add_MetricsServiceServicer_to_server(Metrics(), server)
assert server.add_insecure_port("127.0.0.1:" + sys.argv[2])
server.start()
threading.Timer(60, lambda: os._exit(0)).start()
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Http).serve_forever()
