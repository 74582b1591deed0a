"""A plugin runner of APISIX's protocol, written from its schema (ext-plugin.fbs) over the official FlatBuffers library.

Each entry of a plugin's `conf` is a step; its value is JSON. The gateway starts it with APISIX_LISTEN_ADDRESS."""

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time

import flatbuffers
from flatbuffers import number_types as N
from flatbuffers.table import Table

ERROR, PREPARE_CONF, REQUEST, EXTRA_INFO, RESPONSE = range(5)
tokens, by_key, forgotten = {}, {}, set()
lock = threading.Lock()


# Reading: fields of a table by their number in the schema.


def root(data):
    return Table(bytearray(data), int.from_bytes(data[:4], "little"))


def number(table, index, kind, missing=0):
    at = table.Offset(4 + 2 * index)
    return table.Get(kind, table.Pos + at) if at else missing


def text(table, index):
    at = table.Offset(4 + 2 * index)
    if not at:
        return None
    start, length = table.Vector(at), table.VectorLen(at)
    return bytes(table.Bytes[start : start + length])


def inner(table, index):
    at = table.Offset(4 + 2 * index)
    return Table(table.Bytes, table.Indirect(table.Pos + at)) if at else None


def entries(table, index):
    at = table.Offset(4 + 2 * index)
    if not at:
        return []
    start = table.Vector(at)
    found = (Table(table.Bytes, table.Indirect(start + 4 * n)) for n in range(table.VectorLen(at)))
    return [(text(one, 0).decode("latin-1"), text(one, 1)) for one in found]


# Writing: `fields` are pairs of a slot and a function that adds it; strings and vectors are made before.


def write(count, fields, builder=None):
    own = builder is None
    builder = builder or flatbuffers.Builder(0)
    slots = [(slot, kind, offset(builder, kind, value)) for slot, kind, value in fields]
    builder.StartObject(count)
    for slot, kind, value in slots:
        if kind == "u8":
            builder.PrependUint8Slot(slot, value, 0)
        elif kind == "u16":
            builder.PrependUint16Slot(slot, value, 0)
        elif kind == "u32":
            builder.PrependUint32Slot(slot, value, 0)
        else:
            builder.PrependUOffsetTRelativeSlot(slot, value, 0)
    end = builder.EndObject()
    if not own:
        return end
    builder.Finish(end)
    return bytes(builder.Output())


def offset(builder, kind, value):
    if kind == "text":
        return builder.CreateString(value)
    if kind == "bytes":
        return builder.CreateByteVector(value)
    if kind == "table":
        return write(value[0], value[1], builder)
    if kind == "entries":
        made = []
        for name, text in value:
            fields = [(0, "text", name)] + ([(1, "text", text)] if text is not None else [])
            made.append(write(2, fields, builder))
        builder.StartVector(4, len(made), 4)
        for one in reversed(made):
            builder.PrependUOffsetTRelative(one)
        return builder.EndVector()
    return value


class Hurt(Exception):
    pass


class Call:
    def __init__(self, connection):
        self.connection = connection

    def receive(self):
        head = self.exactly(4)
        return head[0], self.exactly(int.from_bytes(head[1:], "big"))

    def exactly(self, length):
        data = b""
        while len(data) < length:
            piece = self.connection.recv(length - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def send(self, kind, data):
        self.connection.sendall(bytes([kind]) + len(data).to_bytes(3, "big") + data)

    def ask(self, kind, fields=()):
        self.send(EXTRA_INFO, write(2, [(0, "u8", kind), (1, "table", (1, list(fields)))]))
        _, answer = self.receive()
        return text(root(answer), 0)

    def serve(self):
        try:
            while True:
                kind, data = self.receive()
                if kind == PREPARE_CONF:
                    self.prepare(root(data))
                else:
                    self.run(kind, root(data))
        except (EOFError, OSError, Hurt):
            self.connection.close()

    def prepare(self, request):
        key = text(request, 1).decode()
        with lock:
            token = by_key.setdefault(key, len(by_key) + 1)
            tokens[token] = [(name, json.loads(value)) for name, value in entries(request, 0)]
        print("conf", key, json.dumps([name for name, _ in tokens[token]]), flush=True)
        self.send(PREPARE_CONF, write(1, [(0, "u32", token)]))

    def run(self, kind, request):
        token = number(request, 6 if kind == REQUEST else 3, N.Uint32Flags)
        steps = tokens.get(token)
        if steps is None or any(name == "forget" for name, _ in steps) and token not in forgotten:
            forgotten.add(token)
            self.send(ERROR, write(1, [(0, "u8", 2)]))
            return
        rewrite, stop, changed = {}, None, {}
        for name, value in steps:
            hurt(self, kind, name, value)
            if name == "see":
                seen = describe(request) if kind == REQUEST else {"status": number(request, 1, N.Uint16Flags)}
                rewrite.setdefault("headers", []).append(("X-Seen", json.dumps(seen)))
            elif name == "var":
                got = self.ask(1, [(0, "text", value)])
                rewrite.setdefault("headers", []).append(("X-Var", "absent" if got is None else got.decode()))
            elif name == "body":
                got = self.ask(2)
                rewrite.setdefault("headers", []).append(("X-Body", "absent" if got is None else str(len(got))))
                if value.get("upper") and got:
                    rewrite["body"] = got.upper()
            elif name == "rewrite":
                rewrite.update({field: pairs(one) for field, one in value.items()})
            elif name == "stop":
                stop = value
            elif name == "response":
                changed = dict(value)
                if value.get("upper"):
                    changed["body"] = self.ask(3).decode().upper()
        if kind == REQUEST:
            self.send(REQUEST, answer(rewrite, stop))
            return
        fields = [(1, "u16", changed.get("status", 0))]
        if "headers" in changed:
            fields.append((2, "entries", pairs(changed["headers"])))
        if changed.get("body"):
            fields.append((3, "bytes", changed["body"].encode()))
        self.send(RESPONSE, write(4, fields))


def pairs(value):
    return [tuple(pair) for pair in value.items()] if isinstance(value, dict) else value


def describe(request):
    decode = lambda pairs: [[name, None if value is None else value.decode("latin-1")] for name, value in pairs]
    return {
        "ip": list(text(request, 1)),
        "method": number(request, 2, N.Uint8Flags),
        "path": text(request, 3).decode(),
        "args": decode(entries(request, 4)),
        "host": dict(decode(entries(request, 5)))["host"],
    }


def answer(rewrite, stop):
    if stop is not None:
        fields = [(0, "u16", stop.get("status", 0)), (1, "entries", pairs(stop.get("headers", {})))]
        if stop.get("body"):
            fields.append((2, "bytes", stop["body"].encode()))
        return write(3, [(0, "u32", 1), (1, "u8", 1), (2, "table", (3, fields))])
    if not rewrite:
        return write(3, [(0, "u32", 1)])
    fields = [(0, "text", rewrite["path"])] if "path" in rewrite else []
    for slot, name in [(1, "headers"), (2, "args"), (3, "resp_headers")]:
        if name in rewrite:
            fields.append((slot, "entries", rewrite[name]))
    if "body" in rewrite:
        body = rewrite["body"]
        fields.append((4, "bytes", body if isinstance(body, bytes) else body.encode()))
    return write(3, [(0, "u32", 1), (1, "u8", 2), (2, "table", (5, fields))])


def hurt(call, kind, name, value):
    """Everything that a runner should not do."""
    if name == "crash":
        # It keeps the output open.
        subprocess.Popen(["sleep", "600"])
        os._exit(3)
    elif name == "hang":
        time.sleep(60)
    elif name == "close":
        call.connection.shutdown(socket.SHUT_RDWR)
        raise Hurt
    elif name == "error":
        call.send(ERROR, write(1, [(0, "u8", value)]))
        raise Hurt
    elif name == "cut":
        call.connection.sendall(bytes([kind]) + (1000).to_bytes(3, "big") + b"short")
        raise Hurt
    elif name == "kind":
        call.send(77, b"")
        raise Hurt
    elif name == "garbage":
        call.send(kind, random.Random(value).randbytes(200))
        raise Hurt
    elif name == "ask-for-ever":
        while True:
            call.ask(1, [(0, "text", "uri")])
    elif name == "huge":
        call.connection.sendall(bytes([kind, 255, 255, 255]))
        for _ in range(300):
            call.connection.sendall(bytes(65536))
        raise Hurt


def main():
    path = os.environ["APISIX_LISTEN_ADDRESS"].removeprefix("unix:")
    assert os.environ["APISIX_CONF_EXPIRE_TIME"] == "3600"
    if os.path.exists(path):
        os.remove(path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(100)
    print("runner listens", flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=Call(connection).serve, daemon=True).start()


sys.exit(main())
