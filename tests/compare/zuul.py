"""Zuul 1: requests derived from its routes."""

import re

import spring
from samples import around
from scg import text_of

NAME = "zuul"


class Site(spring.Site):
    JAR = "zuul1-rival.jar"
    ASKS_GZIP = True
    JAVA = ("--add-opens=java.base/java.lang=ALL-UNNAMED",)

    def local(self, one, value):
        if re.match(r"zuul\.routes\.[^.]+\.url$", one.name):
            return self.address(value)
        if re.search(r"\.ribbon\.listofservers$", one.name):
            return ",".join(map(self.server, re.split(r"\s*,\s*", value)))
        return None

    def server(self, url):
        return self.address(url if "://" in url else "http://" + url)

    def routes(self):
        """For each route its name, its settings, and its properties."""
        routes = {}
        for one in self.properties if hasattr(self, "properties") else []:
            found = re.match(r"(?i)zuul\.routes\.([^.]+)(?:\.(.+))?$", one.key)
            if found:
                name, rest = found.group(1), re.sub("[-_]", "", found.group(2) or "path").lower()
                routes.setdefault(name, {})[rest] = one
        return routes

    def services(self):
        for name, settings in self.routes().items():
            if "url" not in settings:
                yield settings["serviceid"].value if "serviceid" in settings else name

    def profile(self):
        # The program has Ribbon, and of its HTTP clients the default alone.
        clients = {"httpclient": {"enabled": True}, "okhttp": {"enabled": False}, "restclient": {"enabled": False}}
        profile = {"ribbon": {"eureka": {"enabled": False}, **clients}, "spring": {"cloud": {"loadbalancer": {"ribbon": {"enabled": True}}}}}
        for name in set(self.services()):
            if f"{re.sub('[-_]', '', name).lower()}.ribbon.listofservers" not in self.values:
                profile[name] = {"ribbon": {"listOfServers": f"127.0.0.1:{self.service(name)}"}}
        return profile

    def same_upstream(self):
        groups = dict(self.ups)
        for one in self.properties:
            if one.name.endswith(".ribbon.listofservers"):
                groups |= {int(port): one.name for port in re.findall(r":(\d+)", one.value)}
        return groups

    def requests(self):
        routes = self.routes()
        lines = {}
        for name, settings in routes.items():
            found = settings.values()
            lines[name] = set(range(min(one.line for one in found), max(one.last for one in found) + 1))
        everything = set(range(1, self.file.read_text().count("\n") + 2))
        outside = everything - set().union(*lines.values()) if lines else everything
        # The name of a route stands in the line before its settings.
        lines = {name: found | {min(found) - 1} - {0} for name, found in lines.items()}
        prefix = self.values.get("zuul.prefix", "").rstrip("/")
        make = self.make(outside, "no route")
        for target in ("/", "/none/such?x=1", prefix + "/none"):
            yield make("GET", target)
            yield from spring.variations(make, target, websocket=False)
        for one in self.properties:
            if re.match(r"zuul\.ignoredpatterns", one.name):
                for pattern in one.value.split(","):
                    for target in around(text_of(pattern.strip()))[:6]:
                        yield make("GET", target)
        for name, settings in routes.items():
            path = settings["path"].value if "path" in settings else f"/{name}/**"
            make = self.make(outside | lines[name], f"route {name}")
            path = path if path.startswith("/") else "/" + path
            for at, target in enumerate(around(text_of(prefix + path))):
                yield make("GET", target)
                if at % 4 == 0:
                    yield from spring.variations(make, target, websocket=False)
                    yield make("GET", target, host="any.test:81")
                    yield make("GET", target, [("X-Secret", "1"), ("Cookie", "a=1"), ("Set-Cookie", "b=1")])
