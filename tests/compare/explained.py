"""Whether a finding of `sluice check` names the construct behind a difference."""

import re

# Access control: a request that one program refuses and the other does not.
REFUSALS = {401, 403, 407, 413, 426, 429, 503}


def explains(finding, difference, target):
    """`difference` is a line of compare.differences(), for a request of this target."""
    text = " ".join(str(finding.get(key) or "") for key in ("construct", "effect", "hint")).lower()

    def speaks_of(*words):
        return any(re.search(rf"(?<![a-z0-9]){word}(?![a-z0-9])", text) for word in words)

    if difference.startswith("status "):
        statuses = [int(status) for status in re.findall(r"\d+", difference)]
        if any(speaks_of(str(status)) for status in statuses if status not in (0, 200)):
            return True
        if is_odd(target) and speaks_of("normal form"):
            return True
        # nginx answers 500 where the server that it asks answers with another status.
        if 500 in statuses and speaks_of("auth_request"):
            return True
        return finding["severity"] == "guard" and any(status in REFUSALS for status in statuses)
    if difference.startswith(("the upstream is", "upstream port")):
        return speaks_of("upstreams?", "servers?", "clusters?", "upgraded", r"50\d", r"40\d") or (
            (speaks_of("auth_request") and any(status in REFUSALS or status == 500 for status in statuses))
            or (speaks_of("error_page") and any(status >= 400 for status in statuses)))
    if difference.startswith("upstream target"):
        return speaks_of("paths?", "query", "normal form")
    if difference.startswith("upstream attempt"):
        return speaks_of("retried", "retries", "attempts?", "failures?", "tried")
    if difference.startswith("upstream method"):
        return speaks_of("methods?")
    found = re.match(r"(upstream|response) header (\S+)", difference)
    if found:
        name = found.group(2)
        if speaks_of(re.escape(name)):
            return True
        if found.group(1) == "upstream":
            if name.startswith("x-envoy-"):
                return "x-envoy-" in text
            return name.startswith("x-forwarded-") and speaks_of("forwarded", "x-forwarded-for")
        families = {"access-control-": "cors", "content-encoding": "gzip", "vary": "(?:gzip|cors)", "cache-control": "expires",
                    "expires": "expires", "content-type": "(?:type|content-type)"}
        return any(name.startswith(start) and speaks_of(word) for start, word in families.items())
    if difference.startswith(("body", "upstream body")):
        return speaks_of("body", "bodies", "pages?", "content", "files?")
    return False


# Findings with an effect that no request of the comparison can show: a pattern of the construct or the effect, and the reason.
UNTRIGGERABLE = [
    (r"X-Envoy-|gateway's own (bodies|error|way)", "forwarded headers, X-Envoy-* and bodies of errors are not compared"),
    (r"registry|services? that the file (does not )?names?", "needs services that only a registry knows"),
    (r"Java code", "the code of the application is not there"),
    (r"token that these keys verify|scopes and roles", "needs a token that the issuer has signed"),
    (r"X-RateLimit|counted in|requests are counted", "needs Redis, or depends on time"),
    (r"but not with nginx's", "servers of one upstream count as equal"),
    (r"second Content-Type", "two fields of one value count as one"),
    (r"versions? from", "depends on the version of the original"),
    (r"listeners on other than|connections are bounded", "concerns connections, not requests"),
    (r"rate of failures|count as failures|nodes are not ejected|outlier", "depends on time and on many failures"),
]


def untriggerable(finding):
    """Why no request shows the finding; None for one that a request should."""
    text = " ".join(str(finding.get(key) or "") for key in ("construct", "effect"))
    return next((reason for pattern, reason in UNTRIGGERABLE if re.search(pattern, text)), None)


def is_odd(target):
    """A spelling that is not the path's normal form."""
    path = target.partition("?")[0]
    return "//" in path or "%" in path or re.search(r"/\.\.?(/|$)", path) is not None
