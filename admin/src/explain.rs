//! Explanations of requests and the analysis of the configuration, as JSON or as text.

use std::net::IpAddr;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};

use crate::answer::{self, Answer, ErrorAnswer, said};
use crate::program::{Program, Question, Report};
use crate::request::pairs;

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
