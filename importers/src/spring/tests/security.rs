//! Access control: what is carried over, and what closes the routes.

use serde_json::json;

use super::{found, import, import_of, route, routes};
use crate::finding::Severity;
use crate::{Format, Import};

const ROUTE: &str = "spring.cloud.gateway.routes: [{id: a, uri: 'http://a:1', predicates: [Path=/a]}]\n";

#[test]
fn tokens_of_a_server_close_the_routes() {
    for security in [
        "oauth2.resourceserver.jwt.issuer-uri: http://i",
        "oauth2.resourceserver.jwt.issuer-uri: i",
        "oauth2.resourceserver.jwt: {issuer-uri: 'http://i', public-key-location: 'classpath:absent.pem'}",
        "oauth2.resourceserver.opaquetoken.introspection-uri: http://i",
        "oauth2.client.registration.x.client-id: y",
        "user.password: '{bcrypt}x'",
        "filter.order: 5",
    ] {
        let import = import(&format!("{ROUTE}spring.security.{security}\n"));
        let guards = import.guards(&import.resources[0].key).count();
        assert_eq!(guards, 1, "{security}: {:?}", import.findings);
    }
}

#[test]
fn a_local_key_and_a_user_are_carried_over() {
    let jwt = "spring.security.oauth2.resourceserver.jwt:\n  issuer-uri: http://i\n  \
               public-key-location: classpath:key.pub\n";
    let files = [("a.yml", format!("{ROUTE}{jwt}")), ("key.pub", "-----BEGIN PUBLIC KEY-----\n".to_owned())];
    let files: Vec<_> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
    let found = import_of(Format::SpringCloudGateway, &files, &[]).unwrap();
    assert_eq!(found.count(Severity::Guard), 1, "scopes are not checked: {:?}", found.findings);
    assert_eq!(route(&found, "a")["plugins"]["jwt-auth"], json!({"key_claim_name": "iss"}));
    assert_eq!(found.resources[0].value["plugins"]["jwt-auth"]["key"], "http://i");

    let found = import(&format!("{ROUTE}spring.security.user: {{name: jack, password: secret}}\n"));
    assert_eq!(found.count(Severity::Guard), 0, "{:?}", found.findings);
    assert_eq!(route(&found, "a")["plugins"]["basic-auth"], json!({"realm": "Realm"}));
}

#[test]
fn keys_of_a_server_verify_tokens() {
    let jwt = "spring.security.oauth2.resourceserver.jwt:\n  jwk-set-uri: http://keys/certs\n";
    let found = import(&format!("{ROUTE}{jwt}  issuer-uri: http://i\n  audiences: [shop]\n"));
    assert_eq!(found.count(Severity::Guard), 1, "scopes are not checked: {:?}", found.findings);
    assert_eq!(
        route(&found, "a")["plugins"]["jwks-auth"],
        json!({"jwks_uri": "http://keys/certs", "issuer": "http://i", "audiences": ["shop"], "realm": ""})
    );
    // Of an issuer alone, its metadata names them.
    let jwt = "spring.security.oauth2.resourceserver.jwt.issuer-uri: http://i/realms/a/\n";
    let found = import(&format!("{ROUTE}{jwt}"));
    assert_eq!(found.count(Severity::Guard), 1, "scopes are not checked: {:?}", found.findings);
    let discovery = "http://i/realms/a/.well-known/openid-configuration";
    assert_eq!(
        route(&found, "a")["plugins"]["jwks-auth"],
        json!({"discovery": discovery, "issuer": "http://i/realms/a/", "realm": ""})
    );
}

#[test]
fn requests_are_refused_as_spring_security_does() {
    let jwt = "spring.security.oauth2.resourceserver.jwt.issuer-uri: http://i\n";
    let user = "spring.security.user: {name: jack, password: secret}\n";
    let rules = |import: &Import| -> Vec<String> {
        let rules = import.resources.iter().filter(|one| one.key.kind == model::Kind::GlobalRule);
        rules.map(|one| one.key.id.clone()).collect()
    };
    let found = import(&format!("{ROUTE}{jwt}"));
    assert_eq!(rules(&found), ["security-headers", "security-paths", "security-csrf"]);
    let last = route(&found, "no-route");
    assert!(last["plugins"].get("jwks-auth").is_some(), "{last}");
    assert_eq!(last["plugins"]["mocking"]["response_status"], 404);
    let found = import(&format!("{ROUTE}{user}"));
    assert_eq!(rules(&found), ["security-headers", "security-paths"]);
    assert!(route(&found, "no-route")["plugins"].get("basic-auth").is_some());
    let rule = found.resources.iter().find(|one| one.key.id == "security-paths").unwrap();
    let strange = rule.value["plugins"]["uri-blocker"]["block_rules"][0].as_str().unwrap();
    let strange = regex::Regex::new(strange).unwrap();
    for path in [
        "//a", "/a//b?c", "/a/../b", "/a/..", "/./a", "/a;b", "/a%2Fb", "/a%2e%2e", "/a%25", "/a\\b", "/a%0d",
    ] {
        assert!(strange.is_match(path), "{path}");
    }
    for path in ["/", "/a/b?c=//d;/../", "/a..b", "/..a/b", "/a%20b", "/a.b/.c"] {
        assert!(!strange.is_match(path), "{path}");
    }
}

#[test]
fn java_code_closes_its_route_alone() {
    let import = routes(concat!(
        "- {id: a, uri: 'http://a:1', predicates: [Path=/a], filters: [JwtAuthentication]}\n",
        "- {id: b, uri: 'http://b:1', predicates: [Path=/b, 'Beta=1']}\n",
        "- {id: c, uri: 'http://c:1', predicates: [Path=/c], filters: [Logging]}\n",
        "- {id: d, uri: 'http://d:1', predicates: [Path=/d, 'After=#{now}']}\n",
        "- {id: e, uri: 'http://e:1', predicates: [Path=/e], filters: [{name: RequestRateLimiter}]}\n",
        "- {id: f, uri: 'http://f:1', predicates: ['Path=${UNSET}']}\n",
    ));
    let closed: Vec<_> = import
        .resources
        .iter()
        .filter(|resource| import.guards(&resource.key).next().is_some())
        .map(|resource| resource.key.id.as_str())
        .collect();
    assert_eq!(closed, ["a", "b", "d", "e", "f"]);
    assert_eq!(found(&import, Severity::Guard).len(), 5);
    assert!(found(&import, Severity::Behaviour).iter().any(|text| text.contains("`UNSET` is not set")));
}

#[test]
fn responses_get_the_headers_of_spring_security() {
    let found = import(&format!("{ROUTE}spring.security.user: {{name: jack, password: secret}}\n"));
    let rule = found.resources.iter().find(|one| one.key.id == "security-headers").unwrap();
    let rewrite = &rule.value["plugins"]["response-rewrite"];
    assert_eq!(rewrite["headers"]["set"]["X-Frame-Options"], "DENY");
    assert_eq!(rewrite["vars"][0], json!(["sent_http_cache_control", "!", "~~", "."]));
    assert!(import(ROUTE).resources.iter().all(|one| one.key.id != "security-headers"));
}

#[test]
fn preflights_without_cors_are_refused() {
    let plain = import(ROUTE);
    let rule = plain.resources.iter().find(|one| one.key.kind == model::Kind::GlobalRule).unwrap();
    let abort = &rule.value["plugins"]["fault-injection"]["abort"];
    assert_eq!(
        (&abort["http_status"], &abort["vars"][0][0]),
        (&json!(403), &json!(["request_method", "==", "OPTIONS"]))
    );
    let two = "- {id: a, uri: 'http://a:1', predicates: [Path=/a], metadata: {cors: {allowedOrigins: '*'}}}\n\
               - {id: b, uri: 'http://b:1', predicates: [Path=/b]}\n";
    let mixed = routes(two);
    assert!(mixed.resources.iter().all(|one| one.key.kind != model::Kind::GlobalRule));
    assert!(route(&mixed, "a")["plugins"].get("fault-injection").is_none());
    assert_eq!(route(&mixed, "b")["plugins"]["fault-injection"]["abort"]["http_status"], 403);
    let vary = &route(&mixed, "a")["plugins"]["response-rewrite"]["headers"]["add"];
    assert_eq!(vary.as_array().map(Vec::len), Some(3));
}
