"""Which certificate an HTTP/3 client gets, and what it has to prove: http3_names.py ADDRESS:PORT"""

import sys

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from http3 import Connection, Gone

ADDRESS = sys.argv[1]


def refused(**named):
    """The alert with which a handshake ends, and what is said of it where it ends later."""
    try:
        one = Connection(ADDRESS, **named).shake()
        one.get("/")
    except Gone as gone:
        return gone.args[0][0] & 0xff
    raise AssertionError(f"served: {named}")


def kind(name):
    one = Connection(ADDRESS, name=name).shake()
    certificate = one.quic.tls._peer_certificate
    key = certificate.public_key()
    answer = one.get("/")
    assert answer.head[":status"] == "200", answer.head
    one.end()
    return "ec" if isinstance(key, ec.EllipticCurvePublicKey) else "rsa" if isinstance(key, rsa.RSAPublicKey) else key


assert kind("server.test") == "ec"
assert kind("rsa.server.test") == "rsa"
assert refused(name="unknown.test") == 112
# Its resource leaves TLS 1.3 out.
assert refused(name="old.server.test") == 70
# Clients that have to prove themselves.
assert refused(name="strict.server.test") == 116
assert refused(name="strict.server.test", proof="stranger") in (42, 45, 48)
one = Connection(ADDRESS, name="strict.server.test", proof="client").shake()
answer = one.get("/")
assert answer.head["x-proof"].startswith("SUCCESS|CN=client"), answer.head
assert answer.head["x-seen"] == "HTTP/3.0|TLSv1.3|strict.server.test", answer.head
assert one.get("/", authority="server.test").head[":status"] == "200"
one.end()
# The handshake was for another host than the request.
one = Connection(ADDRESS).shake()
assert one.get("/", authority="strict.server.test").head[":status"] == "421"
one.end()
# Another protocol than HTTP/3 is not spoken.
assert refused(protocol="hq-interop") == 120
# A session goes on later, and nothing is sent before the handshake is over.
kept = []
one = Connection(ADDRESS, tickets=kept.append).shake()
one.until(lambda: kept)
one.end()
assert not one.resumed and kept[0].max_early_data_size in (None, 0), kept[0]
one = Connection(ADDRESS, ticket=kept[0]).shake()
assert one.resumed and one.get("/").head[":status"] == "200"
one.end()
print("names: ok")
