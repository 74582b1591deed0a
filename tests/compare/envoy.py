"""Envoy: local addresses and files of a bootstrap, and requests derived from it."""

import copy
import re
import subprocess
import sys
import urllib.parse
from pathlib import Path

import envoy_twin
import yaml
from nginx import Request
from samples import around, sample

NAME = "envoy"
PROGRAM = Path(sys.executable).parent / "envoy"


class Edits:
    """Scalars of a YAML text that are replaced where they stand, so that all others keep their lines."""

    def __init__(self, text):
        self.text, self.edits = text, []

    def replace(self, node, value):
        self.edits.append((node.start_mark.index, node.end_mark.index, str(value)))

    def done(self):
        text = self.text
        for begin, end, value in sorted(set(self.edits), reverse=True):
            text = text[:begin] + value + text[end:]
        return text


def get(node, *path):
    for name in path:
        if isinstance(node, yaml.SequenceNode) and isinstance(name, int):
            node = node.value[name] if name < len(node.value) else None
        elif isinstance(node, yaml.MappingNode):
            node = next((value for key, value in node.value if key.value == name), None)
        else:
            return None
        if node is None:
            return None
    return node


def items(node, *path):
    found = get(node, *path)
    # One message may stand without a list.
    return found.value if isinstance(found, yaml.SequenceNode) else [found] if isinstance(found, yaml.MappingNode) else []


def text_of(node, *path):
    found = get(node, *path)
    return found.value if isinstance(found, yaml.ScalarNode) else None


def walk(node, path=()):
    yield node, path
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from walk(value, path + (key.value,))
    elif isinstance(node, yaml.SequenceNode):
        for at, value in enumerate(node.value):
            yield from walk(value, path + (at,))


def lines(node):
    return set(range(node.start_mark.line + 1, node.end_mark.line + 1)) or {node.start_mark.line + 1}


class Site:
    def __init__(self, source, folder, certs, ports):
        folder.mkdir(parents=True, exist_ok=True)
        text = Path(source).read_text(errors="replace")
        edits, top = Edits(text), yaml.compose(text)
        self.listens, self.ups, self.tls_ups, self.groups = {}, {}, set(), {}
        resources = get(top, "static_resources")
        for listener in items(resources, "listeners"):
            self.local(get(listener, "address", "socket_address"), edits, self.listen(listener, ports))
        for cluster in items(resources, "clusters"):
            for node, path in walk(cluster):
                if path and path[-1] == "socket_address" and "upstream_bind_config" not in path:
                    port = next(ports)
                    self.ups[port], self.groups[port] = text_of(cluster, "name"), text_of(cluster, "name")
                    if get(cluster, "transport_socket") is not None or get(cluster, "tls_context") is not None:
                        self.tls_ups.add(port)
                    self.local(node, edits, port)
        admin = get(top, "admin", "address", "socket_address")
        if admin is not None:
            self.local(admin, edits, next(ports))
        for node, path in walk(top):
            if path and path[-1] == "filename" and isinstance(node, yaml.ScalarNode):
                chain = "".join(map(str, path))
                name = "ca.crt" if "ca" in chain.split("validation_context")[-1:][0] and "validation" in chain else (
                    "server-ec.key" if "private_key" in chain else "server-ec.crt")
                edits.replace(node, certs.resolve() / name)
            elif path and path[-1] in ("path", "access_log_path") and isinstance(node, yaml.ScalarNode):
                if ("access_log" in path or "access_log_path" in path) and not node.value.startswith("/dev/"):
                    edits.replace(node, "/dev/null")
        self.file = folder / "envoy.yaml"
        self.file.write_text(edits.done())
        self.top = yaml.compose(self.file.read_text())
        self.read = self.file
        if self.refusal():
            # Of API v2, or without types: the original gets a twin of today.
            self.read = folder / "twin.yaml"
            self.read.write_text(yaml.safe_dump(envoy_twin.twin(yaml.safe_load(self.file.read_text())), sort_keys=False))

    def listen(self, listener, ports):
        port = next(ports)
        self.listens[id(listener)] = port
        return port

    @staticmethod
    def local(node, edits, port):
        address, number = get(node, "address"), get(node, "port_value")
        if address is not None:
            edits.replace(address, "127.0.0.1")
        if number is not None:
            edits.replace(number, port)

    def upstreams(self):
        return self.ups

    def tls_upstreams(self):
        return self.tls_ups

    def tls_names(self):
        """The names by which the file calls servers in TLS."""
        clusters = items(self.top, "static_resources", "clusters")
        found = {node.value for cluster in clusters for node, path in walk(cluster)
                 if path and path[-1] == "sni" and isinstance(node, yaml.ScalarNode)}
        return {name for name in found if re.fullmatch(r"[A-Za-z0-9.-]{1,253}", name)}

    def same_upstream(self):
        return self.groups

    def usable(self):
        """Why Envoy refuses the file and its twin; None if it accepts one."""
        return self.refusal()

    def refusal(self):
        command = [str(PROGRAM), "--mode", "validate", "-c", str(self.read), "-l", "error"]
        tested = subprocess.run(command, capture_output=True, text=True)
        return None if tested.returncode == 0 else (tested.stderr or tested.stdout).strip().rpartition("error initializing configuration")[2]

    def start(self, log):
        command = [str(PROGRAM), "-c", str(self.read), "-l", "error", "--disable-hot-restart", "--concurrency", "1"]
        return subprocess.Popen(command, stdout=log, stderr=log)

    def ports_listened(self):
        return [port for listener in self.listeners() if (port := self.port(listener))]

    def listeners(self):
        return items(self.top, "static_resources", "listeners")

    @staticmethod
    def port(listener):
        port = text_of(listener, "address", "socket_address", "port_value")
        return int(port) if port and text_of(listener, "address", "socket_address", "protocol") != "UDP" else None

    def proxied(self):
        """Ports whose connections begin with the PROXY protocol."""
        return {self.port(listener) for listener in self.listeners() for one in items(listener, "listener_filters")
                if (text_of(one, "name") or "").endswith("proxy_protocol")}

    def trusts_proxies(self):
        """Whether it matters that clients come through a proxy that ends TLS."""
        return any(path and path[-1] == "require_tls" for _, path in walk(self.top))

    def requests(self):
        """The requests of all routes, no faster than the limits of the file let them pass."""
        pause = 0.0
        for node, path in walk(self.top):
            if path and path[-1] == "token_bucket":
                interval = re.match(r"([\d.]+)s$", text_of(node, "fill_interval") or "")
                filled = int(text_of(node, "tokens_per_fill") or 1)
                pause = max(pause, 1.1 * float(interval.group(1)) / filled if interval else 0.0)
        policies = [node for node, path in walk(self.top) if path and path[-1] in ("allow_origin_string_match", "allow_origin")]
        texts = [next((text_of(one, key) for key in ("exact", "prefix", "suffix") if text_of(one, key)), one.value)
                 for policy in policies if isinstance(policy, yaml.SequenceNode) for one in policy.value]
        self.origins = list(dict.fromkeys(text for text in texts if isinstance(text, str) and text.startswith("http")))[:2]
        last = None
        for one in self.of_routes():
            last = one
            # Slower limits are run into by both programs.
            one.pause = pause if pause < 0.3 else 0.0
            yield one
        # One bucket full, and more.
        for at in range(25 if last and 0 < pause < 0.3 else 0):
            one = copy.copy(last)
            one.pause, one.burst = 0.0 if at else 1.1, True
            yield one

    def of_routes(self):
        everything = set(range(1, self.file.read_text().count("\n") + 2))
        routes = [route for node, path in walk(self.top) if path and path[-1] == "routes"
                  and isinstance(node, yaml.SequenceNode) for route in node.value]
        outside = everything - set().union(*[lines(route) for route in routes]) if routes else everything
        for listener in self.listeners():
            port = self.port(listener)
            if not port:
                continue
            for chain in items(listener, "filter_chains"):
                tls = get(chain, "transport_socket") is not None or get(chain, "tls_context") is not None
                for one in items(chain, "filters"):
                    config = get(one, "typed_config") or get(one, "config")
                    hosts = items(config, "route_config", "virtual_hosts")
                    if not hosts:
                        yield Request(port, tls, "GET", "/tcp?x", [("Host", "a.test")], b"", everything, "no routes")
                    names = [one.value for one in items(chain, "filter_chain_match", "server_names")]
                    for host in hosts:
                        yield from self.of_host(host, port, tls, outside, names)

    def of_host(self, host, port, tls, outside, names):
        found = items(host, "domains") or [one for one in [get(host, "domains")] if one is not None]
        domains = [domain for node in found if (domain := of_domain(node.value, names))]
        domains = (domains[:3] or ["a.test"]) + ["unknown.test"]
        # Most of these are taken by the route `/`.
        rest = set().union(*[lines(route) for route in items(host, "routes") if text_of(route, "match", "prefix") in ("", "/")])
        targets = [(target, outside | rest, [], "host") for target in ("/", "/none/such")]
        # Routes of which some requests are drawn, and those that get the others.
        starts = tuple(path for route in items(host, "routes") if get(route, "match", "runtime_fraction") is not None
                       if (path := text_of(route, "match", "prefix")))
        weighted = set()
        copied = any(get(node, "runtime_fraction") is not None for node, path in walk(host) if "request_mirror_policies" in path)
        for route in items(host, "routes"):
            match = get(route, "match")
            for target, headers in of_match(match):
                targets.append((target, outside | lines(route), headers, "route in line " + str(route.start_mark.line + 1)))
                if get(route, "route", "weighted_clusters") is not None:
                    weighted.add(target)
        for at, (target, where, more, about) in enumerate(targets):
            def make(method, host=None, extra=(), body=b"", where=where, about=about, target=target, more=more):
                base = [("Host", host or domains[0]), ("User-Agent", "compare"), ("X-Forwarded-For", "192.0.2.7")]
                made = Request(port, tls, method, target, base + list(more) + list(extra), body, where, about)
                plain = re.sub("/+", "/", urllib.parse.unquote(target.partition("?")[0]))
                made.drawn = target in weighted or plain.startswith(starts)
                made.copied = copied
                return made

            yield make("GET")
            # A client of the own network.
            inside = make("GET")
            inside.headers = [(name, "10.1.2.3" if name == "X-Forwarded-For" else value) for name, value in inside.headers]
            yield inside
            if text_of(host, "require_tls"):
                # A client whose TLS ended at a proxy in front.
                yield make("GET", extra=[("X-Forwarded-Proto", "https")])
            if more:
                yield Request(port, tls, "GET", target, [("Host", domains[0]), ("User-Agent", "compare")], b"", where, about)
            if at % 4 == 0:
                yield make("POST", body=b"hello=1", extra=[("Content-Type", "text/plain")])
                yield make("HEAD")
                yield make("DELETE")
                origin = [("Origin", "http://o.test"), ("Access-Control-Request-Method", "PUT")]
                yield make("OPTIONS", extra=origin)
                yield make("GET", extra=origin[:1])
                for allowed in self.origins:
                    yield make("OPTIONS", extra=[("Origin", allowed), origin[1]])
                    yield make("GET", extra=[("Origin", allowed)])
                for other in domains[1:]:
                    yield make("GET", other)
                yield make("GET", domains[0] + ":81")
                yield make("GET", extra=[("X-Request-Id", "fixed"), ("Cookie", "a=1"), ("Authorization", "Bearer x"), ("X-A_b", "u")])
                yield make("GET", extra=[("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Version", "13"),
                                        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")])


def of_domain(domain, names):
    """A host of a domain, and of the names of the chain for TLS."""
    if domain == "*":
        return of_domain(names[0], []) if names else "any.test"
    if domain.endswith(":*"):
        return domain[:-1] + "82"
    return "x" + domain[1:] if domain.startswith("*") else domain[:-1] + "x" if domain.endswith("*") else domain


def of_match(match):
    headers = []
    for one in items(match, "headers"):
        name, string = text_of(one, "name"), get(one, "string_match") or one
        value = next((text_of(string, key) for key in ("exact", "exact_match", "prefix", "prefix_match", "suffix", "contains")
                      if text_of(string, key)), None)
        regex = text_of(string, "safe_regex", "regex") or text_of(one, "safe_regex_match", "regex")
        value = value or (sample(regex) if regex else None) or "x"
        if name and not name.startswith(":"):
            headers.append((name, value))
    query = "&".join(
        f"{text_of(one, 'name')}={text_of(one, 'string_match', 'exact') or text_of(one, 'string_match', 'prefix') or 'x'}"
        for one in items(match, "query_parameters"))
    paths = []
    for key in ("prefix", "path", "path_separated_prefix"):
        path = text_of(match, key)
        if path is not None:
            paths += around(path or "/")
    regex = text_of(match, "safe_regex", "regex") or text_of(match, "regex")
    if regex:
        text = sample(regex)
        if text and text.startswith("/"):
            paths += [text, text + "x", text + "?q=1", re.sub("[a-z]", "9", text, count=1)]
    for path in paths:
        yield (path + ("&" if "?" in path else "?") + query if query else path), headers
        if query:
            yield path, headers
