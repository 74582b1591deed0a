//! Settings that are refused, and what they mean.

use super::*;

fn refused(rest: &Value) -> String {
    let error = Probe::default().stage::<OpenidConnect>(with(json!({}), rest)).map(drop);
    error.expect_err(&rest.to_string()).to_string()
}

#[test]
fn settings_that_lack_what_they_need_are_refused_in_apisix_words() {
    for (rest, words) in [
        (json!({}), "property \"session.secret\" is required when \"bearer_only\" is false"),
        (json!({"bearer_only": true}), "property \"client_secret\" is required"),
        (json!({"session": {"secret": "0123456789abcdef"}}), "property \"client_secret\" is required"),
        (json!({"bearer_only": true, "client_secret": "s", "discovery": "idp"}), "http://host"),
        (json!({"bearer_only": true, "public_key": "x"}), "public key in PEM"),
        (
            json!({"bearer_only": true, "use_jwks": true, "claim_schema": {"type": 7}}),
            "check claim_schema failed",
        ),
        (
            json!({"bearer_only": true, "use_jwks": true, "dpop": {"enabled": true, "private_key": "k", "public_jwk": {}}}),
            "is not a valid key",
        ),
        (
            json!({"bearer_only": true, "use_jwks": true, "proxy_opts": {"http_proxy": "p"}}),
            "the address of the proxy is invalid",
        ),
        (
            json!({"client_secret": "s", "session": {"secret": "0123456789abcdef", "storage": "redis", "redis": {}}}),
            "storage redis is not available in this build",
        ),
        (
            json!({"client_secret": "s", "session": {"secret": "0123456789abcdef", "cookie_name": "a b"}}),
            "cannot name a cookie",
        ),
        (
            json!({"client_secret": "s", "session": {"secret": "0123456789abcdef", "cookie_domain": "a;b"}}),
            "cannot stand in a cookie",
        ),
        (
            json!({"bearer_only": true, "client_secret": "s", "client_jwt_assertion_alg": "RS256", "introspection_endpoint_auth_method": "client_secret_jwt"}),
            "is asymmetric and cannot be used with the client_secret_jwt selected by",
        ),
        (
            json!({"bearer_only": true, "client_jwt_assertion_alg": "HS256", "introspection_endpoint_auth_method": "private_key_jwt"}),
            "is symmetric and cannot be used with the private_key_jwt selected by",
        ),
        (
            json!({"client_secret": "s", "session": {"secret": "0123456789abcdef"}, "par": {"enabled": true, "endpoint_auth_method": "private_key_jwt"}}),
            "requires \"client_rsa_private_key\" when \"par.enabled\" is true",
        ),
        (
            json!({"client_secret": "s", "session": {"secret": "0123456789abcdef"}, "client_jwt_assertion_alg": "HS256", "token_endpoint_auth_method": "private_key_jwt", "introspection_endpoint": "http://a", "introspection_endpoint_auth_method": "client_secret_jwt"}),
            "is a single algorithm",
        ),
        (
            json!({"bearer_only": true, "client_rsa_private_key": "x", "introspection_endpoint_auth_method": "private_key_jwt"}),
            "is not a valid key",
        ),
    ] {
        let error = refused(&rest);
        assert!(error.contains(words), "{rest}: {error}");
    }
}

#[test]
fn the_timeout_is_in_seconds_unless_it_looks_like_milliseconds() {
    let timeout = |value: u64| {
        let plugin: OpenidConnect = Probe::default()
            .stage(with(json!({"bearer_only": true, "use_jwks": true}), &json!({"timeout": value})))
            .unwrap();
        plugin.provider.manner.timeout.as_millis()
    };
    assert_eq!([3, 3000, 1500, 999_999].map(timeout), [3_000, 3_000, 600_000, 600_000]);
}
