"""Drives every resource that the package apisix-client of PyPI knows: `apisix_client.py URL KEY UPSTREAM_PORT`."""

import sys

# This file's own name is that of the package.
sys.path.pop(0)

from apisix_client.client import ApisixClient
from apisix_client.consumer.models import Consumer
from apisix_client.route.models import Route
from apisix_client.service.models import Service
from apisix_client.upstream.models import Node, Upstream

url, key, port = sys.argv[1:]
client = ApisixClient(url, key)


def check(what, holds):
    print(("ok  " if holds else "FAIL"), what)
    if not holds:
        sys.exit(1)


def upstream():
    return Upstream(name="u", nodes=[Node(host="127.0.0.1", port=int(port), weight=1)], scheme="http")


def crud(name, of, new):
    made = of.create_with_id_generation(new)
    check(f"{name}: POST gives an id", made is not None)
    check(f"{name}: PUT makes", of.create_or_update(new, "one") == "one")
    check(f"{name}: PUT replaces", of.create_or_update(new, "one") == "one")
    read = of.get("one")
    check(f"{name}: GET", read.value.id == "one" and read.modified_index > read.created_index > 0)
    check(f"{name}: GET of what is not there", of.get("nobody") is None)
    check(f"{name}: list", len(of.get_all()) == 2 == of.count())
    check(f"{name}: page", len(of.get_all([1, 10])) == 2 and len(of.get_all([2, 10])) == 0)
    check(f"{name}: DELETE", of.delete(made) and of.count() == 1)
    check(f"{name}: DELETE of what is not there", not of.delete(made))


crud("upstreams", client.upstream, upstream())
crud("services", client.service, Service(name="s", upstream_id="one"))
crud("routes", client.route, Route(name="r", uri="/client", service_id="one"))
check("an upstream in use stays", not client.service.delete("one"))

check("consumers: PUT", client.consumer.create_or_update(Consumer(username="jack", desc="who")))
check("consumers: GET", client.consumer.get("jack").value.username == "jack")
check("consumers: list", [one.value.username for one in client.consumer.get_all()] == ["jack"])
check("consumers: refused", not client.consumer.create_or_update(Consumer(username="no name")))
check("consumers: DELETE", client.consumer.delete("jack") == 1 and client.consumer.count() == 0)

check("plugins: list", "key-auth" in client.plugin.get_available())
check("plugins: reload", client.plugin.reload())
