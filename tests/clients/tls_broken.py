"""TLS that is none, byte by byte: tls_broken.py ADDRESS:PORT

Route: /. Handshakes have five seconds there. What is broken gets an alert or the end, and never hangs; what is only
unusual is served; and a thousand handshakes that stop hold up nobody.
"""

import os
import socket
import ssl
import struct
import subprocess
import sys
import time

HOST, PORT = sys.argv[1].rsplit(":", 1)
CERTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "certs")
CHANGE, ALERT, HANDSHAKE, DATA = 20, 21, 22, 23
# Longer than a handshake may take.
PATIENCE = 60


def connect():
    return socket.create_connection((HOST, int(PORT)), PATIENCE)


def record(kind, payload, length=None):
    return bytes([kind, 3, 3]) + struct.pack(">H", len(payload) if length is None else length) + payload


class Tls:
    """A client whose records are ours to cut."""

    def __init__(self, version=None):
        context = ssl.create_default_context(cafile=os.path.join(CERTS, "ca.crt"))
        if version:
            context.minimum_version = context.maximum_version = version
        self.come, self.go = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.inner = context.wrap_bio(self.come, self.go, server_hostname="server.test")
        self.socket = connect()

    def flight(self, do):
        try:
            return do()
        except ssl.SSLWantReadError:
            return None

    def hello(self):
        self.flight(self.inner.do_handshake)
        return self.go.read()

    def shake(self, cut=lambda data: data):
        self.socket.sendall(cut(self.hello()))
        while True:
            came = self.socket.recv(65536)
            assert came, "the end within a handshake"
            self.come.write(came)
            done = self.flight(lambda: self.inner.do_handshake() or True)
            self.socket.sendall(self.go.read())
            if done:
                return self

    def ask(self):
        self.inner.write(b"GET / HTTP/1.1\r\nHost: server.test\r\nConnection: close\r\n\r\n")
        self.socket.sendall(self.go.read())
        got = b""
        while b"\r\n\r\n" not in got:
            came = self.socket.recv(65536)
            if not came:
                break
            self.come.write(came)
            while part := self.flight(lambda: self.inner.read(65536)):
                got += part
        return got.startswith(b"HTTP/1.1 200")


def cut(data, size):
    """The same handshake messages in records of so many bytes."""
    out = b""
    while data:
        length = int.from_bytes(data[3:5], "big")
        payload, data = data[5 : 5 + length], data[5 + length :]
        out += b"".join(record(HANDSHAKE, payload[at : at + size]) for at in range(0, length, size))
    return out


def refused(what, data, ends=False):
    """An alert or the end comes, and before a handshake's time is over where nothing more could make it right."""
    sock = connect()
    begun = time.monotonic()
    try:
        for at in range(0, len(data), 4096):
            sock.sendall(data[at : at + 4096])
        if ends:
            sock.shutdown(socket.SHUT_WR)
        got = b""
        while part := sock.recv(65536):
            got += part
    except ConnectionError:
        got = b""
    assert not got or got[0] in (ALERT, HANDSHAKE), (what, got[:50])
    # What follows a whole hello comes behind the server's answer to that.
    while got and got[0] in (HANDSHAKE, CHANGE, DATA):
        got = got[5 + int.from_bytes(got[3:5], "big") :]
    assert not got or got[0] == ALERT, (what, got[:50])
    assert time.monotonic() - begun < PATIENCE, what


def unusual():
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        for size in (1, 7, 100):
            assert Tls(version).shake(lambda data: cut(data, size) if data[0] == HANDSHAKE else data).ask(), (version, size)
    # A hello a byte at a time, within its time.
    one = Tls()
    data = one.hello()
    for byte in data[:-1]:
        one.socket.sendall(bytes([byte]))
    one.socket.sendall(data[-1:])
    while not one.flight(lambda: one.inner.do_handshake() or True):
        one.socket.sendall(one.go.read())
        one.come.write(one.socket.recv(65536))
    one.socket.sendall(one.go.read())
    assert one.ask()
    print("unusual: ok")


def broken():
    hello = Tls().hello()
    message = hello[5:]
    finished = b"\x14\0\0\x0c" + b"x" * 12
    for what, data in {
        "a record that is too long": record(HANDSHAKE, b"\x01" + b"x" * 20_000, length=20_000),
        "one of 64 KiB": record(HANDSHAKE, b"\x01" * 65_535),
        "an empty record": record(HANDSHAKE, b""),
        "many empty records": record(HANDSHAKE, b"") * 10_000,
        "a message of 16 MiB": record(HANDSHAKE, b"\x01\xff\xff\xff" + b"x" * 10_000) + record(HANDSHAKE, b"x" * 16_000) * 60,
        "another kind": record(99, message),
        "another version of records": bytes([HANDSHAKE, 9, 9]) + hello[3:],
        "the end first": record(HANDSHAKE, finished),
        "a certificate first": record(HANDSHAKE, b"\x0b\0\0\x04\0\0\0\0"),
        "data first": record(DATA, b"GET / HTTP/1.1\r\n\r\n"),
        "a change of ciphers first": record(CHANGE, b"\x01") + record(DATA, b"x" * 100),
        "many changes of ciphers": hello + record(CHANGE, b"\x01") * 1000,
        "a change to something else": hello + record(CHANGE, b"\x02"),
        "two hellos": hello + hello,
        "a hello and the end": hello + record(HANDSHAKE, finished),
        "a hello and data in the clear": hello + record(DATA, b"x" * 50),
        "a hello and a record that is too long": hello + record(DATA, b"x" * 17_000),
        "a hello with more behind it": record(HANDSHAKE, message + b"\x01\0\0\x01"),
        "many warnings": record(ALERT, b"\x01\x5a") * 1000,
        "a fatal alert": record(ALERT, b"\x02\x28"),
        "half an alert": record(ALERT, b"\x02"),
    }.items():
        refused(what, data)
    # A hello of which each byte is another one, and one that breaks off at each of its bytes.
    for at in range(0, len(hello), 3):
        refused(f"byte {at}", hello[:at] + bytes([hello[at] ^ 0xFF]) + hello[at + 1 :], ends=True)
        refused(f"cut at {at}", hello[:at], ends=True)
    assert Tls().shake().ask()
    print("broken: ok")


def renegotiated():
    """A client of TLS 1.2 that wants to shake hands again does not get that."""
    command = ["openssl", "s_client", "-connect", sys.argv[1], "-servername", "server.test", "-tls1_2"]
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    client.stdin.write(b"GET / HTTP/1.1\r\nHost: server.test\r\nX: ")
    client.stdin.flush()
    time.sleep(0.5)
    client.stdin.write(b"R\n")
    client.stdin.flush()
    said, _ = client.communicate(timeout=PATIENCE * 3)
    assert b"RENEGOTIATING" in said, said[-300:]
    again = said.split(b"RENEGOTIATING", 1)[1]
    assert b"verify return" not in again and b"depth=" not in again, again[:500]
    assert Tls().shake().ask()
    print("renegotiation: ok")


def many():
    """A thousand that begin and stop, in three places."""
    hello = Tls().hello()
    stalled = []
    for number in range(999):
        one = connect()
        one.sendall((b"", hello[:100], hello)[number % 3])
        stalled.append(one)
    for _ in range(20):
        assert Tls().shake().ask()
    for one in stalled:
        try:
            while one.recv(65536):
                pass
        except ConnectionError:
            pass
    assert Tls().shake().ask()
    print("half open: ok")


unusual()
broken()
renegotiated()
many()
