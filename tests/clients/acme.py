"""Certificates from a real ACME server: acme.py SLUICE FOLDER ROOT [ETCD | --to]

Starts pebble, a DNS server for it, and the gateway; with addresses of etcd, two gateways of one cluster; with --to, a
gateway that has no files. Ports come in the environment: PROXY, TLS, ADMIN, CONTROL, METRICS (of
the gateway), ACME, MANAGE, DNS, DNS_MANAGE, WEB; and ADMIN_KEY.
"""

import http.client
import http.server
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request

SLUICE, FOLDER, ROOT = sys.argv[1:4]
WITHOUT_FILES = sys.argv[4:] == ["--to"]
ETCD = sys.argv[4].split(",") if len(sys.argv) > 4 and not WITHOUT_FILES else []
HOST = "127.0.0.1"
SECOND = "127.0.0.2"
PATIENCE = 60
STARTED = []
os.chdir(FOLDER)


def port(name):
    return int(os.environ[name + "_PORT"])


def until(what, holds):
    end = time.monotonic() + PATIENCE
    while True:
        found = holds()
        if found:
            return found
        assert time.monotonic() < end, what
        time.sleep(0.2)


def write(name, text):
    with open(name + ".new", "w") as file:
        file.write(text)
    os.rename(name + ".new", name)


def start(*args, log, **env):
    out = open(log, "ab")
    process = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **env})
    STARTED.append(process)
    return process


def listens(number, host=HOST):
    try:
        socket.create_connection((host, number), 5).close()
        return True
    except OSError:
        return False


def openssl(*args):
    done = subprocess.run(["openssl", *args], capture_output=True, timeout=60)
    assert done.returncode == 0, (args, done.stderr.decode())


class Web(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"routed")

    def log_message(self, *_):
        pass


def servers(life):
    """The ACME server, whose certificates live so many seconds, and its DNS."""
    tools = os.path.join(ROOT, "target/tools")
    for tool in ("pebble", "pebble-challtestsrv"):
        assert os.path.exists(os.path.join(tools, tool)), f"{tool} is missing: cargo x test installs it"
    certs = os.path.join(ROOT, "tests/certs/")
    own = {
        "listenAddress": f"{HOST}:{port('ACME')}",
        "managementListenAddress": f"{HOST}:{port('MANAGE')}",
        "certificate": certs + "server-ec.crt",
        "privateKey": certs + "server-ec.key",
        "httpPort": port("PROXY"),
        "tlsPort": port("TLS"),
        "profiles": {"default": {"description": "short", "validityPeriod": life}},
    }
    write("pebble.json", json.dumps({"pebble": own}))
    start(os.path.join(tools, "pebble-challtestsrv"), "-defaultIPv4", HOST, "-defaultIPv6", "", "-dnsserver", f"{HOST}:{port('DNS')}",
          "-management", f"{HOST}:{port('DNS_MANAGE')}", "-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", "", log="dns.log")
    start(os.path.join(tools, "pebble"), "-config", "pebble.json", "-dnsserver", f"{HOST}:{port('DNS')}", log="pebble.log",
          PEBBLE_VA_NOSLEEP="1")
    for name in ("ACME", "MANAGE", "DNS_MANAGE"):
        until(name, lambda: listens(port(name)))
    # Where nobody listens, and the second gateway of a cluster.
    for name, address in (("unreachable.test", "127.0.0.9"), ("second.test", SECOND)):
        value = {"host": name, "addresses": [address]}
        request = urllib.request.Request(f"http://{HOST}:{port('DNS_MANAGE')}/add-a", json.dumps(value).encode())
        urllib.request.urlopen(request).read()
    web = http.server.ThreadingHTTPServer((HOST, port("WEB")), Web)
    web.daemon_threads = True
    threading.Thread(target=web.serve_forever, daemon=True).start()
    trusting = ssl.create_default_context(cafile=certs + "ca.crt")
    root = urllib.request.urlopen(f"https://{HOST}:{port('MANAGE')}/roots/0", context=trusting).read().decode()
    write("root.crt", root)


def gateway(challenge, domains, folder=FOLDER, host=HOST):
    at = lambda name: {"ip": host, "port": port(name)}
    store = {"config_provider": "etcd" if ETCD else "embedded"}
    config = {
        "apisix": {"node_listen": [at("PROXY")], "ssl": {"listen": [at("TLS")]}, "control": at("CONTROL")},
        "nginx_config": {"worker_processes": 2},
        "deployment": {
            "role": "traditional",
            "role_traditional": store,
            **({"etcd": {"host": ETCD}} if ETCD else {}),
            "admin": {
                "admin_key": [{"name": "admin", "key": os.environ["ADMIN_KEY"], "role": "admin"}],
                "admin_listen": at("ADMIN"),
            },
        },
        "plugin_attr": {"prometheus": {"export_addr": at("METRICS")}},
        "sluice": {
            "acme": {
                "directory": f"https://{HOST}:{port('ACME')}/dir",
                "ca": ROOT + "/tests/certs/ca.crt",
                "email": "someone@example.test",
                "accept_terms": True,
                "challenge": challenge,
                "domains": domains,
                "retry": "2s",
            }
        },
    }
    os.makedirs(folder, exist_ok=True)
    write(folder + "/config.yaml", json.dumps(config))
    process = start(SLUICE, "run", folder, "--data", folder + "/data", log=folder + "/sluice.log")
    return process


def started(host=HOST):
    until("the gateway starts", lambda: listens(port("CONTROL"), host) and listens(port("ADMIN"), host))


def admin(method, path, value=None):
    connection = http.client.HTTPConnection(HOST, port("ADMIN"), timeout=30)
    connection.request(method, "/apisix/admin/" + path, value and json.dumps(value), {"X-API-KEY": os.environ["ADMIN_KEY"]})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def served(name, host=HOST):
    """The serial number of the certificate under a name that verifies; none if there is none."""
    trusting = ssl.create_default_context(cafile="root.crt")
    try:
        with socket.create_connection((host, port("TLS")), 10) as plain:
            with trusting.wrap_socket(plain, server_hostname=name) as secure:
                return secure.getpeercert()["serialNumber"]
    except (ssl.SSLError, ConnectionError):
        return None


def standing(name):
    status = json.load(urllib.request.urlopen(f"http://{HOST}:{port('CONTROL')}/v1/status"))
    return next((one for one in status["acme"] if name in one["domains"]), {})


def metrics():
    return urllib.request.urlopen(f"http://{HOST}:{port('METRICS')}/apisix/prometheus/metrics").read().decode()


def issued():
    code, said = admin("PUT", "routes/all", {"uri": "/*", "upstream": {"nodes": {f"{HOST}:{port('WEB')}": 1}}})
    assert code == 201, said
    first = until("a certificate", lambda: served("one.test"))
    assert served("www.one.test") == first
    until("another", lambda: served("two.test"))
    code, said = admin("GET", "ssls/acme-one.test")
    value = json.loads(said)["value"]
    assert code == 200 and "key" not in value and "PRIVATE" not in said and value["snis"] == ["one.test", "www.one.test"], said
    _, history = admin("GET", "revisions")
    assert "PRIVATE" not in history and '"acme"' in history, history
    # A path of no challenge is the route's.
    other = urllib.request.urlopen(f"http://{HOST}:{port('PROXY')}/.well-known/acme-challenge/other").read()
    assert other == b"routed", other
    return first


def failed():
    why = until("the reason", lambda: standing("unreachable.test").get("last_error"))
    assert "unreachable.test" in why and ("refused" in why or "127.0.0.9" in why), why
    with open("sluice.log") as file:
        assert any("no certificate issued" in line and "unreachable.test" in line for line in file)
    until("the metric", lambda: 'acme_certificate_failures{id="acme-unreachable.test"}' in metrics())
    until("the other metric", lambda: 'acme_certificate_days_left{id="acme-one.test"} 0' in metrics())


def renewed(first):
    """At two thirds of its life, and at no moment there is none."""

    def another():
        now = served("one.test")
        assert now is not None, "there was no valid certificate"
        return now != first and now

    until("a renewed certificate", another)


def labelled():
    """A resource of one's own, with a certificate of one's own at first."""
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "own.key",
            "-out", "own.crt", "-subj", "/CN=own.test", "-addext", "subjectAltName=DNS:own.test", "-days", "90")
    value = {"sni": "own.test", "cert": open("own.crt").read(), "key": open("own.key").read(), "labels": {"acme": "true"},
             "ssl_protocols": ["TLSv1.3"]}
    code, said = admin("PUT", "ssls/own", value)
    assert code == 201, said
    until("it is replaced", lambda: served("own.test"))
    _, said = admin("GET", "ssls/own")
    assert json.loads(said)["value"]["ssl_protocols"] == ["TLSv1.3"], said


def cluster():
    """Two gateways, each of which is asked for one of the two names of the certificate."""
    servers(3600)
    names = ["first.test", "second.test"]
    folders = [FOLDER + "/one", FOLDER + "/two"]
    hosts = (HOST, SECOND)
    processes = [gateway("http-01", [names], folder, host) for folder, host in zip(folders, hosts)]
    for host in hosts:
        started(host)
    first = until("a certificate", lambda: served("first.test"))
    until("the same of the other", lambda: served("second.test", SECOND) == first)
    print("answers: ok")
    for process in processes:
        process.send_signal(signal.SIGTERM)
    assert [process.wait(60) for process in processes] == [0, 0]
    logs = [open(folder + "/sluice.log").read() for folder in folders]
    count = lambda text: sum(log.count(text) for log in logs)
    assert count('certificate issued names="first.test, second.test"') == 1, logs
    # A try that failed may be made again by the other.
    assert count("requesting a certificate") == 1 + count("no certificate issued"), logs
    # Now and then the server refuses a good nonce, so a request may have come twice; accounts do not.
    with open("pebble.log") as file:
        accounts = re.findall("There are now ([0-9]+) accounts in memory", file.read())
    assert accounts == ["1"], accounts
    assert "PRIVATE KEY" not in "".join(logs)
    print("one issuer: ok")


def alone():
    servers(20)
    process = gateway("http-01", [["one.test", "www.one.test"], "two.test", "unreachable.test"])
    started()
    number = issued()
    print("http-01: ok")
    failed()
    print("failures: ok")
    renewed(number)
    print("renewal: ok")
    labelled()
    print("labels: ok")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    gateway("tls-alpn-01", ["three.test"])
    started()
    until("a certificate", lambda: served("three.test"))
    # The account is that of before, and no secret is in a log.
    # Now and then the server refuses a good nonce, so a request may have come twice; accounts do not.
    with open("pebble.log") as file:
        accounts = re.findall("There are now ([0-9]+) accounts in memory", file.read())
    assert accounts == ["1"], accounts
    with open("sluice.log") as file:
        assert "PRIVATE KEY" not in file.read()
    print("tls-alpn-01: ok")


def without_files():
    """`sluice run --to`, on ports 443 and 80, then on 443 alone."""
    servers(3600)
    state = {"XDG_STATE_HOME": FOLDER + "/state", "SSL_CERT_FILE": ROOT + "/tests/certs/ca.crt"}
    arguments = ["run", "--to", f"http://{HOST}:{port('WEB')}", "--domain", "one.test", "--acme-directory", f"https://{HOST}:{port('ACME')}/dir"]
    process = start(SLUICE, *arguments, log="sluice.log", **state)
    first = until("a certificate", lambda: listens(port("TLS")) and served("one.test"))

    def secure(name):
        plain = socket.create_connection((HOST, port("TLS")), 10)
        with ssl.create_default_context(cafile="root.crt").wrap_socket(plain, server_hostname="one.test") as stream:
            stream.sendall(f"GET /a HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
            return b"".join(iter(lambda: stream.recv(4096), b"")).decode()

    assert secure("one.test").endswith("routed"), secure("one.test")
    assert " 404 " in secure("other.test").splitlines()[0], secure("other.test")
    print("certificate: ok")
    plain = http.client.HTTPConnection(HOST, port("PROXY"), timeout=30)
    plain.request("GET", "/a?b", headers={"Host": "one.test"})
    answer = plain.getresponse()
    assert (answer.status, answer.getheader("Location")) == (301, "https://one.test/a?b"), (answer.status, answer.getheader("Location"))
    print("redirect: ok")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    process = start(SLUICE, *arguments, "--listen", f"{HOST}:{port('TLS')}", log="sluice.log", **state)
    until("it serves again", lambda: listens(port("TLS")))
    assert until("the certificate", lambda: served("one.test")) == first
    assert not listens(port("PROXY")) and secure("one.test").endswith("routed")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    with open("sluice.log") as file:
        log = file.read()
    assert log.count("requesting a certificate") == 1 and "PRIVATE KEY" not in log, log
    assert sorted(os.listdir("state/sluice/to")) == ["store.key", "store.redb"], os.listdir("state/sluice/to")
    print("restart: ok")
    # A folder with resources of its own is left as it is.
    write("config.yaml", json.dumps({"apisix": {"node_listen": [81], "ssl": {"enable": False}}}))
    process = start(SLUICE, "run", "config.yaml", "--data", "own", log="own.log")
    until("it runs", lambda: os.path.exists("own/admin.key") and listens(9180))
    key = open("own/admin.key").read().strip()
    value = {"uri": "/own", "upstream": {"nodes": {"127.0.0.1:1": 1}}}
    connection = http.client.HTTPConnection(HOST, 9180, timeout=30)
    connection.request("PUT", "/apisix/admin/routes/own", json.dumps(value), {"X-API-KEY": key})
    assert connection.getresponse().status == 201
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    done = subprocess.run([SLUICE, *arguments, "--data", "own"], capture_output=True, text=True, timeout=60, env={**os.environ, **state})
    assert done.returncode == 1 and "the store holds other resources (routes/own)" in done.stderr, done
    print("other resources: ok")


try:
    without_files() if WITHOUT_FILES else cluster() if ETCD else alone()
finally:
    for process in STARTED:
        process.kill()
        process.wait()
