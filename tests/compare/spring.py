"""What Spring Cloud Gateway and Zuul have in common: local addresses of their files, and starting them."""

import os
import re
import subprocess
from pathlib import Path

import spring_file
import yaml
from nginx import Request

PROFILE = "compare"


class Site:
    """The rewritten file, and beside it a profile with the addresses of servers."""

    JAR = ""
    ASKS_GZIP = False
    JAVA = ()

    def __init__(self, source, folder, certs, ports):
        folder.mkdir(parents=True, exist_ok=True)
        source = Path(source)
        text = re.sub(r"@([\w.]+)@", r"\1", source.read_text(errors="replace"))
        self.folder, self.ports, self.ups, self.tls_ups = folder, ports, {}, set()
        self.certs, self.known = certs, {}
        properties = spring_file.read(source, text)
        self.listen = next(ports)
        edits = []
        for one in properties:
            value = self.local(one, spring_file.resolved(one.value, by_name(properties)))
            if value is not None:
                edits.append((one.begin, one.end, value))
        for begin, end, value in sorted(edits, reverse=True):
            text = text[:begin] + value + text[end:]
        self.file = folder / ("application" + source.suffix)
        self.file.write_text(text)
        self.properties = spring_file.read(self.file, text)
        self.values = by_name(self.properties)
        profile = {"server": {"port": self.listen, "address": "127.0.0.1"}} | self.profile()
        (folder / f"application-{PROFILE}.yml").write_text(yaml.safe_dump(profile))

    def address(self, url):
        """The local address that stands for one of the file."""
        found = re.match(r"(?i)(https?|wss?)://([^/?#]+)(.*)", url)
        if not found:
            return None
        port = self.known.get(found.group(2))
        if port is None:
            port = self.known[found.group(2)] = next(self.ports)
            self.ups[port] = found.group(2)
            if found.group(1).lower() in ("https", "wss"):
                self.tls_ups.add(port)
        return f"{found.group(1)}://127.0.0.1:{port}{found.group(3)}"

    def service(self, name):
        """The local port of a service that a registry would know."""
        for port, known in self.ups.items():
            if known == name:
                return port
        port = next(self.ports)
        self.ups[port] = name
        return port

    def upstreams(self):
        return self.ups

    def tls_upstreams(self):
        return self.tls_ups

    def same_upstream(self):
        return dict(self.ups)

    def usable(self):
        return None

    def options(self):
        return ["--profile", PROFILE]

    def ports_listened(self):
        return [self.listen]

    def start(self, log):
        trust = self.folder / "trust.p12"
        if not trust.exists():
            subprocess.run(
                ["keytool", "-importcert", "-noprompt", "-alias", "ca", "-file", self.certs / "ca.crt", "-keystore", trust,
                 "-storetype", "PKCS12", "-storepass", "password"], capture_output=True, check=True)
        jar = Path(os.environ["COMPARE_JARS"]) / self.JAR
        command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", f"-Djavax.net.ssl.trustStore={trust}",
                   "-Djavax.net.ssl.trustStorePassword=password", *self.JAVA, "-jar", str(jar),
                   f"--spring.config.location=file:{self.folder}/", f"--spring.profiles.active={PROFILE}",
                   "--spring.main.banner-mode=off", "--logging.level.root=ERROR", *self.words()]
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

    def words(self):
        return []

    def group(self, pattern):
        """Properties under a key of the pattern: (the text of its group, the rest of the key, property)."""
        for one in self.properties:
            found = re.match(pattern, one.name)
            if found:
                yield found.group(1), one.name[found.end():], one

    def make(self, lines, about, host="any.test", pause=0.0):
        def request(method, target, more=(), body=b"", host=host):
            # The HTTP clients of both programs add their own `Accept` and `Accept-Encoding` where there is none.
            base = [("Host", host), ("User-Agent", "compare"), ("X-Forwarded-For", "192.0.2.7"), ("Accept", "*/*")]
            base += [("Accept-Encoding", "gzip")] if self.ASKS_GZIP else []
            made = Request(self.listen, False, method, target, base + list(more), body, lines, about)
            made.by_group, made.pause = True, pause
            return made

        return request


def by_name(properties):
    return {one.name: one.value for one in properties}


def variations(make, target, more=(), websocket=True):
    """Requests of one target with other methods and headers."""
    yield make("POST", target, [*more, ("Content-Type", "text/plain")], b"hello=1")
    yield make("HEAD", target, more)
    yield make("DELETE", target, more)
    origin = [("Origin", "http://o.test"), ("Access-Control-Request-Method", "PUT")]
    yield make("OPTIONS", target, [*more, *origin])
    yield make("GET", target, [*more, origin[0]])
    forwarded = [("X-Forwarded-Proto", "https"), ("X-Forwarded-Host", "front.test"), ("X-Forwarded-Port", "443")]
    yield make("GET", target, [*more, *forwarded])
    yield make("GET", target, [*more, ("Cookie", "a=1"), ("Authorization", "Bearer x"), ("X-Request-Id", "fixed")])
    if websocket:
        yield make("GET", target, [*more, ("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Version", "13"),
                                   ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")])
