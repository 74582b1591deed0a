"""nginx: local files of a configuration, and requests derived from it."""

import re
import shutil
import subprocess
from pathlib import Path

import nginx_file
from samples import around, sample

NAME = "nginx"
TOP = {"events", "http", "stream", "worker_processes", "user", "pid", "mail"}
STREAM = Path("/usr/lib/nginx/modules/ngx_stream_module.so")
MIME = Path("/etc/nginx/mime.types")


class Request:
    def __init__(self, port, tls, method, target, headers, body, lines, about):
        self.port, self.tls, self.method, self.target = port, tls, method, target
        self.headers, self.body, self.lines, self.about = headers, body, lines, about
        self.by_group, self.pause = False, 0.0
        # Servers are drawn for it, so that both programs may choose another one.
        self.drawn = False
        # Copies of some of its requests go to another server, so that attempts are not comparable.
        self.copied = False
        # Requests that come as fast as they can.
        self.burst = False
        # The answer that the server is to give.
        self.failure = None


class Site:
    """The rewritten configuration."""

    def __init__(self, source, folder, certs, ports):
        self.folder, self.local = folder, nginx_file.Local(folder, certs, ports)
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / ("nginx.conf" if any(one.name in TOP for one in nginx_file.read(source)) else "site.conf")
        parsed = nginx_file.read(source)
        self.file.write_text(self.local.text(parsed, folder))
        self.beside(Path(source).parent, parsed)
        self.main = self.file
        if self.file.name == "site.conf":
            self.main = folder / "main.conf"
            self.main.write_text("events {}\nhttp { include " + str(self.file) + "; }\n")
        www = folder / "www"
        for name in ("index.html", "a/b/index.html", "x/y.txt", "favicon.ico", "style.css", "404.html", "50x.html"):
            (www / name).parent.mkdir(parents=True, exist_ok=True)
            (www / name).write_text("file " + name + "\n")
        (folder / "htpasswd").write_text("user:{PLAIN}password\n")
        if MIME.exists():
            shutil.copy(MIME, folder / "mime.types")
        self.tree = nginx_file.read(self.file)
        self.included()

    def beside(self, source, parsed):
        """Copies included files that stand beside the configuration."""
        for one, _ in nginx_file.walk(parsed):
            if one.name != "include" or len(one.words) < 2:
                continue
            pattern = one.words[1].removeprefix("/etc/nginx/")
            if pattern.startswith("/"):
                continue
            for path in sorted(source.glob(pattern)):
                target = self.folder / path.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(self.local.text(nginx_file.read(path), self.folder))
            if "*" not in pattern and not (self.folder / pattern).exists() and pattern != "mime.types":
                (self.folder / pattern).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / pattern).write_text("")

    def included(self):
        """Puts included files in the place of their `include`."""

        def expand(block, depth):
            out = []
            for one in block:
                if one.name == "include" and depth < 8 and len(one.words) > 1:
                    for path in sorted(self.folder.glob(one.words[1].lstrip("/"))):
                        out += expand(nginx_file.read(path), depth + 1)
                    continue
                if one.block is not None:
                    one.block = expand(one.block, depth)
                out.append(one)
            return out

        self.tree = expand(self.tree, 0)

    def upstreams(self):
        return {port: address for address, port in self.local.upstreams.items() if port}

    def tls_upstreams(self):
        return self.local.tls

    def answered(self):
        """Headers of servers that the configuration reads."""
        return sorted(set(re.findall(r"\$upstream_http_([a-z0-9_]+)", self.file.read_text())))

    def same_upstream(self):
        """The group of each port: servers of one upstream are equal."""
        groups = {}
        for one, _ in nginx_file.walk(self.tree):
            if one.name == "upstream" and one.block is not None:
                for server in one.all("server"):
                    groups[int(server.words[1].rpartition(":")[2])] = one.words[1]
        return groups

    def modules(self):
        """The module of `stream`, where it is installed and the file leaves loading it to the distribution."""
        found = any(one.name == "stream" for one in self.tree) and STREAM.exists()
        return f"load_module {STREAM}; " if found else ""

    def start(self, log):
        command = ["nginx", "-p", str(self.folder), "-c", str(self.main), "-g", self.modules() + "daemon off;"]
        return subprocess.Popen(command, stdout=log, stderr=log)

    def usable(self):
        """Why nginx refuses the file; None if it accepts it."""
        command = ["nginx", "-t", "-p", str(self.folder), "-c", str(self.main), "-g", self.modules()]
        tested = subprocess.run(command, capture_output=True, text=True)
        return None if tested.returncode == 0 else tested.stderr.strip().splitlines()[0]

    def ports_listened(self):
        return list(self.local.listens.values())

    def requests(self):
        http = next((one.block for one in self.tree if one.name == "http"), self.tree)
        outer = [one for one in http if one.block is None]
        maps = [one for one in http if one.name in ("map", "geo", "split_clients")]
        for server in [one for one in http if one.name == "server" and one.block is not None]:
            yield from self.of_server(server, http, outer, maps)

    def of_server(self, server, http, outer, maps):
        listens = server.all("listen") or [nginx_file.Directive(["listen", "80"], server.line, server.file)]
        ports = []
        for one in listens:
            port = one.words[1].rpartition(":")[2]
            if port.isdigit():
                ports.append((int(port), "ssl" in one.words or any(d.words[1:] == ["on"] for d in server.all("ssl"))))
        hosts = [host for one in server.all("server_name") for host in map(of_name, one.words[1:]) if host]
        hosts = (hosts[:4] or ["localhost"]) + ["unknown.test"]
        headers = conditions(server, maps)
        # Where a difference of this server may come from: its own lines, and those outside of all servers.
        shared = {d.line for d in outer} | {line for m in maps for line in range(m.line, m.end + 1)}
        blocks = [one for one, _ in nginx_file.walk(server.block) if one.name == "location" and one.block is not None]
        own = set(range(server.line, server.end + 1))
        for block in blocks:
            own -= set(range(block.line, block.end + 1))
        # Most of these are taken by the location `/`.
        rest = set().union(*[block_lines(block) for block in blocks if block.words[1:] == ["/"]])
        targets = [(target, own | shared | rest, "server") for target in ["/", "/a", "/index.html", "/none/such?x=1"]]
        within = {block: block_lines(block) for block in blocks}
        for block in blocks:
            around_it = set().union(*[within[one] for one in blocks if one.line < block.line and one.end > block.end])
            lines = set(range(block.line, block.end + 1)) | around_it | own | shared
            targets += [(target, lines, " ".join(block.words)) for target in of_location(block)]
            if any(one.words[-1] == "last" for one in block.all("rewrite")) and len(block.words) == 2:
                # The changed path may be one of a location with an expression.
                targets += [(block.words[1].rstrip("/") + path, lines | within[other], " ".join(block.words)) for other in blocks
                            if other.words[1].startswith("~") for path in of_location(other)[:1]]
        # Requests come no faster than limits let them pass.
        rates = [rate for one in outer if one.name == "limit_req_zone" for rate in re.findall(r"rate=(\d+)r/s", " ".join(one.words))]
        limited = [one for one, _ in nginx_file.walk([server, *outer]) if one.name == "limit_req"]
        pause = 1.1 / min(map(int, rates)) if rates and limited else 0.0
        for port, tls in ports[:3]:
            for at, (target, lines, about) in enumerate(targets):
                base = [("Host", hosts[0]), ("X-Forwarded-For", "192.0.2.7"), ("User-Agent", "compare")]

                def make(method, host=None, more=(), body=b"", target=target, lines=lines, about=about, port=port, tls=tls, base=base):
                    one = Request(port, tls, method, target, [("Host", host or hosts[0])] + base[1:] + list(more), body, lines, about)
                    one.pause = pause if about.startswith("location") else 0.0
                    return one

                yield make("GET")
                if at < 4 or at % 5 == 0:
                    yield make("POST", more=[("Content-Type", "text/plain")], body=b"hello=1")
                    yield make("HEAD")
                    yield make("OPTIONS", more=[("Origin", "http://o.test"), ("Access-Control-Request-Method", "PUT")])
                    yield make("DELETE")
                    for host in hosts[1:]:
                        yield make("GET", host)
                    for name, value in headers[:8]:
                        yield make("GET", more=[(name, value)])
                    yield make("GET", more=[("Authorization", "Basic dXNlcjpwYXNzd29yZA==")])
                    yield make("GET", more=[("Upgrade", "websocket"), ("Connection", "Upgrade")])
                    yield make("GET", more=[("Cookie", "a=1; session=x"), ("Accept", "text/html"), ("X-A_b", "u")])


def block_lines(block):
    """The lines of a location without those within it."""
    lines = set(range(block.line, block.end + 1))
    for one, _ in nginx_file.walk(block.block):
        if one.name == "location" and one.block is not None:
            lines -= set(range(one.line, one.end + 1))
    return lines


def of_name(name):
    if name.startswith("~"):
        return sample(name[1:])
    if name.startswith("*."):
        return "x" + name[1:]
    if name.endswith(".*"):
        return name[:-1] + "test"
    return name.lstrip(".") if name not in ("_", "") and "$" not in name else None


def of_location(block):
    words = block.words[1:]
    if len(words) == 1:
        return around(words[0]) if words[0].startswith("/") else []
    kind, pattern = words[0], words[-1]
    if kind in ("=", "^~"):
        return around(pattern)
    if kind in ("~", "~*"):
        text = sample(pattern, kind == "~*")
        if text is None:
            return []
        text = text if text.startswith("/") else "/p" + text
        return [text, text + "x", "/x" + text, text + "?q=1", text.upper()]
    return []


VARIABLE = re.compile(r"\$(http|cookie|arg)_([a-z0-9_]+)")


def conditions(server, maps):
    """Headers that conditions and maps of the configuration look at."""
    found = []
    for one, _ in list(nginx_file.walk(server.block)) + [(m, ()) for m in maps]:
        text = " ".join(one.words[1:])
        if one.name not in ("if", "map") and "$http_" not in text and "$cookie_" not in text:
            continue
        for kind, name in VARIABLE.findall(text):
            values = ["1", "x"]
            if one.name == "if" and len(one.words) > 3:
                value = one.words[3].rstrip(")")
                values = [sample(value) or value, "other"] if one.words[2].startswith("~") else [value, "other"]
            if one.name == "map":
                for entry in (one.block or [])[:4]:
                    key = entry.words[0]
                    values.append(sample(key.lstrip("~*")) or "x" if key.startswith("~") else key)
            for value in values:
                if kind == "http":
                    found.append((name.replace("_", "-"), value or "x"))
                elif kind == "cookie":
                    found.append(("Cookie", f"{name}={value}"))
    return [(name, value) for name, value in found if name not in ("host", "upgrade") and "\n" not in value]
