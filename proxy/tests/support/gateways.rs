//! Gateways of a test, and what must hold at the end of each.

use std::sync::Arc;
use std::time::Duration;

use proxy::Settings;
use proxy::testing::{self, Gateway};
use sdk::meters::Meters;
use snapshot::Snapshot;

use super::resources::snapshot;

/// Checks that no worker counts a waiting client when no client is connected.
pub(super) fn check_waiting(meters: &Meters, about: &str) {
    assert_eq!(meters.read(1, |reading| reading.totals().waiting), 0, "{about}: clients that wait");
}

/// Waits until all client connections have ended, and checks that no memory is held.
pub async fn settle(gateway: &Gateway, about: &str) {
    for _ in 0..20_000 {
        if gateway.connections() == 0 {
            break;
        }
        testing::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(gateway.connections(), 0, "{about}: a connection does not end");
    assert_eq!(gateway.held(), 0, "{about}: memory for bodies was not given back");
}

pub fn check_panics(meters: &Meters, about: &str) {
    assert_eq!(meters.read(1, |reading| reading.totals().panics), 0, "{about}");
}

/// Runs a test with `count` gateways, one after the other, with a few routes to [`SERVER`].
pub fn with_gateways(
    settings: Settings,
    count: usize,
    test: impl AsyncFnOnce(testing::Gateways, Arc<Meters>) + 'static,
) {
    run_gateways(settings, snapshot(), count, test);
}

pub(super) fn run_gateways(
    settings: Settings,
    (snapshot, meters): (Snapshot, Arc<Meters>),
    count: usize,
    test: impl AsyncFnOnce(testing::Gateways, Arc<Meters>) + 'static,
) {
    let for_test = meters.clone();
    testing::run(settings, snapshot, &meters, count, async move |gateways| test(gateways, for_test).await)
        .unwrap();
}
