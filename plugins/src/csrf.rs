//! hot path
//!
//! csrf: lets a request change something only if its sender could read our cookie.
//!
//! Settings, cookie, token and messages as in APISIX 3.18: every answer sets a cookie with a
//! signed token, and a request with another method than GET, HEAD or OPTIONS must bring the token
//! twice, in the cookie and in a header of the same name. Tokens that APISIX made with the same key
//! are good here, and the other way round.

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use model::Invalid;
use sdk::HeaderName;
use sdk::chain::Phases;
use sdk::vars::Var;
use sdk::{Build, Exchange, Method, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::lua::write_number;

/// The stage.
pub struct Csrf {
    key: String,
    /// Seconds; at 0 and below a token is good for ever.
    expires: i64,
    name: HeaderName,
    cookie: Var,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    key: String,
    expires: i64,
    name: String,
}

/// The contents of a token.
#[derive(Debug, Deserialize)]
struct Token {
    random: f64,
    /// When it was made, in seconds; the name is APISIX's.
    expires: f64,
    sign: String,
}

/// The last second that can be written as a date.
const LAST_SECOND: i64 = 253_402_300_799;

/// nginx's reading: padding may be left out.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

impl Plugin for Csrf {
    const NAME: &'static str = "csrf";
    const PRIORITY: i32 = 2980;
    const PHASES: Phases = Phases::ACCESS.with(Phases::HEADER_FILTER);

    type Config = Config;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "key": {"description": "use to generate csrf token", "type": "string"},
                "expires": {
                    "description": "expires time(s) for csrf token",
                    "type": "integer",
                    "default": 7200,
                },
                "name": {
                    "description": "the csrf token name",
                    "type": "string",
                    "default": "apisix-csrf-token",
                },
            },
            "encrypt_fields": ["key"],
            "required": ["key"],
        })
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<Csrf, Invalid> {
        let name = HeaderName::new(&config.name).map_err(|bad| {
            let invalid = Invalid::new(format!("the token's name cannot name a header: {bad}"));
            invalid.at("/name").expected("letters, digits and dashes").got(config.name.clone())
        })?;
        if config.key.is_empty() {
            return Err(Invalid::new("property \"key\" must not be empty")
                .at("/key")
                .expected("at least one character"));
        }
        let cookie = Var::parse(&format!("cookie_{}", config.name));
        Ok(Csrf { key: config.key, expires: config.expires, name, cookie })
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        if matches!(x.method(), Method::Get | Method::Head | Method::Options) {
            return Step::Next;
        }
        let refuse = |reason| Step::Reply(Reply::json(401, &json!({ "error_msg": reason })).because(reason));
        let Some(header) = x.header(self.name.as_str()).filter(|token| !token.is_empty()) else {
            return refuse("no csrf token in headers");
        };
        let Some(cookie) = self.cookie.of(x) else {
            return refuse("no csrf cookie");
        };
        if !bool::from(header.ct_eq(&cookie)) {
            return refuse("csrf token mismatch");
        }
        if self.good(header, x.world().now_ms() / 1000) {
            Step::Next
        } else {
            refuse("Failed to verify the csrf token signature")
        }
    }

    fn header_filter(&self, x: &mut Exchange<'_>) {
        let now = x.world().now_ms() / 1000;
        let mut field = self.name.as_str().to_owned();
        field.push('=');
        BASE64.encode_string(self.token(fastrand::f64(), now as f64), &mut field);
        field.push_str(";path=/;SameSite=Lax;Expires=");
        push_date(i64::try_from(now).unwrap_or(i64::MAX).saturating_add(self.expires), &mut field);
        // A token's name and its base64 can always stand in a head.
        let _ = x.add_response_header("Set-Cookie", field.as_bytes());
    }
}

impl Csrf {
    /// A token, as JSON.
    fn token(&self, random: f64, made: f64) -> String {
        let mut token = "{\"random\":".to_owned();
        write_number(random, &mut token);
        token.push_str(",\"expires\":");
        write_number(made, &mut token);
        // Read back as the check reads it: the text holds at most fourteen digits.
        let read: f64 =
            token[10..].split(',').next().and_then(|digits| digits.parse().ok()).unwrap_or(random);
        token.push_str(",\"sign\":\"");
        token.push_str(&self.sign(read, made));
        token.push_str("\"}");
        token
    }

    fn sign(&self, random: f64, made: f64) -> String {
        let mut text = "{expires:".to_owned();
        write_number(made, &mut text);
        text.push_str(",random:");
        write_number(random, &mut text);
        text.push_str(",key:");
        text.push_str(&self.key);
        text.push('}');
        let digest = Sha256::digest(text);
        digest
            .iter()
            .flat_map(|byte| [byte >> 4, byte & 15])
            .map(|digit| b"0123456789abcdef"[digit as usize] as char)
            .collect()
    }

    fn good(&self, token: &[u8], now: u64) -> bool {
        let Ok(token) = BASE64.decode(token) else { return false };
        let Ok(token) = serde_json::from_slice::<Token>(&token) else { return false };
        if self.expires > 0 && now as f64 - token.expires > self.expires as f64 {
            return false;
        }
        self.sign(token.random, token.expires).as_bytes().ct_eq(token.sign.as_bytes()).into()
    }
}

/// A date as nginx writes it in cookies: `Thu, 18-Nov-10 11:27:35 GMT`, with all of the year after 2037.
fn push_date(seconds: i64, out: &mut String) {
    let seconds = seconds.clamp(0, LAST_SECOND) as u64;
    let date = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    // `Thu, 18 Nov 2010 11:27:35 GMT`
    let year = if &date[12..16] > "2037" { &date[12..16] } else { &date[14..16] };
    for part in [&date[..7], "-", &date[8..11], "-", year, &date[16..]] {
        out.push_str(part);
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::{Probe, respond};

    use super::*;

    /// A token that APISIX made with the key `userkey`, in the year 2053.
    const THEIRS: &str = "eyJyYW5kb20iOjAuNDI5ODYzMTk3MTYxMzksInNpZ24iOiI0ODRlMDY4NTkxMWQ5NmJhMDc5YzQ1ZGI0OTE2NmZkYjQ0ODhjODVkNWQ0NmE1Y2FhM2UwMmFhZDliNjE5OTQ2IiwiZXhwaXJlcyI6MjY0MzExOTYyNH0=";

    /// Returns the message for a POST with these two; nothing if it passes.
    fn posted(config: &Value, header: Option<&str>, cookie: Option<&str>, later_s: u64) -> String {
        let mut headers = Vec::new();
        headers.extend(header.map(|token| ("apisix-csrf-token", token.to_owned())));
        headers.extend(cookie.map(|token| ("Cookie", format!("a=b; apisix-csrf-token={token}"))));
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let mut probe = Probe::request("POST", "/", &headers);
        probe.world.now_ms.set(probe.world.now_ms.get() + later_s * 1000);
        let stage: Csrf = probe.stage(config.clone()).unwrap();
        match stage.access(&mut probe.exchange()) {
            Step::Next => String::new(),
            Step::Reply(reply) => {
                assert_eq!(reply.status, 401);
                serde_json::from_slice::<Value>(&reply.body).unwrap()["error_msg"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            }
            step => panic!("{step:?}"),
        }
    }

    fn both(config: &Value, token: &str) -> String {
        posted(config, Some(token), Some(token), 0)
    }

    /// The cookie that an answer sets.
    fn given(config: &Value) -> String {
        let mut probe = Probe::get("/");
        let stage: Csrf = probe.stage(config.clone()).unwrap();
        let mut x = probe.exchange();
        respond(&mut x, 200, &[("Set-Cookie", "own=1")]);
        stage.header_filter(&mut x);
        let cookies: Vec<_> = x.response().fields.all(b"set-cookie").collect();
        assert_eq!(cookies[0], b"own=1");
        String::from_utf8(cookies[1].to_vec()).unwrap()
    }

    #[test]
    fn a_token_comes_back_and_expires() {
        let config = json!({"key": "userkey", "expires": 60});
        let cookie = given(&config);
        let rest = cookie.strip_prefix("apisix-csrf-token=").unwrap();
        let (token, attributes) = rest.split_once(';').unwrap();
        assert_eq!(attributes, "path=/;SameSite=Lax;Expires=Tue, 14-Nov-23 22:14:20 GMT");
        assert_eq!(both(&config, token), "");
        assert_eq!(both(&config, token.trim_end_matches('=')), "", "padding may be left out");
        assert_eq!(posted(&config, Some(token), Some(token), 60), "");
        let bad = "Failed to verify the csrf token signature";
        assert_eq!(posted(&config, Some(token), Some(token), 61), bad);
        assert_eq!(both(&json!({"key": "other"}), token), bad);
        for expires in [0, -1] {
            let config = json!({"key": "userkey", "expires": expires});
            assert_eq!(posted(&config, Some(token), Some(token), 1 << 30), "");
        }
        assert_ne!(given(&config), cookie);
    }

    #[test]
    fn tokens_of_many_numbers_are_good() {
        let config = json!({"key": "k"});
        let probe = Probe::get("/");
        let stage: Csrf = probe.stage(config).unwrap();
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2_000 {
            let token =
                BASE64.encode(stage.token(random.f64() * 10f64.powi(random.i32(-9..1)), 1_700_000_000.0));
            assert!(stage.good(token.as_bytes(), 1_700_000_000), "{token}");
        }
    }

    #[test]
    fn tokens_of_apisix_are_good() {
        assert_eq!(both(&json!({"key": "userkey", "expires": 1_000_000_000}), THEIRS), "");
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let config = json!({"key": "userkey"});
        assert_eq!(posted(&config, None, None, 0), "no csrf token in headers");
        assert_eq!(posted(&config, None, Some("t"), 0), "no csrf token in headers");
        assert_eq!(posted(&config, Some(""), Some(""), 0), "no csrf token in headers");
        assert_eq!(posted(&config, Some("t"), None, 0), "no csrf cookie");
        assert_eq!(posted(&config, Some("t"), Some("u"), 0), "csrf token mismatch");
        let sign = "484e0685911d96ba079c45db49166fdb4488c85d5d46a5caa3e02aad9b619946";
        for token in [
            "!",
            "AAAA",
            &BASE64.encode("{}"),
            &BASE64.encode("[0.42986319716139,2643119624,\"x\"]"),
            &BASE64.encode(format!(
                "{{\"random\":0.42986319716139,\"expires\":2643119624,\"sign\":\"{}\"}}",
                &sign[1..]
            )),
            &BASE64.encode(format!(
                "{{\"random\":\"0.42986319716139\",\"expires\":2643119624,\"sign\":\"{sign}\"}}"
            )),
            &BASE64.encode(format!("{{\"random\":0.5,\"expires\":2643119624,\"sign\":\"{sign}\"}}")),
            &BASE64.encode("[".repeat(4096)),
        ] {
            assert_eq!(both(&config, token), "Failed to verify the csrf token signature", "{token}");
        }
    }

    #[test]
    fn reading_needs_no_token() {
        for method in ["GET", "HEAD", "OPTIONS"] {
            let mut probe = Probe::request(method, "/", &[]);
            let stage: Csrf = probe.stage(json!({"key": "k"})).unwrap();
            assert!(matches!(stage.access(&mut probe.exchange()), Step::Next), "{method}");
        }
        let mut probe = Probe::request("PURGE", "/", &[]);
        let stage: Csrf = probe.stage(json!({"key": "k"})).unwrap();
        assert!(matches!(stage.access(&mut probe.exchange()), Step::Reply(_)));
    }

    #[test]
    fn dates_are_nginxs() {
        for (seconds, date) in [
            (1_290_079_655, "Thu, 18-Nov-10 11:27:35 GMT"),
            (-5, "Thu, 01-Jan-70 00:00:00 GMT"),
            (2_145_916_799, "Thu, 31-Dec-37 23:59:59 GMT"),
            (2_145_916_800, "Fri, 01-Jan-2038 00:00:00 GMT"),
            (i64::MAX, "Fri, 31-Dec-9999 23:59:59 GMT"),
        ] {
            let mut out = String::new();
            push_date(seconds, &mut out);
            assert_eq!(out, date);
        }
    }

    #[test]
    fn settings_are_checked() {
        let probe = Probe::default();
        let error = |config| probe.stage::<Csrf>(config).err().unwrap().reason;
        assert_eq!(error(json!({})), "property \"key\" is required");
        assert_eq!(error(json!({"key": ""})), "property \"key\" must not be empty");
        assert!(
            error(json!({"key": "k", "name": "a b"})).starts_with("the token's name cannot name a header")
        );
    }
}
