#!/usr/bin/env python3
"""Runs the original program and Sluice on the same file, sends both the same requests and compares what comes of them.

Started by `cargo x compare`. The file is rewritten to local addresses and files first (nginx_file.py, envoy.py); the
requests are derived from the original's configuration by the readers here, not by Sluice's importers.
"""

import argparse
import copy
import email.utils
import importlib
import itertools
import json
import multiprocessing
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path

import client
import explained
import upstream
import yaml

# Headers of one connection or of one program; they differ without any configuration.
HOP = {"connection", "keep-alive", "te", "upgrade", "transfer-encoding", "date", "server", "via", "content-length"}
OWN = HOP | {"x-apisix-upstream-status", "x-request-id", "x-envoy-upstream-service-time", "x-envoy-internal", "sec-websocket-key",
             "x-compare-id"}
FORWARDED = {"x-real-ip", "x-forwarded-for", "x-forwarded-host", "x-forwarded-port", "x-forwarded-proto", "x-forwarded-prefix",
             "sluice-hops"}
ACCEPT = "sec-websocket-accept"
# Lists that say nothing when they are empty.
EMPTY = {"tracestate", "access-control-allow-headers", "access-control-allow-methods"}
MOST_REQUESTS = 1000
# Statuses that the server is to answer with; without one it ends the connection.
FAILURES = ("404", "500", "502", "503", "none")


def free_ports():
    for port in itertools.count(24000):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port


def wait(ports, process, seconds=90):
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        if all(is_open(port) for port in ports):
            return True
        time.sleep(0.05)
    return False


def is_open(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False


def stop(process):
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def written(request, name, value):
    """A header's value as it is compared: texts of an ETag and for people are the program's own, a Location may be
    relative."""
    if name == "www-authenticate":
        return re.sub(r', error_(description|uri)="[^"]*"', "", value)
    if name == "etag":
        return "W/" if value.startswith("W/") else "strong"
    if name == "location":
        host = dict(request.headers)["Host"].split(":")[0]
        usual = 443 if request.tls else 80
        base = f"{'https' if request.tls else 'http'}://{host}" + ("" if request.port == usual else f":{request.port}")
        return urllib.parse.urljoin(base + request.target, value)
    return value


def within(now, value):
    """A time as the seconds from that of the answer on, in steps of ten."""
    try:
        apart = email.utils.parsedate_to_datetime(value) - email.utils.parsedate_to_datetime(now)
    except (TypeError, ValueError):
        return value
    return f"{round(apart.total_seconds() / 10) * 10} s"


def received(name, value):
    """A header's value as it is compared at the upstream: a list may have spaces after its commas, and the identifiers of a
    trace are drawn."""
    if name == "traceparent":
        return re.sub("[0-9a-f]{32}-[0-9a-f]{16}", "drawn", value)
    if name in ("x-b3-traceid", "x-b3-spanid", "x-b3-parentspanid"):
        return "drawn"
    return re.sub(r",\s*", ", ", value) if name.startswith("x-forwarded-") else value


def joined(headers):
    """Several fields of forwarded headers, of `Cache-Control` and of `Vary` are one list; its order says nothing in `Vary`.
    A `Content-Type` that is there twice with one value counts once."""
    lists, others = {}, []
    for name, value in headers:
        if name == "content-type" and (name, value) in others or name in EMPTY and not value:
            continue
        if name == "vary":
            lists.setdefault(name, set()).update(part.strip().lower() for part in value.split(","))
        elif name.startswith("x-forwarded-") or name == "cache-control":
            lists.setdefault(name, []).append(value)
        else:
            others.append((name, value))
    return sorted(others + [(name, ", ".join(sorted(all) if name == "vary" else all)) for name, all in lists.items()])


def result(request, answer, groups):
    """What is compared of an answer."""
    seen, body = None, answer.body
    if any(name == "x-upstream" for name, _ in answer.headers) or answer.status == 101:
        try:
            seen = json.loads(answer.body)
        except ValueError:
            seen = None
    if seen:
        seen["port"] = "drawn" if request.drawn else groups.get(seen["port"], seen["port"])
        if request.by_group:
            # Servers of one service have their own addresses in `Host`.
            local = lambda found: str(groups.get(int(found.group(1)), found.group(0)))  # noqa: E731
            seen["headers"] = [(name, re.sub(r"^127\.0\.0\.1:(\d+)$", local, value)) if name == "host" else (name, value)
                               for name, value in seen["headers"]]
        seen["headers"] = joined((name, received(name, value)) for name, value in map(tuple, seen["headers"]) if name not in OWN)
        body = b""
    if answer.status == 101 and seen:
        # To a server of HTTP/2 a WebSocket begins with CONNECT.
        seen["method"] = "GET"
        # A gateway that reads WebSockets makes a handshake of its own.
        seen["headers"] = [pair for pair in seen["headers"] if pair[0] not in ("origin", "sec-websocket-protocol")]
    now = next((value for name, value in answer.headers if name == "date"), None)
    headers = joined((name, within(now, value) if name == "expires" else written(request, name, value)) for name, value in answer.headers if name not in OWN | {"x-upstream"})
    if answer.status == 405:
        # RFC 9110 section 15.5.6 demands it; nginx leaves it out.
        headers = [pair for pair in headers if pair[0] != "allow"]
    if answer.status >= 400 and not seen:
        # Spring's servlets send `Vary` with their own errors; pages of errors have an ETag of their own.
        headers = [pair for pair in headers if pair[0] not in ("vary", "etag")]
    # The pages of errors are the program's own.
    if answer.status >= 300:
        body, headers = b"", [pair for pair in headers if pair[0] not in ("content-type",)]
    return {"status": answer.status, "upstream": seen, "headers": headers, "body": body.decode("latin1")}


def differences(one, other):
    found = []
    if one["status"] != other["status"]:
        found = [f"status {one['status']} / {other['status']}"]
    # A program avoids servers that failed before.
    if one["attempts"] != other["attempts"] and not (one["attempts"] == 0 and one["failure"] == "none"):
        found.append(f"attempts {one['attempts']} / {other['attempts']}")
    if one["status"] != other["status"]:
        return found
    mine, theirs = one["upstream"], other["upstream"]
    if bool(mine) != bool(theirs):
        # Its answer differs for the same reason.
        return found + ["the upstream is reached / not" if mine else "the upstream is not reached / is"]
    if mine:
        theirs["headers"] = without_added(mine["headers"], theirs["headers"])
        for part in ("target", "port", "method", "body"):
            if part == "target" and of_one_case(mine[part]) == of_one_case(theirs[part]):
                continue
            if mine[part] != theirs[part]:
                found.append(f"upstream {part} {mine[part]!r} / {theirs[part]!r}")
        found += of_headers("upstream header", mine["headers"], theirs["headers"])
    if one["status"] == 101 and not any(name == ACCEPT for name, _ in one["headers"]):
        # Envoy leaves it out where the server speaks HTTP/2; clients need it (RFC 6455 section 4.1).
        other["headers"] = [pair for pair in other["headers"] if pair[0] != ACCEPT]
    found += of_headers("response header", one["headers"], other["headers"])
    if one["body"] != other["body"]:
        found.append(f"body {one['body'][:60]!r} / {other['body'][:60]!r}")
    return found


def of_one_case(target):
    """Digits of percent-encodings are equal in both cases (RFC 3986)."""
    return re.sub("%[0-9a-fA-F]{2}", lambda found: found.group(0).upper(), target)


def without_added(original, headers):
    """Sluice tells upstreams about the client in any case (docs/migrating): headers that the original leaves to its
    configuration are not compared unless the original sends them."""
    sent = dict(original)
    kept = []
    for name, value in headers:
        if name in FORWARDED and name not in sent:
            continue
        if name == "x-forwarded-for" and name in sent:
            # The gateway appends the client: the connection's address, or the one that proxies in front tell of.
            clients = ("127.0.0.1", sent[name].rpartition(",")[2].strip())
            value = sent[name] if value in [f"{sent[name]}, {one}" for one in clients] else value
        kept.append((name, value))
    return kept


def of_headers(what, one, other):
    names = sorted({name for name, _ in one} | {name for name, _ in other})
    values = lambda all, name: [value for n, value in all if n == name]  # noqa: E731
    pairs = [(name, values(one, name), values(other, name)) for name in names]
    return [f"{what} {name} {mine} / {theirs}" for name, mine, theirs in pairs if mine != theirs]


def of_failures(requests):
    """For each route requests that the server answers with an error: pages of errors, retries, and servers that count as
    failed show in them. Those without any answer come last, as programs avoid a server after them."""
    first = {"GET": {}, "POST": {}}
    for one in requests:
        if one.method in first and not any(name == "Upgrade" for name, _ in one.headers):
            first[one.method].setdefault(one.about, one)
    for status in FAILURES:
        # Those that change something are seldom retried.
        for one in [*first["GET"].values(), *(first["POST"].values() if status in ("502", "none") else ())]:
            again = copy.copy(one)
            again.headers, again.failure = one.headers + [("X-Compare-Status", status)], status
            yield again


def attempts(counter, number):
    """How often the servers saw a request."""
    port, tls = counter
    answer = client.send(port, tls, "GET", "/", [("Host", "localhost"), ("X-Compare-Count", number)])
    return json.loads(answer.body)["attempts"] if answer.status == 200 else None


def run_all(program, requests, ports, groups, counter):
    if not wait(ports, program):
        stop(program)
        return None
    out = []
    # A program on a Java VM is slow at first: one request of each kind is not compared.
    for about in {one.about for one in requests if one.by_group}:
        one = next(one for one in requests if one.about == about)
        client.send(one.port, one.tls, one.method, one.target, one.headers, one.body, timeout=10)
    for at, one in enumerate(requests):
        time.sleep(one.pause)
        # The server counts the attempts of a request.
        number = f"{program.pid}-{at}"
        if one.failure == "none" and counter:
            # The server ends its idle connections, so that only retries count.
            attempts(counter, "close")
            # An HTTP client of Java looks at a connection again only after two seconds.
            time.sleep(2.2 if one.by_group else 0.1)
        numbered = [("X-Compare-Id", number)] if one.failure else []
        answer = client.send(one.port, one.tls, one.method, one.target, one.headers + numbered, one.body)
        out.append(result(one, answer, groups) | {
            "attempts": one.failure and counter and not one.copied and attempts(counter, number), "failure": one.failure})
    stop(program)
    return out


def options(site, args):
    """Arguments of `sluice` for this file."""
    return args.option + (site.options() if hasattr(site, "options") else [])


def environment(site, folder):
    # Spring's HTTP clients verify servers by the authorities of the system.
    trusted = {"SSL_CERT_FILE": str(site.certs / "ca.crt")} if hasattr(site, "certs") else {}
    return dict(os.environ, XDG_STATE_HOME=str(folder / "state")) | trusted


def configure(file, trusts):
    """Closes the ports that another gateway on this machine may use, and trusts the comparison as a proxy."""
    settings = yaml.safe_load(file.read_text())
    settings["apisix"]["enable_control"] = False
    settings.setdefault("plugin_attr", {}).setdefault("prometheus", {})["enable_export_server"] = False
    if trusts:
        settings["apisix"]["trusted_addresses"] = ["127.0.0.0/8"]
    file.write_text(yaml.safe_dump(settings))


def sluice(site, folder, args, log):
    served, more = site.file, options(site, args)
    trusts = hasattr(site, "trusts_proxies") and site.trusts_proxies()
    if args.converted or trusts:
        served, converted = folder / "converted", [args.sluice, "convert", str(site.file), "-o", str(folder / "converted") + "/"]
        subprocess.run(converted + more, stdout=log, stderr=log, check=True, cwd=folder)
        more = []
        configure(folder / "converted" / "config.yaml", trusts)
    command = [args.sluice, "run", str(served), "--data", str(folder / "data")] + more
    return subprocess.Popen(command, stdout=log, stderr=log, env=environment(site, folder))


def certified(names, certs, folder):
    """A folder with a certificate of the comparison's authority that is valid for the names by which the file calls its
    servers, as theirs is."""
    folder.mkdir()
    for name in ("server-ec.key", "ca.crt"):
        shutil.copy(certs / name, folder)
    listed = ",".join(f"DNS:{name}" for name in ["server.test", "*.server.test", *sorted(names)])
    (folder / "names").write_text(f"subjectAltName=IP:127.0.0.1,{listed}\n")
    request = ["openssl", "req", "-new", "-key", folder / "server-ec.key", "-subj", "/CN=server.test", "-out", folder / "request"]
    signed = ["openssl", "x509", "-req", "-in", folder / "request", "-CA", certs / "ca.crt", "-CAkey", certs / "ca.key", "-CAcreateserial",
              "-extfile", folder / "names", "-days", "2", "-out", folder / "server-ec.crt"]
    for command in (request, signed):
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
    return folder


def compare(original, path, args, ports):
    folder = Path(args.work) / f"{original.NAME}-{Path(path).stem}"
    shutil.rmtree(folder, ignore_errors=True)
    # Sluice reads no files outside of the folder.
    certs = shutil.copytree(args.certs, folder.resolve() / "certs")
    site = original.Site(path, folder, certs, ports)
    refused = site.usable()
    if refused:
        return {"file": path, "skipped": f"the original refuses it: {refused}"}
    requests = list(itertools.islice(site.requests(), MOST_REQUESTS))
    failures = list(of_failures(requests))
    if failures and requests[-1].burst:
        failures[0].pause = 1.2
    requests += failures
    client.CERTIFICATE[:] = [certs / "server-ec.crt", certs / "server-ec.key"]
    client.PROXIED = site.proxied() if hasattr(site, "proxied") else set()
    ready, answered = multiprocessing.Event(), site.answered() if hasattr(site, "answered") else []
    names = site.tls_names() if hasattr(site, "tls_names") else []
    own = certified(names, certs, folder / "servers") if names else Path(args.certs)
    servers = multiprocessing.Process(target=upstream.run, args=(list(site.upstreams()), site.tls_upstreams(), own, ready, answered), daemon=True)
    servers.start()
    ready.wait(10)
    try:
        groups, listened = site.same_upstream(), site.ports_listened()
        counter = next(((port, port in site.tls_upstreams()) for port in site.upstreams()), None)
        with open(folder / "original.log", "w") as log:
            theirs = run_all(site.start(log), requests, listened, groups, counter)
        if theirs is None:
            tail = (folder / "original.log").read_text().strip().splitlines()[-1:]
            return {"file": path, "skipped": f"the original does not start: {' '.join(tail)}"}
        with open(folder / "sluice.log", "w") as log:
            program = site.start(log) if args.twice else sluice(site, folder, args, log)
            ours = run_all(program, requests, listened, groups, counter)
        if ours is None:
            return {"file": path, "failed": f"Sluice does not start, see {folder / 'sluice.log'}", "requests": len(requests)}
    finally:
        servers.terminate()
        servers.join()
    checked = subprocess.run([args.sluice, "check", "--json", str(site.file)] + options(site, args), capture_output=True, text=True)
    try:
        findings = (json.loads(checked.stdout)["import"] or {}).get("findings", [])
        # A profile of the comparison is not compared.
        findings = [one for one in findings if "application-compare" not in str(one.get("file"))]
    except (ValueError, KeyError):
        findings = []
    return counted(path, requests, theirs, ours, findings, args.verbose)


def counted(path, requests, theirs, ours, findings, verbose):
    if not any(one["status"] for one in theirs):
        return {"file": path, "skipped": "the original answers no request of the comparison"}
    same, named_ones, different, used = 0, [], [], set()
    effective = [one for one in findings if one["severity"] != "cosmetic"]
    for request, one, other in zip(requests, theirs, ours):
        # How many requests of a burst pass depends on the moment.
        found = [] if request.burst and one["status"] != other["status"] else differences(one, other)
        if not found:
            same += 1
            continue
        near = [(at, finding) for at, finding in enumerate(effective) if finding["line"] in request.lines]
        reasons = [[at for at, finding in near if explained.explains(finding, one, request)] for one in found]
        named = all(reasons)
        used.update(*reasons)
        shown = f"{request.method} {request.target} {request.headers[:1] + request.headers[3:]} ({request.about})"
        by = [[f"{effective[at]['line']}: {effective[at]['construct']}: {effective[at]['effect']}" for at in all] for all in reasons]
        (named_ones if named else different).append({"request": shown, "differences": found, "by": by})
    for one in different[: verbose or 0]:
        print(f"    {one['request']}\n      " + "\n      ".join(one["differences"]), file=sys.stderr)
    return {
        "file": path, "requests": len(requests), "same": same, "explained": named_ones, "different": different,
        "findings": of_findings(effective, used, theirs),
    }


def of_findings(effective, used, theirs):
    """The findings with an effect: those seen in a difference, those that no request of the comparison can show, with the
    reason, and the rest, which may be false."""
    found = {"seen": [], "not_triggerable": [], "false": []}
    refused = any(one["status"] == 401 for one in theirs) and not any(one["upstream"] for one in theirs)
    for at, one in enumerate(effective):
        reason = explained.untriggerable(one) or ("needs a token that the issuer has signed" if refused else None)
        name = f"{one['line']}: {one['construct']}: {one['effect']}"
        if at in used:
            found["seen"].append(name)
        elif reason:
            found["not_triggerable"].append(f"{name} ({reason})")
        else:
            found["false"].append(name)
    return found


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("files", nargs="+", help="FORMAT:FILE, such as nginx:conf/site.conf")
    arguments.add_argument("--sluice", required=True)
    arguments.add_argument("--certs", required=True, help="folder with server-ec.crt and ca.crt")
    arguments.add_argument("--work", required=True, help="folder for rewritten files and logs")
    arguments.add_argument("--option", action="append", default=["--accept-guards"], help="an argument for Sluice")
    arguments.add_argument("--converted", action="store_true", help="serves what `sluice convert` makes of the file")
    arguments.add_argument("--twice", action="store_true", help="runs the original in place of Sluice: all must be the same")
    arguments.add_argument("--report", help="writes all results to this file as JSON")
    arguments.add_argument("--verbose", type=int, default=3, metavar="N", help="differences that are shown of a file")
    args = arguments.parse_args()
    ports, results = free_ports(), []
    for name in args.files:
        kind, _, path = name.partition(":")
        try:
            one = compare(importlib.import_module(kind), path, args, ports)
        except Exception as error:  # noqa: BLE001, one file must not end the run
            one = {"file": path, "skipped": f"the comparison failed: {error!r}"}
        results.append(one | {"format": kind})
        print(line(one), flush=True)
        if args.report:
            Path(args.report).write_text(json.dumps(results, indent=1))
    return summary(results)


def line(one):
    if "skipped" in one or "failed" in one:
        return f"{Path(one['file']).name[:44]:<44}  {(one.get('skipped') or one['failed'])[:200]}"
    return (f"{Path(one['file']).name[:44]:<44}  {one['requests']:>5} requests, {one['same']:>5} same, "
            f"{len(one['explained']):>4} explained by a finding, {len(one['different']):>4} different")


def summary(results):
    done = [one for one in results if "same" in one]
    total, same = sum(one["requests"] for one in done), sum(one["same"] for one in done)
    explained, different = sum(len(one["explained"]) for one in done), sum(len(one["different"]) for one in done)
    failed = [one for one in results if "failed" in one]
    if total:
        print(f"\n{len(done)} files, {total} requests: {100 * same / total:.1f} % same, {100 * explained / total:.1f} % "
              f"explained by a finding, {different} different; {len(results) - len(done) - len(failed)} files skipped, "
              f"{len(failed)} not started by Sluice")
        counts = {kind: sum(len(one["findings"][kind]) for one in done) for kind in ("seen", "not_triggerable", "false")}
        print(f"findings with an effect: {counts['seen']} seen, {counts['not_triggerable']} not triggerable by a request, "
              f"{counts['false']} false of {counts['seen'] + counts['false']} judged")
    return 1 if different or failed else 0


if __name__ == "__main__":
    sys.exit(main())
