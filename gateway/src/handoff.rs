//! The Admin API on the data port, where an operator asks for it.

use std::net::IpAddr;

use admin::Admin;
use bytes::Bytes;
use proxy::{Handoff, HandoffFuture, HandoffReply, HandoffRequest};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Answers `/apisix/admin` of the data port on the control threads.
pub struct AdminOnDataPort {
    pub admin: Admin,
    pub control: Handle,
}

impl Handoff for AdminOnDataPort {
    fn takes(&self, path: &[u8]) -> bool {
        path.strip_prefix(b"/apisix/admin").is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    }

    fn max_body(&self) -> usize {
        admin::MAX_BODY
    }

    fn call(&self, request: HandoffRequest) -> HandoffFuture {
        let (answer, answered) = oneshot::channel();
        let admin = self.admin.clone();
        self.control.spawn(async move {
            // The worker may have lost its client meanwhile.
            let _ = answer.send(ask(&admin, request).await);
        });
        Box::pin(async move { answered.await.ok() })
    }
}

async fn ask(admin: &Admin, request: HandoffRequest) -> HandoffReply {
    let HandoffRequest { peer, method, target, headers, body } = request;
    let peer: IpAddr = peer.to_canonical();
    let mut builder = http::Request::builder().method(method.as_str()).uri(target);
    for (name, value) in headers {
        builder = builder.header(name, value);
    }
    let response = match builder.body(body) {
        Ok(request) => admin.handle(peer, request).await,
        Err(error) => {
            let body = serde_json::json!({"error_msg": format!("invalid request: {error}")});
            let mut response = http::Response::new(Bytes::from(body.to_string()));
            *response.status_mut() = http::StatusCode::BAD_REQUEST;
            response
        }
    };
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
