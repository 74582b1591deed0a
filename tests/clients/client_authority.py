"""Connections of clients whose authority is withdrawn: client_authority.py ADDRESS:PORT ADMIN KEY

The certificates are those of the case tls/client-certificates, the route answers everything.
"""

import json
import os
import socket
import ssl
import sys
import time
import urllib.request

import http2
import http3

ADDRESS, ADMIN, KEY = sys.argv[1:4]
CERTS = http3.CERTS


def read(name):
    return open(os.path.join(CERTS, name)).read()


def put(id, sni, authority):
    value = {"sni": sni, "cert": read("server-ec.crt"), "key": read("server-ec.key")}
    if authority:
        value["client"] = {"ca": read(authority + ".crt")}
    request = urllib.request.Request(f"http://{ADMIN}/apisix/admin/ssls/{id}", json.dumps(value).encode(),
        {"X-API-KEY": KEY}, method="PUT")
    urllib.request.urlopen(request).read()


class Http1:
    """One connection, of which each answer has a known length."""

    def __init__(self, name, proof, version=None, session=None):
        self.name = name
        self.context = context(proof, [], version)
        self.socket = connect(self.context, name, session)

    def status(self):
        self.socket.sendall(f"GET / HTTP/1.1\r\nHost: {self.name}\r\n\r\n".encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            part = self.socket.recv(65536)
            assert part, answer
            answer += part
        head, rest = answer.split(b"\r\n\r\n", 1)
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        while len(rest) < int(fields[b"content-length"]):
            rest += self.socket.recv(65536)
        return int(head.split()[1])

    def is_over(self):
        return self.socket.recv(1) == b""


class Http2:
    def __init__(self, name, proof):
        self.one = http2.Connection(ADDRESS, over=connect(context(proof, ["h2"]), name))
        self.one.address = name

    def status(self):
        return int(self.one.answer(self.one.request("GET", "/")).head[":status"])

    def is_over(self):
        self.one.until(lambda: self.one.goaways)
        return self.one.goaways[0][1] == 0


class Http3:
    def __init__(self, name, proof):
        self.one = http3.Connection(ADDRESS, name=name, proof=proof).shake()

    def status(self):
        return int(self.one.get("/").head[":status"])

    def is_over(self):
        self.one.until(lambda: self.one.goaways)
        return True


def context(proof, protocols, version=None):
    made = ssl.create_default_context(cafile=os.path.join(CERTS, "ca.crt"))
    made.set_alpn_protocols(protocols or ["http/1.1"])
    if version:
        made.minimum_version = made.maximum_version = version
    if proof:
        made.load_cert_chain(os.path.join(CERTS, proof + ".crt"), os.path.join(CERTS, proof + ".key"))
    return made


def connect(context, name, session=None):
    host, port = ADDRESS.rsplit(":", 1)
    plain = socket.create_connection((host, int(port)), 20)
    return context.wrap_socket(plain, server_hostname=name, session=session)


def is_served(name, proof):
    try:
        return Http1(name, proof).status() == 200
    except (OSError, AssertionError):
        return False


def until_served(name, proof, served):
    end = time.monotonic() + 20
    while is_served(name, proof) != served:
        assert time.monotonic() < end, (name, proof, served)
        time.sleep(0.1)
    # Of two workers the other may see it a moment later.
    time.sleep(0.3)


def withdrawn(what, name, change, proof="client"):
    """After the change, requests on connections from before get 400, and the connections end."""
    until_served(name, proof, True)
    before = [kind(name, proof) for kind in (Http1, Http2, Http3)]
    assert [one.status() for one in before] == [200] * 3, what
    sessions = []
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        one = Http1(name, proof, version)
        assert one.status() == 200 and one.socket.session.has_ticket, (what, version)
        sessions.append(one)
    change()
    until_served(name, proof, False)
    answered = [one.status() for one in before]
    assert answered == [400] * 3, (what, answered)
    for one in before:
        assert one.is_over(), (what, one)
    # Nor is a session worth anything that was kept.
    for one in sessions:
        version = one.context.minimum_version
        try:
            again = connect(one.context, name, one.socket.session)
            again.sendall(f"GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
            answer = again.recv(65536)
        except OSError:
            answer = b""
        assert b" 200 " not in answer[:20], (what, version, answer)


put("kept", "kept.server.test", "ca")
withdrawn("another authority", "kept.server.test", lambda: put("kept", "kept.server.test", "other-ca"))
put("wide", "*.server.test", "ca")
withdrawn("a name of its own", "narrow.server.test", lambda: put("narrow", "narrow.server.test", "other-ca"))
put("late", "late.server.test", None)
withdrawn("an authority at last", "late.server.test", lambda: put("late", "late.server.test", "ca"), proof=None)
# A resource of its own with the same rules changes nothing.
until_served("same.server.test", "client", True)
before = [kind("same.server.test", "client") for kind in (Http1, Http2, Http3)]
put("same", "same.server.test", "ca")
put("kept", "kept.server.test", "ca")
until_served("kept.server.test", "client", True)
assert [one.status() for one in before] == [200] * 3
print("withdrawn: ok")
