"""Whether a finding of `sluice check` names the construct behind a difference."""

import re

# Access control: a request that one program refuses and the other does not.
REFUSALS = {401, 403, 407, 413, 426, 429, 503}


def is_preflight(request):
    return request.method == "OPTIONS" and any(name == "Access-Control-Request-Method" for name, _ in request.headers)


# Clauses of a finding hold for some requests only: words of the clause, and whether a request is one of these.
SITUATIONS = [
    (r"normal form|duplicate slash|`\.\.?` as a part", lambda request: is_odd(request.target)),
    (r"percent-encod", lambda request: "%" in request.target),
    (r"ends? the connection", lambda request: request.failure == "none"),
    (r"(?<!no )(?<!not )(?<!are no )preflight", is_preflight),
    (r"websocket|upgraded", lambda request: any(name == "Upgrade" for name, _ in request.headers)),
    (r"retried|retries", lambda request: request.failure is not None),
    (r"other origins", lambda request: any(name == "Origin" for name, _ in request.headers)),
]


def clauses(finding, request):
    """The parts of a finding that speak of this request, in small letters. The construct is a part of each."""
    construct = str(finding.get("construct") or "").lower()
    text = " ".join(str(finding.get(key) or "") for key in ("effect", "hint")).lower()
    for clause in re.split(r"[;:] |, and (?!-)|\. ", text):
        rivals = re.search(r"changed paths that match `(.+)` are", clause)
        if rivals and not re.search(rivals.group(1), request.target.partition("?")[0], re.IGNORECASE):
            continue
        if all(holds(request) for words, holds in SITUATIONS if re.search(words, clause)):
            yield construct + ": " + clause


def explains(finding, difference, request):
    """`difference` is a line of compare.differences() for this request."""
    return any(says(finding, clause, difference, request) for clause in clauses(finding, request))


def asks_another(clause, request):
    """The server that nginx asks for consent gets the failure that the request wants; ours is not sent its header."""
    return request.failure is not None and "asked with some of the client's headers" in clause


def says(finding, clause, difference, request):
    """Whether a clause speaks of a difference."""

    def speaks_of(*words):
        return any(re.search(rf"(?<![a-z0-9]){word}(?![a-z0-9])", clause) for word in words)

    kind, _, rest = difference.partition(" ")
    if kind == "status":
        statuses = [int(status) for status in re.findall(r"\d+", rest)]
        if any(speaks_of(str(status)) for status in statuses if status not in (0, 200)):
            return True
        if is_odd(request.target) and speaks_of("normal form"):
            return True
        if asks_another(clause, request):
            return True
        return finding["severity"] == "guard" and any(status in REFUSALS for status in statuses)
    if difference.startswith(("the upstream is", "upstream port")) or difference.endswith(" / 0") and kind == "attempts":
        # Another server, or none.
        return asks_another(clause, request) or speaks_of("instead of", r"50\d", r"40\d", "error_page", "place of errors", "other (?:server|cluster|upstream)s?", "not (?:sent|forwarded|called|asked)",
                         "upgraded", "normal form")
    if difference.startswith("upstream target"):
        return speaks_of("paths?", "query", "normal form")
    if kind == "attempts":
        return asks_another(clause, request) or speaks_of("retried", "retries", "attempts?", "tried", "sent again", "error_page")
    if difference.startswith("upstream method"):
        return speaks_of("methods?")
    found = re.match(r"(upstream|response) header (\S+)", difference)
    if found:
        name = found.group(2)
        if speaks_of(re.escape(name)):
            return True
        if found.group(1) == "upstream":
            if name == "x-envoy-original-host" and speaks_of("host is not rewritten"):
                return True
            return name.startswith("x-forwarded-") and speaks_of("forwarded", "x-forwarded-for")
        families = {"access-control-": "cors", "content-encoding": "gzip", "vary": "(?:gzip|cors)", "cache-control": "expires",
                    "expires": "expires", "content-type": "(?:type|content-type)"}
        return any(name.startswith(start) and speaks_of(word) for start, word in families.items())
    if difference.startswith(("body", "upstream body")):
        return speaks_of("body", "bodies", "pages?", "content", "files?")
    return False


# Findings with an effect that no request of the comparison can show: a pattern of the construct or the effect, and the reason.
UNTRIGGERABLE = [
    (r"X-Envoy-|gateway's own (bodies|error|way)|is not called: clients get", "forwarded headers, X-Envoy-* and bodies of errors are not compared"),
    (r"registry|services? that the file (does not )?names?", "needs services that only a registry knows"),
    (r"Java code", "the code of the application is not there"),
    (r"token that these keys verify|scopes and roles", "needs a token that the issuer has signed"),
    (r"X-RateLimit|counted in|requests are counted", "needs Redis, or depends on time"),
    (r"servers of an upstream share a scheme", "servers of one upstream count as equal"),
    (r"but not with nginx's", "servers of one upstream count as equal"),
    (r"requests of all (idempotent )?methods are retried", "requests with GET and POST alone are made to fail"),
    (r"must also be valid for", "the certificate of the servers has the names by which the file calls them"),
    (r"spans (go to|have|are)", "needs a collector of traces"),
    (r"first server of its group", "servers of one upstream count as equal"),
    (r"second Content-Type", "two fields of one value count as one"),
    (r"TLS asks for another name", "servers have one certificate for all names"),
    (r"redirected without end", "the comparison is a trusted proxy"),
    (r"clients within the network", "an Envoy of today counts no address as of the network by default"),
    (r"versions? from", "depends on the version of the original"),
    (r"listeners on other than|connections are bounded", "concerns connections, not requests"),
    (r"rate of failures|count as failures|nodes are not ejected|outlier|all nodes are unhealthy", "depends on time and on many failures"),
    (r"timeout of a gRPC call|time for a request's", "needs a slow server or client"),
    (r"status of a gRPC call", "needs a server of gRPC"),
    (r"control plane", "needs a control plane"),
    (r"X-Consumer-Username", "needs a token that the issuer has signed"),
    (r"translated into gRPC", "needs the descriptor of the services"),
    (r"error_page 50[24].*place of errors", "nginx avoids the servers that gave such an error"),
    (r"kind `pipe`|no endpoint that can be used", "needs a server behind a Unix socket"),
]


def untriggerable(finding):
    """Why no request shows the finding; None for one that a request should."""
    text = " ".join(str(finding.get(key) or "") for key in ("construct", "effect"))
    return next((reason for pattern, reason in UNTRIGGERABLE if re.search(pattern, text)), None)


def is_odd(target):
    """A spelling that is not the path's normal form."""
    path = target.partition("?")[0]
    return "//" in path or "%" in path or re.search(r"/\.\.?(/|$)", path) is not None
