#!/usr/bin/env python3
"""try.py SLUICE ETCD PROMETHEUS FOLDER: runs the compose files' programs with their own configuration.

The gateways of etcd/ and of monitoring/ serve a request each; Prometheus reads the metrics of the second by the names
that prometheus.yml has. Every query of the board gives series, every alert is evaluated and of known metrics.
To be run as root in namespaces of its own (unshare --mount --net --pid --fork), where the services' names are this
machine and all ports are free.
"""

import json, os, re, subprocess, sys, time, urllib.error, urllib.parse, urllib.request

SLUICE, ETCD, PROMETHEUS, FOLDER = sys.argv[1:]
HERE = os.path.dirname(os.path.abspath(__file__))
KEY = "key-of-this-try-0001"
# Metrics that appear with ACME, certificates or dropped entries, which need more than a moment: documented, not shown.
ABSENT = {
    "sluice_certificate_days_left",
    "sluice_acme_certificate_days_left",
    "sluice_acme_certificate_failures",
    "sluice_log_entries_dropped_total",
}


def call(url, body=None, method=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"X-API-KEY": KEY}, method=method or ("PUT" if data else "GET"))
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def wait(url, what, seconds=30):
    for _ in range(seconds * 20):
        try:
            if call(url)[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    sys.exit(f"try.py: {what} is not ready after {seconds} s; its log is in {FOLDER}")


def start(name, *command):
    # A failure names the file: traffic and failed requests would bury it.
    log = open(os.path.join(FOLDER, name + ".log"), "w")
    return subprocess.Popen(command, env={**os.environ, "SLUICE_ADMIN_KEY": KEY}, stdout=log, stderr=log)


def gateway(name):
    data = os.path.join(FOLDER, name + "-data")
    process = start(name, SLUICE, "run", os.path.join(HERE, name), "--data", data)
    wait("http://127.0.0.1:7085/status/ready", f"the gateway of {name}")
    return process


def admin(path, body):
    status, text = call("http://127.0.0.1:9180/apisix/admin/" + path, body)
    if status not in (200, 201):
        sys.exit(f"try.py: {path}: {status} {text}")


def stop(*processes):
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait(30)


def answer(body, status=200):
    return {"fault-injection": {"abort": {"http_status": status, "body": body}}}


def try_etcd():
    process = gateway("etcd")
    admin("routes/1", {"uri": "/served", "plugins": answer("served")})
    for _ in range(100):
        if call("http://127.0.0.1:9080/served") == (200, "served"):
            break
        time.sleep(0.05)
    else:
        sys.exit("try.py: the gateway with etcd does not serve the route")
    page = call("http://127.0.0.1:9091/apisix/prometheus/metrics")[1]
    stop(process)
    print("try.py: etcd: served a request")
    return page


def names(page):
    found = set(re.findall(r"^# TYPE (\S+) ", page, re.M))
    return found | {name + suffix for name in found for suffix in ("_bucket", "_sum", "_count")}


def expressions():
    """Queries of the board and of the rules, with the file they are from."""
    with open(os.path.join(HERE, "monitoring/grafana/boards/sluice.json")) as file:
        board = json.load(file)
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield "board, " + panel["title"], target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield "board, $" + variable["name"], variable["definition"]


def query(path, **arguments):
    url = "http://127.0.0.1:9092/api/v1/" + path + "?" + urllib.parse.urlencode(arguments)
    status, text = call(url)
    if status != 200:
        sys.exit(f"try.py: Prometheus: {arguments}: {text}")
    return json.loads(text)["data"]


def try_monitoring(page_with_etcd):
    process = gateway("monitoring")
    admin("global_rules/1", {"plugins": {"prometheus": {}}})
    admin("routes/good", {"uri": "/good", "plugins": answer("good")})
    # A server that does not answer: 502, and an unhealthy server.
    checks = {"active": {"type": "tcp", "healthy": {"interval": 1}, "unhealthy": {"interval": 1, "tcp_failures": 1}}}
    upstream = {"nodes": {"127.0.0.1:1": 1}, "type": "roundrobin", "checks": checks}
    admin("routes/bad", {"uri": "/bad", "upstream": upstream})
    prometheus = start(
        "prometheus",
        PROMETHEUS,
        "--config.file=" + os.path.join(HERE, "monitoring/prometheus.yml"),
        "--storage.tsdb.path=" + os.path.join(FOLDER, "prometheus-data"),
        "--web.listen-address=127.0.0.1:9092",
        "--log.level=warn",
    )
    wait("http://127.0.0.1:9092/-/ready", "Prometheus")
    # Rates need two readings of each series.
    for _ in range(500):
        for path in ("good", "bad"):
            call("http://127.0.0.1:9080/" + path)
        readings = query("query", query='count_over_time(apisix_http_status{route="bad"}[1m])')["result"]
        if readings and int(readings[0]["value"][1]) >= 2:
            break
        time.sleep(0.1)
    else:
        sys.exit("try.py: Prometheus does not read the metrics")

    page = call("http://127.0.0.1:9091/apisix/prometheus/metrics")[1]
    known, with_etcd = names(page) | names(page_with_etcd), names(page_with_etcd) - names(page)
    faults = []

    def unknown(expression):
        return set(re.findall(r"\b(?:apisix|sluice)_\w+", expression)) - known

    count = 0
    for place, expression in expressions():
        count += 1
        if unknown(expression):
            faults.append(f"{place}: unknown metrics {unknown(expression)}")
            continue
        if expression.startswith("label_values("):
            continue
        concrete = expression.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$route", ".*")
        used = set(re.findall(r"\b(?:apisix|sluice)_\w+", expression))
        if not query("query", query=concrete)["result"] and not used & (ABSENT | with_etcd):
            faults.append(f"{place}: no series for {concrete}")
    groups = query("rules")["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        count += 1
        if unknown(rule["query"]):
            faults.append(f"{rule['name']}: unknown metrics {unknown(rule['query'])}")
        if rule["health"] == "err":
            faults.append(f"{rule['name']}: {rule['lastError']}")
    stop(prometheus, process)
    if faults or not groups:
        sys.exit("try.py: " + "\n  ".join(faults or ["no rules"]))
    print(f"try.py: monitoring: {count} queries of board and rules are of metrics that the gateway has")


def main():
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    hosts = os.path.join(FOLDER, "hosts")
    with open(hosts, "w") as file:
        file.write("127.0.0.1 localhost sluice etcd prometheus\n")
    subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
    etcd = start("etcd-server", ETCD, "--data-dir=" + os.path.join(FOLDER, "etcd-data"), "--log-level=error")
    try_monitoring(try_etcd())
    stop(etcd)


main()
