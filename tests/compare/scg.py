"""Spring Cloud Gateway: requests derived from its routes."""

import re

import spring
from samples import around, sample

NAME = "scg"

# Filters of the library; others are an application's own, and a bean that does nothing stands for them.
LIBRARY = set("""AddRequestHeader AddRequestHeadersIfNotPresent AddRequestParameter AddResponseHeader CircuitBreaker
CacheRequestBody DedupeResponseHeader FallbackHeaders JsonToGrpc LocalResponseCache MapRequestHeader ModifyRequestBody
ModifyResponseBody PrefixPath PreserveHostHeader RedirectTo RemoveJsonAttributesResponseBody RemoveRequestHeader
RemoveRequestParameter RemoveResponseHeader RequestHeaderSize RequestHeaderToRequestUri RequestSize Retry
RewriteLocationResponseHeader RewritePath RewriteRequestParameter RewriteResponseHeader SaveSession SecureHeaders SetPath
SetRequestHeader SetRequestHostHeader SetRequestUri SetResponseHeader SetStatus StripPrefix""".split())

ROUTE = r"spring\.cloud\.gateway\.(?:server\.webflux\.|server\.webmvc\.|mvc\.)?routes\[(\d+)\]\.?"
SECURITY = [
    "org.springframework.boot.autoconfigure.security.reactive.ReactiveSecurityAutoConfiguration",
    "org.springframework.boot.autoconfigure.security.reactive.ReactiveUserDetailsServiceAutoConfiguration",
    "org.springframework.boot.autoconfigure.security.oauth2.resource.reactive.ReactiveOAuth2ResourceServerAutoConfiguration",
]


class Site(spring.Site):
    JAR = "spring-cloud-gateway.jar"

    def local(self, one, value):
        if re.search(r"routes\[\d+\]\.uri$", one.name):
            service = re.match(r"(?i)lb:(?:[a-z]+:)?//([^/:]+)", value)
            if service:
                self.service(service.group(1))
                return None
            return self.address(value)
        return None

    def profile(self):
        services = {name: [{"uri": f"http://127.0.0.1:{port}"}] for port, name in self.ups.items() if name not in self.known}
        return {"spring": {"cloud": {
            "discovery": {"client": {"simple": {"instances": services}}},
            "gateway": {"httpclient": {"ssl": {"trusted-x509-certificates": [str(self.certs.resolve() / "ca.crt")]}}},
        }}} if services or self.tls_ups else {}

    def words(self):
        names, beans = set(), set()
        for one in self.properties:
            if re.search(r"filters\[\d+\](\.name)?$", one.name):
                names.add(re.split("=", one.value, maxsplit=1)[0].strip())
            beans.update(re.findall(r"#\{@(\w+)\}", one.value))
        words = ["--compare.filters=" + ",".join(sorted(names - LIBRARY)), "--compare.beans=" + ",".join(sorted(beans))]
        if not any(one.name.startswith("spring.security.") for one in self.properties):
            words.append("--spring.autoconfigure.exclude=" + ",".join(SECURITY))
        return words

    def requests(self):
        routes = {}
        for number, rest, one in self.group(ROUTE):
            routes.setdefault((one.document, int(number)), []).append((rest, one))
        lines = {key: set(range(min(one.line for _, one in all), max(one.last for _, one in all) + 1)) for key, all in routes.items()}
        everything = set(range(1, self.file.read_text().count("\n") + 2))
        outside = everything - set().union(*lines.values()) if lines else everything
        make = self.make(outside, "no route")
        for target in ("/", "/none/such?x=1"):
            yield make("GET", target)
            yield from spring.variations(make, target)
        for port, name in self.ups.items():
            if name not in self.known:
                for target in (f"/{name}/a/b", f"/{name.lower()}/a?x=1", f"/{name}", f"/{name}/%61b", f"/{name.lower()}/%61b"):
                    yield make("GET", target)
        for key, properties in routes.items():
            yield from self.of_route(properties, outside | lines[key])

    def of_route(self, properties, lines):
        paths, host, method, headers, query = [], "any.test", None, [], []
        for name, arguments in predicates(properties):
            arguments = [spring.spring_file.resolved(one, self.values) for one in arguments]
            if name == "path":
                paths += [path for path in arguments if path.startswith("/")]
            elif name == "method":
                method = method or arguments[0]
            elif name == "host":
                host = text_of(arguments[0])
            elif name == "header":
                headers.append((arguments[0], sample(arguments[1]) or "x" if len(arguments) > 1 else "x"))
            elif name == "cookie":
                headers.append(("Cookie", f"{arguments[0]}={sample(arguments[1]) or 'x'}"))
            elif name == "query":
                query.append(f"{arguments[0]}={sample(arguments[1]) or 'x' if len(arguments) > 1 else 'x'}")
        # Slow enough for the limit of the route, which the stand-in for RequestRateLimiter does not have.
        rates = [float(one.value) for rest, one in properties if rest.endswith("replenishrate")]
        pause = 1.1 / min(rates) if rates else 0.0
        make = self.make(lines, f"route in line {min(one.line for _, one in properties)}", host, pause)
        # Over TLS, Spring's client of WebSockets has settings of its own.
        websocket = not any(rest == "uri" and one.value.startswith("https:") for rest, one in properties)
        targets = []
        for path in paths or ["/a"]:
            targets += [one for one in around(text_of(path)) if one not in targets]
        for at, target in enumerate(targets):
            plain = target
            if query:
                target += ("&" if "?" in target else "?") + "&".join(query)
            yield make(method or "GET", target, headers)
            if headers:
                yield make(method or "GET", target)
            if query:
                yield make(method or "GET", plain, headers)
            if at % 4 == 0:
                yield from spring.variations(make, target, headers, websocket)
                yield make(method or "GET", target, headers, host="other.test")
                yield make(method or "GET", target, headers, host=host + ":81")


def predicates(properties):
    """Names and arguments of a route's predicates, in both notations."""
    long = {}
    for rest, one in properties:
        found = re.match(r"predicates\[(\d+)\](.*)", rest)
        if not found:
            continue
        at, rest = found.groups()
        if not rest:
            name, _, arguments = one.value.partition("=")
            yield name.strip().lower(), [part.strip() for part in arguments.split(",")]
        elif rest == ".name":
            long.setdefault(at, [None, []])[0] = one.value.strip().lower()
        elif not rest.endswith(("matchtrailingslash", "includeport")):
            long.setdefault(at, [None, []])[1] += [part.strip() for part in one.value.split(",")]
    yield from ((name, arguments) for name, arguments in long.values() if name and arguments)


def text_of(pattern):
    """A text that a pattern of a path or host matches; the rest of a path is left out."""
    text = re.sub(r"/\*\*$|/\{\*\w+\}$", "", pattern) or "/"
    text = re.sub(r"\{(\w+):((?:[^{}]|\{[^{}]*\})*)\}", lambda found: sample(found.group(2)) or "x", text)
    text = re.sub(r"\{\*?\w+\}", "v1", text)
    return text.replace("**", "s").replace("*", "s").replace("?", "q")
