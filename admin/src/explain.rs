//! Explanations of requests and the analysis of the configuration, as JSON or as text.

use std::net::IpAddr;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use model::{Key, Kind};
use serde_json::{Value, json};

use crate::answer::{self, Answer, ErrorAnswer, said};
use crate::program::{Draft, Program, Question, Report};
use crate::request::pairs;
use crate::{Admin, read_body};

/// Requests that are explained for one change.
const MOST_REQUESTS: usize = 20;

/// `explain?method=&url=&header=&remote_addr=&revision=&format=text`; the body of a POST is the request's.
pub(crate) async fn explain(program: &dyn Program, head: &Parts, body: &Bytes) -> Answer {
    let query = head.uri.query().unwrap_or_default();
    let query = pairs(query).ok_or_else(|| said("the query is not UTF-8"))?;
    let first = |name: &str| query.iter().find(|(own, _)| own == name).map(|(_, value)| value.to_string());
    let url = first("url").filter(|url| !url.is_empty());
    let url = url.ok_or_else(|| said("missing argument url: the URL or the path to explain"))?;
    let headers = query.iter().filter(|(name, _)| name == "header").map(|(_, line)| field(line));
    let remote_addr = match first("remote_addr") {
        Some(text) => {
            let ip: Option<IpAddr> = text.parse().ok();
            Some(ip.ok_or_else(|| said("invalid argument remote_addr: should be an IP address"))?)
        }
        None => None,
    };
    let revision = match first("revision") {
        Some(text) => {
            let number = text.parse().ok();
            Some(
                number
                    .ok_or_else(|| said("invalid argument revision: should be the number of a revision"))?,
            )
        }
        None => None,
    };
    let question = Question {
        method: first("method").unwrap_or_else(|| "GET".to_owned()),
        url,
        headers: headers.collect::<Result<_, _>>()?,
        remote_addr,
        body: Some(body.to_vec()).filter(|body| !body.is_empty()),
        revision,
    };
    respond(program.explain(question).await, first("format").as_deref() == Some("text"))
}

/// `analysis?format=text`
pub(crate) async fn analysis(program: &dyn Program, head: &Parts) -> Answer {
    let query = head.uri.query().unwrap_or_default();
    let text = query.split('&').any(|part| part == "format=text");
    respond(program.analysis().await, text)
}

impl Admin {
    /// `explain/change`: `{"kind", "id", "value", "requests": [{"method", "url", "headers", "remote_addr"}]}`, each
    /// request explained before and after this resource had this value. Without a value the resource is deleted.
    /// Nothing is written.
    pub(crate) async fn preview(&self, body: &Bytes) -> Answer {
        let mut asked = read_body(body)?.unwrap_or(Value::Null);
        let text = |name: &str| asked.get(name).and_then(Value::as_str).unwrap_or_default();
        let kind = Kind::from_collection(text("kind")).ok_or_else(|| said("`kind` must be a collection"))?;
        let key = Key::new(kind, text("id")).or_owned();
        key.check().map_err(|invalid| said(invalid.to_string()))?;
        let requests = asked.get("requests").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        if requests.is_empty() || requests.len() > MOST_REQUESTS {
            return Err(said(format!("`requests` must have 1 to {MOST_REQUESTS} requests")));
        }
        let questions = requests.iter().map(question).collect::<Result<Vec<_>, _>>()?;
        let value = match asked.get_mut("value").map(Value::take) {
            None | Some(Value::Null) => None,
            Some(mut value) => {
                self.put_keys_back(&key, &mut value).await?;
                self.check(&key, &value).await?;
                Some(value)
            }
        };
        let preview = self.program.preview(Draft { key, value }, questions).await.map_err(said)?;
        let shown = |[before, after]: &[Report; 2]| json!({ "before": before.value, "after": after.value });
        let rejected = |(key, invalid): &(Key, model::Invalid)| json!({ "key": answer::path(key), "reason": invalid.to_string() });
        let found = json!({
            "list": preview.explained.iter().map(shown).collect::<Vec<_>>(),
            "rejected": preview.rejected.iter().map(rejected).collect::<Vec<_>>(),
            "not_asked": preview.not_asked.iter().map(answer::path).collect::<Vec<_>>(),
        });
        Ok(answer::json(StatusCode::OK, &found))
    }
}

/// Parses a request of a preview.
fn question(request: &Value) -> Result<Question, ErrorAnswer> {
    let text = |name: &str| request.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let headers = request.get("headers").and_then(Value::as_array).into_iter().flatten();
    let remote_addr = text("remote_addr").map(str::parse).transpose();
    Ok(Question {
        method: text("method").unwrap_or("GET").to_owned(),
        url: text("url").ok_or_else(|| said("each request must have a `url`"))?.to_owned(),
        headers: headers.filter_map(Value::as_str).map(field).collect::<Result<_, _>>()?,
        remote_addr: remote_addr.map_err(|_| said("remote_addr must be an IP address"))?,
        ..Question::default()
    })
}

fn respond(report: Result<Report, String>, text: bool) -> Answer {
    let report = report.map_err(said)?;
    if !text {
        return Ok(answer::json(StatusCode::OK, &report.value));
    }
    let mut response = answer::text(StatusCode::OK, report.text);
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    Ok(response)
}

/// Parses a header argument: `Name: value`.
fn field(line: &str) -> Result<(String, String), ErrorAnswer> {
    let parts = line.split_once(':').filter(|(name, _)| !name.trim().is_empty());
    let (name, value) = parts.ok_or_else(|| said("invalid argument header: should be `Name: value`"))?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}
