//! Requests that wait for the answer to an earlier one with the same key (RFC 9111 section 4), so that
//! many clients of one missing response cost its server one request.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use cache::{Flight, Landing};
use sdk::{Exchange, Method, Step};

use super::{GET, ProxyCache};

/// A request that waits.
struct Waiting {
    stage: usize,
    landing: Landing,
}

/// A request that has waited: it does not wait again.
struct HasWaited(usize);

impl ProxyCache {
    /// How a request with this cache status is sent. A part of a response is not stored, so nothing waits
    /// for it.
    pub(super) fn join(&self, x: &Exchange<'_>, key: &[u8], class: u8, status: &str) -> Flight {
        let waits = self.config.collapse_timeout > 0
            && class == GET
            && x.method() == Method::Get
            && matches!(status, "MISS" | "EXPIRED")
            && x.header("Range").is_none()
            && x.note::<HasWaited>().is_none_or(|waited| waited.0 != self.id());
        if waits { self.zone.join(key) } else { Flight::Alone }
    }

    pub(super) fn begin_wait(&self, x: &mut Exchange<'_>, landing: Landing) -> Step {
        x.set_note(Waiting { stage: self.id(), landing });
        Step::Wait
    }

    /// Waits for the other request, or the timeout; `false` if this one does not wait for any.
    pub(super) async fn wait_for_other(&self, x: &mut Exchange<'_>) -> bool {
        if x.note::<Waiting>().is_none_or(|waiting| waiting.stage != self.id()) {
            return false;
        }
        let Some(Waiting { landing, .. }) = x.take_note() else { return false };
        let mut landing = pin!(landing);
        let mut timeout = x.world().sleep(Duration::from_millis(self.config.collapse_timeout));
        poll_fn(|cx| match landing.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => timeout.as_mut().poll(cx),
        })
        .await;
        x.set_note(HasWaited(self.id()));
        true
    }
}
