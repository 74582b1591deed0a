"""The same configuration of Envoy in the words of today: an Envoy of today refuses API v2 and filters without a type.

Sluice gets the file as it is; only the original reads the twin.
"""

import copy
import re

FILTERS = {
    "router": "router.v3.Router", "cors": "cors.v3.Cors", "grpc_web": "grpc_web.v3.GrpcWeb", "grpc_stats": "grpc_stats.v3.FilterConfig",
    "fault": "fault.v3.HTTPFault", "health_check": "health_check.v3.HealthCheck", "buffer": "buffer.v3.Buffer",
    "ratelimit": "ratelimit.v3.RateLimit", "ext_authz": "ext_authz.v3.ExtAuthz", "jwt_authn": "jwt_authn.v3.JwtAuthentication",
}
LISTENER_FILTERS = {"tls_inspector": "tls_inspector.v3.TlsInspector", "proxy_protocol": "proxy_protocol.v3.ProxyProtocol",
                    "original_dst": "original_dst.v3.OriginalDst", "http_inspector": "http_inspector.v3.HttpInspector"}
HTTP = "type.googleapis.com/envoy.extensions.filters.http."
MANAGER = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
TCP = "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"
TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3."
# Types of API v2, and where they are in v3.
TYPES = [
    (r"envoy\.config\.filter\.(network|http)\.(\w+)\.v\d\w*\.", r"envoy.extensions.filters.\1.\2.v3."),
    (r"envoy\.api\.v2\.auth\.", "envoy.extensions.transport_sockets.tls.v3."),
    (r"envoy\.config\.accesslog\.v2\.", "envoy.extensions.access_loggers.file.v3."),
    (r"envoy\.config\.resource_monitor\.(\w+)\.v2\w*\.", r"envoy.extensions.resource_monitors.\1.v3."),
]


def twin(bootstrap):
    """A bootstrap as parsed from YAML, in API v3."""
    top = copy.deepcopy(bootstrap)
    visit(top)
    resources = top.get("static_resources") or {}
    for cluster in resources.get("clusters") or []:
        of_cluster(cluster)
    for listener in resources.get("listeners") or []:
        for one in listener.get("listener_filters") or []:
            of_listener_filter(one)
        for chain in listener.get("filter_chains") or []:
            if "tls_context" in chain:
                chain["transport_socket"] = socket("DownstreamTlsContext", chain.pop("tls_context"))
            # One filter may stand without a list.
            for one in [chain["filters"]] if isinstance(chain.get("filters"), dict) else chain.get("filters") or []:
                of_filter(one)
    return top


def of_listener_filter(one):
    name = str(one.get("name", "")).rpartition(".")[2]
    if not one.get("typed_config") and name in LISTENER_FILTERS:
        one.update(name="envoy.filters.listener." + name)
        one["typed_config"] = {"@type": "type.googleapis.com/envoy.extensions.filters.listener." + LISTENER_FILTERS[name]}


def socket(kind, context):
    return {"name": "envoy.transport_sockets.tls", "typed_config": {"@type": TLS + kind} | (context or {})}


def visit(node):
    """Names of types, and matches that have other fields in v3."""
    if isinstance(node, list):
        for one in node:
            visit(one)
    elif isinstance(node, dict):
        for key, value in node.items():
            if isinstance(value, dict) and set(value) == {"seconds"}:
                node[key] = f"{value['seconds']}s"
        kind = node.get("@type")
        if isinstance(kind, str):
            for pattern, new in TYPES:
                kind = re.sub(pattern, new, kind)
            node["@type"] = kind
        if isinstance(node.get("match"), dict) and "regex" in node["match"]:
            node["match"]["safe_regex"] = {"regex": node["match"].pop("regex")}
        if isinstance(node.get("match"), dict):
            for header in node["match"].get("headers") or []:
                of_header(header)
        if isinstance(node.get("cors"), dict):
            node.setdefault("typed_per_filter_config", {})["envoy.filters.http.cors"] = of_cors(node.pop("cors"))
        if isinstance(node.get("route"), dict):
            route = node["route"]
            if "host_rewrite" in route:
                route["host_rewrite_literal"] = route.pop("host_rewrite")
            if isinstance(route.get("cors"), dict):
                node.setdefault("typed_per_filter_config", {})["envoy.filters.http.cors"] = of_cors(route.pop("cors"))
        for one in node.values():
            visit(one)


def of_header(header):
    for old, new in (("exact_match", "exact"), ("prefix_match", "prefix"), ("suffix_match", "suffix")):
        if old in header:
            header["string_match"] = {new: header.pop(old)}
    if "regex_match" in header:
        header["string_match"] = {"safe_regex": {"regex": header.pop("regex_match")}}


def of_cors(policy):
    policy = {"@type": HTTP + "cors.v3.CorsPolicy"} | policy
    policy.pop("enabled", None)
    if "allow_origin" in policy:
        origins = policy.pop("allow_origin")
        # An asterisk stands for all origins.
        policy["allow_origin_string_match"] = [{"safe_regex": {"regex": ".*"}} if one == "*" else {"exact": one} for one in origins]
    return policy


def of_filter(one):
    short = str(one.get("name", "")).rpartition(".")[2]
    if "config" in one:
        one["typed_config"] = one.pop("config")
    config = one.get("typed_config")
    if isinstance(config, dict):
        config.setdefault("@type", TCP if short == "tcp_proxy" else MANAGER)
        if config["@type"] == MANAGER:
            if isinstance(config.get("access_log"), list):
                for log in config["access_log"]:
                    of_log(log)
            # Descriptors of gRPC services do not stand beside the file.
            config["http_filters"] = [http for http in config.get("http_filters") or [] if "transcoder" not in str(http.get("name"))]
            for http in config["http_filters"]:
                of_http_filter(http)


def of_log(log):
    if "config" in log:
        kind = "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog"
        log["typed_config"] = {"@type": kind} | log.pop("config")
    settings = log.get("typed_config")
    if isinstance(settings, dict) and isinstance(settings.get("format"), str):
        settings["log_format"] = {"text_format_source": {"inline_string": settings.pop("format")}}
    if isinstance(settings, dict) and isinstance(settings.get("json_format"), dict):
        settings["log_format"] = {"json_format": settings.pop("json_format")}


def of_http_filter(http):
    short = str(http.get("name", "")).rpartition(".")[2]
    if "config" in http:
        http["typed_config"] = http.pop("config")
    if http.get("typed_config") is None and short in FILTERS:
        http["typed_config"] = {}
    if isinstance(http.get("typed_config"), dict) and short in FILTERS:
        http["typed_config"].setdefault("@type", HTTP + FILTERS[short])
        # Names in full: policies of routes are looked up by them.
        http["name"] = "envoy.filters.http." + short


def of_cluster(cluster):
    if "tls_context" in cluster:
        cluster["transport_socket"] = socket("UpstreamTlsContext", cluster.pop("tls_context"))
    hosts = cluster.pop("hosts", None)
    if hosts is not None:
        hosts = hosts if isinstance(hosts, list) else [hosts]
        endpoints = [{"endpoint": {"address": host}} for host in hosts]
        cluster["load_assignment"] = {"cluster_name": cluster.get("name"), "endpoints": [{"lb_endpoints": endpoints}]}
    assignment = cluster.get("load_assignment")
    if isinstance(assignment, dict):
        assignment.setdefault("cluster_name", cluster.get("name"))
