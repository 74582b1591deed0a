use sdk::meters::live::{Finished, Memo};

use super::*;

#[tokio::test]
async fn clients_get_an_event_each_second() {
    let meters = Arc::new(Meters::default());
    let live = Live::new(meters.clone(), 1, None);
    let shard = meters.shard(0);
    let count = |status| {
        let finished = Finished { status, took_us: Some(2000), received: 1, sent: 2 };
        shard.live.route(&Memo::default(), 0, "<r>", &finished);
        shard.live.node("127.0.0.1:1".parse().unwrap(), &finished);
    };
    count(200);
    live.tick(10, &Process::default());
    let mut events = live.events();
    assert!(events.borrow_and_update().is_empty(), "without clients no event is made");
    (0..3).for_each(|_| count(200));
    count(502);
    // The second one does not answer.
    shard.live.in_flight(|add| (1..=2).for_each(|port| add(([127, 0, 0, 1], port).into(), 3)));
    live.tick(11, &Process { worker_cpu: vec![0.5], memory: 7 });
    let event = events.borrow_and_update().clone();
    let event = std::str::from_utf8(&event).unwrap();
    let data = event.strip_prefix("event: live\ndata: ").unwrap().strip_suffix("\n\n").unwrap();
    let event: Value = serde_json::from_str(data).unwrap();
    assert_eq!(event["gateway"]["requests"], 4);
    assert_eq!(event["gateway"]["classes"], json!([0, 3, 0, 0, 1]));
    assert_eq!((&event["workers"][0]["cpu"], &event["memory"]), (&json!(0.5), &json!(7)));
    assert_eq!((&event["routes"][0]["id"], &event["nodes"][0]["id"]), (&json!("<r>"), &json!("127.0.0.1:1")));
    assert_eq!(event["worst_routes"][0]["errors"], 1);
    assert_eq!((&event["nodes"][0]["in_flight"], &event["nodes"][0]["requests"]), (&json!(3), &json!(4)));
    assert_eq!(
        (&event["nodes"][1]["in_flight"], &event["nodes"][1]["id"]),
        (&json!(3), &json!("127.0.0.1:2"))
    );
    let median = event["gateway"]["p50"].as_f64().unwrap();
    assert!((1.0..3.1).contains(&median), "{median}");
    assert_eq!(event["latencies"], json!([{ "below": 2.048, "counts": [4] }]));
    let columns = live.columns("gateway", 1).unwrap();
    assert_eq!(columns["requests"], json!([1, 4]));
    assert_eq!(columns["latencies"], json!([{ "below": 2.048, "counts": [1, 4] }]));
}

#[tokio::test(start_paused = true)]
async fn taps_end_with_their_clients_and_are_bounded() {
    let taps = Arc::new(sdk::tap::Taps::default());
    let live = Live::new(Arc::default(), 1, Some(taps.clone()));
    let open = || live.taps.open(sdk::tap::Filter::default());
    let mut clients: Vec<_> = (0..8).map(|_| open().unwrap()).collect();
    assert!(open().unwrap_err().contains("8 taps"));
    let status = clients[0].recv().await.unwrap();
    assert!(status.starts_with(b"event: status\n"), "{status:?}");
    clients.pop();
    clients.push(open().unwrap());
    clients.clear();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(taps.count(), 0);
    let off = Live::new(Arc::default(), 1, None);
    assert!(off.taps.open(sdk::tap::Filter::default()).unwrap_err().contains("sluice.tap"));
}

#[test]
fn ticks_near_full_seconds_of_the_clock_have_numbers_of_their_own() {
    let began = tokio::time::Instant::now();
    let mut clock = Clock { began, offset: 100 };
    let ms = std::time::Duration::from_millis;
    // The system's clock is at 100.999 s first, so a millisecond decides which second it shows.
    let ticks = [(999, 101), (2001, 103), (3000, 103), (3999, 104), (5002, 106)];
    let seconds = ticks.map(|(after, system)| clock.second(began + ms(after), system));
    assert_eq!(seconds, [101, 102, 103, 104, 105]);
    // A clock that is set, or a machine that slept, is followed.
    assert_eq!(clock.second(began + ms(6000), 500), 500);
    assert_eq!(clock.second(began + ms(7001), 501), 501);
    assert_eq!(clock.second(began + ms(8000), 90), 90);
}
