//! The Admin API on the data port, where an operator asks for it.

use std::future::Future;
use std::sync::Arc;

use admin::Admin;
use bytes::Bytes;
use control::tasks::Task;
use proxy::{Admission, Handoff, HandoffFuture, HandoffReply, HandoffRequest};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::acme::{self as answers, Answers};

/// Requests on the data port that the control side answers.
pub struct OnDataPort {
    pub admin: Option<AdminOnDataPort>,
    /// To challenges of ACME servers, which no route can take away.
    pub answers: Option<Arc<Answers>>,
}

impl Handoff for OnDataPort {
    fn takes(&self, path: &[u8]) -> bool {
        self.answers.as_ref().is_some_and(|answers| answers.takes(path))
            || self.admin.as_ref().is_some_and(|admin| admin.takes(path))
    }

    fn max_body(&self) -> usize {
        admin::MAX_BODY
    }

    fn admit(&self, head: HandoffRequest) -> HandoffFuture<Admission> {
        match (&self.answers, &self.admin) {
            (Some(answers), _) if answers::is_for(&head.target) => {
                let reply = answers.reply(&head.target);
                Box::pin(async { Some(Admission::Refused(reply)) })
            }
            (_, Some(admin)) => admin.admit(head),
            (_, None) => Box::pin(async { None }),
        }
    }

    fn call(&self, request: HandoffRequest) -> HandoffFuture<HandoffReply> {
        match &self.admin {
            Some(admin) => admin.call(request),
            None => Box::pin(async { None }),
        }
    }
}

/// Answers `/apisix/admin` of the data port on the control threads.
pub struct AdminOnDataPort {
    pub admin: Admin,
    pub control: Handle,
}

impl AdminOnDataPort {
    fn takes(&self, path: &[u8]) -> bool {
        path.strip_prefix(b"/apisix/admin").is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    }

    fn admit(&self, head: HandoffRequest) -> HandoffFuture<Admission> {
        let admin = self.admin.clone();
        self.ask(async move {
            let peer = head.peer.to_canonical();
            match to_http(&head, Bytes::new()) {
                Ok(request) => match admin.answer_head(peer, &request.into_parts().0) {
                    Some(response) => Admission::Refused(from_http(response)),
                    None => Admission::Granted(head),
                },
                Err(error) => Admission::Refused(from_http(not_a_request(&error))),
            }
        })
    }

    fn call(&self, request: HandoffRequest) -> HandoffFuture<HandoffReply> {
        let admin = self.admin.clone();
        self.ask(async move {
            let peer = request.peer.to_canonical();
            from_http(match to_http(&request, request.body.clone()) {
                Ok(request) => admin.handle(peer, request).await,
                Err(error) => not_a_request(&error),
            })
        })
    }
}

impl AdminOnDataPort {
    /// Has something done on the control threads.
    fn ask<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> HandoffFuture<T> {
        let (answer, answered) = oneshot::channel();
        let task: Task = Box::pin(async move {
            // The worker may have lost its client meanwhile.
            let _ = answer.send(work.await);
        });
        self.control.spawn(task);
        Box::pin(async move { answered.await.ok() })
    }
}

fn to_http(request: &HandoffRequest, body: Bytes) -> http::Result<http::Request<Bytes>> {
    let mut builder = http::Request::builder().method(request.method.as_str()).uri(request.target.as_str());
    for (name, value) in &request.headers {
        builder = builder.header(name, value.as_slice());
    }
    builder.body(body)
}

fn not_a_request(error: &http::Error) -> http::Response<Bytes> {
    let body = serde_json::json!({"error_msg": format!("invalid request: {error}")});
    let mut response = http::Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = http::StatusCode::BAD_REQUEST;
    response
}

fn from_http(response: http::Response<Bytes>) -> HandoffReply {
    let (head, body) = response.into_parts();
    HandoffReply {
        status: head.status.as_u16(),
        headers: head
            .headers
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
            .collect(),
        body,
    }
}
