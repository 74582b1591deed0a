//! Constructs and the resources that they become.

use serde_json::json;

use super::*;

#[test]
fn fixtures_are_valid_resources() {
    for (name, text) in FIXTURES {
        let import = import(text);
        check(&import);
        assert!(!import.resources.is_empty(), "{name}");
    }
}

/// The one route with this id.
fn route<'i>(import: &'i Import, id: &str) -> &'i Value {
    &resource(import, &format!("routes/{id}")).value
}

#[test]
fn a_prefix_is_exchanged_for_the_path_of_the_address() {
    for (location, pass, expected) in [
        ("/a/", "http://b:1", json!(null)),
        ("/a/", "http://b:1/", json!(["^/a/(.*)$", "/$1"])),
        ("/a/", "http://b:1/c", json!(["^/a/(.*)$", "/c$1"])),
        ("/a.b", "http://b:1/c/", json!(["^/a\\.b(.*)$", "/c/$1"])),
        ("/a/", "http://b:1/a/", json!(null)),
        ("~ ^/u/(\\d+)$", "http://b:1/v/$1", json!(["^/u/(\\d+)$", "/v/$1"])),
        ("~* ^/u/(?<n>x)$", "http://b:1/v/$n?$args", json!(["(?i)^/u/(?<n>x)$", "/v/$1"])),
    ] {
        let import = server(&format!("location {location} {{ proxy_pass {pass}; }}"));
        check(&import);
        let proxied = import.resources.iter().find(|one| one.value.get("upstream_id").is_some()).unwrap();
        let pairs = proxied.value.pointer("/plugins/proxy-rewrite/regex_uri").cloned().unwrap_or_default();
        assert_eq!(pairs, expected, "{location} {pass}");
    }
    let import = server("location = /a { proxy_pass http://b:1/c; }");
    assert_eq!(route(&import, "port-80-a")["plugins"]["proxy-rewrite"], json!({"uri": "/c"}));
    let import = server("location /a/ { proxy_pass http://b:1; }");
    assert_eq!(route(&import, "port-80-a-slash")["uri"], "/a");
    let import = server("location /a/ { proxy_pass http://b:1; }\nlocation /a { return 204; }");
    assert!(import.resources.iter().all(|one| one.key.id != "port-80-a-slash"));
}

#[test]
fn a_target_that_no_directive_changes_is_sent_as_it_came() {
    for (directives, raw) in [
        ("proxy_pass http://b:1;", true),
        ("set $b b:1; proxy_pass http://$b;", true),
        ("proxy_pass http://b:1$request_uri;", true),
        ("proxy_pass http://b:1/a/;", false),
        ("proxy_pass http://b:1/c;", false),
        ("rewrite ^/a/(.*)$ /b/$1 break; proxy_pass http://b:1;", false),
        ("auth_request /check; proxy_pass http://b:1;", false),
    ] {
        let import = server(&format!(
            "location /a/ {{ {directives} }} location = /check {{ proxy_pass http://c:1/; }}"
        ));
        check(&import);
        let rewrite = &route(&import, "port-80-a")["plugins"]["proxy-rewrite"];
        assert_eq!(rewrite["use_real_request_uri_unsafe"] == true, raw, "{directives}");
    }
}

#[test]
fn forwarded_headers_of_clients_pass_where_no_directive_names_them() {
    let trusted = |directives: &str| {
        let import = server(&format!("location / {{ {directives} }}"));
        check(&import);
        import.settings.iter().any(|setting| setting.path == "apisix.trusted_addresses")
    };
    let all = "proxy_set_header X-Forwarded-Proto $scheme; proxy_set_header X-Forwarded-Port $server_port;";
    assert!(trusted("proxy_pass http://b:1;"));
    assert!(trusted(&format!("proxy_pass http://b:1; {all}")));
    assert!(!trusted(&format!("proxy_pass http://b:1; {all} proxy_set_header X-Forwarded-Host \"\";")));
    assert!(!trusted("return 204;"));
    let import = server(&format!("location / {{ proxy_pass http://b:1; {all} }}"));
    let set = &route(&import, "port-80")["plugins"]["proxy-rewrite"]["headers"]["set"];
    assert_eq!(set["X-Forwarded-Proto"], "$scheme");
}

#[test]
fn the_host_is_that_of_the_address_unless_it_is_set() {
    let host = |directives: &str| {
        let import = server(&format!("location / {{ proxy_pass https://b.test:443; {directives} }}"));
        check(&import);
        let upstream = &resource(&import, "upstreams/b.test-443").value;
        let set = route(&import, "port-80").pointer("/plugins/proxy-rewrite/headers/set/Host").cloned();
        (upstream.get("upstream_host").cloned(), set)
    };
    assert_eq!(host(""), (Some(json!("b.test")), None));
    assert_eq!(host("proxy_set_header Host $proxy_host;"), (Some(json!("b.test")), None));
    assert_eq!(host("proxy_set_header Host $http_host;"), (None, None));
    assert_eq!(host("proxy_set_header Host $host;"), (None, Some(json!("$host"))));
    assert_eq!(host("proxy_set_header Host fixed.test;"), (Some(json!("fixed.test")), None));
    assert_eq!(host("proxy_set_header X-A 1;"), (Some(json!("b.test")), None));
}

#[test]
fn headers_are_inherited_only_where_a_block_has_none() {
    let import = server(
        "proxy_set_header X-Outer 1;\nadd_header X-Answer outer always;
         location /a { proxy_pass http://b:1; }
         location /b { proxy_pass http://b:1; proxy_set_header X-Inner 2; add_header X-Answer inner; }",
    );
    let a = &route(&import, "port-80-a")["plugins"];
    assert_eq!(a["proxy-rewrite"]["headers"]["set"], json!({"X-Outer": "1"}));
    assert_eq!(a["response-rewrite"], json!({"headers": {"set": {"X-Answer": "outer"}}}));
    let b = &route(&import, "port-80-b")["plugins"];
    assert_eq!(b["proxy-rewrite"]["headers"]["set"], json!({"X-Inner": "2"}));
    assert_eq!(b["response-rewrite"]["vars"][0][0], "status");
    assert_eq!(findings(&import), Vec::<String>::new());
}

#[test]
fn a_map_splits_a_location() {
    let text = FIXTURES[0].1;
    let import = import(text);
    let ids: Vec<(&str, &Value)> = import
        .resources
        .iter()
        .filter(|one| one.key.id.starts_with("api.example.com-v1") && !one.key.id.ends_with("slash"))
        .map(|one| (one.value["upstream_id"].as_str().unwrap(), &one.value["vars"]))
        .collect();
    let version = |operator: &str, right: &str| {
        json!([["server_port", "==", "80"], ["http_x_version", operator, right]])
    };
    assert_eq!(
        ids,
        [
            ("canary", &version("~*", "^v2$")),
            ("canary", &version("~~", "^v3")),
            ("stable", &json!([["server_port", "==", "80"]])),
        ]
    );
    let office: Vec<&Value> = import
        .resources
        .iter()
        .filter(|one| one.value["uri"] == "/office/*")
        .map(|one| &one.value["plugins"]["fault-injection"]["abort"]["http_status"])
        .collect();
    // 10.9.0.0/16, the office itself with its preflights, and all others.
    assert_eq!(office, [&json!(403), &json!(204), &Value::Null, &json!(403)]);
}

#[test]
fn shares_of_clients_become_shares_of_requests() {
    let text = "http { split_clients $remote_addr $side { 25% b; * a; }
        server { listen 80; location / { proxy_pass http://$side:1; proxy_set_header X-Side $side; } } }";
    let import = import(text);
    let routes: Vec<(&Value, &Value)> = import
        .resources
        .iter()
        .filter(|one| one.value.get("plugins").is_some_and(|plugins| plugins.get("proxy-rewrite").is_some()))
        .map(|one| (&one.value["vars"], &one.value["plugins"]["proxy-rewrite"]["headers"]["set"]["X-Side"]))
        .collect();
    assert_eq!(routes.len(), 2, "{routes:?}");
    assert_eq!(routes[0].1, "b");
    assert!(routes[0].0.to_string().contains("[\"request_id\",\"~~\",\"^(?:[0-3])\"]"), "{routes:?}");
    assert_eq!(routes[1].1, "a");
    assert_eq!(
        findings(&import),
        ["behaviour: split_clients $remote_addr $side: shares of requests, not of clients, get each value"]
    );
}

#[test]
fn splits_of_different_texts_are_independent() {
    let text = "http { split_clients $remote_addr $a { 50% 1; * 2; } split_clients $remote_addr$uri $b { 50% 1; * 2; }
        split_clients $remote_addr $c { 50% 1; * 2; }
        server { listen 80; location / { proxy_pass http://a:1;
            proxy_set_header A $a; proxy_set_header B $b; proxy_set_header C $c; } } }";
    let import = import(text);
    let drawn = |header: &str| {
        let route = import.resources.iter().find(|one| {
            let set = one.value.pointer("/plugins/proxy-rewrite/headers/set").map(|set| &set[header]);
            set.is_some_and(|value| value == "1")
        });
        route.unwrap().value["vars"].to_string()
    };
    for (header, pattern) in [("A", "^(?:[0-7])"), ("B", "^.{4}(?:[0-7])"), ("C", "^(?:[0-7])")] {
        assert!(drawn(header).contains(pattern), "{header}: {}", drawn(header));
    }
}

#[test]
fn addresses_are_let_in_by_the_first_rule() {
    let plugins = |rules: &str| {
        let import = server(&format!("location / {{ proxy_pass http://b:1; {rules} }}"));
        check(&import);
        assert_eq!(import.count(crate::Severity::Guard), 0, "{rules}");
        let mut plugins = route(&import, "port-80")["plugins"].clone();
        plugins.as_object_mut().unwrap().remove("proxy-rewrite");
        plugins
    };
    assert_eq!(plugins("allow all;"), json!({}));
    assert_eq!(
        plugins("allow 10.0.0.0/8; allow 192.0.2.1; deny all;"),
        json!({"ip-restriction": {"whitelist": ["10.0.0.0/8", "192.0.2.1"]}})
    );
    assert_eq!(plugins("deny 10.0.0.0/8;"), json!({"ip-restriction": {"blacklist": ["10.0.0.0/8"]}}));
    assert_eq!(plugins("deny all;")["fault-injection"]["abort"]["http_status"], 403);
    assert_eq!(
        plugins("deny 10.1.0.0/16; allow 10.0.0.0/8; deny all;")["fault-injection"]["abort"]["vars"],
        json!([
            [["remote_addr", "ipmatch", ["10.1.0.0/16"]]],
            [["remote_addr", "!", "ipmatch", ["10.0.0.0/8"]]]
        ])
    );
}

#[test]
fn guards_that_are_missing_are_named() {
    for (directive, construct) in [
        ("auth_basic a; auth_basic_user_file absent;", "auth_basic_user_file absent"),
        ("auth_jwt a;", "auth_jwt a"),
        ("limit_req zone=none;", "limit_req zone=none"),
        ("auth_request /nowhere;", "auth_request /nowhere"),
        ("limit_except GET { deny all; }", "limit_except GET"),
        ("if ($nothing_known = 1) { return 403; }", "if ($nothing_known = 1)"),
        ("access_by_lua_block { if x then { } end }", "access_by_lua_block"),
    ] {
        let import = server(&format!(
            "location /a {{ proxy_pass http://b:1; {directive} }}\nlocation / {{ return 204; }}"
        ));
        let guards: Vec<(String, Vec<String>)> = import
            .findings
            .iter()
            .filter(|finding| finding.severity == crate::Severity::Guard)
            .map(|finding| {
                (finding.construct.clone(), finding.resources.iter().map(|key| key.id.clone()).collect())
            })
            .collect();
        assert_eq!(guards, [(construct.to_owned(), vec!["port-80-a".to_owned()])], "{directive}");
    }
}

#[test]
fn users_become_consumers() {
    let import = import(FIXTURES[1].1);
    assert_eq!(value(&import, "consumers/anna", "/plugins/basic-auth/password"), "secret");
    let restricted: Vec<&Value> = import
        .resources
        .iter()
        .filter(|one| one.value["uri"] == "/admin/*")
        .filter_map(|one| one.value.pointer("/plugins/consumer-restriction/whitelist"))
        .collect();
    assert_eq!(restricted, [&json!(["anna", "carol"])]);
    assert_eq!(value(&import, "consumers/carol", "/plugins/basic-auth/hashed"), true);
    assert!(findings(&import).iter().any(|finding| finding.contains("a hash of this kind")));
    let either: Vec<&Imported> =
        import.resources.iter().filter(|one| one.value["uri"] == "/either/*").collect();
    let has_auth = |one: &&Imported| one.value["plugins"].get("basic-auth").is_some();
    let asked: Vec<bool> = either.iter().map(has_auth).collect();
    assert_eq!(asked, [false, false, true], "the redirect to the other name, addresses, users");
}

#[test]
fn any_lets_no_address_in_that_no_rule_allows() {
    let basic = "auth_basic x; auth_basic_user_file users;";
    for (rules, auth, ways) in [
        ("", basic, vec![true]),
        ("allow 10.0.0.0/8;", basic, vec![false, true]),
        ("allow 10.0.0.0/8;", "auth_request /ask;", vec![false, true]),
        ("deny 10.0.0.0/8;", basic, vec![true]),
        ("deny 10.1.0.0/16; allow 10.0.0.0/8;", basic, vec![false, true]),
        ("deny 10.0.0.0/8; allow all;", basic, vec![false, true]),
        ("allow all;", basic, vec![false]),
    ] {
        let import = server(&format!(
            "location = /a {{ satisfy any; {rules} {auth} proxy_pass http://b:1; }}
             location = /ask {{ internal; proxy_pass http://127.0.0.1:2; }}"
        ));
        check(&import);
        let routes: Vec<&Value> = import
            .resources
            .iter()
            .filter(|one| one.key.kind == model::Kind::Route && one.value["uri"] == "/a")
            .map(|one| &one.value)
            .collect();
        let asks = |route: &&Value| {
            ["basic-auth", "forward-auth"].iter().any(|name| route["plugins"].get(name).is_some())
        };
        assert_eq!(routes.iter().map(asks).collect::<Vec<bool>>(), ways, "{rules} {auth}: {routes:?}");
        // The first way is open to some addresses alone.
        if ways.len() == 2 {
            let last = routes[0]["vars"].as_array().unwrap().last().unwrap();
            let vars = sdk::expr::Expr::compile(&json!([last])).unwrap();
            let open = |ip: &str| {
                let mut probe = sdk::testing::Probe::request("GET", "/a", &[("Host", "a")]).from_ip(ip);
                vars.matches(&probe.exchange())
            };
            let allowed_elsewhere = rules.contains("allow all");
            assert_eq!(open("8.8.8.8"), allowed_elsewhere, "{rules} {auth}");
            assert_eq!(open("10.2.0.1"), !allowed_elsewhere, "{rules} {auth}");
        }
    }
}

#[test]
fn answers_are_those_of_nginx() {
    let abort = |directives: &str| {
        let import = server(directives);
        check(&import);
        let route = import.resources.iter().find(|one| one.key.kind == model::Kind::Route).unwrap();
        route.value["plugins"].clone()
    };
    assert_eq!(
        abort("return 200 \"4k text\";")["fault-injection"]["abort"],
        json!({"http_status": 200, "body": "4k text", "headers": {"Content-Type": "text/plain"}})
    );
    let location =
        |directives: &str| abort(directives)["fault-injection"]["abort"]["headers"]["Location"].clone();
    assert_eq!(location("return 301 /x;"), "$scheme://$host/x");
    assert_eq!(location("listen 8080; return 301 /x;"), "$scheme://$host:8080/x");
    assert_eq!(
        location("return https://$server_name$request_uri; server_name a.test;"),
        "https://a.test$real_request_uri"
    );
    assert_eq!(abort("return 204;")["fault-injection"]["abort"], json!({"http_status": 204, "body": ""}));
    assert_eq!(
        abort("rewrite ^/a/(.*)$ https://b.test/$1 permanent;")["redirect"],
        json!({"regex_uri": ["^/a/(.*)$", "https://b.test/$1"], "ret_code": 301, "append_query_string": true, "encode_uri": true})
    );
    assert_eq!(
        abort("rewrite ^(.*)$ https://$host$1 permanent;")["redirect"],
        json!({"uri": "https://$host$uri", "ret_code": 301, "append_query_string": true, "encode_uri": true})
    );
    assert_eq!(
        abort("location = /hello { echo_duplicate 400 \"1234567890\"; }")["fault-injection"]["abort"]["body"],
        "1234567890".repeat(400)
    );
}

#[test]
fn variables_of_the_environment_are_filled_in() {
    let import =
        server("location / { proxy_pass http://${BACKEND}; }\nlocation /b { proxy_pass http://${ABSENT}; }");
    assert_eq!(*value(&import, "upstreams/127.0.0.1-9009", "/nodes/0/port"), json!(9009));
    assert!(findings(&import).iter().any(|finding| finding.contains("ABSENT")));
}

#[test]
fn listeners_are_the_files() {
    let listeners = |text: &str| {
        let one = |one: crate::Listener| (one.address.map(|address| address.to_string()), one.port, one.tls);
        server(text).listeners.into_iter().map(one).collect::<Vec<_>>()
    };
    assert_eq!(listeners(""), [(Some("0.0.0.0".to_owned()), 80, false)]);
    assert_eq!(listeners("listen 80; listen [::]:80;"), [(None, 80, false)]);
    assert_eq!(
        listeners("listen 127.0.0.1:81; listen 443 ssl;"),
        [(Some("127.0.0.1".to_owned()), 81, false), (Some("0.0.0.0".to_owned()), 443, true)]
    );
}

#[test]
fn groups_of_a_name_are_named_where_they_are_used() {
    let of = |body: &str| {
        let text = format!("server {{ listen 80; server_name ~^(www\\.)?(?<sub>[a-z]+)\\.test$; {body} }}");
        let found = findings(&import(&text));
        found.into_iter().filter(|finding| finding.contains("`$sub` has no value")).count()
    };
    assert_eq!(of("location / { return 200 \"$host\"; }"), 0);
    assert_eq!(of("location / { return 200 \"$sub\"; }"), 1);
    assert_eq!(of("location / { proxy_pass http://127.0.0.1:80; proxy_set_header X-Sub $sub; }"), 1);
}

#[test]
fn the_first_group_of_a_name_has_its_value_in_the_requests_of_the_name() {
    let import = import(
        "server { listen 80; server_name plain.test ~^(?<sub>[a-z]+)\\.example\\.test$;
            location / { proxy_pass http://a:1; proxy_set_header X-Sub $sub; } }
        server { listen 80 default_server; }",
    );
    let sent = |is_pattern: bool| {
        let mut routes = import.resources.iter().filter(|one| {
            one.value.pointer("/plugins/proxy-rewrite").is_some()
                && one.key.id.contains("-pattern") == is_pattern
        });
        let route = routes.next().unwrap();
        assert!(routes.next().is_none());
        route.value.pointer("/plugins/proxy-rewrite/headers").unwrap().to_string()
    };
    assert!(sent(true).contains("$host_before_2"), "{}", sent(true));
    assert!(!sent(false).contains("host_before"), "{}", sent(false));
    assert_eq!(findings(&import), Vec::<String>::new());
}

#[test]
fn servers_that_are_asked_get_all_headers_and_name_the_user() {
    let import = server(
        "location = /check { internal; proxy_pass http://auth:9000/verify; proxy_set_header X-Why gate; proxy_set_header Cookie \"\"; }
         location / { auth_request /check; auth_request_set $user $upstream_http_x_auth_user;
                      proxy_set_header X-User $user; proxy_pass http://b:1; }",
    );
    check(&import);
    let asked = &route(&import, "port-80")["plugins"]["forward-auth"];
    assert_eq!(
        *asked,
        json!({
            "uri": "http://auth:9000/verify",
            "all_request_headers": true,
            "extra_headers": {"X-Why": "gate", "Cookie": ""},
            "upstream_header_names": {"X-User": "x-auth-user"},
            "client_statuses": [401, 403],
            "client_headers": ["WWW-Authenticate"],
            "status_on_error": 500,
        })
    );
    assert_eq!(findings(&import), Vec::<String>::new());
}

#[test]
fn servers_that_are_asked_get_no_forwarded_header_of_the_client_that_a_directive_names() {
    let import = server(
        "location = /check { internal; proxy_pass http://auth:9000; proxy_set_header X-Real-IP $remote_addr;
             proxy_set_header X-Forwarded-User \"\"; proxy_set_header X-Forwarded-Client-Cert $ssl_client_s_dn;
             proxy_set_header X-Forwarded-Groups $http_x_forwarded_groups; proxy_set_header X-Forwarded-Proto $scheme;
             proxy_set_header X-Forwarded-Uri $request_uri; proxy_set_header X-Forwarded-Host site;
             proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_set_header Host auth; }
         location / { auth_request /check; proxy_pass http://b:1; }",
    );
    check(&import);
    let asked = &route(&import, "port-80")["plugins"]["forward-auth"];
    assert_eq!(
        asked["extra_headers"],
        json!({
            "X-Real-IP": "$remote_addr",
            "X-Forwarded-User": "",
            "X-Forwarded-Client-Cert": "$ssl_client_s_dn",
        })
    );
    let found = findings(&import);
    let own = found.iter().filter(|finding| finding.contains("gets the gateway's own value"));
    assert_eq!(own.count(), 1, "{found:?}");
}

#[test]
fn a_changed_path_is_sent_as_the_location_that_serves_it_sends_paths() {
    let sent = |pass: &str| {
        let import = import(&format!(
            "http {{ upstream one {{ server a:1; }} upstream two {{ server b:1; }}
                map $http_x_version $pool {{ default one; v2 two; }}
                server {{ listen 80; location /v1/ {{ proxy_pass {pass}; }}
                    location /old/ {{ rewrite ^/old/(.*)$ /v1/$1 last; }} }} }}"
        ));
        check(&import);
        let old = import
            .resources
            .iter()
            .find(|one| one.value["uri"] == "/old/*" && one.value.get("upstream_id").is_some());
        old.unwrap().value["plugins"]["proxy-rewrite"]["regex_uri"][1].clone()
    };
    assert_eq!(sent("http://$pool/"), "/", "beside variables the path replaces the whole");
    assert_eq!(sent("http://$pool"), "/v1/$1");
    assert_eq!(sent("http://one/app/"), "/app/$1");
    assert_eq!(sent("http://one"), "/v1/$1");
}

#[test]
fn a_regular_expression_that_took_the_path_before_its_change_is_no_rival() {
    let rivals = |regex: &str, old: &str, rewrite: &str| {
        let import = server(&format!(
            "location /v1/ {{ proxy_pass http://b:1; }} location ~ {regex} {{ proxy_pass http://c:1; }}
             location {old} {{ rewrite {rewrite} last; }}"
        ));
        findings(&import).iter().filter(|finding| finding.contains("are not served by that location")).count()
    };
    let kept = "^/old/(.*)$ /v1/$1";
    assert_eq!(rivals(r"\.(png|jpg)$", "/old/", kept), 0);
    // Others may match the changed path alone.
    assert_eq!(rivals(r"v1/.*\.png$", "/old/", kept), 1);
    assert_eq!(rivals(r"\.png", "/old/", kept), 1);
    assert_eq!(rivals(r"v1|\.png$", "/old/", kept), 1);
    assert_eq!(rivals(r"\.(png|jpg)$", "/old/", "^/old/(.*)$ /v1/$1.png"), 1);
    assert_eq!(rivals(r"\.(png|jpg)$", "/old/", "^/old(.*)$ /v1/$1"), 1);
    assert_eq!(rivals(r"\.(png|jpg)$", "^~ /old/", kept), 1);
}

#[test]
fn times_of_answers_of_servers_are_the_plugins() {
    let import =
        server("location / { proxy_pass http://b:1; expires 7d; add_header Cache-Control public always; }");
    check(&import);
    let rewrite = &route(&import, "port-80")["plugins"]["response-rewrite"];
    assert_eq!(*rewrite, json!({"expires": 604_800, "headers": {"add": ["Cache-Control: public"]}}));
    assert_eq!(findings(&import), Vec::<String>::new());
}
