//! OTLP over gRPC: each batch is a call of the signal's `Export`, over one HTTP/2 connection that is kept.
//!
//! Statuses are handled as the OTLP specification says ("OTLP/gRPC Response"): some are retried, after the delay
//! that the collector states. A collector that is out of resources and states none gets no retry. A stream that the
//! collector resets counts as the status that gRPC maps its code to.
//!
//! A batch whose connection failed before the answer is sent again, although the collector may have it: the
//! specification prefers duplicates to losses ("Duplicate Data").

use std::cell::RefCell;
use std::error::Error;
use std::future::Future;
use std::time::Duration;

use base64::Engine;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use h2::Reason;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE, USER_AGENT};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use prost::Message;
use sdk::chain::LocalFuture;
use sdk::grpc::{Prefix, framed};
use sdk::sink::{Batch, Deliver, Destination, Outcome};

use super::{LONGEST_DELAY, Otlp};
use crate::sinks::api::{self, ANSWER, HOPS, fields, most_hops, repeated};
use crate::sinks::{Context, Server, TIMEOUT, within};

/// A sink that calls a collector.
struct Calls {
    otlp: Otlp,
    server: Server,
    /// Of the method.
    uri: String,
    headers: HeaderMap,
    kept: RefCell<Option<SendRequest<Full<Bytes>>>>,
}

/// The result of a call. The fields are those of the trailers, or of a head without a body.
#[derive(Debug, Default)]
struct Answer {
    http_status: u16,
    fields: HeaderMap,
    body: Bytes,
}

/// A call without an answer.
#[derive(Debug, PartialEq, Eq)]
enum Failure {
    Timeout,
    /// The collector reset the stream.
    Reset(Reason),
    /// There is no connection, or it failed.
    Lost(String),
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(message, repeated, tag = "3")]
    details: Vec<Detail>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct Detail {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Delay>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, PartialEq, Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

pub(super) fn make(otlp: Otlp, to: &Destination, context: &Context) -> Result<Box<dyn Deliver>, String> {
    let api::Settings { mut endpoints, headers, timeout } = crate::sinks::settings(to)?;
    let endpoint = endpoints.pop().ok_or("it has no server")?;
    let server = Server::new(to, endpoint.tls, Duration::from_millis(timeout), context)?.with_http2();
    let scheme = if server.tls.is_some() { "https" } else { "http" };
    let uri = format!("{scheme}://{}:{}{}", server.host, server.port, endpoint.uri);
    let mut headers = fields(&headers)?;
    headers.insert(TE, HeaderValue::from_static("trailers"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("sluice/", env!("CARGO_PKG_VERSION"))));
    // The specification of gRPC allows eight digits.
    let deadline = format!("{}m", timeout.min(99_999_999));
    headers.insert("grpc-timeout", HeaderValue::try_from(deadline).map_err(|error| error.to_string())?);
    Ok(Box::new(Calls { otlp, server, uri, headers, kept: RefCell::default() }))
}

impl Deliver for Calls {
    fn at_once(&self) -> usize {
        self.otlp.deliveries()
    }

    fn deliver<'a>(&'a self, batch: Batch<'a>) -> LocalFuture<'a, Outcome> {
        Box::pin(async move {
            match self.export(batch).await {
                Ok(answer) => self.outcome(&answer, batch.records.len()),
                Err(failure) => failure.outcome(&self.place()),
            }
        })
    }
}

impl Calls {
    fn place(&self) -> String {
        format!("{}:{}", self.server.host, self.server.port)
    }

    async fn export(&self, batch: Batch<'_>) -> Result<Answer, Failure> {
        let body = framed(&self.otlp.request(batch.records));
        let body = Bytes::from(body.ok_or_else(|| Failure::Lost("the batch is too long".to_owned()))?);
        let hops = most_hops(batch.records);
        let kept = self.kept.borrow().clone();
        if let Some(sender) = kept.filter(SendRequest::is_ready) {
            match self.call(sender, body.clone(), hops).await {
                // The connection may have been closed while it was idle, or closes.
                Err(Failure::Lost(_) | Failure::Reset(Reason::REFUSED_STREAM)) => {}
                answer => return self.checked(answer),
            }
        }
        let sender = self.connect(batch).await.map_err(Failure::Lost)?;
        self.kept.replace(Some(sender.clone()));
        let answer = self.call(sender, body, hops).await;
        self.checked(answer)
    }

    /// Keeps the connection unless it does not answer.
    fn checked(&self, answer: Result<Answer, Failure>) -> Result<Answer, Failure> {
        if matches!(answer, Err(Failure::Timeout | Failure::Lost(_))) {
            self.kept.take();
        }
        answer
    }

    async fn connect(&self, batch: Batch<'_>) -> Result<SendRequest<Full<Bytes>>, String> {
        let stream = self.server.connect(batch.addresses).await;
        let stream = stream.map_err(|error| format!("failed to connect: {error}"))?;
        let mut builder = Builder::new(OnThread);
        builder.initial_stream_window_size(ANSWER as u32).initial_connection_window_size(1 << 20);
        let opening = builder.handshake(TokioIo::new(stream));
        let (sender, connection) = within(self.server.timeout, opening).await?;
        tokio::task::spawn_local(async move {
            // The calls under way return the error.
            let _ = connection.await;
        });
        Ok(sender)
    }

    async fn call(
        &self,
        mut sender: SendRequest<Full<Bytes>>,
        body: Bytes,
        hops: u16,
    ) -> Result<Answer, Failure> {
        let request = Request::builder().method(Method::POST).uri(&self.uri).header(HOPS, hops);
        let mut request = request
            .body(Full::new(body))
            .map_err(|error| Failure::Lost(format!("no request can be made of it: {error}")))?;
        request.headers_mut().extend(self.headers.clone());
        let answered = async {
            sender.ready().await?;
            let (head, body) = sender.send_request(request).await?.into_parts();
            let (fields, body) = match Limited::new(body, ANSWER).collect().await {
                Ok(body) => (body.trailers().cloned().unwrap_or(head.headers), body.to_bytes()),
                // The collector has taken the batch, so it is not sent again.
                Err(error) if error.is::<LengthLimitError>() => (head.headers, Bytes::new()),
                Err(error) => return Err(error),
            };
            Ok(Answer { http_status: head.status.as_u16(), fields, body })
        };
        match tokio::time::timeout(self.server.timeout, answered).await {
            Ok(answer) => answer.map_err(|error: Box<dyn Error + Send + Sync>| Failure::of(&*error)),
            Err(_) => Err(Failure::Timeout),
        }
    }

    fn outcome(&self, answer: &Answer, records: usize) -> Outcome {
        let place = self.place();
        if answer.http_status != 200 {
            let reason = format!("the collector {place} answered with status {}", answer.http_status);
            return match answer.http_status {
                429 | 502..=504 => Outcome::retry(reason),
                _ => Outcome::Rejected(reason),
            };
        }
        let Some(status) = answer.status() else {
            return Outcome::Rejected(format!("the collector {place} answered without a status of gRPC"));
        };
        let without_secrets =
            |text: &[u8]| repeated(text, self.headers.values().filter_map(|value| value.to_str().ok()));
        let message = answer.fields.get("grpc-message").map_or(&b""[..], HeaderValue::as_bytes);
        let reason =
            format!("the collector {place} answered with gRPC status {status}: {}", without_secrets(message));
        match (status, answer.retry_delay()) {
            (0, _) => self.otlp.of_answer(answer.message(), records, without_secrets),
            // RESOURCE_EXHAUSTED may pass only where the collector says so.
            (8, None) => Outcome::Rejected(reason),
            // CANCELLED, DEADLINE_EXCEEDED, ABORTED, OUT_OF_RANGE, UNAVAILABLE and DATA_LOSS.
            (1 | 4 | 8 | 10 | 11 | 14 | 15, after) => Outcome::Retry { after, reason },
            _ => Outcome::Rejected(reason),
        }
    }
}

impl Failure {
    fn of(error: &(dyn Error + 'static)) -> Failure {
        let mut causes = std::iter::successors(Some(error), |&cause| cause.source());
        let reset =
            causes.find_map(|cause| cause.downcast_ref::<h2::Error>()).filter(|cause| cause.is_reset());
        match reset.and_then(h2::Error::reason) {
            Some(reason) => Failure::Reset(reason),
            None => Failure::Lost(error.to_string()),
        }
    }

    fn outcome(self, place: &str) -> Outcome {
        match self {
            Failure::Timeout => Outcome::retry(format!("the collector {place}: {TIMEOUT}")),
            Failure::Lost(error) => Outcome::retry(format!("the collector {place}: {error}")),
            Failure::Reset(reason) => {
                let text = format!("the collector {place} reset the stream: {reason}");
                match reason {
                    // UNAVAILABLE and CANCELLED in gRPC; the other codes are statuses that are not retried.
                    Reason::REFUSED_STREAM | Reason::CANCEL => Outcome::retry(text),
                    _ => Outcome::Rejected(text),
                }
            }
        }
    }
}

impl Answer {
    fn status(&self) -> Option<u32> {
        self.fields.get("grpc-status")?.to_str().ok()?.parse().ok()
    }

    /// The first message of the body; none of it if it is compressed, as none was asked for.
    fn message(&self) -> &[u8] {
        match Prefix::read(&self.body) {
            Some((Prefix { is_compressed: false, length }, rest)) => rest.get(..length).unwrap_or_default(),
            _ => &[],
        }
    }

    /// The delay that the collector states in the details of the status.
    fn retry_delay(&self) -> Option<Duration> {
        const BASE64: GeneralPurpose = GeneralPurpose::new(
            &base64::alphabet::STANDARD,
            GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
        );
        let details = BASE64.decode(self.fields.get("grpc-status-details-bin")?).ok()?;
        let mut details = Status::decode(&details[..]).ok()?.details.into_iter();
        let info = details.find(|detail| detail.type_url.ends_with("/google.rpc.RetryInfo"))?;
        let delay = RetryInfo::decode(&info.value[..]).ok()?.retry_delay?;
        let seconds = Duration::from_secs(u64::try_from(delay.seconds).ok()?);
        let nanos = Duration::from_nanos(u64::try_from(delay.nanos).ok()?);
        Some(seconds.saturating_add(nanos).min(LONGEST_DELAY))
    }
}

/// Runs the tasks of a connection on this thread.
#[derive(Debug, Clone, Copy)]
struct OnThread;

impl<F: Future + 'static> hyper::rt::Executor<F> for OnThread {
    fn execute(&self, task: F) {
        tokio::task::spawn_local(async move {
            task.await;
        });
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use tokio::net::TcpListener;

    use super::*;

    fn calls() -> Calls {
        let settings = serde_json::json!({"signal": "traces", "resource": {}, "scope": "s", "version": "1", "grpc": true});
        let to = Destination::server("otlp", "h".to_owned(), 4317, settings);
        let server = Server::new(&to, None, Duration::from_secs(1), &Context::default()).unwrap();
        let headers = HeaderMap::from_iter([(USER_AGENT, HeaderValue::from_static("s3cr3t"))]);
        let otlp = Otlp::new(&crate::sinks::settings(&to).unwrap());
        Calls { otlp, server, uri: String::new(), headers, kept: RefCell::default() }
    }

    fn answer(status: &'static str, body: &'static [u8]) -> Answer {
        let fields = [("grpc-status", status), ("grpc-message", "no s3cr3t")];
        let fields = fields.map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
        Answer { http_status: 200, fields: fields.into_iter().collect(), body: Bytes::from_static(body) }
    }

    #[test]
    fn outcomes_follow_the_status_of_the_call() {
        let calls = calls();
        for body in
            [&b""[..], b"\0\0\0\0\0", b"\x01\0\0\0\x04\x0a\x02\x08\x02", b"\0\0\0\0\x09\x0a\x02\x08\x02"]
        {
            assert_eq!(calls.outcome(&answer("0", body), 5), Outcome::Delivered, "{body:?}");
        }
        let part = calls.outcome(&answer("0", b"\0\0\0\0\x04\x0a\x02\x08\x02"), 5);
        assert!(matches!(part, Outcome::Partial { rejected: 2, .. }), "{part:?}");
        for status in ["1", "4", "10", "11", "14", "15"] {
            let outcome = calls.outcome(&answer(status, b""), 5);
            assert!(matches!(outcome, Outcome::Retry { after: None, .. }), "{status}: {outcome:?}");
        }
        for status in ["2", "3", "5", "7", "8", "12", "13", "16", "99", "x"] {
            let outcome = calls.outcome(&answer(status, b""), 5);
            let Outcome::Rejected(reason) = outcome else { panic!("{status}: {outcome:?}") };
            assert!(!reason.contains("s3cr3t"), "{reason}");
        }
        for (http_status, passes) in [(503, true), (429, true), (404, false), (204, false)] {
            let outcome = calls.outcome(&Answer { http_status, ..answer("0", b"") }, 5);
            assert_eq!(matches!(outcome, Outcome::Retry { .. }), passes, "{http_status}");
        }
        assert!(matches!(
            calls.outcome(&Answer { http_status: 200, ..Answer::default() }, 5),
            Outcome::Rejected(_)
        ));
    }

    #[test]
    fn a_collector_may_state_a_delay() {
        let details = |seconds, nanos, type_url: &str| {
            let value = RetryInfo { retry_delay: Some(Delay { seconds, nanos }) }.encode_to_vec();
            let other =
                Detail { type_url: "type.googleapis.com/google.rpc.Help".to_owned(), value: vec![255] };
            let info = Detail { type_url: type_url.to_owned(), value };
            Status { details: vec![other, info] }.encode_to_vec()
        };
        let with = |status, details: &[u8], is_padded: bool| {
            let mut answer = answer(status, b"");
            let text = base64::engine::general_purpose::STANDARD.encode(details);
            let text = if is_padded { &text } else { text.trim_end_matches('=') };
            answer.fields.insert("grpc-status-details-bin", HeaderValue::try_from(text).unwrap());
            calls().outcome(&answer, 5)
        };
        const INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";
        for (status, seconds, nanos, expected) in [
            ("8", 2, 500_000_000, Some(Duration::from_millis(2500))),
            ("14", 0, 0, Some(Duration::ZERO)),
            ("14", i64::MAX, i32::MAX, Some(LONGEST_DELAY)),
            ("14", -1, 0, None),
        ] {
            for is_padded in [true, false] {
                let outcome = with(status, &details(seconds, nanos, INFO), is_padded);
                let Outcome::Retry { after, .. } = outcome else { panic!("{status}: {outcome:?}") };
                assert_eq!(after, expected, "{status} {seconds} {nanos}");
            }
        }
        for details in [details(1, 0, "type.googleapis.com/google.rpc.Other"), vec![255, 255], Vec::new()] {
            assert!(matches!(with("8", &details, true), Outcome::Rejected(_)), "{details:?}");
        }
        assert!(matches!(with("3", &details(1, 0, INFO), true), Outcome::Rejected(_)));
    }

    #[test]
    fn resets_count_as_the_statuses_of_their_codes() {
        for (reason, passes) in [
            (Reason::REFUSED_STREAM, true),
            (Reason::CANCEL, true),
            (Reason::NO_ERROR, false),
            (Reason::INTERNAL_ERROR, false),
            (Reason::PROTOCOL_ERROR, false),
            (Reason::ENHANCE_YOUR_CALM, false),
            (Reason::INADEQUATE_SECURITY, false),
        ] {
            let outcome = Failure::Reset(reason).outcome("h:1");
            assert_eq!(matches!(outcome, Outcome::Retry { .. }), passes, "{reason}");
        }
        for failure in [Failure::Timeout, Failure::Lost("broken pipe".to_owned())] {
            assert!(matches!(failure.outcome("h:1"), Outcome::Retry { .. }));
        }
        // An error on the connection is no reset of a stream.
        let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        assert!(matches!(Failure::of(&broken), Failure::Lost(_)));
    }

    /// Answers the calls of one connection in turn with these, and counts the connections.
    async fn answer_calls(listener: TcpListener, answers: Vec<Option<Reason>>, connections: Rc<Cell<usize>>) {
        let answers = Rc::new(RefCell::new(answers.into_iter()));
        while let Ok((stream, _)) = listener.accept().await {
            connections.set(connections.get() + 1);
            let mut connection = h2::server::handshake(stream).await.unwrap();
            let answers = answers.clone();
            tokio::task::spawn_local(async move {
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    match answers.borrow_mut().next().unwrap() {
                        Some(reason) => respond.send_reset(reason),
                        None => {
                            let head =
                                ::http::Response::builder().header("grpc-status", "0").body(()).unwrap();
                            drop(respond.send_response(head, true).unwrap());
                        }
                    }
                }
            });
        }
    }

    #[tokio::test]
    async fn a_reset_is_sent_again_only_where_its_code_says_so() {
        let all = async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let answers = [
                None,
                Some(Reason::INTERNAL_ERROR),
                Some(Reason::CANCEL),
                Some(Reason::REFUSED_STREAM),
                None,
            ];
            let connections = Rc::new(Cell::new(0));
            tokio::task::spawn_local(answer_calls(listener, answers.to_vec(), connections.clone()));
            let mut calls = calls();
            calls.uri = format!("http://{address}/export");
            calls.server.timeout = Duration::from_secs(20);
            let records = crate::sinks::tests::taken(vec![vec![1].into()]);
            let batch = Batch { records: &records, server: 0, addresses: &[address] };
            assert_eq!(calls.deliver(batch).await, Outcome::Delivered);
            let refused = calls.deliver(batch).await;
            assert!(matches!(&refused, Outcome::Rejected(text) if text.contains("reset")), "{refused:?}");
            let cancelled = calls.deliver(batch).await;
            assert!(matches!(cancelled, Outcome::Retry { .. }), "{cancelled:?}");
            assert_eq!(connections.get(), 1, "a reset ends no connection");
            // It was not processed, so it is sent at once over another connection.
            assert_eq!(calls.deliver(batch).await, Outcome::Delivered);
            assert_eq!(connections.get(), 2);
        };
        tokio::task::LocalSet::new().run_until(all).await;
    }
}
