use std::future::Future;
use std::pin::pin;
use std::task::Waker;

use super::*;
use crate::rt::memory::{self, Schedule};
use crate::testing::beside_worker;
use crate::{Settings, testing};

#[test]
fn whoever_waits_for_a_connection_that_ends_gets_another() {
    beside_worker(Settings::default(), async |worker, _| {
        let addr = ([10, 0, 0, 1], 80).into();
        let ends = Rc::new(RefCell::new(Vec::new()));
        let taken = ends.clone();
        memory::serve(addr, move || {
            let (near, far) = memory::pair(Schedule::default(), Schedule::default());
            taken.borrow_mut().push(near);
            Ok(far)
        });
        let second = Duration::from_secs(1);
        let target = Target::plain_http2(addr, 9);
        let waiter = worker.clock.waiter();
        let mut placing = pin!(worker.links.place(&worker, &waiter, target, false));
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..2 {
            assert!(placing.as_mut().poll(&mut cx).is_pending());
            let links: Vec<_> = worker.links.by_peer.borrow().values().flatten().cloned().collect();
            let [link] = &links[..] else { panic!("{} connections", links.len()) };
            drop(drive::Driven {
                worker: worker.clone(),
                peer: Peer::plain(addr).with_h2(),
                link: link.clone(),
            });
        }
        let placed = testing::within(second, placing).await;
        assert!(matches!(placed, Some(Ok(place)) if !place.reused));
    });
}

#[test]
fn the_first_window_of_an_idle_server_is_free() {
    let settings = Settings::with(|settings| settings.budgets.upstream_windows = 0);
    let stream = settings.http2.stream_window;
    beside_worker(settings, async move |worker, _| {
        let choose = |last: u8| {
            let addr = ([10, 0, 0, last], 80).into();
            let target = Target::plain_http2(addr, 9);
            Taken::new(&worker.links.choose(&worker, &target, false).unwrap())
        };
        let narrow = |taken: &Taken| taken.0.as_ref().is_some_and(|link| link.is_narrow(stream));
        let (one, two) = (choose(1), choose(1));
        assert_eq!([narrow(&one), narrow(&two)], [false, true], "the window of the first is in use");
        let other = choose(2);
        assert!(!narrow(&other), "another server's first window");
        drop((one, two));
        assert!(!narrow(&choose(1)), "it is free again");
        // One that is about to close still holds what came on it.
        if let Some(link) = &other.0 {
            link.closing.set(true);
        }
        assert!(narrow(&choose(2)));
    });
}

#[test]
fn a_first_window_that_does_not_suffice_needs_a_part_of_the_budget() {
    let settings = Settings::with(|settings| {
        settings.budgets.upstream_windows = 100;
        settings.http2.stream_window = FIRST_WINDOW + 80;
    });
    beside_worker(settings, async |worker, _| {
        let narrow = [1, 2].map(|last| {
            let addr = ([10, 0, 0, last], 80).into();
            let target = Target::plain_http2(addr, 9);
            let link = worker.links.choose(&worker, &target, false).unwrap();
            (link.is_narrow(FIRST_WINDOW + 80), worker.upstream_windows.left())
        });
        assert_eq!(narrow, [(false, 20), (true, 20)]);
    });
}
