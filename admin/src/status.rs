//! The status listener (`127.0.0.1:7085`): liveness and readiness.

use std::sync::Arc;

use http::{Method, Response, StatusCode};
use serde_json::json;

use crate::answer;
use crate::program::Program;
use crate::server::{self, Limits, Listener};

/// Serves `GET /status` and `GET /status/ready` on `listener` until it stops.
pub async fn serve(listener: Listener, limits: Limits, program: Arc<dyn Program>) {
    server::serve(listener, limits, move |_, request| {
        let program = program.clone();
        async move {
            let asks = matches!(*request.method(), Method::GET | Method::HEAD);
            match request.uri().path() {
                "/status" if asks => well(),
                "/status/ready" if asks => ready(&*program),
                _ => answer::empty(StatusCode::NOT_FOUND),
            }
        }
    })
    .await;
}

fn ready(program: &dyn Program) -> Response<bytes::Bytes> {
    match program.ready() {
        Ok(()) => well(),
        Err(error) => {
            answer::json(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "error", "error": error }))
        }
    }
}

fn well() -> Response<bytes::Bytes> {
    answer::json(StatusCode::OK, &json!({ "status": "ok" }))
}
