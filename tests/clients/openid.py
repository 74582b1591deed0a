"""Logins and tokens of a real OpenID provider: openid.py PROXY PORT ROOT REDIS

Starts oidc-provider on PORT and acts as browsers and clients of the gateway at PROXY. Some sessions are in the Redis
server on the port REDIS.
"""

import base64
import http.client
import json
import os
import subprocess
import sys
import time
import urllib.parse

from forms import Form

PROXY, PORT, ROOT, REDIS = sys.argv[1:5]
IDP = f"127.0.0.1:{PORT}"
SECRET = "secret-of-shop-secret-of-shop-1234"
REDIRECTS = ",".join(f"http://{PROXY}{path}" for path in ("/a/.apisix/redirect", "/cb", "/public/.apisix/redirect", "/renewed/.apisix/redirect", "/stored/.apisix/redirect", "/bound/.apisix/redirect"))


def request(host, method, target, body=None, headers=None):
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.request(method, target, body, headers or {})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


class Browser:
    """Keeps cookies by host and path, and follows redirects."""

    def __init__(self):
        self.cookies, self.seen = {}, []

    def cookie(self, host, path):
        own = [(name, value) for (site, under, name), value in self.cookies.items() if site == host and path.startswith(under)]
        return "; ".join(f"{name}={value}" for name, value in own)

    def names(self):
        return sorted(name for (site, _, name) in self.cookies if site == PROXY)

    def once(self, url, form=None):
        parts = urllib.parse.urlsplit(url)
        target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
        headers = {"Cookie": self.cookie(parts.netloc, parts.path)}
        body = None
        if form is not None:
            body = urllib.parse.urlencode(form)
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        answer, text = request(parts.netloc, "POST" if form is not None else "GET", target, body, headers)
        self.seen.append(url)
        for line in answer.headers.get_all("Set-Cookie") or []:
            pair, *attributes = [part.strip() for part in line.split(";")]
            name, value = pair.split("=", 1)
            attributes = {part.partition("=")[0].lower(): part.partition("=")[2] for part in attributes}
            key = (parts.netloc, attributes.get("path", "/"), name)
            ended = attributes.get("max-age") == "0" or "1970" in attributes.get("expires", "")
            self.cookies.pop(key, None) if ended or not value else self.cookies.update({key: value})
        return answer, text

    def go(self, url, form=None):
        for _ in range(12):
            answer, text = self.once(url, form)
            if answer.status not in (302, 303):
                return answer.status, url, text
            url, form = urllib.parse.urljoin(url, answer.headers["Location"]), None
        raise AssertionError(f"too many redirects: {self.seen}")

    def log_in(self, path, name):
        """Asks for a path, logs in at the provider, consents, and returns the answer in the end."""
        status, url, text = self.go(f"http://{PROXY}{path}")
        for _ in range(3):
            if urllib.parse.urlsplit(url).netloc != IDP:
                break
            form = Form(text)
            assert form.action, (status, url, text)
            fields = dict(form.fields)
            if fields.get("prompt") == "login":
                fields.update(login=name, password="any")
            status, url, text = self.go(urllib.parse.urljoin(url, form.action), fields)
        return status, url, text


def json_of(text):
    return json.loads(base64.b64decode(text))


def token(**form):
    login = base64.b64encode(f"shop:{SECRET}".encode()).decode()
    body = urllib.parse.urlencode({"grant_type": "client_credentials", **form})
    headers = {"Authorization": f"Basic {login}", "Content-Type": "application/x-www-form-urlencoded"}
    answer, text = request(IDP, "POST", "/token", body, headers)
    assert answer.status == 200, text
    return json.loads(text)["access_token"]


def api(path, bearer):
    answer, text = request(PROXY, "GET", path, headers={"Authorization": f"Bearer {bearer}"})
    return answer, text


def bearers():
    signed = token(scope="read")
    answer, text = api("/api/x", signed)
    assert answer.status == 200, (answer.status, text)
    headers = json.loads(text)["headers"]
    assert headers["x-access-token"] == signed
    assert json_of(headers["x-userinfo"])["scope"] == "read"
    assert api("/api/x", token(scope="write"))[0].status == 403, "the scope is missing"
    head, payload, signature = signed.split(".")
    forged = base64.urlsafe_b64encode(json.dumps({**json.loads(base64.urlsafe_b64decode(payload + "==")), "scope": "read admin"}).encode())
    for wrong in (f"{head}.{forged.decode().rstrip('=')}.{signature}", f"{head}.{payload}.", "x"):
        answer, _ = api("/api/x", wrong)
        assert answer.status == 401, wrong
        assert 'error="invalid_token"' in answer.headers["WWW-Authenticate"]
    opaque = token(scope="read", resource="http://opaque.test")
    assert "." not in opaque
    for _ in range(4):
        answer, text = api("/opaque/x", opaque)
        assert answer.status == 200, (answer.status, answer.headers, text)
    assert json_of(json.loads(text)["headers"]["x-userinfo"])["active"] is True
    assert api("/opaque/x", "unknown")[0].status == 401


def logins():
    rose = Browser()
    status, url, text = rose.log_in("/a?x=1", "rose")
    assert (status, url) == (200, f"http://{PROXY}/a?x=1"), (status, url, text)
    headers = json.loads(text)["headers"]
    assert json_of(headers["x-userinfo"]) == {"sub": "rose", "email": "rose@a.test"}, headers
    assert json_of(headers["x-id-token"])["sub"] == "rose"
    assert headers["x-access-token"]
    assert "session" not in headers.get("cookie", "")
    assert [name for name in rose.names() if "login" in name] == []
    callback = next(url for url in rose.seen if "/.apisix/redirect?" in url)
    assert rose.once(callback)[0].status == 500, "an answer of the provider is good for one session"
    # Another browser with the answer that was meant for rose, and one that began a login of its own.
    assert Browser().once(callback)[0].status == 500
    other = Browser()
    other.once(f"http://{PROXY}/a?y=2")
    answer, _ = other.once(callback)
    assert (answer.status, answer.headers["Location"]) == (302, "/a?y=2"), "its own login begins again"
    assert "session" not in other.names()
    # Another browser with a changed session.
    changed = Browser()
    changed.cookies = {key: value[:-4] + "AAAA" for key, value in rose.cookies.items()}
    assert changed.once(f"http://{PROXY}/a")[0].status == 302

    assert rose.go(f"http://{PROXY}/deny")[0] == 200, "the session holds for other routes of this client"
    assert Browser().go(f"http://{PROXY}/deny")[0] == 401
    status, _, text = Browser().go(f"http://{PROXY}/pass")
    assert status == 200 and "x-userinfo" not in json.loads(text)["headers"]

    # Each request renews the token: its lifetime is over at once.
    tokens, eve = set(), Browser()
    eve.log_in("/renewed", "eve")
    for _ in range(3):
        status, _, text = eve.go(f"http://{PROXY}/renewed")
        assert status == 200, text
        tokens.add(json.loads(text)["headers"]["x-access-token"])
    assert len(tokens) == 3, "renewed tokens"

    # Logout: here, at the provider after its question, and back.
    status, url, text = rose.go(f"http://{PROXY}/logout")
    assert urllib.parse.urlsplit(url).netloc == IDP, url
    form = Form(text)
    status, url, text = rose.go(urllib.parse.urljoin(url, form.action), {**form.fields, "logout": "yes"})
    assert url == f"http://{PROXY}/bye", url
    assert rose.names() == []
    status, url, text = rose.go(f"http://{PROXY}/a")
    assert urllib.parse.urlsplit(url).netloc == IDP and Form(text).fields.get("prompt") == "login", url


def other_ways():
    """A public client, tokens that are bound to a key, and a pushed request with another redirect_uri."""
    status, url, text = Browser().log_in("/public", "ann")
    assert (status, url) == (200, f"http://{PROXY}/public"), (status, url, text)
    gil = Browser()
    status, url, text = gil.log_in("/bound", "gil")
    assert (status, url) == (200, f"http://{PROXY}/bound"), (status, url, text)
    assert json_of(json.loads(text)["headers"]["x-userinfo"])["sub"] == "gil"
    ben = Browser()
    status, url, text = ben.log_in("/pushed/x?q=%2F", "ben")
    assert (status, url) == (200, f"http://{PROXY}/pushed/x?q=%2F"), (status, url, text)
    assert any("request_uri=urn" in url for url in ben.seen), ben.seen
    assert json_of(json.loads(text)["headers"]["x-userinfo"])["sub"] == "ben"
    return ben


def redis(*arguments):
    done = subprocess.run(["redis-cli", "--no-auth-warning", "-a", "secret", "-p", REDIS, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.split()


def stored():
    """Sessions in Redis: the browser has an id, and a logout ends the session for every copy of it."""
    cat = Browser()
    status, url, text = cat.log_in("/stored?x=1", "cat")
    assert (status, url) == (200, f"http://{PROXY}/stored?x=1"), (status, url, text)
    assert json_of(json.loads(text)["headers"]["x-userinfo"])["sub"] == "cat"
    (key,) = redis("keys", "kept:*")
    session = next(value for (site, _, name), value in cat.cookies.items() if (site, name) == (PROXY, "id"))
    assert key.startswith("kept:id:") and session.removeprefix("1.") not in key, (key, session)
    assert 0 < int(redis("ttl", key)[0]) <= 900
    copy = Browser()
    copy.cookies = {key: value for key, value in cat.cookies.items() if key[0] == PROXY}
    assert copy.go(f"http://{PROXY}/stored")[0] == 200
    assert urllib.parse.urlsplit(cat.go(f"http://{PROXY}/stored/logout")[1]).netloc == IDP
    assert redis("keys", "kept:*") == []
    assert copy.once(f"http://{PROXY}/stored")[0].status == 302
    dan = Browser()
    assert dan.log_in("/stored", "dan")[0] == 200
    redis("config", "set", "requirepass", "changed")
    subprocess.run(["redis-cli", "--no-auth-warning", "-a", "changed", "-p", REDIS, "client", "kill", "type", "normal"], check=True, capture_output=True)
    assert dan.once(f"http://{PROXY}/stored")[0].status == 503, "the server does not answer"
    assert Browser().once(f"http://{PROXY}/stored")[0].status == 302, "a request without a session does not need it"


def main():
    provider = subprocess.Popen(
        ["node", f"{ROOT}/tests/clients/openid_provider.mjs", PORT, REDIRECTS, f"http://{PROXY}/bye"],
        env={**os.environ, "NODE_TOOLS": f"{ROOT}/target/node"},
        stdout=open("provider.log", "wb"),
        stderr=subprocess.STDOUT,
    )
    try:
        end = time.monotonic() + 60
        while True:
            try:
                request(IDP, "GET", "/.well-known/openid-configuration")
                break
            except OSError:
                assert time.monotonic() < end and provider.poll() is None, open("provider.log").read()
                time.sleep(0.1)
        bearers()
        logins()
        ben = other_ways()
        stored()
    finally:
        provider.kill()
        provider.wait()
    # Without the provider a session goes on, and a login cannot end.
    assert ben.go(f"http://{PROXY}/pushed/y")[0] == 200
    assert Browser().go(f"http://{PROXY}/pushed/y")[0] == 500, "a request that cannot be pushed"



main()
print("openid: ok")
