//! AWS Secrets Manager: `GetSecretValue` over its JSON protocol, signed with Signature Version 4.
//!
//! Names of secrets may have slashes, so the whole key is tried as a name first. If no secret has it, the part
//! behind the last slash is taken for a field of the secret before it, and so on.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::{digest, hmac};
use bytes::Bytes;
use control::secrets::Failure;
use hyper::Method;
use model::secret::Aws;
use serde_json::{Value, json};

use super::{MOST, field_of, server, timeouts};
use crate::http::{Question, Trust};

const SERVICE: &str = "secretsmanager";
const TARGET: &str = "secretsmanager.GetSecretValue";
const CONTENT_TYPE: &str = "application/x-amz-json-1.1";

pub(super) async fn fetch(aws: &Aws, key: &str, trust: &Trust) -> Result<String, Failure> {
    if key.is_empty() || key.starts_with('/') {
        return Err(Failure::Missing(format!("can't find main key, key: {key}")));
    }
    let mut name = key;
    loop {
        let missing = match one(aws, name, trust).await {
            Ok(secret) if name.len() == key.len() => return Ok(secret),
            Ok(secret) => return field_of(&secret, &key[name.len() + 1..]),
            Err(Failure::Missing(why)) => why,
            Err(other) => return Err(other),
        };
        match name.rfind('/') {
            Some(at) => name = &name[..at],
            None => return Err(Failure::Missing(missing)),
        }
    }
}

async fn one(aws: &Aws, name: &str, trust: &Trust) -> Result<String, Failure> {
    let uri = match &aws.endpoint_url {
        // Only its scheme, host and port count, as in APISIX.
        Some(url) => origin(url).to_owned(),
        None => format!("https://{SERVICE}.{}.amazonaws.com", aws.region),
    };
    let server = server(&uri, true, trust)?;
    let body = json!({"SecretId": name, "VersionStage": "AWSCURRENT"}).to_string();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let date = stamp(now);
    let signature = sign(aws, &server.host, &date, body.as_bytes());
    let mut headers = vec![
        ("content-type", CONTENT_TYPE),
        ("x-amz-date", date.as_str()),
        ("x-amz-target", TARGET),
        ("authorization", signature.as_str()),
    ];
    if let Some(token) = &aws.session_token {
        headers.push(("x-amz-security-token", token));
    }
    let question = Question { method: Method::POST, path: "/", headers: &headers, body: Bytes::from(body) };
    let answer =
        server.send(question, timeouts(), Duration::ZERO, MOST).await.map_err(Failure::Unavailable)?;
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    if answer.status != 200 {
        let kind = body.get("__type").and_then(Value::as_str).unwrap_or_default();
        // A type may stand behind the name of its namespace.
        let kind = kind.rsplit('#').next().unwrap_or_default();
        let why = format!("{}: status {} {kind}", server.authority, answer.status);
        return Err(match kind.contains("ResourceNotFoundException") {
            true => Failure::Missing(why),
            false => Failure::Unavailable(why),
        });
    }
    match body.get("SecretString").and_then(Value::as_str) {
        Some(secret) => Ok(secret.to_owned()),
        None => Err(Failure::Missing("the secret is no text".to_owned())),
    }
}

fn origin(url: &str) -> &str {
    let rest = url.find("://").map_or(0, |at| at + 3);
    url[rest..].find(['/', '?', '#']).map_or(url, |at| &url[..rest + at])
}

/// The `Authorization` of a request (Signature Version 4).
fn sign(aws: &Aws, host: &str, date: &str, body: &[u8]) -> String {
    let mut signed = vec![("content-type", CONTENT_TYPE), ("host", host), ("x-amz-date", date)];
    if let Some(token) = &aws.session_token {
        signed.push(("x-amz-security-token", token));
    }
    signed.push(("x-amz-target", TARGET));
    let canonical: String = signed.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
    let names: Vec<&str> = signed.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");
    let request = format!("POST\n/\n\n{canonical}\n{names}\n{}", hex(digest::digest(&digest::SHA256, body)));
    let day = &date[..8];
    let scope = format!("{day}/{}/{SERVICE}/aws4_request", aws.region);
    let digest = hex(digest::digest(&digest::SHA256, request.as_bytes()));
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{digest}");
    let mac = |key: &[u8], text: &str| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes());
    let mut key = mac(format!("AWS4{}", aws.secret_access_key).as_bytes(), day);
    for part in [aws.region.as_str(), SERVICE, "aws4_request"] {
        key = mac(key.as_ref(), part);
    }
    let signature = hex(mac(key.as_ref(), &text));
    format!(
        "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
        aws.access_key_id
    )
}

fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Seconds since 1970 as `20150830T123600Z`.
fn stamp(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days are counted from the first of March of the year 0, so that leap days come last.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_aws_reads_them() {
        for (seconds, expected) in [
            (0, "19700101T000000Z"),
            (1_440_938_160, "20150830T123600Z"),
            (951_782_400, "20000229T000000Z"),
            (4_107_542_399, "21000228T235959Z"),
            (1_735_689_599, "20241231T235959Z"),
        ] {
            assert_eq!(stamp(seconds), expected);
        }
    }

    #[test]
    fn only_the_origin_of_an_endpoint_counts() {
        for (url, expected) in [
            ("http://127.0.0.1:4566", "http://127.0.0.1:4566"),
            ("http://a.test/x/y?z", "http://a.test"),
            ("https://a.test?z", "https://a.test"),
        ] {
            assert_eq!(origin(url), expected);
        }
    }
}
