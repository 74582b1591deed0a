use super::*;

#[test]
fn headers_are_parsed() {
    let seconds = Duration::from_secs;
    let bounds = Bounds { error_rate: None, p99: None, window: seconds(10) };
    assert_eq!(Confirm::parse("5m"), Ok(Confirm { within: seconds(300), bounds }));
    let all = Confirm::parse("90s; max-error-rate=1%;max-p99=200ms; window=30s");
    let bounds =
        Bounds { error_rate: Some(0.01), p99: Some(Duration::from_millis(200)), window: seconds(30) };
    assert_eq!(all, Ok(Confirm { within: seconds(90), bounds }));
    for wrong in
        ["", "0s", "x", "5m; max-error-rate=200%", "5m; p99=1s", "5m; max-p99=", "5m; window=6m", "25h"]
    {
        assert!(Confirm::parse(wrong).is_err(), "{wrong}");
    }
}

fn waiting(bounds: &str) -> Waiting {
    let Confirm { within, bounds } = Confirm::parse(bounds).unwrap();
    Waiting { from: 7, until_ms: 1_000_000, within, bounds, author: "a".to_owned() }
}

fn watch(bounds: &str) -> Watch {
    let waiting = Waiting { until_ms: u64::MAX, ..waiting(bounds) };
    Watch::new(String::new(), waiting, String::new(), None)
}

#[test]
fn a_note_reads_back_and_a_set_clock_gives_no_more_time() {
    let waiting = waiting("5m; max-error-rate=1%; max-p99=200ms");
    assert_eq!(Waiting::of_text(&waiting.to_text()), Some(waiting.clone()));
    assert_eq!(Waiting::of_text(""), None);
    assert_eq!(waiting.left(900_000), Duration::from_secs(100));
    assert_eq!(waiting.left(2_000_000), Duration::ZERO);
    assert_eq!(waiting.left(0), Duration::from_secs(300));
}

fn traffic(requests: u64, errors: u64, us: u64) -> Trials {
    let meters = sdk::meters::Meters::default();
    let shard = meters.shard(0);
    meters.watch(true);
    assert!(shard.is_watched());
    (0..requests).for_each(|at| shard.watched(us, at < errors));
    meters.watched()
}

#[test]
fn time_and_bounds_decide() {
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let mut watch = watch("5m; max-error-rate=10%; max-p99=200ms");
    assert_eq!(watch.verdict(start, traffic(1_000, 900, 9)), None, "what was before does not count");
    assert_eq!(watch.verdict(after(1), traffic(1_019, 919, 9)), None, "too few to say anything");
    assert_eq!(watch.verdict(after(2), traffic(1_100, 905, 9)), None);
    let why = watch.verdict(after(3), traffic(1_200, 950, 9)).unwrap();
    assert_eq!(why, "25.00% of 200 requests failed, more than 10.00%");
    let why = watch.verdict(after(4), traffic(1_500, 900, 300_000)).unwrap();
    assert!(why.starts_with("p99 was 294 ms, more than 200 ms"), "{why}");
    let mut watch = self::watch("5m");
    assert_eq!(watch.verdict(after(299), traffic(500, 500, 1)), None);
    let why = watch.verdict(after(301), traffic(500, 500, 1)).unwrap();
    assert_eq!(why, "not confirmed within 300 s");
}

#[test]
fn requests_between_the_write_and_the_first_look_count() {
    let (start, before) = (Instant::now(), traffic(1_000, 900, 9));
    let waiting = waiting("5m; max-error-rate=10%");
    let mut watch = Watch::new(String::new(), waiting, String::new(), Some((start, before)));
    let why = watch.verdict(start + LOOK, traffic(1_024, 924, 9)).unwrap();
    assert!(why.starts_with("100.00% of 24 requests failed"), "{why}");
}

#[test]
fn only_the_window_is_judged() {
    let start = Instant::now();
    let mut watch = watch("5m; max-error-rate=50%; window=5s");
    let mut total = 0;
    for second in 0..60 {
        total += 10;
        assert_eq!(watch.verdict(start + Duration::from_secs(second), traffic(total, 0, 9)), None);
    }
    assert!(watch.seen.len() <= 7, "{}", watch.seen.len());
    assert!(watch.verdict(start + Duration::from_secs(60), traffic(total + 40, 40, 9)).is_none());
    assert!(watch.verdict(start + Duration::from_secs(61), traffic(total + 140, 140, 9)).is_some());
}

#[test]
fn a_refused_undo_is_tried_again_later() {
    let start = Instant::now();
    let mut watch = watch("5m");
    assert!(!watch.rests(start));
    assert!(!watch.refused(&StoreError::Changed.into(), start), "another write came first");
    assert!(!watch.rests(start));
    assert!(watch.refused(&StoreError::Full("the disk".to_owned()).into(), start));
    assert!(watch.rests(start + AGAIN / 2));
    assert!(!watch.rests(start + AGAIN));
}

#[tokio::test]
async fn a_change_of_the_list_of_plugins_alone_waits_too() {
    use control::store::{Memory, Store};
    let store = Memory::default();
    let confirm = Some(Confirm::parse("5m").unwrap());
    let (peer, key) = ("127.0.0.1".parse().unwrap(), crate::author::KeyName::NotAsked);
    let role = crate::config::AdminRole::Admin;
    let by = Author { peer, key, role, message: String::new(), confirm };
    let steps = vec![by.step(), Step::Plugins { names: Some(vec!["cors".to_owned()]) }];
    store.write(Box::new(move |view| by.complete(view, steps.clone()))).await.unwrap();
    assert!(store.note(NOTE).await.unwrap().is_some());
}
