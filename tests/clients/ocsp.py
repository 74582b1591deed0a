"""OCSP responses are fetched, checked and stapled: ocsp.py FOLDER TLS_PORT ADMIN_ADDRESS KEY RESPONDER_PORT LOG

Makes an authority and certificates with openssl; the responder's path says how it answers.
"""

import http.client
import http.server
import json
import os
import subprocess
import sys
import threading
import time

FOLDER, TLS_PORT, ADMIN, KEY, PORT, LOG = sys.argv[1:7]
os.chdir(FOLDER)
ASKED = []


def openssl(*args, given=b""):
    done = subprocess.run(["openssl", *args], input=given, capture_output=True, timeout=60)
    assert done.returncode == 0, (args, done.stderr.decode())
    return done.stdout


def write(name, text):
    with open(name, "w") as file:
        file.write(text)


def key(name):
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", name + ".key")


def authority(name):
    key(name)
    extensions = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=keyCertSign,digitalSignature"]
    openssl("req", "-x509", "-new", "-key", name + ".key", "-subj", f"/CN={name}", "-days", "30", "-out", name + ".crt", *extensions)


def certificate(name, number, extensions, issuer="authority"):
    key(name)
    write(name + ".ext", extensions)
    openssl("req", "-new", "-key", name + ".key", "-subj", f"/CN={name}.test", "-out", name + ".csr")
    signed = ["-CA", issuer + ".crt", "-CAkey", issuer + ".key", "-set_serial", str(number), "-days", "20"]
    openssl("x509", "-req", "-in", name + ".csr", *signed, "-extfile", name + ".ext", "-out", name + ".crt")


WAYS = ["issuer", "delegated", "foreign", "usurped", "revoked", "skipped", "unknown", "hang", "error", "garbage", "big", "none"]


def made():
    authority("authority")
    authority("stranger")
    certificate("signer", 900, "extendedKeyUsage=OCSPSigning\n")
    # Certified by the same authority, and not for this.
    certificate("usurper", 901, "extendedKeyUsage=serverAuth\n")
    lines = []
    for number, way in enumerate(WAYS, 1):
        where = "" if way == "none" else f"authorityInfoAccess=OCSP;URI:http://127.0.0.1:{PORT}/{way}\n"
        certificate(way, number, f"subjectAltName=DNS:{way}.test\n{where}")
        if way != "unknown":
            bad = way in ("revoked", "skipped")
            lines.append("\t".join(["R" if bad else "V", "390101000000Z", "250101000000Z" if bad else "", f"{number:02X}", "unknown", f"/CN={way}.test"]))
    write("index.txt", "\n".join(lines) + "\n")


class Responder(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        request = self.rfile.read(int(self.headers["Content-Length"]))
        way = self.path[1:]
        ASKED.append(way)
        if way == "hang":
            time.sleep(600)
        status, body = 200, b""
        if way == "error":
            status = 503
        elif way == "garbage":
            body = b"<html>no</html>"
        elif way == "big":
            body = b"\x30" * (1 << 20)
        else:
            with open(way + ".req", "wb") as file:
                file.write(request)
            signer = {"delegated": "signer", "foreign": "stranger", "usurped": "usurper"}.get(way, "authority")
            openssl("ocsp", "-index", "index.txt", "-CA", "authority.crt", "-rsigner", signer + ".crt", "-rkey", signer + ".key",
                    "-reqin", way + ".req", "-respout", way + ".resp", "-ndays", "7")
            with open(way + ".resp", "rb") as file:
                body = file.read()
        self.send_response(status)
        self.send_header("Content-Type", "application/ocsp-response")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def admin(method, path, value):
    connection = http.client.HTTPConnection(*ADMIN.split(":"), timeout=30)
    connection.request(method, "/apisix/admin/" + path, json.dumps(value), {"X-API-KEY": KEY})
    answer = connection.getresponse()
    assert answer.status in (200, 201), answer.read()


def read(name):
    with open(name) as file:
        return file.read()


def put(way, **stapling):
    # The issuer stands behind the certificate.
    value = {"snis": [way + ".test"], "cert": read(way + ".crt") + read("authority.crt"), "key": read(way + ".key")}
    admin("PUT", "ssls/" + way, {**value, "ocsp_stapling": {"enabled": True, **stapling}})


def shown(way, *more):
    args = ["s_client", "-status", "-connect", "127.0.0.1:" + TLS_PORT, "-servername", way + ".test", "-CAfile", "authority.crt", *more]
    return openssl(*args, given=b"Q\n").decode()


def until(what, holds):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def log():
    return read(LOG)


made()
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(PORT)), Responder)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
for way in WAYS:
    put(way, skip_verify=way == "skipped")
for way, status in [("issuer", "good"), ("delegated", "good"), ("skipped", "revoked")]:
    until(way, lambda: f"Cert Status: {status}" in shown(way))
    assert "Verification: OK" in shown(way), shown(way)
    assert "Cert Status" in shown(way, "-tls1_2")
print("stapled: ok")
for way, why in [
    ("foreign", "neither the issuer nor a certificate that it issued for OCSP signed it"),
    ("usurped", "neither the issuer nor a certificate that it issued for OCSP signed it"),
    ("revoked", 'certificate status "revoked"'),
    ("unknown", 'certificate status "unknown"'),
    ("hang", "no answer in time"),
    ("error", "bad http status code: 503"),
    ("garbage", "not an OCSP response"),
    ("big", "ocsp responder query failed"),
    ("none", "cert not contains authority_information_access extension"),
]:
    until(way, lambda: any("no ocsp response send: " in line and why in line and "ssls/" + way in line for line in log().splitlines()))
    # The handshake is as ever, and waits for nobody.
    assert "OCSP response: no response sent" in shown(way) and "Verification: OK" in shown(way), way
print("refused: ok")
# Nobody is asked by a handshake. What was refused is asked for again in time.
before = ASKED.count("issuer")
for _ in range(20):
    shown("issuer")
assert ASKED.count("issuer") == before, ASKED
admin("PATCH", "ssls/issuer", {"ocsp_stapling": None})
until("no more", lambda: "no response sent" in shown("issuer"))
put("issuer")
until("again", lambda: "Cert Status: good" in shown("issuer"))
print("switched off and on: ok")
