//! proxy-rewrite: changes the path, method, host and headers of requests to the upstream.
//!
//! Settings and order as in APISIX 3.18. The path that goes out is always encoded again,
//! so nothing a client sent encoded can become part of the request line
//! (`use_real_request_uri_unsafe` excepted, whose text is refused if it holds control
//! characters or spaces). `query` and `merge_slashes` are ours.

mod query_edits;

use model::Invalid;
use sdk::chain::Phases;
use sdk::pattern::{Pattern, Replacement, StepLimit};
use sdk::template::Template;
use sdk::{Build, Exchange, Method, Name, Plugin, Reply, Step, Undecidable, target};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::edits::{self, Edit, Verb};
use query_edits::{QueryEdits, QuerySettings};

/// The stage. Often there is one for each of many routes, so what few of them have takes little room.
pub struct ProxyRewrite {
    uri: Option<Template>,
    regex_uri: Box<[(Pattern, Replacement)]>,
    method: Option<Box<(Method, String)>>,
    host: Option<Box<str>>,
    edits: Box<[Edit]>,
    query: Option<Box<QueryEdits>>,
    /// `use_real_request_uri_unsafe`: the target goes on as the client sent it.
    real_uri: bool,
    merge_slashes: bool,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    uri: Option<String>,
    #[serde(default)]
    regex_uri: Vec<String>,
    method: Option<String>,
    host: Option<String>,
    #[serde(default)]
    headers: Value,
    query: Option<QuerySettings>,
    #[serde(default)]
    use_real_request_uri_unsafe: bool,
    #[serde(default)]
    merge_slashes: bool,
}

const METHODS: [&str; 14] = [
    "GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "MKCOL", "COPY", "MOVE", "PROPFIND", "LOCK", "UNLOCK",
    "PATCH", "TRACE",
];

impl Plugin for ProxyRewrite {
    const NAME: &'static str = "proxy-rewrite";
    const PRIORITY: i32 = 1008;
    const PHASES: Phases = Phases::REWRITE;

    type Config = Config;

    fn schema() -> Value {
        let scalar = json!([{"type": "string"}, {"type": "number"}]);
        let value = json!({"oneOf": [
            {"type": "string"},
            {"type": "number"},
            {"type": "array", "minItems": 1, "items": {"oneOf": scalar}},
        ]});
        let map = json!({"type": "object", "minProperties": 1, "patternProperties": {"^[^:]+$": value}});
        json!({
            "type": "object",
            "properties": {
                "uri": {
                    "description": "new uri for upstream",
                    "type": "string", "minLength": 1, "maxLength": 4096, "pattern": "^\\/.*",
                },
                "method": {"description": "proxy route method", "type": "string", "enum": METHODS},
                "regex_uri": {
                    "description": "new uri that substitute from client uri for upstream, lower priority than uri property",
                    "type": "array", "minItems": 2, "items": {"description": "regex uri", "type": "string"},
                },
                "host": {
                    "description": "new host for upstream",
                    "type": "string", "pattern": "^[0-9a-zA-Z-.]+(:\\d{1,5})?$",
                },
                "headers": {
                    "description": "new headers for request",
                    "oneOf": [
                        {
                            "type": "object", "minProperties": 1, "additionalProperties": false,
                            "properties": {
                                "add": map, "set": map,
                                "remove": {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": "^[^:]+$"}},
                            },
                        },
                        {"type": "object", "minProperties": 1, "patternProperties": {"^[^:]+$": {"oneOf": scalar}}},
                    ],
                },
                "query": query_edits::schema(),
                "use_real_request_uri_unsafe": {
                    "description": "use real_request_uri instead, THIS IS VERY UNSAFE.",
                    "type": "boolean", "default": false,
                },
                "merge_slashes": {
                    "description": "repeated slashes in the path for the upstream become one",
                    "type": "boolean",
                },
            },
            "minProperties": 1,
        })
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<ProxyRewrite, Invalid> {
        if !config.regex_uri.len().is_multiple_of(2) {
            return Err(Invalid::new("The length of regex_uri should be an even number").at("/regex_uri"));
        }
        let mut regex_uri = Vec::new();
        for pair in config.regex_uri.chunks_exact(2) {
            let [pattern, replacement] = pair else { continue };
            let invalid = |error: Invalid| {
                Invalid::new(format!("invalid regex_uri({pattern}, {replacement}): {error}")).at("/regex_uri")
            };
            regex_uri.push((
                Pattern::new(pattern, false).map_err(invalid)?,
                Replacement::parse(replacement).map_err(invalid)?,
            ));
        }
        Ok(ProxyRewrite {
            uri: config.uri.as_deref().map(Template::parse),
            regex_uri: regex_uri.into(),
            method: config.method.map(|name| Box::new((Method::from_bytes(name.as_bytes()), name))),
            host: config.host.map(String::into_boxed_str),
            edits: edits::read(&config.headers).map_err(|error| error.under("/headers"))?.into(),
            query: config.query.map(|query| Box::new(QueryEdits::new(query))),
            real_uri: config.use_real_request_uri_unsafe,
            merge_slashes: config.merge_slashes,
        })
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        let mut captures = Vec::new();
        match self.upstream_uri(x, &mut captures) {
            Ok(Some(uri)) => x.set_upstream_uri(&uri),
            Ok(None) => {}
            Err(step) => return step,
        }
        if let Some((method, name)) = self.method.as_deref() {
            x.set_upstream_method(*method, name.as_bytes());
        }
        if let Some(host) = &self.host {
            x.set_upstream_host(host.as_bytes());
        }
        // The client's own headers must not pass for those set here, in any spelling.
        for edit in self.edits.iter().filter(|edit| edit.verb != Verb::Add) {
            x.remove_lookalikes(&edit.name);
        }
        let mut value = Vec::new();
        for edit in &self.edits {
            if !apply(x, edit, &captures, &mut value) {
                return refusal("the Host header for the upstream");
            }
        }
        Step::Next
    }
}

impl ProxyRewrite {
    /// Path and query for the upstream after all changes, if there are any; the answer where they cannot be sent.
    fn upstream_uri(&self, x: &Exchange<'_>, captures: &mut Vec<Vec<u8>>) -> Result<Option<Vec<u8>>, Step> {
        let mut uri = if self.uri.is_some() || !self.regex_uri.is_empty() || self.real_uri {
            self.new_uri(x, captures)?
        } else if self.merge_slashes || self.query.is_some() {
            let mut uri = Vec::new();
            x.upstream_uri(&mut uri);
            uri
        } else {
            return Ok(None);
        };
        if self.merge_slashes {
            merge_slashes(&mut uri);
        }
        if let Some(query) = &self.query {
            let end = uri.iter().position(|&byte| byte == b'?').unwrap_or(uri.len());
            let Some(query) = query.apply(x, uri.get(end + 1..).unwrap_or_default()) else {
                return Err(refusal("the query for the upstream"));
            };
            uri.truncate(end);
            if !query.is_empty() {
                uri.push(b'?');
                uri.extend_from_slice(&query);
            }
        }
        Ok(Some(uri))
    }

    /// Path and query for the upstream, encoded, or the answer where they cannot be sent.
    fn new_uri(&self, x: &Exchange<'_>, captures: &mut Vec<Vec<u8>>) -> Result<Vec<u8>, Step> {
        let mut uri = if self.real_uri { x.request().target().to_vec() } else { x.path().to_vec() };
        // Whether a `?` in the text is a separator, or came decoded out of the client's path.
        let mut separates = self.real_uri;
        if let Some(template) = &self.uri {
            separates = true;
            let query = query_of(&uri).filter(|_| self.real_uri).map(<[u8]>::to_vec);
            uri.clear();
            template.render_escaped(x, &mut uri, |byte, out| match byte {
                b'?' => out.extend_from_slice(b"%3F"),
                byte => out.push(byte),
            });
            if let Some(query) = query {
                uri.push(if uri.contains(&b'?') { b'&' } else { b'?' });
                uri.extend_from_slice(&query);
            }
        } else {
            separates = separates || !uri.contains(&b'?');
            for (pattern, replacement) in &self.regex_uri {
                // The pattern was not judged, so the path for the upstream is unknown.
                let found = pattern
                    .captures(&uri, x.searches())
                    .map_err(|StepLimit| Step::Refuse(Undecidable::Spent))?;
                let Some(found) = found else { continue };
                captures.extend((0..found.count()).map(|at| found.group(at).unwrap_or_default().to_vec()));
                let mut replaced = Vec::new();
                found.replace(replacement, &mut replaced);
                uri = replaced;
                break;
            }
        }
        if self.real_uri {
            let sendable = uri.starts_with(b"/") && uri.iter().all(u8::is_ascii_graphic);
            return if sendable { Ok(uri) } else { Err(refusal("the request target")) };
        }
        let split = uri.iter().position(|&byte| byte == b'?').filter(|_| separates);
        let mut out = Vec::with_capacity(uri.len() + x.query().len() + 1);
        let path = &uri[..split.unwrap_or(uri.len())];
        if !path.starts_with(b"/") {
            out.push(b'/');
        }
        let rules = &x.request().path_rules;
        target::encode_path(path, rules, &mut out);
        // Servers resolve dot segments in different ways, and logs are to show the path that is served.
        if rules.resolve_dots && target::resolve_dots(&mut out).is_err() {
            return Err(refusal("the path for the upstream"));
        }
        if let Some(split) = split {
            for &byte in &uri[split..] {
                match byte {
                    0..=b' ' | 0x7f.. | b'#' => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
                    byte => out.push(byte),
                }
            }
        }
        if x.request().has_query {
            out.push(if split.is_some() { b'&' } else { b'?' });
            out.extend_from_slice(x.query());
        }
        Ok(out)
    }
}

/// Makes a change. A value that a variable made unfit for a head is never sent; the header that was
/// to hold it goes, too, lest what the client wrote there be taken for the gateway's word. Host
/// cannot go: false if it was to be set so.
#[must_use]
fn apply(x: &mut Exchange<'_>, edit: &Edit, captures: &[Vec<u8>], value: &mut Vec<u8>) -> bool {
    if edit.verb == Verb::Remove {
        x.remove_header(&edit.name);
        return true;
    }
    let is_host = edit.name.is(Name::Host);
    if let Some(line) = edit.line.as_ref().filter(|_| !is_host) {
        x.set_header_lines(line);
        return true;
    }
    for (index, template) in edit.values.iter().enumerate() {
        let value = edits::rendered(template, x, captures, value);
        // As in nginx, an empty value means no value; the client's own does not stand in for it.
        if value.is_empty() && !is_host {
            if edit.verb == Verb::Set && index == 0 {
                x.remove_header(&edit.name);
            }
            continue;
        }
        let done = match edit.verb {
            Verb::Set if index == 0 => x.set_header(&edit.name, value),
            _ => x.add_header(&edit.name, value),
        };
        match done {
            Ok(()) if is_host => x.set_upstream_host(value),
            Ok(()) => {}
            Err(_) if is_host => return false,
            Err(_) if edit.verb == Verb::Set => {
                x.remove_header(&edit.name);
                return true;
            }
            Err(_) => {}
        }
    }
    true
}

fn refusal(what: &str) -> Step {
    let words = format!("{what} holds characters that cannot be sent on");
    let reply = Reply::json(400, &json!({"error_msg": words}));
    Step::Reply(reply.because("a rewritten value holds characters that cannot be sent on"))
}

/// Makes one of repeated slashes in the path.
fn merge_slashes(uri: &mut Vec<u8>) {
    let end = uri.iter().position(|&byte| byte == b'?').unwrap_or(uri.len());
    let query = uri.split_off(end);
    uri.dedup_by(|next, before| *next == b'/' && *before == b'/');
    uri.extend_from_slice(&query);
}

fn query_of(uri: &[u8]) -> Option<&[u8]> {
    let at = uri.iter().position(|&byte| byte == b'?')?;
    Some(&uri[at + 1..])
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    fn uri_of(config: Value, target: &str) -> String {
        let mut probe = Probe::get(target);
        let stage: ProxyRewrite = probe.stage(config).unwrap();
        let mut x = probe.exchange();
        assert!(matches!(stage.rewrite(&mut x), Step::Next));
        let mut out = Vec::new();
        x.upstream_uri(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_uri_is_replaced_and_the_query_kept() {
        assert_eq!(uri_of(json!({"uri": "/new"}), "/old?a=1"), "/new?a=1");
        assert_eq!(uri_of(json!({"uri": "/new?b=2"}), "/old?a=1"), "/new?b=2&a=1");
        assert_eq!(uri_of(json!({"uri": "/$arg_a/x"}), "/old?a=1"), "/1/x?a=1");
        assert_eq!(uri_of(json!({"uri": "/a b"}), "/old"), "/a%20b");
    }

    #[test]
    fn repeated_slashes_become_one() {
        let merged = |mut config: Value, target: &str| {
            config["merge_slashes"] = json!(true);
            uri_of(config, target)
        };
        for config in [json!({}), json!({"use_real_request_uri_unsafe": true})] {
            assert_eq!(merged(config.clone(), "/a/b?c=//d"), "/a/b?c=//d");
            assert_eq!(merged(config, "/a%2F%2Fb"), "/a%2F%2Fb");
        }
        let real = json!({"use_real_request_uri_unsafe": true});
        assert_eq!(merged(real.clone(), "//a///b/?c=//d"), "/a/b/?c=//d");
        assert_eq!(uri_of(real, "//a///b/?c=//d"), "//a///b/?c=//d");
        assert_eq!(merged(json!({"regex_uri": ["^/a(.*)$", "/b//$1"]}), "/a/c"), "/b/c");
    }

    #[test]
    fn path_slashes_and_query_change_together() {
        let all = json!({
            "regex_uri": ["^/a/(.*)$", "/b//$1?c=1"], "merge_slashes": true, "query": {"set": {"d": "2"}},
        });
        assert_eq!(uri_of(all, "/a/x?e=//"), "/b/x?c=1&e=//&d=2");
        assert_eq!(uri_of(json!({"uri": "/ü?a=ü b"}), "/x"), "/%C3%BC?a=%C3%BC%20b");
        assert_eq!(uri_of(json!({"query": {"remove": ["a"]}}), "/x?a=1"), "/x");
        assert_eq!(uri_of(json!({"method": "PUT"}), "/x//y?a=1"), "/x//y?a=1");
    }

    #[test]
    fn a_rewritten_path_has_no_dot_segments() {
        let fixed = |target: &str| uri_of(json!({"uri": "/fixed$arg_p"}), target);
        assert_eq!(fixed("/old?p=/a/../b"), "/fixed/b?p=/a/../b");
        assert_eq!(fixed("/old?p=/a/./b//c/.."), "/fixed/a/b//?p=/a/./b//c/..");
        assert_eq!(fixed("/old?p=/a%2F..%2Fb"), "/fixed/b?p=/a%2F..%2Fb");
        assert_eq!(uri_of(json!({"regex_uri": ["^/a(.*)$", "/b$1"]}), "/a%2Fc"), "/b%2Fc");
        assert_eq!(fixed("/old?p=/..a/...//x"), "/fixed/..a/...//x?p=/..a/...//x");
        assert_eq!(uri_of(json!({"regex_uri": ["^/a(.*)$", "/b/$1"]}), "/a../c"), "/c");
        for above in ["/old?p=/../..", "/old?p=/..;x/a"] {
            let mut probe = Probe::get(above);
            let stage: ProxyRewrite = probe.stage(json!({"uri": "/fixed$arg_p"})).unwrap();
            assert!(
                matches!(stage.rewrite(&mut probe.exchange()), Step::Reply(reply) if reply.status == 400),
                "{above}"
            );
        }
    }

    #[test]
    fn the_target_as_it_came_may_be_sent_on() {
        let real = |more: Value, target: &str| {
            let mut config = json!({"use_real_request_uri_unsafe": true});
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            uri_of(config, target)
        };
        assert_eq!(real(json!({}), "/a//b?c=1"), "/a//b?c=1");
        assert_eq!(real(json!({"uri": "/new"}), "/old?c=1"), "/new?c=1");
        assert_eq!(real(json!({"uri": "/new?d=2"}), "/old?c=1"), "/new?d=2&c=1");
        assert_eq!(real(json!({"uri": "/new"}), "/old"), "/new");
        assert_eq!(real(json!({"regex_uri": ["^/o(.*)", "/n$1"]}), "/old?c=1"), "/nld?c=1");
        for bad in ["new", "/a b", "/a\u{7f}"] {
            let mut probe = Probe::get("/");
            let config = json!({"use_real_request_uri_unsafe": true, "regex_uri": [".*", bad]});
            let stage: ProxyRewrite = probe.stage(config).unwrap();
            assert!(
                matches!(stage.rewrite(&mut probe.exchange()), Step::Reply(reply) if reply.status == 400),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_question_mark_of_a_pattern_separates_only_where_the_path_had_none() {
        let config = json!({"regex_uri": ["^/a/(.*)", "/b?x=$1"]});
        assert_eq!(uri_of(config.clone(), "/a/1"), "/b?x=1");
        assert_eq!(uri_of(config.clone(), "/a/1?q=2"), "/b?x=1&q=2");
        let mut probe = Probe::get("/a/1");
        let stage: ProxyRewrite = probe.stage(config).unwrap();
        let mut x = probe.exchange();
        x.engine_mut().messages.request.path_span = x.intern(b"/a/1?2");
        assert!(matches!(stage.rewrite(&mut x), Step::Next));
        let mut out = Vec::new();
        x.upstream_uri(&mut out);
        assert_eq!(String::from_utf8(out).unwrap(), "/b%3Fx=1%3F2");
    }

    #[test]
    fn the_first_value_is_set_and_the_others_are_added() {
        let edited = |headers: Value| {
            let mut probe = Probe::request("GET", "/", &[("Host", "a.example"), ("X-A", "mine")]);
            let stage: ProxyRewrite = probe.stage(json!({"headers": headers})).unwrap();
            let mut x = probe.exchange();
            assert!(matches!(stage.rewrite(&mut x), Step::Next));
            let values: Vec<_> = x
                .request()
                .fields
                .all(b"X-A")
                .map(|value| String::from_utf8_lossy(value).into_owned())
                .collect();
            (values.join(","), x.rewritten_host().map(<[u8]>::to_vec))
        };
        assert_eq!(edited(json!({"set": {"X-A": "1"}})), ("1".into(), None));
        assert_eq!(edited(json!({"set": {"X-A": ["1", "2"]}})), ("1,2".into(), None));
        assert_eq!(edited(json!({"add": {"X-A": ["1", "2"]}})), ("mine,1,2".into(), None));
        assert_eq!(
            edited(json!({"set": {"Host": "b.example"}})),
            ("mine".into(), Some(b"b.example".to_vec()))
        );
    }

    #[test]
    fn a_client_s_other_spelling_of_what_is_set_or_removed_is_removed() {
        let spellings = [("X_User_Id", "admin"), ("x-user_id", "admin"), ("X_Gone", "1"), ("X_Added", "2")];
        let mut probe = Probe::request("GET", "/", &spellings);
        let headers = json!({
            "set": {"X-User-Id": "jack", "X_Own": "3", "X-Own": "4"}, "remove": ["X-Gone"], "add": {"X-Added": "5"},
        });
        let stage: ProxyRewrite = probe.stage(json!({"headers": headers})).unwrap();
        let mut x = probe.exchange();
        assert!(matches!(stage.rewrite(&mut x), Step::Next));
        let mut values: Vec<_> = x
            .request()
            .fields
            .iter()
            .map(|(_, value, _)| String::from_utf8_lossy(value).into_owned())
            .collect();
        values.sort();
        assert_eq!(values, ["2", "3", "4", "5", "jack"]);
    }

    #[test]
    fn the_first_pattern_that_matches_rewrites() {
        let config = json!({"regex_uri": ["^/x/(.*)", "/y/$1", "^/(.*)", "/other/$1"]});
        assert_eq!(uri_of(config.clone(), "/x/1?q"), "/y/1?q");
        assert_eq!(uri_of(config, "/z"), "/other/z");
    }

    #[test]
    fn headers_take_variables_and_captures() {
        let mut probe = Probe::request("GET", "/id/7", &[("Host", "a.example"), ("X-Old", "1")]);
        let config = json!({
            "regex_uri": ["^/id/(\\d+)$", "/"],
            "host": "b.example:81",
            "headers": {
                "set": {"X-Id": "n-$1", "X-Addr": "$remote_addr"},
                "add": {"X-Two": ["a", "b"]},
                "remove": ["X-Old"],
            },
        });
        let stage: ProxyRewrite = probe.stage(config).unwrap();
        let mut x = probe.exchange();
        assert!(matches!(stage.rewrite(&mut x), Step::Next));
        assert_eq!(x.header("X-Id"), Some(&b"n-7"[..]));
        assert_eq!(x.header("X-Addr"), Some(&b"127.0.0.1"[..]));
        assert_eq!(x.header("X-Old"), None);
        assert_eq!(x.request().fields.all(b"X-Two").count(), 2);
        let host = x.rewritten_host().map(<[u8]>::to_vec);
        assert_eq!(host.as_deref(), Some(&b"b.example:81"[..]));
    }

    #[test]
    fn an_empty_value_is_none() {
        let edited = |headers: Value| {
            let sent = [("Host", "a.example"), ("X-A", "mine")];
            let mut probe = Probe::request("GET", "/?b=b", &sent);
            let stage: ProxyRewrite = probe.stage(json!({"headers": headers})).unwrap();
            let mut x = probe.exchange();
            assert!(matches!(stage.rewrite(&mut x), Step::Next));
            let values: Vec<_> = x.request().fields.all(b"X-A").map(<[u8]>::to_vec).collect();
            String::from_utf8(values.join(&b'|')).unwrap()
        };
        assert_eq!(edited(json!({"X-A": ""})), "");
        assert_eq!(edited(json!({"set": {"X-A": "$arg_none"}})), "");
        assert_eq!(edited(json!({"set": {"X-A": ["$arg_none", "$arg_b"]}})), "b");
        assert_eq!(edited(json!({"set": {"X-A": ["$arg_b", "$arg_none"]}})), "b");
        assert_eq!(edited(json!({"add": {"X-A": "$arg_none"}})), "mine");
        assert_eq!(edited(json!({"set": {"X-B": "$arg_none"}})), "mine");
    }

    #[test]
    fn no_variable_ends_a_line() {
        let target = "/?h=a%0d%0aX-Evil:%201";
        let edited = |headers: Value| {
            let sent = [("Host", "a.example"), ("X-A", "mine"), ("x-a", "too")];
            let mut probe = Probe::request("GET", target, &sent);
            let stage: ProxyRewrite = probe.stage(json!({"headers": headers})).unwrap();
            let mut x = probe.exchange();
            let step = stage.rewrite(&mut x);
            let values: Vec<_> = x.request().fields.all(b"X-A").map(<[u8]>::to_vec).collect();
            (matches!(step, Step::Next), values.join(&b'|'))
        };
        // The client's own value does not stand in for the missing one.
        assert_eq!(edited(json!({"set": {"X-A": "$arg_h"}})), (true, b"".to_vec()));
        assert_eq!(edited(json!({"X-A": "$arg_h"})), (true, b"".to_vec()));
        assert_eq!(edited(json!({"set": {"X-A": ["ours", "$arg_h"]}})), (true, b"".to_vec()));
        assert_eq!(edited(json!({"add": {"X-A": "$arg_h"}})), (true, b"mine|too".to_vec()));
        assert_eq!(edited(json!({"set": {"Host": "$arg_h"}})), (false, b"mine|too".to_vec()));
    }

    #[test]
    fn the_method_changes() {
        let mut probe = Probe::get("/");
        let stage: ProxyRewrite = probe.stage(json!({"method": "MKCOL"})).unwrap();
        let mut x = probe.exchange();
        assert!(matches!(stage.rewrite(&mut x), Step::Next));
        assert_eq!((x.upstream_method(), x.request().method_bytes()), (Method::Other, &b"MKCOL"[..]));
    }

    #[test]
    fn mistakes_are_named() {
        let probe = Probe::get("/");
        let odd = probe.stage::<ProxyRewrite>(json!({"regex_uri": ["a", "b", "c"]})).err().unwrap();
        assert_eq!(odd.to_string(), "The length of regex_uri should be an even number");
        let regex = probe.stage::<ProxyRewrite>(json!({"regex_uri": ["(", "/"]})).err().unwrap();
        assert!(regex.to_string().starts_with("invalid regex_uri((, /): "), "{regex}");
        assert!(probe.stage::<ProxyRewrite>(json!({"uri": "no-slash"})).is_err());
    }
}
