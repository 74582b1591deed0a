//! Constructs and their counterparts.

use serde_json::{Value, json};

use super::{FIXTURES, assert_valid, fixture, import, resource};
use crate::{Import, Protocol, Severity};

#[test]
fn fixtures_become_valid_resources() {
    for (name, text) in FIXTURES {
        let import = import(text);
        assert_valid(&import, name);
        assert!(!import.listeners.is_empty(), "{name}");
        let left_out = import.findings.iter().filter(|finding| finding.effect.starts_with("left out"));
        assert_eq!(left_out.count(), 0, "{name}: {:#?}", import.findings);
    }
}

#[test]
fn routes_keep_their_conditions_and_actions() {
    let import = import(fixture("routes.yaml"));
    let ping = resource(&import, "routes/shop-ping");
    assert_eq!(ping["uri"], "/ping");
    assert_eq!(ping["plugins"]["mocking"]["response_example"], "pong\n");
    assert_eq!(ping["hosts"], json!(["shop.example", "*.shop.example"]));
    let versioned = resource(&import, "routes/shop-api");
    assert_eq!(versioned["uris"], json!(["/api*", "/api/old*", "/api/*"]));
    assert_eq!(versioned["vars"][1], json!(["http_x_version", "==", "2"]));
    assert_eq!(versioned["timeout"], json!({"connect": 5, "send": 10, "read": 10}));
    assert_eq!(versioned["plugins"]["proxy-rewrite"]["regex_uri"], json!(["(?s)^/api(.*)", "/v2${1}"]));
    assert_eq!(versioned["enable_websocket"], true);
    let headers = &versioned["plugins"]["proxy-rewrite"]["headers"];
    assert_eq!(
        *headers,
        json!({
            "add": {"x-method": "${request_method}"},
            "set": {
                "x-from": "${remote_addr}",
                "X-Envoy-Original-Path": "$normal_request_uri",
                "X-Envoy-Expected-Rq-Timeout-Ms": "30000",
            },
            "remove": ["x-secret"],
        })
    );
    // The address of a client is the last one in `X-Forwarded-For`, as in Envoy.
    assert_eq!(versioned["plugins"]["real-ip"]["source"], "http_x_forwarded_for");
    assert_eq!(versioned["plugins"]["response-rewrite"]["headers"]["set"], json!({"x-served-by": "edge"}));
    let redirect = &resource(&import, "routes/shop-api-old")["plugins"]["redirect"];
    assert_eq!(
        *redirect,
        json!({"ret_code": 302, "uri": "$scheme://$http_host/api/new", "append_query_string": true})
    );
    let retried = resource(&import, "routes/shop-api-2");
    assert_eq!(retried["plugins"]["proxy-rewrite"]["host"], "one.example");
    let upstream = resource(&import, &format!("upstreams/{}", retried["upstream_id"].as_str().unwrap()));
    assert_eq!(
        (&upstream["retries"], &upstream["sluice"]["retry"]["per_try_timeout"]),
        (&json!(2), &json!(2))
    );
    assert_eq!(upstream["sluice"]["outlier"]["consecutive_failures"], 3);
    let regex = resource(&import, "routes/shop-regex");
    assert_eq!(regex["vars"][1], json!(["uri", "~~", "^/items/[0-9]+$"]));
    assert_eq!(regex["plugins"]["proxy-rewrite"]["regex_uri"], json!(["^/items/([0-9]+)$", "/item?id=${1}"]));
    let parts = |id: &str| {
        resource(&import, id)["plugins"]["traffic-split"]["rules"][0]["weighted_upstreams"].clone()
    };
    let both = json!([{"upstream_id": "one", "weight": 90}, {"upstream_id": "two", "weight": 10}]);
    assert_eq!(parts("routes/shop-split"), both);
    let canary = json!([{"upstream_id": "two", "weight": 500}, {"upstream_id": "one", "weight": 9500}]);
    assert_eq!(parts("routes/shop-canary"), canary);
    assert_eq!(resource(&import, "routes/shop-by")["methods"], json!(["POST"]));
    let mirrored = resource(&import, "routes/api");
    assert_eq!(
        mirrored["plugins"]["proxy-mirror"],
        json!({"host": "http://127.0.0.1:8081", "sample_ratio": 0.5})
    );
    assert!(import.findings.iter().any(|finding| finding.effect.starts_with("the route takes no request")));
    assert_eq!(import.count(Severity::Guard), 0, "{:#?}", import.findings);
}

#[test]
fn clusters_keep_their_settings() {
    let import = import(fixture("routes.yaml"));
    let one = resource(&import, "upstreams/one");
    assert_eq!(one["nodes"][0], json!({"host": "one", "port": 80, "weight": 3}));
    assert_eq!(one["nodes"][2], json!({"host": "spare", "port": 80, "weight": 1, "priority": -1}));
    assert_eq!((&one["type"], &one["retries"], &one["scheme"]), (&json!("p2c"), &json!(0), &json!("http")));
    assert_eq!(one["timeout"], json!({"connect": 0.25, "send": 15, "read": 15}));
    assert_eq!(one["sluice"]["limits"], json!({"connections": 100, "requests": 200, "pending": 1024}));
    let active = &one["checks"]["active"];
    assert_eq!((&active["http_path"], &active["healthy"]["successes"]), (&json!("/health"), &json!(2)));
    assert_eq!(resource(&import, "upstreams/two")["scheme"], "h2c");
}

/// The guards of a route.
fn guards(import: &Import, id: &str) -> Vec<String> {
    let key = model::Key::new(model::Kind::Route, id);
    import.guards(&key).map(|finding| finding.construct.clone()).collect()
}

#[test]
fn filters_become_plugins_of_the_routes_they_apply_to() {
    let import = import(fixture("filters.yaml"));
    let plugins = |id: &str| &resource(&import, &format!("routes/{id}"))["plugins"];
    let port = json!([["server_port", "==", "8080"]]);
    assert_eq!(resource(&import, "routes/all")["vars"], port);
    assert_eq!(resource(&import, "routes/all-health-check")["uri"], "/healthz");
    let auth = &plugins("all")["forward-auth"];
    assert_eq!(auth["uri"], "http://auth:9000/check");
    assert_eq!(auth["request_headers"], json!(["authorization", "x-user"]));
    assert_eq!(
        (&auth["upstream_headers"], &auth["status_on_error"], &auth["timeout"]),
        (&json!(["x-account"]), &json!(503), &json!(500))
    );
    assert!(plugins("all-public").get("forward-auth").is_none());
    let limit = &plugins("all")["limit-count"];
    assert_eq!((&limit["count"], &limit["time_window"]), (&json!(10), &json!(60)));
    assert_eq!(limit["group"], plugins("all-public")["limit-count"]["group"]);
    let inside =
        json!([["!AND", ["request_method", "~~", "^"], ["realip_remote_addr", "ipmatch", ["10.0.0.0/8"]]]]);
    assert_eq!(plugins("all-admin")["workflow"]["rules"][0]["case"], inside);
    let bad = &plugins("all")["workflow"]["rules"][0];
    assert_eq!(bad["actions"], json!([["return", {"code": 403}]]));
    assert_eq!(plugins("all")["fault-injection"]["abort"]["percentage"], 2);
    assert_eq!(plugins("all")["gzip"]["min_length"], 100);
    let cors = &plugins("all")["cors"];
    assert_eq!(
        cors["allow_origins_by_regex"],
        json!(["^https://a\\.example$", "^https://.*\\.b\\.example$"])
    );
    assert_eq!((&cors["allow_credential"], &cors["max_age"]), (&json!(true), &json!(600)));
    assert_eq!(guards(&import, "all"), Vec::<String>::new());
    // The second port.
    let calls = resource(&import, "routes/calls");
    assert_eq!(calls["uri"], "/*");
    assert_eq!(calls["plugins"]["jwt-auth"]["key_claim_name"], "iss");
    assert_eq!(
        calls["plugins"]["jwt-auth"]["_meta"]["filter"],
        json!([["AND", ["uri", "!", "~~", "^/open"], ["uri", "!", "~~", "^/health"]]])
    );
    assert!(plugins("calls-open").get("jwt-auth").is_none());
    let login = resource(&import, "consumers/login");
    assert_eq!(login["plugins"]["jwt-auth"]["key"], "https://login.example");
    assert_eq!(guards(&import, "calls"), ["envoy.filters.http.lua"]);
    assert_eq!(calls["upstream_id"], "grpc");
    let ids = &resource(&import, "global_rules/every-request")["plugins"]["request-id"];
    assert_eq!(ids["_meta"]["filter"], json!([["server_port", "in", ["8080"]]]));
    let hashed = resource(&import, "routes/all")["upstream_id"].as_str().unwrap();
    let hashed = resource(&import, &format!("upstreams/{hashed}"));
    assert_eq!((&hashed["type"], &hashed["key"]), (&json!("chash"), &json!("x-user")));
}

#[test]
fn upgrades_that_no_route_takes_are_refused() {
    let rule = |text: &str| {
        let import = import(text);
        assert_valid(&import, "upgrades");
        let mut rules = import.resources.iter().filter(|one| one.key.kind == model::Kind::GlobalRule);
        rules.find_map(|rule| rule.value["plugins"].get("fault-injection").cloned())
    };
    let found = rule(fixture("filters.yaml")).unwrap();
    assert_eq!(found["abort"]["http_status"], 403);
    assert_eq!(found["abort"]["vars"][0][0], json!(["http_upgrade", "~~", "."]));
    assert_eq!(rule(fixture("routes.yaml")), None);
}

#[test]
fn targets_that_no_route_changes_are_sent_as_they_came() {
    let raw = |text: &str, id: &str| {
        let import = import(text);
        resource(&import, id)["plugins"]["proxy-rewrite"]["use_real_request_uri_unsafe"] == true
    };
    let routes = fixture("routes.yaml");
    let as_they_came = routes
        .replace("normalize_path: true", "normalize_path: false")
        .replace("merge_slashes: true", "merge_slashes: false");
    assert!(raw(&as_they_came, "routes/shop-split") && !raw(&as_they_came, "routes/shop-api"));
    assert!(!raw(routes, "routes/shop-split"));
    assert!(!raw(fixture("filters.yaml"), "routes/all"), "another server judges its requests");
}

#[test]
fn a_redirect_to_tls_comes_before_the_one_of_a_route() {
    let redirects = |text: &str| {
        let import = import(text);
        let routes = import.resources.into_iter().filter(|one| one.key.kind == model::Kind::Route);
        let redirects = routes.map(|mut one| one.value["plugins"]["redirect"].take());
        redirects.filter(|redirect| !redirect.is_null()).collect::<Vec<_>>()
    };
    let to_tls = |redirect: &&Value| redirect["uri"] == "https://${http_host}${normal_request_uri}";
    let own = |redirect: &&Value| redirect.get("regex_uri").is_some();
    let count = |text: &str| {
        let found = redirects(text);
        (found.iter().filter(to_tls).count(), found.iter().filter(own).count())
    };
    let routes = fixture("routes.yaml");
    assert_eq!(count(routes), (1, 1));
    let edge = routes.replacen("stat_prefix:", "use_remote_address: true\n          stat_prefix:", 1);
    assert_eq!(count(&edge), (1, 0), "no request reaches the route");
    let without = routes.replace("require_tls: ALL", "");
    assert_eq!(count(&without), (0, 1));
    let found = redirects(&without);
    assert_eq!(found.iter().find(own).unwrap()["encode_uri"], true);
}

#[test]
fn names_that_tls_cannot_ask_for_are_left_out() {
    let routes = fixture("routes.yaml");
    for (name, carried, reason) in [
        ("one.example", true, ""),
        ("${one_host}", false, "template"),
        ("{{ one }}", false, "template"),
        ("*.one.example", false, "not a valid server name"),
    ] {
        let socket = format!(
            "name: one\n    transport_socket: {{name: tls, typed_config: {{\"@type\": \
             type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, sni: \"{name}\"}}}}"
        );
        let import = import(&routes.replacen("name: one\n", &format!("{socket}\n"), 1));
        assert_valid(&import, name);
        let sni = resource(&import, "upstreams/one").pointer("/tls/sni");
        assert_eq!(sni, carried.then(|| json!(name)).as_ref(), "{name}");
        let found = import.findings.iter().find(|finding| finding.construct == "sni");
        assert_eq!(found.is_none(), carried, "{name}");
        assert!(found.is_none_or(|found| found.effect.contains(reason)), "{found:?}");
    }
}

#[test]
fn paths_are_compared_as_the_connection_managers_do() {
    let found = |text: &str| {
        let import = import(text);
        let settings = import.settings.iter().filter_map(|one| one.path.strip_prefix("sluice.path."));
        let settings: Vec<String> = settings.map(str::to_owned).collect();
        let named = import.findings.iter().find(|finding| finding.construct.contains("merge_slashes"));
        (settings, named.map(|finding| finding.severity))
    };
    let routes = fixture("routes.yaml");
    assert_eq!(found(routes), (vec![], None));
    let raw = routes.replace("normalize_path: true", "").replace("merge_slashes: true", "");
    let all = ["resolve_dots", "decode_unreserved", "merge_slashes"].map(str::to_owned).to_vec();
    assert_eq!(found(&raw), (all, Some(Severity::Cosmetic)));
    let slashes = routes.replace("merge_slashes: true", "");
    assert_eq!(found(&slashes), (vec!["merge_slashes".to_owned()], Some(Severity::Cosmetic)));
    // Two connection managers that differ share the normal form.
    let second = "
  - address: {socket_address: {address: 0.0.0.0, port_value: 1}}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          route_config: {virtual_hosts: [{name: a, domains: ['*'], routes: [{match: {prefix: /}, direct_response: {status: 200}}]}]}
  clusters:
";
    assert_eq!(found(&routes.replacen("\n  clusters:\n", second, 1)), (vec![], Some(Severity::Behaviour)));
}

#[test]
fn keys_of_servers_verify_tokens() {
    let remote = fixture("filters.yaml").replace("provider_name: login", "provider_name: remote");
    let carried = import(&remote);
    assert_valid(&carried, "keys of a server");
    assert!(!guards(&carried, "calls").contains(&"jwt_authn".to_owned()));
    let settings = &resource(&carried, "routes/calls")["plugins"]["jwks-auth"];
    assert!(settings["jwks_uri"].as_str().unwrap().ends_with("/jwks"), "{settings}");
    assert_eq!(
        (&settings["issuer"], &settings["timeout"], &settings["cache_ttl"], &settings["hide_credentials"]),
        (&json!("https://remote.example"), &json!(1000), &json!(600), &json!(true))
    );
    assert!(settings["_meta"]["filter"].is_array());
    for (from, to) in [
        ("cluster: app, timeout: 1s", "cluster: missing, timeout: 1s"),
        ("remote_jwks:", "subjects: {exact: a}\n                  remote_jwks:"),
    ] {
        let import = import(&remote.replace(from, to));
        assert!(guards(&import, "calls").contains(&"jwt_authn".to_owned()), "{to}");
    }
}

#[test]
fn a_provider_without_an_issuer_verifies_by_its_keys() {
    let text = fixture("filters.yaml").replace(
        "                  issuer: https://login.example\n",
        "                  audiences: [shop]\n                  forward: true\n                  forward_payload_header: x-payload\n                  claim_to_headers: [{header_name: x-sub, claim_name: sub}]\n                  from_headers: [{name: x-token}]\n",
    );
    let import = import(&text);
    assert_valid(&import, "without an issuer");
    let settings = &resource(&import, "routes/calls")["plugins"]["jwks-auth"];
    assert!(settings["jwks"].as_str().unwrap().contains("oct"));
    let mut rest = settings.clone();
    for name in ["jwks", "_meta"] {
        rest.as_object_mut().unwrap().remove(name);
    }
    let realm = rest.as_object_mut().unwrap().remove("realm");
    assert_eq!(realm, Some(json!("${scheme}://${http_host}${real_request_uri}")));
    assert_eq!(
        rest,
        json!({"audiences": ["shop"], "header": "x-token", "prefix": "", "payload_header": "x-payload", "claim_headers": {"x-sub": "sub"}})
    );
}

#[test]
fn tokens_that_are_not_read_do_not_pass_as_missing() {
    let guarded = |headers: &str, requires: &str| {
        let text = fixture("filters.yaml")
            .replace("issuer: https://login.example\n", &format!("from_headers: [{headers}]\n"))
            .replace("{provider_name: login}", requires);
        let import = import(&text);
        assert!(
            resource(&import, "routes/calls")["plugins"]["jwks-auth"].is_object(),
            "{headers} {requires}"
        );
        guards(&import, "calls").contains(&"jwt_authn".to_owned())
    };
    let optional = "{requires_any: {requirements: [{provider_name: login}, {allow_missing: {}}]}}";
    assert!(guarded("{name: a}, {name: b}", optional));
    assert!(!guarded("{name: a}", optional));
    assert!(!guarded("{name: a}, {name: b}", "{provider_name: login}"), "such requests are refused");
}

#[test]
fn libraries_of_compressors_are_plugins() {
    for (library, plugin, level) in [
        ("zstd.compressor.v3.Zstd, compression_level: 22", "zstd", 19),
        ("brotli.compressor.v3.Brotli, quality: 4", "brotli", 4),
        ("gzip.compressor.v3.Gzip, compression_level: COMPRESSION_LEVEL_9", "gzip", 9),
    ] {
        let text = fixture("filters.yaml").replace("gzip.compressor.v3.Gzip", library);
        let import = import(&text);
        assert_valid(&import, plugin);
        assert_eq!(resource(&import, "routes/all")["plugins"][plugin]["comp_level"], level, "{plugin}");
    }
}

#[test]
fn servers_of_grpc_are_asked() {
    let text = fixture("filters.yaml");
    let start = text.find("              http_service:").unwrap();
    let end = text.find("          - name: envoy.filters.http.compressor").unwrap();
    let with = |service: &str| {
        let text = format!("{}              grpc_service: {{{service}}}\n{}", &text[..start], &text[end..]);
        text.replace(
            "disabled: true",
            "check_settings: {context_extensions: {area: public}, disable_request_body_buffering: true}",
        )
    };
    let plugin = |import: &Import, route: &str| resource(import, route)["plugins"]["ext-authz"].clone();
    let rest = "with_request_body: {max_request_bytes: 10, allow_partial_message: true}\n";
    let service = format!(
        "envoy_grpc: {{cluster_name: auth}}, timeout: 0.5s, initial_metadata: [{{key: k, value: v}}]}}\n              {rest}              transport_api_version: V2\n#"
    );
    let carried = import(&with(&service));
    assert_valid(&carried, "a server of gRPC");
    let settings = plugin(&carried, "routes/all");
    assert!(settings["uri"].as_str().unwrap().ends_with(":9000/envoy.service.auth.v2.Authorization/Check"));
    assert_eq!(
        [&settings["timeout"], &settings["max_request_bytes"], &settings["status_on_error"]],
        [500, 10, 503]
    );
    assert_eq!((&settings["allow_partial_body"], &settings["metadata"]), (&json!(true), &json!({"k": "v"})));
    assert_eq!(guards(&carried, "all"), Vec::<String>::new());
    let own = plugin(&carried, "routes/all-public");
    assert_eq!(
        (&own["context_extensions"], own.get("max_request_bytes")),
        (&json!({"area": "public"}), None)
    );

    let google = import(&with("google_grpc: {target_uri: \"dns:///auth.example:9191\", stat_prefix: a}"));
    assert_eq!(plugin(&google, "routes/all")["uri"], "http://auth.example:9191");
    for service in [
        "envoy_grpc: {cluster_name: missing}",
        "google_grpc: {target_uri: \"unix:/a\"}",
        "google_grpc: {target_uri: \"a:1\", channel_credentials: {ssl_credentials: {}}}",
    ] {
        let import = import(&with(service));
        assert_eq!(guards(&import, "all"), ["ext_authz.grpc_service"], "{service}");
    }
    let other = with("envoy_grpc: {cluster_name: auth}")
        .replace("check_settings: {", "check_settings: {grpc_service: {envoy_grpc: {cluster_name: app}}, ");
    assert_eq!(guards(&import(&other), "all-public"), ["ext_authz.check_settings"]);
}

#[test]
fn listeners_certificates_and_streams() {
    let import = import(fixture("tls.yaml"));
    let [tls, database] = &import.listeners[..] else { panic!("{:?}", import.listeners) };
    assert!(tls.tls && tls.http2 && tls.proxy_protocol && tls.port == 8443);
    assert_eq!((database.protocol, database.port), (Protocol::Tcp, 5432));
    let ssl = resource(&import, "ssls/a.example");
    assert_eq!(ssl["snis"], json!(["a.example", "*.a.example"]));
    assert_eq!(ssl["ssl_protocols"], json!(["TLSv1.3"]));
    assert!(ssl["client"]["ca"].as_str().is_some_and(|ca| ca.contains("CERTIFICATE")));
    assert_eq!(resource(&import, "ssls/certificate")["snis"], json!(["*"]));
    let names = json!(["ssl_server_name", "~*", "^(?:a\\.example|.+\\.a\\.example)$"]);
    assert_eq!(resource(&import, "routes/a")["vars"], json!([names]));
    assert_eq!(resource(&import, "routes/b")["vars"], json!([["ssl_server_name", "!", "~*", names[2]]]));
    let secure = resource(&import, "upstreams/secure");
    assert_eq!((&secure["scheme"], &secure["tls"]["verify"]), (&json!("https"), &json!(true)));
    assert!(secure["tls"]["client_cert"].is_string() && secure["tls"]["ca"].is_string());
    assert_eq!((&secure["tls"]["sni"], secure.get("upstream_host")), (&json!("secure.example"), None));
    assert_eq!(resource(&import, "routes/a")["plugins"]["proxy-rewrite"]["host"], "secure.example");
    let stream = resource(&import, "stream_routes/port-5432");
    let upstream = resource(&import, &format!("upstreams/{}", stream["upstream_id"].as_str().unwrap()));
    assert_eq!((&upstream["scheme"], &upstream["timeout"]["read"]), (&json!("tls"), &json!(600)));
    // Without a validation context Envoy verifies nothing.
    assert!(resource(&import, "upstreams/old").get("tls").is_none());
}

#[test]
fn the_second_article_is_carried_over() {
    let import = import(fixture("front-envoy.yaml"));
    assert_eq!(resource(&import, "routes/backend")["uri"], "/*");
    assert_eq!(
        resource(&import, "upstreams/service")["nodes"],
        json!([{"host": "service", "port": 80, "weight": 1}])
    );
    let [listener] = &import.listeners[..] else { panic!("{:?}", import.listeners) };
    assert_eq!((listener.port, listener.http2, listener.tls), (80, false, false));
    assert_eq!(import.count(Severity::Guard), 0);
}

#[test]
fn endpoints_of_a_file_are_read() {
    let text = "static_resources:\n  clusters:\n  - name: app\n    type: EDS\n    eds_cluster_config: {eds_config: \
                {path_config_source: {path: eds.yaml}}}\n";
    assert_eq!(resource(&import(text), "upstreams/app")["nodes"][0]["host"], "10.0.0.1");
    let absent = import(&text.replace("eds.yaml", "none.yaml"));
    assert!(absent.findings.iter().any(|finding| finding.effect.contains("the file does not exist")));
}

#[test]
fn requests_are_traced_by_the_plugin_of_the_provider() {
    let with = |tracing: &str| {
        let replaced = format!("tracing: {tracing}\n          stat_prefix:");
        fixture("routes.yaml").replacen("stat_prefix:", &replaced, 1)
    };
    let traced = |tracing: &str| import(&with(tracing));
    let name = fixture("routes.yaml")
        .split("- name: ")
        .filter_map(|part| part.split_once('\n'))
        .map(|(name, _)| name.trim());
    let cluster = name.last().unwrap();
    let otel_by_grpc = format!(
        "{{random_sampling: {{value: 25}}, provider: {{name: o, typed_config: {{\"@type\": type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig, service_name: edge, grpc_service: {{envoy_grpc: {{cluster_name: {cluster}}}, timeout: 0.5s}}}}}}}}"
    );
    let otel = traced(&otel_by_grpc);
    assert_valid(&otel, "opentelemetry");
    let plugin = &resource(&otel, "routes/shop-api")["plugins"]["opentelemetry"];
    assert_eq!(
        plugin["sampler"]["options"]["root"],
        json!({"name": "trace_id_ratio", "options": {"fraction": 0.25}})
    );
    let metadata = resource(&otel, "plugin_metadata/opentelemetry");
    assert_eq!(metadata["resource"], json!({"service.name": "edge"}));
    let collector = |address: &str| json!({"address": address, "protocol": "grpc", "request_timeout": 1});
    assert_eq!(metadata["collector"], collector("http://127.0.0.1:8081"));
    assert!(otel.findings.iter().all(|finding| finding.construct != "grpc_service"));
    let tls = |text: String| {
        let name = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
        let socket = format!("{{name: tls, typed_config: {{\"@type\": {name}}}}}");
        text.replace(
            "    lb_policy: RING_HASH\n",
            &format!("    lb_policy: RING_HASH\n    transport_socket: {socket}\n"),
        )
    };
    let secure = import(&tls(with(&otel_by_grpc)));
    assert_valid(&secure, "opentelemetry over TLS");
    let metadata = resource(&secure, "plugin_metadata/opentelemetry");
    assert_eq!(metadata["collector"], collector("https://127.0.0.1:8081"));
    let by_zipkin = format!(
        "{{provider: {{name: z, typed_config: {{\"@type\": type.googleapis.com/envoy.config.trace.v3.ZipkinConfig, collector_cluster: {cluster}, collector_endpoint: /api/v2/spans}}}}}}"
    );
    let zipkin = traced(&by_zipkin);
    assert_valid(&zipkin, "zipkin");
    let plugin = &resource(&zipkin, "routes/shop-api")["plugins"]["zipkin"];
    assert!(plugin["endpoint"].as_str().unwrap().ends_with("/api/v2/spans"), "{plugin}");
    assert_eq!(plugin["sample_ratio"], 1.0);
    let version_6 = import(
        &with(&by_zipkin).replace("address: 127.0.0.1, port_value: 8081", "address: '::1', port_value: 8081"),
    );
    let plugin = &resource(&version_6, "routes/shop-api")["plugins"]["zipkin"];
    assert_eq!(plugin["endpoint"], "http://[::1]:8081/api/v2/spans");
    let other = traced(
        "{provider: {name: x, typed_config: {\"@type\": type.googleapis.com/envoy.config.trace.v3.XRayConfig}}}",
    );
    assert!(
        other
            .findings
            .iter()
            .any(|finding| finding.construct == "tracing" && finding.severity == crate::Severity::Behaviour)
    );
}

#[test]
fn headers_that_envoy_adds_are_sent() {
    let set = |text: &str| {
        let import = import(text);
        resource(&import, "routes/shop-api")["plugins"]["proxy-rewrite"]["headers"]["set"].clone()
    };
    let routes = fixture("routes.yaml");
    assert_eq!(set(routes).get("X-Envoy-External-Address"), None);
    let external =
        set(&routes.replacen("stat_prefix:", "use_remote_address: true\n          stat_prefix:", 1));
    assert_eq!(external["X-Envoy-External-Address"], "$remote_addr");
    assert_eq!(external["X-Envoy-Original-Path"], "$normal_request_uri");
}
