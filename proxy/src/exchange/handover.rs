//! Requests on the data port that the control side answers: the Admin API, where it is served there.

use sdk::exchange::Body;
use sdk::{Exchange, Reply};

use super::fault::{BodyLimit, Fault, FaultKind};
use super::phases::Flow;
use super::upload;
use crate::down::Downstream;
use crate::handoff::{Admission, Handoff, HandoffRequest};
use crate::worker::Worker;

/// Gives a whole request to the control side and makes its answer a reply.
pub(super) async fn hand_over(
    worker: &Worker,
    down: &mut Downstream<'_>,
    x: &mut Exchange<'_>,
    handoff: &dyn Handoff,
) -> Flow {
    let head = x.request();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let request = HandoffRequest {
        peer: x.client().peer.ip(),
        method: text(head.method_bytes()),
        target: text(head.target()),
        headers: head.fields.iter().map(|(name, value, _)| (text(name), value.to_vec())).collect(),
        body: bytes::Bytes::new(),
    };
    let reply = match handoff.admit(request).await {
        Some(Admission::Refused(reply)) => Some(reply),
        Some(Admission::Granted(mut request)) => {
            if let Err(fault) = upload::buffer(worker, down, x, handoff.max_body()).await {
                return Flow::Fault(fault);
            }
            if x.body_state() == Body::TooLarge {
                return Flow::Fault(Fault::client(FaultKind::BodyTooLarge(BodyLimit::Handoff)));
            }
            request.body = bytes::Bytes::copy_from_slice(x.body());
            handoff.call(request).await
        }
        None => None,
    };
    let Some(reply) = reply else {
        return Flow::Fault(Fault::gateway(FaultKind::Stopping));
    };
    for (name, value) in &reply.headers {
        // Fields that cannot stand in a head are left out.
        let _ = x.set_response_header(name, value);
    }
    Flow::Reply(Reply { status: reply.status, body: reply.body, ..Reply::default() })
}
