"""Logins, tokens and permissions of a real Keycloak: keycloak.py PROXY PORT

The realm is that of keycloak.json, at PORT: alice is a student, bob is not. Students view courses; the others edit
them, and use the office.
"""

import base64
import http.cookiejar
import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "clients"))
from forms import Form

PROXY, IDP = sys.argv[1], f"127.0.0.1:{sys.argv[2]}"
SECRET = "secret-of-shop-secret-of-shop-1234"
OPENID = "/realms/shop/protocol/openid-connect"


class Browser:
    """Keeps cookies and follows redirects."""

    def __init__(self):
        # Keycloak marks its cookies as secure even here, as browsers trust this host.
        policy = http.cookiejar.DefaultCookiePolicy(secure_protocols=("http", "https"))
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar(policy))
        self.opener = urllib.request.build_opener(cookies)

    def go(self, url, form=None):
        return send(url, form, opener=self.opener)


def send(url, form=None, headers=None, opener=urllib.request):
    """Returns the status, the URL in the end, and the body."""
    body = urllib.parse.urlencode(form).encode() if form is not None else None
    send = opener.open if isinstance(opener, urllib.request.OpenerDirector) else opener.urlopen
    try:
        answer = send(urllib.request.Request(url, body, headers or {}), timeout=60)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return answer.status, answer.url, answer.read().decode()


def post(host, path, **form):
    return send(f"http://{host}{path}", form)


def api(path, bearer):
    return send(f"http://{PROXY}{path}", headers={"Authorization": f"Bearer {bearer}"})


def json_of(text):
    return json.loads(base64.b64decode(text))


def token(name):
    client = {"client_id": "shop", "client_secret": SECRET, "grant_type": "password", "scope": "openid"}
    code, _, text = post(IDP, f"{OPENID}/token", **client, username=name, password=f"secret-of-{name}")
    assert code == 200, text
    return json.loads(text)["access_token"]


def status(path, bearer):
    return api(path, bearer)[0]


def bearers():
    alice = token("alice")
    code, _, text = api("/api", alice)
    assert code == 200, (code, text)
    assert json_of(json.loads(text)["headers"]["x-userinfo"])["preferred_username"] == "alice"
    code, _, text = api("/introspected", alice)
    assert code == 200, (code, text)
    assert json_of(json.loads(text)["headers"]["x-userinfo"])["active"] is True
    head, payload, signature = alice.split(".")
    for wrong in (f"{head}.{payload}.{signature[:-8]}AAAAAAAA", f"{head}.{payload}.", "x"):
        assert (status("/api", wrong), status("/introspected", wrong)) == (401, 401), wrong
    revoked = token("bob")
    code, _, text = post(IDP, f"{OPENID}/revoke", client_id="shop", client_secret=SECRET, token=revoked)
    assert code == 200, text
    assert status("/introspected", revoked) == 401, "Keycloak knows that it is revoked"


def decisions():
    alice, bob = token("alice"), token("bob")
    for path, expected in {
        "/view": (200, 403),
        "/edit": (403, 200),
        # Of the resource, each has a scope.
        "/lazy/course/1": (200, 200),
        "/lazy/office": (403, 200),
        "/lazy/unknown": (403, 403),
    }.items():
        assert (status(path, alice), status(path, bob)) == expected, path
    # Keycloak knows no such resource.
    assert status("/none", alice) == 400
    assert status("/view", alice[:-8] + "AAAAAAAA") == 401
    assert send(f"http://{PROXY}/view")[0] == 401
    code, _, text = post(PROXY, "/token", username="alice", password="secret-of-alice")
    assert code == 200, text
    assert status("/view", json.loads(text)["access_token"]) == 200
    assert post(PROXY, "/token", username="alice", password="secret-of-bob")[0] == 401


def log_in(browser, path, name, password):
    """Asks for a path and logs in; returns the answer in the end."""
    status, url, text = browser.go(f"http://{PROXY}{path}")
    assert urllib.parse.urlsplit(url).netloc == IDP, (status, url, text)
    form = Form(text)
    fields = {**form.fields, "username": name, "password": password}
    return browser.go(urllib.parse.urljoin(url, form.action), fields)


def logins():
    alice = Browser()
    _, url, _ = log_in(alice, "/a?x=1", "alice", "secret-of-bob")
    assert urllib.parse.urlsplit(url).netloc == IDP, "a wrong password"
    status, url, text = log_in(Browser(), "/a?x=1", "bob", "secret-of-bob")
    assert (status, url) == (200, f"http://{PROXY}/a?x=1"), (status, url, text)
    status, url, text = log_in(alice, "/a?x=1", "alice", "secret-of-alice")
    assert (status, url) == (200, f"http://{PROXY}/a?x=1"), (status, url, text)
    headers = json.loads(text)["headers"]
    assert json_of(headers["x-userinfo"])["email"] == "alice@shop.test", headers
    assert json_of(headers["x-id-token"])["preferred_username"] == "alice"
    assert api("/api", headers["x-access-token"])[0] == 200

    # Each request renews the token: the route's leeway is longer than its lifetime.
    tokens, bob = set(), Browser()
    log_in(bob, "/renewed", "bob", "secret-of-bob")
    for _ in range(3):
        status, _, text = bob.go(f"http://{PROXY}/renewed")
        assert status == 200, text
        tokens.add(json.loads(text)["headers"]["x-access-token"])
    assert len(tokens) == 3, "renewed tokens"

    status, url, text = alice.go(f"http://{PROXY}/logout")
    if urllib.parse.urlsplit(url).netloc == IDP:
        form = Form(text)
        status, url, text = alice.go(urllib.parse.urljoin(url, form.action), form.fields)
    assert (status, url) == (200, f"http://{PROXY}/bye"), (status, url, text)
    status, url, text = alice.go(f"http://{PROXY}/a")
    assert urllib.parse.urlsplit(url).netloc == IDP and "password" in Form(text).fields, (status, url)


bearers()
decisions()
logins()
print("keycloak: ok")
