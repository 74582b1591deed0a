//! redirect: answers with a new address instead of calling the upstream.
//!
//! Settings, codes and order as in APISIX 3.18.

use model::Invalid;
use model::boot::Section;
use sdk::chain::Phases;
use sdk::pattern::{Pattern, Replacement, StepLimit};
use sdk::template::Template;
use sdk::{Build, Exchange, Method, Plugin, Reply, Step, Undecidable, target};
use serde::Deserialize;
use serde_json::{Value, json};

/// The stage.
pub struct Redirect {
    code: u16,
    to: To,
    encode_uri: bool,
    append_query_string: bool,
}

enum To {
    Uri(Template),
    Regex(Pattern, Replacement),
    /// `https://host[:port]` and the same target, unless the client came by https.
    Https(Template),
}

#[derive(Debug, Deserialize)]
pub struct Config {
    #[serde(deserialize_with = "crate::any_status")]
    ret_code: u16,
    uri: Option<String>,
    regex_uri: Option<[String; 2]>,
    http_to_https: Option<bool>,
    encode_uri: bool,
    append_query_string: bool,
}

impl Plugin for Redirect {
    const NAME: &'static str = "redirect";
    const PRIORITY: i32 = 900;
    const PHASES: Phases = Phases::REWRITE;

    type Config = Config;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "ret_code": {"type": "integer", "minimum": 200, "default": 302},
                "uri": {
                    "type": "string", "minLength": 2,
                    "pattern": "(\\\\\\$[0-9a-zA-Z_]+)|\\$\\{([0-9a-zA-Z_]+)\\}|\\$([0-9a-zA-Z_]+)|(\\$|[^$\\\\]+)",
                },
                "regex_uri": {
                    "description": "params for generating new uri that substitute from client uri, first param is regular expression, the second one is uri template",
                    "type": "array", "maxItems": 2, "minItems": 2,
                    "items": {"description": "regex uri", "type": "string"},
                },
                "http_to_https": {"type": "boolean"},
                "encode_uri": {"type": "boolean", "default": false},
                "append_query_string": {"type": "boolean", "default": false},
            },
            "oneOf": [{"required": ["uri"]}, {"required": ["regex_uri"]}, {"required": ["http_to_https"]}],
        })
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<Redirect, Invalid> {
        if config.ret_code > 599 {
            return Err(Invalid::new("a status must be at most 599")
                .at("/ret_code")
                .got(config.ret_code.to_string()));
        }
        let https = config.http_to_https == Some(true);
        if https && config.append_query_string {
            return Err(Invalid::new(
                "only one of `http_to_https` and `append_query_string` can be configured.",
            ));
        }
        let to = match (&config.uri, &config.regex_uri) {
            (Some(uri), _) => To::Uri(Template::parse(uri)),
            (None, Some([pattern, replacement])) => {
                let invalid = |error: Invalid| {
                    let reason = format!("invalid regex_uri ({pattern}, {replacement}), err:{error}");
                    Invalid::new(reason).at("/regex_uri")
                };
                To::Regex(
                    Pattern::new(pattern, false).map_err(invalid)?,
                    Replacement::parse(replacement).map_err(invalid)?,
                )
            }
            (None, None) => {
                To::Https(match Section::attr("/plugin_attr/redirect", cx.attr).port("/https_port") {
                    443 => Template::parse("https://$host$request_uri"),
                    port => Template::parse(&format!("https://$host:{port}$request_uri")),
                })
            }
        };
        Ok(Redirect {
            code: config.ret_code,
            to,
            encode_uri: config.encode_uri,
            append_query_string: config.append_query_string,
        })
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        let mut code = self.code;
        let mut uri = Vec::new();
        match &self.to {
            To::Uri(template) => {
                template.render(x, &mut uri);
            }
            To::Regex(pattern, replacement) => {
                match pattern.captures(x.path(), x.searches()) {
                    Ok(Some(found)) => found.replace(replacement, &mut uri),
                    Ok(None) => return Step::Next,
                    // The pattern was not judged, so it is unknown whether to redirect.
                    Err(StepLimit) => return Step::Refuse(Undecidable::Spent),
                }
            }
            To::Https(template) => {
                let scheme = x.header("X-Forwarded-Proto").unwrap_or(x.client().scheme().as_bytes());
                if scheme == b"https" {
                    return Step::Next;
                }
                // A permanent answer that keeps the method, where it could have a body (RFC 9110 section 15.4.9).
                code = if matches!(x.method(), Method::Get | Method::Head) { 301 } else { 308 };
                template.render(x, &mut uri);
            }
        }
        let query_at = uri.iter().position(|&byte| byte == b'?');
        if self.encode_uri {
            let mut encoded = Vec::with_capacity(uri.len());
            let path = &uri[..query_at.unwrap_or(uri.len())];
            target::encode_path(path, &x.request().path_rules, &mut encoded);
            encoded.extend_from_slice(&uri[query_at.unwrap_or(uri.len())..]);
            uri = encoded;
        }
        if self.append_query_string && x.request().has_query {
            uri.push(if query_at.is_some() { b'&' } else { b'?' });
            uri.extend_from_slice(x.query());
        }
        // Nothing taken from a decoded path may end the line.
        uri.retain(|&byte| byte >= b' ' && byte != 0x7f);
        Step::Reply(Reply::status(code).header("Location", uri))
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    fn answer(config: Value, method: &str, target: &str, headers: &[(&str, &str)]) -> Option<(u16, String)> {
        let mut probe = Probe::request(method, target, headers);
        let stage: Redirect = probe.stage(config).unwrap();
        match stage.rewrite(&mut probe.exchange()) {
            Step::Reply(reply) => {
                let (name, location) = &reply.headers[0];
                assert_eq!(*name, "Location");
                Some((reply.status, String::from_utf8(location.clone()).unwrap()))
            }
            _ => None,
        }
    }

    const HOST: &[(&str, &str)] = &[("Host", "a.example:9080")];

    #[test]
    fn addresses_are_made_of_variables() {
        let to = |uri: &str| answer(json!({"uri": uri, "ret_code": 301}), "GET", "/hello?a=1", HOST).unwrap();
        assert_eq!(to("/new"), (301, "/new".into()));
        assert_eq!(to("$uri/x"), (301, "/hello/x".into()));
        assert_eq!(to("${uri}x?b=${arg_a}"), (301, "/hellox?b=1".into()));
        assert_eq!(answer(json!({"uri": "/x"}), "GET", "/", HOST).unwrap().0, 302);
        // Bytes that would end the line, or cannot stand in it, are left out.
        let config = json!({"uri": "$uri"});
        assert_eq!(answer(config, "GET", "/a\r\n\u{1f}\u{7f} b", HOST), Some((302, "/a b".into())));
        for (uri, target, location) in
            [("/x", "/?a=1", "/x?a=1"), ("/x?b", "/?a=1", "/x?b&a=1"), ("/x", "/", "/x"), ("/x", "/?", "/x?")]
        {
            let config = json!({"uri": uri, "append_query_string": true});
            assert_eq!(answer(config, "GET", target, HOST), Some((302, location.into())));
        }
    }

    #[test]
    fn a_path_that_is_too_long_to_search_is_refused() {
        let probe = |length: usize| Probe::get(&format!("/{}", "a".repeat(length - 1)));
        for (length, refused) in [(8 << 10, false), ((8 << 10) + 1, true)] {
            let mut probe = probe(length);
            let stage: Redirect = probe.stage(json!({"regex_uri": ["(?!x)a+", "/b"]})).unwrap();
            let step = stage.rewrite(&mut probe.exchange());
            assert_eq!(matches!(step, Step::Refuse(Undecidable::Spent)), refused, "{length}: {step:?}");
        }
    }

    #[test]
    fn plain_http_goes_to_https() {
        let config = json!({"http_to_https": true});
        let at = |method| answer(config.clone(), method, "/hello?a=1", HOST);
        assert_eq!(at("GET"), Some((301, "https://a.example/hello?a=1".into())));
        assert_eq!(at("POST"), Some((308, "https://a.example/hello?a=1".into())));
        let headers = &[("Host", "a.example"), ("X-Forwarded-Proto", "https")];
        assert_eq!(answer(config.clone(), "GET", "/", headers), None);
        assert!(
            Probe::get("/")
                .stage::<Redirect>(json!({"http_to_https": true, "append_query_string": true}))
                .is_err()
        );
    }

    #[test]
    fn the_port_of_https_is_in_the_location_unless_default() {
        let probe = Probe::get("/");
        let owner = sdk::build::Owner { collection: "routes", id: "1".into() };
        let names = sdk::testing::FixedNames::default();
        for (port, host) in [
            (json!(8443), "a.example:8443"),
            (json!(443), "a.example"),
            (json!(0), "a.example"),
            (json!(65_536), "a.example"),
            (json!("8443"), "a.example"),
        ] {
            let attr = json!({"https_port": port});
            let mut cx = Build::new(&owner, &probe.services, &names);
            cx.attr = Some(&attr);
            let config = serde_json::from_value(
                json!({"http_to_https": true, "ret_code": 302, "encode_uri": false, "append_query_string": false}),
            );
            let stage = Redirect::build(config.unwrap(), &mut cx).unwrap();
            let mut probe = Probe::request("GET", "/x", HOST);
            let Step::Reply(reply) = stage.rewrite(&mut probe.exchange()) else { panic!("{port}") };
            assert_eq!(reply.headers[0].1, format!("https://{host}/x").as_bytes(), "{port}");
        }
    }

    #[test]
    fn statuses_have_an_upper_bound() {
        let status = |code: u32| answer_of(json!({"uri": "/x", "ret_code": code}));
        fn answer_of(config: Value) -> Result<u16, String> {
            let mut probe = Probe::get("/");
            let stage: Redirect = probe.stage(config).map_err(|error| error.pointer)?;
            match stage.rewrite(&mut probe.exchange()) {
                Step::Reply(reply) => Ok(reply.status),
                _ => Err("no reply".to_owned()),
            }
        }
        assert_eq!(
            [status(599), status(600), status(70_000)],
            [Ok(599), Err("/ret_code".into()), Err("/ret_code".into())]
        );
    }

    #[test]
    fn patterns_redirect_only_what_they_match() {
        let config = json!({"regex_uri": ["^/test/(.*)", "/$1/x"]});
        assert_eq!(answer(config.clone(), "GET", "/test/a", HOST).unwrap().1, "/a/x");
        assert_eq!(answer(config, "GET", "/other", HOST), None);
    }

    #[test]
    fn queries_are_appended_and_paths_encoded() {
        let config = json!({"uri": "/a?b=1", "append_query_string": true});
        assert_eq!(answer(config, "GET", "/x?c=2", HOST).unwrap().1, "/a?b=1&c=2");
        let config = json!({"uri": "/a", "append_query_string": true});
        assert_eq!(answer(config.clone(), "GET", "/x", HOST).unwrap().1, "/a");
        assert_eq!(answer(config, "GET", "/x?c=2", HOST).unwrap().1, "/a?c=2");
        assert_eq!(answer(json!({"uri": "/a"}), "GET", "/x?c=2", HOST).unwrap().1, "/a");
        let config = json!({"uri": "/a b", "encode_uri": true});
        assert_eq!(answer(config, "GET", "/x", HOST).unwrap().1, "/a%20b");
    }
}
