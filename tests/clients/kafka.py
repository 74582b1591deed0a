"""A broker of Kafka for a case: one topic partition, whose leader is this broker. What happens depends on the topic.

kafka.py PORT MESSAGES_FILE
"""
import json
import os
import socketserver
import struct
import sys
import threading

REFUSED = {"moved": 6, "big": 10, "busy": 19}
asked = {}
lock = threading.Lock()


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, length):
        taken = self.data[self.at : self.at + length]
        assert len(taken) == length, "the request is too short"
        self.at += length
        return taken

    def number(self, form):
        return struct.unpack(">" + form, self.take(struct.calcsize(form)))[0]

    def text(self):
        length = self.number("h")
        return None if length < 0 else self.take(length).decode()

    def varint(self):
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)


def text(value):
    return struct.pack(">h", len(value)) + value.encode()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def records(data):
    """The key and the value of a batch of one record."""
    batch = Reader(data)
    assert (batch.number("q"), batch.number("i")) == (0, len(data) - 12)
    batch.number("i")
    assert batch.number("b") == 2, "not the version of today"
    assert batch.number("I") == crc32c(data[21:]), "wrong checksum"
    assert (batch.number("h"), batch.number("i")) == (0, 0)
    assert batch.number("q") == batch.number("q") > 1600000000000
    assert (batch.number("q"), batch.number("h"), batch.number("i"), batch.number("i")) == (-1, -1, -1, 1)
    assert batch.varint() == len(data) - batch.at
    assert (batch.number("b"), batch.varint(), batch.varint()) == (0, 0, 0)
    parts = []
    for _ in range(2):
        length = batch.varint()
        parts.append(None if length < 0 else batch.take(length).decode())
    assert batch.varint() == 0 and batch.at == len(data)
    return parts


class Broker(socketserver.StreamRequestHandler):
    def handle(self):
        self.user = None
        while head := self.rfile.read(4):
            request = Reader(self.rfile.read(struct.unpack(">i", head)[0]))
            api, version, correlation = request.number("h"), request.number("h"), request.number("i")
            assert request.text() == "sluice"
            answer = getattr(self, f"api_{api}_{version}")(request)
            assert request.at == len(request.data), "the request is too long"
            if answer is None:
                continue
            if isinstance(answer, str):
                self.wfile.write(answer.encode("latin-1"))
                return
            answer = struct.pack(">i", correlation) + answer
            self.wfile.write(struct.pack(">i", len(answer)) + answer)

    def api_17_1(self, request):
        known = request.text() == "PLAIN"
        return struct.pack(">hi", 0 if known else 33, 1) + text("PLAIN")

    def api_36_0(self, request):
        _, user, password = request.take(request.number("i")).decode().split("\0")
        self.user = user if password == "s3cr3t-word" else None
        refused = b"" if self.user else text(f"no such password: {password}")
        return struct.pack(">h", 0 if self.user else 58) + (refused or b"\xff\xff") + struct.pack(">i", 0)

    def api_3_1(self, request):
        assert request.number("i") == 1
        topic = request.text()
        error = 29 if topic == "denied" else 0
        host, port = self.server.server_address
        broker = struct.pack(">ii", 1, 5) + text(host) + struct.pack(">ih", port, -1)
        partitions = b"".join(struct.pack(">hiiiiii", 0, number, 5, 1, 5, 1, 5) for number in range(3))
        about = struct.pack(">ih", 1, error) + text(topic) + struct.pack(">bi", 0, 3) + partitions
        return broker + struct.pack(">i", 5) + about

    def api_0_3(self, request):
        assert request.text() is None
        acks, timeout, topics = request.number("h"), request.number("i"), request.number("i")
        topic, partitions, partition = request.text(), request.number("i"), request.number("i")
        assert (topics, partitions, timeout > 0) == (1, 1, True)
        key, value = records(request.take(request.number("i")))
        with lock:
            asked[topic] = count = asked.get(topic, 0) + 1
            error = REFUSED.get(topic, 0) if count == 1 else 0
            if not error and topic not in ("slow", "bad"):
                about = {"topic": topic, "partition": partition, "acks": acks, "key": key, "value": value, "user": self.user}
                with open(sys.argv[2], "a") as out:
                    out.write(json.dumps(about) + "\n")
        if topic == "slow":
            return None
        if topic == "bad":
            return "\x7f\xff\xff\xff and no end"
        done = struct.pack(">i", 1) + text(topic) + struct.pack(">iihqq", 1, partition, error, 0, -1)
        return done + struct.pack(">i", 0)


socketserver.ThreadingTCPServer.allow_reuse_address = True
server = socketserver.ThreadingTCPServer(("127.0.0.1", int(sys.argv[1])), Broker)
server.daemon_threads = True
threading.Timer(60, lambda: os._exit(0)).start()
server.serve_forever()
