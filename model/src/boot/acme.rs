//! `sluice.acme` of config.yaml.

use std::time::Duration;

use serde_json::Value;

use super::section::Section;
use super::values;
use crate::Invalid;

/// Certificates, and names of one, at most.
const MOST: usize = 100;

/// `sluice.acme`: who issues certificates, and for which names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acme {
    /// The URL of the server's directory.
    pub directory: String,
    pub email: Option<String>,
    /// A file with the authorities of the server itself; `None` are those that are trusted for upstreams.
    pub ca: Option<String>,
    pub challenge: AcmeChallenge,
    /// The names of each certificate.
    pub domains: Vec<Vec<String>>,
    pub eab: Option<Eab>,
    /// For one certificate.
    pub timeout: Duration,
    /// The pause after the first failure.
    pub retry: Duration,
}

/// How names are proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcmeChallenge {
    Http01,
    TlsAlpn01,
}

/// An account elsewhere that the one at the ACME server is bound to. `Debug` does not show the key.
#[derive(Clone, PartialEq, Eq)]
pub struct Eab {
    pub kid: String,
    pub hmac_key: String,
}

impl std::fmt::Debug for Eab {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Eab").field("kid", &self.kid).finish_non_exhaustive()
    }
}

/// Reads the section; `None` if it is absent.
pub(super) fn acme(file: Section<'_>) -> Result<Option<Acme>, Invalid> {
    if file.get("/sluice/acme").is_none() {
        return Ok(None);
    }
    let section = file.below("/sluice/acme");
    if !section.bool("/accept_terms") {
        return Err(Invalid::new("the terms of service of the ACME server are not accepted")
            .at("/sluice/acme/accept_terms")
            .expected("true, once you have read them"));
    }
    let owned = |pointer| section.text(pointer).map(str::to_owned);
    let directory = section.value("/directory", values::text).to_owned();
    if !directory.starts_with("https://") {
        return Err(Invalid::new("an ACME server must be reached over https")
            .at("/sluice/acme/directory")
            .expected("an https:// address")
            .got(directory));
    }
    let listed = section.get("/domains").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if listed.len() > MOST {
        return Err(Invalid::new("too many certificates")
            .at("/sluice/acme/domains")
            .expected(format!("at most {MOST}; for more, label ssl resources `acme: \"true\"`")));
    }
    let domains = listed
        .iter()
        .enumerate()
        .map(|(at, item)| names(item).map_err(|invalid| invalid.at(format!("/sluice/acme/domains/{at}"))));
    Ok(Some(Acme {
        directory,
        email: owned("/email"),
        ca: owned("/ca"),
        challenge: match section.text("/challenge") {
            Some("tls-alpn-01") => AcmeChallenge::TlsAlpn01,
            _ => AcmeChallenge::Http01,
        },
        domains: domains.collect::<Result<_, _>>()?,
        eab: match (owned("/eab/kid"), owned("/eab/hmac_key")) {
            (Some(kid), Some(hmac_key)) => Some(Eab { kid, hmac_key }),
            _ => None,
        },
        timeout: section.time("/timeout"),
        retry: section.time("/retry").max(Duration::from_secs(1)),
    }))
}

/// The names of one certificate: a text, or a list of them.
fn names(item: &Value) -> Result<Vec<String>, Invalid> {
    let all: Vec<&Value> = match item {
        Value::Array(all) => all.iter().collect(),
        one => vec![one],
    };
    let name = |value: &Value| {
        let name = value.as_str().unwrap_or_default().to_ascii_lowercase();
        let label = |label: &str| {
            let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            (1..=63).contains(&label.len()) && label.bytes().all(inner) && !label.starts_with('-')
        };
        let is_name = name.len() <= 253 && name.contains('.') && name.split('.').all(label);
        match is_name && name.parse::<std::net::IpAddr>().is_err() {
            true => Ok(name),
            false => {
                let invalid = Invalid::new("no certificate can be issued for this name");
                let invalid =
                    invalid.expected("a host name, or a list of them; no wildcards").got(value.to_string());
                Err(match name.starts_with("*.") {
                    true => invalid.hint("wildcards need the challenge dns-01, which is not served"),
                    false => invalid,
                })
            }
        }
    };
    let names: Vec<String> = all.into_iter().map(name).collect::<Result<_, _>>()?;
    if names.is_empty() || names.len() > MOST {
        return Err(Invalid::new("a certificate needs a name").expected(format!("1 to {MOST} names")));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(section: Value) -> Result<Option<Acme>, Invalid> {
        acme(Section::of(&json!({"sluice": {"acme": section}})))
    }

    #[test]
    fn names_are_texts_or_lists() {
        let read = read(json!({"accept_terms": true, "domains": ["A.test", ["b.test", "www.b.test"]]}));
        let found = read.unwrap().unwrap();
        assert_eq!(found.domains, [vec!["a.test"], vec!["b.test", "www.b.test"]]);
        assert!(found.directory.contains("letsencrypt.org"), "{}", found.directory);
        assert_eq!(found.challenge, AcmeChallenge::Http01);
        assert_eq!(acme(Section::of(&json!({"sluice": {}}))), Ok(None));
    }

    #[test]
    fn invalid_domains_and_settings_are_refused_at_their_places() {
        for wrong in [
            json!("*.a.test"),
            json!("localhost"),
            json!("127.0.0.1"),
            json!([]),
            json!(7),
            json!("a b.test"),
        ] {
            let invalid = read(json!({"accept_terms": true, "domains": ["ok.test", wrong]})).unwrap_err();
            assert_eq!(invalid.pointer, "/sluice/acme/domains/1", "{wrong}");
        }
        assert_eq!(read(json!({"domains": []})).unwrap_err().pointer, "/sluice/acme/accept_terms");
        let plain = json!({"accept_terms": true, "directory": "http://a.test/dir"});
        assert_eq!(read(plain).unwrap_err().pointer, "/sluice/acme/directory");
    }
}
