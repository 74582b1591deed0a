"""The binary is replaced under load: upgrade.py SLUICE FOLDER ROOT

Starts the program itself, by a link, so that the link can point elsewhere later. ROOT is the repository.
Ports come in the environment: PROXY_PORT, TLS_PORT, ADMIN_PORT, CONTROL_PORT, METRICS_PORT, TCP_PORT, UDP_PORT, WEB_PORT (of
its own upstream), RAW_PORT (the same for streams); and ADMIN_KEY.
"""

import http.client
import http.server
import json
import os
import signal
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
import time

import websockets.sync.client
import websockets.sync.server

from http2 import Connection
from http3 import Connection as Http3

SLUICE, FOLDER, ROOT = sys.argv[1:4]
LINK = os.path.join(FOLDER, "sluice")
HOST = "127.0.0.1"
PATIENCE = 60


def port(name):
    return int(os.environ[name + "_PORT"])


def until(what, holds):
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.02)


# What is behind the gateway.


class Web(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(b"here")

    def do_POST(self):
        size = 0
        if self.headers.get("Transfer-Encoding") == "chunked":
            while length := int(self.rfile.readline(), 16):
                size += len(self.rfile.read(length))
                self.rfile.readline()
            self.rfile.readline()
        else:
            size = len(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(str(size).encode())

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Silent:
    def handle_error(self, *_):
        """A process that is killed leaves its connections; that would hide what the test says."""


class Server(Silent, socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 512


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)


class Raw(Silent, socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 512


class Datagrams(socketserver.ThreadingUDPServer):
    daemon_threads = True


class Reflect(socketserver.BaseRequestHandler):
    def handle(self):
        data, own = self.request
        own.sendto(data, self.client_address)


def behind():
    web_socket = lambda ws: [ws.send(message) for message in ws]
    for server in [
        Server((HOST, port("WEB")), Web),
        Raw((HOST, port("RAW")), Echo),
        Datagrams((HOST, port("RAW")), Reflect),
        websockets.sync.server.serve(web_socket, HOST, port("WS")),
    ]:
        threading.Thread(target=server.serve_forever, daemon=True).start()


# The gateway.


def point(to):
    fresh = LINK + ".new"
    os.symlink(to, fresh)
    os.rename(fresh, LINK)


def status():
    try:
        connection = http.client.HTTPConnection(HOST, port("CONTROL"), timeout=10)
        connection.request("GET", "/v1/status")
        return json.load(connection.getresponse())
    except OSError:
        return {}


def admin(method, path, value=None):
    connection = http.client.HTTPConnection(HOST, port("ADMIN"), timeout=30)
    connection.request(method, "/apisix/admin/" + path, json.dumps(value), {"X-API-KEY": os.environ["ADMIN_KEY"]})
    answer = connection.getresponse()
    return answer.status, json.load(answer)


def write(config):
    text = json.dumps(config)
    with open(os.path.join(FOLDER, "config.yaml.new"), "w") as file:
        file.write(text)
    os.rename(os.path.join(FOLDER, "config.yaml.new"), os.path.join(FOLDER, "config.yaml"))


def start(config):
    write(config)
    point(SLUICE)
    log = open(os.path.join(FOLDER, "sluice.log"), "ab")
    process = subprocess.Popen([LINK, "run", FOLDER, "--data", FOLDER + "/data"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    until("it starts", lambda: status().get("pid") == process.pid)
    certs = os.path.join(ROOT, "tests/certs/")
    read = lambda name: open(certs + name).read()
    upstream = lambda name: {"nodes": {f"{HOST}:{port(name)}": 1}}
    for path, value in {
        "routes/web": {"uri": "/*", "upstream": upstream("WEB")},
        "routes/ws": {"uri": "/ws", "enable_websocket": True, "upstream": upstream("WS")},
        "ssls/1": {"snis": ["server.test"], "cert": read("server-ec.crt"), "key": read("server-ec.key")},
        "stream_routes/tcp": {"server_port": port("TCP"), "upstream": {"scheme": "tcp", **upstream("RAW")}},
        "stream_routes/udp": {"server_port": port("UDP"), "upstream": {"scheme": "udp", **upstream("RAW")}},
    }.items():
        code, answer = admin("PUT", path, value)
        assert code == 201, answer
    until("it serves", lambda: all(w["revision"] >= status()["published"] for w in status()["workers"]))
    return process


def config():
    at = lambda name: {"ip": HOST, "port": port(name)}
    return {
        "apisix": {
            "node_listen": [at("PROXY")],
            "ssl": {"listen": [{**at("TLS"), "enable_http3": True}]},
            "control": at("CONTROL"),
            "proxy_mode": "http&stream",
            "stream_proxy": {"tcp": [f"{HOST}:{port('TCP')}"], "udp": [f"{HOST}:{port('UDP')}"]},
        },
        "nginx_config": {"worker_processes": 2, "worker_shutdown_timeout": "60s", "stream": {"udp_timeout": "2s"}},
        "deployment": {
            "role": "traditional",
            "role_traditional": {"config_provider": "embedded"},
            "admin": {
                "admin_key": [{"name": "admin", "key": os.environ["ADMIN_KEY"], "role": "admin"}],
                "admin_listen": at("ADMIN"),
            },
        },
        "plugin_attr": {"prometheus": {"export_addr": at("METRICS")}},
        "sluice": {"upgrade_timeout": "60s"},
    }


def upgrade():
    """Has it replaced; gives what `sluice upgrade` says and its exit code."""
    done = subprocess.run([SLUICE, "upgrade", FOLDER], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


# Clients, each in a thread of its own.


class Client(threading.Thread):
    def __init__(self, name, work):
        super().__init__(name=name, daemon=True)
        self.work, self.done, self.failed, self.ends = work, 0, None, False
        self.start()

    def run(self):
        try:
            for _ in self.work():
                self.done += 1
                if self.ends:
                    return
        except Exception as error:
            self.failed = f"{self.name}: {type(error).__name__} {error} after {self.done}"


def kept_alive(secure=False):
    tls = None
    if secure:
        tls = ssl.create_default_context(cafile=os.path.join(ROOT, "tests/certs/ca.crt"))
        # To the gateway's address by the name of its certificate.
        tls.check_hostname = False
    connection = None
    while True:
        if connection is None:
            if secure:
                connection = http.client.HTTPSConnection(HOST, port("TLS"), timeout=30, context=tls)
                plain = socket.create_connection((HOST, port("TLS")), 30)
                connection.sock = tls.wrap_socket(plain, server_hostname="server.test")
            else:
                connection = http.client.HTTPConnection(HOST, port("PROXY"), timeout=30)
        connection.request("GET", "/", headers={"Host": "server.test"})
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"here"), answer.status
        if answer.headers.get("Connection", "").lower() == "close":
            connection.close()
            connection = None
        yield


def anew():
    while True:
        connection = http.client.HTTPConnection(HOST, port("PROXY"), timeout=30)
        connection.request("GET", "/", headers={"Connection": "close"})
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"here"), answer.status
        connection.close()
        yield


def asked():
    """The APIs of the control plane, by new connections."""
    while True:
        code, answer = admin("GET", "routes/web")
        assert code == 200, answer
        for name, path in [("CONTROL", "/v1/status"), ("METRICS", "/apisix/prometheus/metrics")]:
            connection = http.client.HTTPConnection(HOST, port(name), timeout=30)
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == 200 and answer.read(), path
            connection.close()
        yield


class Admin:
    """Asks the Admin API by one connection for as long as it is kept."""

    def __init__(self):
        self.connection, self.used = None, False

    def leave(self):
        if self.connection:
            self.connection.close()
        self.connection, self.used = None, False

    def ask(self, method, path, value=None):
        if self.connection is None:
            self.connection = http.client.HTTPConnection(HOST, port("ADMIN"), timeout=30)
        headers = {"X-API-KEY": os.environ["ADMIN_KEY"]}
        try:
            self.connection.request(method, "/apisix/admin/" + path, json.dumps(value), headers)
            answer = self.connection.getresponse()
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            # Between two requests a server may close without a word (RFC 9112, section 9.3.1), before the first it may not.
            if not self.used:
                raise
            self.leave()
            return self.ask(method, path, value)
        said = answer.status, json.load(answer)
        self.used = True
        if answer.headers.get("Connection", "").lower() == "close":
            self.leave()
        return said

    def write(self, path, value):
        code, answer = self.ask("PUT", path, value)
        # This is all that may keep it from being written: the request came when the store was another's.
        while code == 503 and "on a new connection" in str(answer):
            self.leave()
            code, answer = self.ask("PUT", path, value)
        assert code in (200, 201), (code, answer)


def written(keep=False):
    """Writes, each by a new connection unless they are to be kept: none is refused and none is lost."""
    number, client, path = 0, Admin(), f"plugin_configs/{1 + keep}"
    while True:
        number += 1
        client.write(path, {"plugins": {}, "desc": str(number)})
        # Asked of whoever holds the store now.
        code, answer = admin("GET", path)
        assert answer["value"]["desc"] == str(number), answer
        if not keep:
            client.leave()
        yield


def uploaded(ends):
    """One body that begins before an upgrade and ends after it."""
    connection = socket.create_connection((HOST, port("PROXY")), 30)
    connection.sendall(b"POST /up HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    size = 0
    while not ends.is_set():
        connection.sendall(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
        size += 1000
        time.sleep(0.01)
        yield
    connection.sendall(b"0\r\n\r\n")
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    assert (answer.status, answer.read()) == (200, str(size).encode()), answer.status
    yield


def tunnelled(ends):
    with websockets.sync.client.connect(f"ws://{HOST}:{port('PROXY')}/ws") as ws:
        number = 0
        while not ends.is_set():
            number += 1
            ws.send(str(number))
            assert ws.recv(30) == str(number)
            time.sleep(0.005)
            yield
    yield


def streamed(ends):
    connection = socket.create_connection((HOST, port("TCP")), 30)
    while not ends.is_set():
        connection.sendall(b"ping")
        assert connection.recv(16) == b"ping"
        time.sleep(0.005)
        yield
    connection.close()
    yield


def streamed_anew():
    while True:
        with socket.create_connection((HOST, port("TCP")), 30) as connection:
            connection.sendall(b"ping")
            assert connection.recv(16) == b"ping"
        yield


def datagrams():
    number = 0
    kept = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    while True:
        number += 1
        fresh = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for client in (kept, fresh):
            client.settimeout(30)
            client.sendto(str(number).encode(), (HOST, port("UDP")))
            assert client.recv(100) == str(number).encode()
        fresh.close()
        yield


GOAWAYS = []


def multiplexed():
    connection = None
    while True:
        if connection is None:
            connection = Connection(f"{HOST}:{port('PROXY')}")
        asked = [connection.request("GET", "/") for _ in range(5)]
        again = 0
        for number in asked:
            stream = connection.streams[number]
            # What it says it has not seen may be sent again.
            unseen = lambda: connection.goaways and number > connection.goaways[-1][0]
            connection.until(lambda: stream.over or unseen() or connection.closed)
            if not stream.over:
                assert unseen(), "it ended"
                again += 1
                continue
            assert (stream.head[":status"], stream.data) == ("200", b"here"), stream.head
        if connection.goaways:
            # First that it ends, then where.
            connection.until(lambda: len(connection.goaways) == 2)
            assert connection.goaways[0][0] == (1 << 31) - 1, connection.goaways
            GOAWAYS.append(connection.goaways)
            connection.socket.close()
            connection = None
        yield


H3_GOAWAYS = []


def over_quic():
    """Requests by connections that are kept until the gateway says that it goes."""
    connection = None
    while True:
        if connection is None:
            connection = Http3(f"{HOST}:{port('TLS')}").shake(30)
        stream = connection.get("/")
        if stream.reset == 0x10B and connection.goaways:
            # Refused unseen, so that it may be sent again.
            pass
        else:
            assert stream.reset is None and (stream.head[":status"], stream.data) == ("200", b"here"), stream.head
        if connection.goaways:
            H3_GOAWAYS.append(connection.goaways[0])
            connection.end()
            connection = None
        yield


def uploaded_over_quic(ends):
    """One request that begins before an upgrade and ends after it."""
    connection = Http3(f"{HOST}:{port('TLS')}").shake(30)
    number = connection.request("POST", "/up", ends=False)
    size = 0
    while not ends.is_set():
        connection.send(number, b"x" * 3000)
        size += 3000
        connection.read(0.02)
        assert connection.closed is None and not connection.streams[number].over, connection.closed
        yield
    connection.send(number, b"", ends=True)
    stream = connection.answer(number, 30)
    assert (stream.head[":status"], stream.data) == ("200", str(size).encode()), stream.head
    connection.end()
    yield


def load():
    ends = threading.Event()
    clients = [Client(f"kept alive {n}", kept_alive) for n in range(3)]
    clients += [Client(f"new connections {n}", anew) for n in range(3)]
    clients += [
        Client("over TLS", lambda: kept_alive(secure=True)),
        Client("HTTP/2", multiplexed),
        Client("HTTP/3", over_quic),
        Client("TCP streams", streamed_anew),
        Client("datagrams", datagrams),
        Client("APIs", asked),
        Client("writes", written),
        Client("writes by a kept connection", lambda: written(keep=True)),
    ]
    long = [
        Client("an upload", lambda: uploaded(ends)),
        Client("an upload over HTTP/3", lambda: uploaded_over_quic(ends)),
        Client("a tunnel", lambda: tunnelled(ends)),
        Client("a stream", lambda: streamed(ends)),
    ]
    return clients, long, ends


def progress(clients):
    """Each has done more than before."""
    before = [client.done for client in clients]
    until(
        "all make progress",
        lambda: any(client.failed for client in clients)
        or all(client.done > old + 3 for client, old in zip(clients, before)),
    )
    failed = [client.failed for client in clients if client.failed]
    assert not failed, failed


def under_load(process):
    pids = [process.pid]
    clients, long, ends = load()
    progress(clients + long)
    for number in range(1, 6):
        code, said = upgrade()
        assert code == 0, said
        pids.append(status()["pid"])
        assert pids[-1] not in pids[:-1] and f"process {pids[-1]}, has taken over" in said, (pids, said)
        # What the first process has begun goes on beside the last.
        progress(clients + long)
        told = lambda: len(GOAWAYS) >= number and len(H3_GOAWAYS) >= number
        until("each says that it goes", lambda: told() or any(client.failed for client in clients))
    # Those between the first and the last have nothing left of their own then: sessions of UDP are over after two seconds.
    time.sleep(3)
    progress(clients + long)
    ends.set()
    for client in long:
        client.join(PATIENCE)
        assert not client.is_alive() and not client.failed, client.failed
    for client in clients:
        client.ends = True
        client.join(PATIENCE)
        assert not client.is_alive() and not client.failed, client.failed
    assert told(), (GOAWAYS, H3_GOAWAYS)
    until("the old ones end", lambda: all(gone(pid) for pid in pids[:-1]))
    assert process.wait() == 0
    print("five upgrades: ok")
    return pids[-1]


def broken(pid):
    """Whatever is wrong with the new one, the old one goes on, and says what it was."""
    good = config()
    hanging = os.path.join(FOLDER, "hanging")
    with open(hanging, "w") as file:
        file.write("#!/bin/sh\nexec sleep 600\n")
    os.chmod(hanging, 0o755)
    taken = socket.create_server((HOST, port("TAKEN")))
    wrong = {**good, "nginx_config": {"worker_processes": "many"}}
    no_port = {**good, "plugin_attr": {"prometheus": {"export_addr": {"ip": HOST, "port": port("TAKEN")}}}}
    # Its time is the old one's setting: a new one is started with it first.
    write({**good, "sluice": {"upgrade_timeout": "10s"}})
    point(SLUICE)
    code, said = upgrade()
    assert code == 0, said
    until("the old one ends", lambda: gone(pid))
    pid = status()["pid"]
    for what, to, file, expected in [
        ("ends", "/bin/false", good, "exit status: 1"),
        ("is missing", os.path.join(FOLDER, "nothing"), good, "cannot start"),
        ("hangs", hanging, good, "not ready in 10 s (sluice.upgrade_timeout)"),
        ("cannot read its file", SLUICE, wrong, "a number from 1 to 1024"),
        ("has no port", SLUICE, no_port, "plugin_attr.prometheus.export_addr"),
    ]:
        point(to)
        write(file)
        failures = status()["upgrades"]["failed"]
        code, said = upgrade()
        assert code == 1 and expected in said, (what, code, said)
        if file is wrong:
            # The command has read the file itself and left it at that; a signal reads nothing.
            assert status()["upgrades"]["failed"] == failures
            os.kill(pid, signal.SIGUSR2)
        until(what, lambda: status()["upgrades"]["failed"] > failures)
        now = status()
        assert now["pid"] == pid and expected in now["upgrades"]["last_error"], (what, now)
        clients = [Client("requests", anew), Client("writes", written), Client("datagrams", datagrams)]
        progress(clients)
        for client in clients:
            client.ends = True
            client.join(PATIENCE)
    # And then a whole one.
    point(SLUICE)
    write(good)
    os.kill(pid, signal.SIGUSR2)
    until("the signal does as the command", lambda: status().get("pid", pid) != pid and gone(pid))
    progress([Client("requests", anew), Client("writes", written)])
    print("broken ones: ok")


behind()
try:
    broken(under_load(start(config())))
finally:
    # Whoever is left, in whatever state.
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if file.read().startswith(LINK.encode() + b"\0"):
                    os.kill(int(name), signal.SIGKILL)
        except (OSError, ValueError):
            pass
