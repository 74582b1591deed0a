//! Bounds the time of work that a plugin waits for.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use sdk::World;

/// The output of `work`, or `None` if it takes longer.
pub(crate) async fn within<T>(world: &dyn World, time: Duration, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut end) = (pin!(work), world.sleep(time));
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => end.as_mut().poll(cx).map(|()| None),
    })
    .await
}
