"""A provider with TLS and a token that its key signed: signed_token.py CERTS PORT TOKEN

Writes the token to the file TOKEN, and serves the discovery document and the keys for the name server.test
on PORT, over connections that are kept.
"""

import base64
import http.server
import json
import os
import ssl
import subprocess
import sys

CERTS, PORT, TOKEN = sys.argv[1], int(sys.argv[2]), sys.argv[3]
KEY = f"{CERTS}/server-rsa.key"


def coded(data):
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def run(*arguments, data=None):
    return subprocess.run(arguments, input=data, stdout=subprocess.PIPE, check=True).stdout


modulus = bytes.fromhex(run("openssl", "rsa", "-in", KEY, "-modulus", "-noout").decode().strip().partition("=")[2])
documents = {
    "/d": {"issuer": "https://server.test", "jwks_uri": f"https://server.test:{PORT}/k"},
    "/k": {"keys": [{"kty": "RSA", "n": coded(modulus), "e": "AQAB"}]},
}
signed = ".".join(coded(json.dumps(part).encode()) for part in ({"alg": "RS256"}, {"iss": "https://server.test", "sub": "rose"}))
signature = run("openssl", "dgst", "-sha256", "-sign", KEY, data=signed.encode())


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = json.dumps(documents[self.path]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


with open(f"{TOKEN}.new", "w") as file:
    file.write(f"{signed}.{coded(signature)}")
os.rename(f"{TOKEN}.new", TOKEN)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(f"{CERTS}/server-rsa.crt", KEY)
server = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
server.serve_forever()
