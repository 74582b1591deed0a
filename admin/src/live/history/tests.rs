use super::*;

fn counts(ok: u32, failed: u32) -> Counts {
    let mut counts = Counts { received: 10, sent: 100, ..Counts::default() };
    (counts.statuses[2], counts.statuses[5]) = (ok, failed);
    counts.times[11] = ok;
    counts
}

/// Takes a second in which these routes had these numbers of good requests.
fn second(history: &mut History, now: u64, routes: &[(&str, u32)]) {
    history.begin(now);
    for (id, requests) in routes {
        history.add(0, Subject::Route, &(*id).into(), &counts(*requests, 0));
    }
    history.end();
}

fn column(history: &History, of: &str, step: u64, name: &str) -> Vec<u64> {
    let columns = history.columns(of, step).unwrap();
    columns[name].as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

#[test]
fn steps_add_up_and_have_their_times() {
    let mut history = History::new(2);
    for now in 1001..=1130 {
        history.begin(now);
        history.add(1, Subject::Route, &"r".into(), &counts(3, 1));
        history.add(1, Subject::Node, &"10.0.0.1:80".into(), &counts(3, 1));
        history.end();
    }
    assert_eq!(column(&history, "gateway", 1, "requests"), vec![4; 130]);
    assert_eq!(column(&history, "worker:1", 1, "errors"), vec![1; 130]);
    assert_eq!(column(&history, "worker:0", 1, "requests"), vec![0; 130]);
    // The steps end at 1010, 1020 …, and at 1020, 1080.
    assert_eq!(column(&history, "gateway", 10, "requests"), vec![40; 13]);
    assert_eq!(column(&history, "node:10.0.0.1:80", 10, "requests"), vec![40; 13]);
    for of in ["gateway", "route:r", "node:10.0.0.1:80"] {
        assert_eq!(column(&history, of, 60, "requests"), [80, 240], "{of}");
        assert_eq!(column(&history, of, 60, "sent"), [2000, 6000], "{of}");
    }
    let columns = history.columns("gateway", 10).unwrap();
    assert_eq!((columns["from"].as_u64(), columns["until"].as_u64()), (Some(1010), Some(1130)));
    assert_eq!(columns["latencies"], json!([{ "below": 1.024, "counts": vec![30; 13] }]));
    assert_eq!(history.columns("worker:1", 10).unwrap()["latencies"], Value::Null);
    assert!(column(&history, "route:unknown", 1, "requests").is_empty());
    for (of, step) in [("gateway", 7), ("worker:2", 1), ("worker:x", 1), ("x", 1)] {
        assert!(history.columns(of, step).is_err(), "{of} {step}");
    }
}

#[test]
fn rings_forget_the_oldest_and_missed_seconds_are_empty() {
    let mut history = History::new(1);
    (1..=1000).for_each(|now| second(&mut history, now, &[("r", now as u32)]));
    let seconds = column(&history, "gateway", 1, "requests");
    assert_eq!((seconds.len(), seconds[0], seconds[899]), (900, 101, 1000));
    second(&mut history, 1004, &[("r", 7)]);
    let seconds = column(&history, "gateway", 1, "requests");
    assert_eq!(seconds[895..], [1000, 0, 0, 0, 7]);
    assert_eq!(column(&history, "route:r", 1, "requests")[895..], [1000, 0, 0, 0, 7]);
    // A clock that is set back makes no second of its own.
    second(&mut history, 900, &[("r", 1)]);
    assert_eq!(history.columns("gateway", 1).unwrap()["until"], 1004);
}

#[test]
fn the_busiest_have_rings_and_newcomers_replace_the_idle() {
    let mut history = History::new(1);
    let names: Vec<String> = (0..OF_EACH.seconds + 5).map(|id| format!("r{id:02}")).collect();
    let load: Vec<(&str, u32)> =
        names.iter().enumerate().map(|(at, id)| (id.as_str(), 100 + at as u32)).collect();
    (1..=30).for_each(|now| second(&mut history, now, &load));
    let busiest: Vec<&str> = history.busiest(Subject::Route, 3).map(|(id, _)| id).collect();
    assert_eq!(busiest, ["r24", "r23", "r22"]);
    let with_rings = |history: &History| {
        names.iter().filter(|id| !column(history, &format!("route:{id}"), 1, "requests").is_empty()).count()
    };
    assert_eq!(with_rings(&history), OF_EACH.seconds);
    // One that is clearly busier takes the ring of the least busy; the others stay.
    let mut load = load;
    load.push(("new", 1000));
    (31..=40).for_each(|now| second(&mut history, now, &load));
    assert!(!column(&history, "route:new", 1, "requests").is_empty());
    assert_eq!(with_rings(&history), OF_EACH.seconds - 1);
    assert_eq!(history.busiest(Subject::Route, 1).next().unwrap().0, "new");
}

#[test]
fn memory_is_bounded_however_many_routes_there_are() {
    let mut history = History::new(1000);
    for now in 1..=60u64 {
        history.begin(now);
        for id in 0..1000 {
            history.add(0, Subject::Route, &format!("{now}-{id}").into(), &counts(1, 1));
            history.add(0, Subject::Node, &format!("{now}-{id}").into(), &counts(1, 1));
            history.add(0, Subject::Stream, &format!("{now}-{id}").into(), &counts(1, 1));
        }
        history.end();
    }
    let subjects = [&history.routes, &history.nodes, &history.streams];
    assert!(subjects.iter().all(|subjects| subjects.all.len() <= OF_EACH.tracked));
    let wholes = std::iter::once(&history.gateway).chain(&history.workers).map(Whole::bytes).sum::<usize>();
    let pools = subjects.iter().map(|all| all.seconds.bytes() + all.long.bytes()).sum::<usize>();
    let of_tracked = size_of::<Tracked>() + size_of::<Arc<str>>() + 1;
    let tracked = subjects.iter().map(|all| all.all.capacity() * 8 / 7 * of_tracked).sum::<usize>();
    assert!(wholes + pools + tracked <= MOST_BYTES, "{wholes} + {pools} + {tracked}, {MOST_BYTES}");
    assert_eq!(history.workers.len(), MOST_WORKERS);
    assert!(history.worst(Subject::Route, 5).all(|(id, _)| id.starts_with("60-") || id.starts_with("5")));
    // Later traffic is still seen.
    (61..=80).for_each(|now| second(&mut history, now, &[("late", 500)]));
    assert_eq!(history.busiest(Subject::Route, 1).next().unwrap().0, "late");
}

#[test]
fn two_hundred_routes_and_nodes_have_a_day() {
    let mut history = History::new(1);
    let names: Vec<Arc<str>> = (0..300).map(|id| format!("{id:03}").into()).collect();
    for minute in 0..3 {
        for second in 1..=60 {
            history.begin(minute * 60 + second);
            for (at, name) in names.iter().enumerate() {
                let some = counts(10 + 2 * at as u32, 0);
                history.add(0, Subject::Route, name, &some);
                history.add(0, Subject::Node, name, &some);
            }
            history.end();
        }
    }
    for kind in ["route", "node"] {
        let long = |step| {
            let has =
                |name: &&Arc<str>| !column(&history, &format!("{kind}:{name}"), step, "requests").is_empty();
            names.iter().filter(has).count()
        };
        assert_eq!((long(1), long(10), long(60)), (20, 200, 200), "{kind}");
        let busiest = column(&history, &format!("{kind}:299"), 60, "requests");
        assert!(busiest[1..].iter().all(|minute| minute.abs_diff(608 * 60) < 20), "{busiest:?}");
    }
}

#[test]
fn streams_do_not_count_as_requests() {
    let mut history = History::new(1);
    for now in 1..=10 {
        history.begin(now);
        history.add(0, Subject::Stream, &"s".into(), &counts(2, 1));
        history.end();
    }
    assert_eq!(column(&history, "gateway", 1, "requests"), [0; 10]);
    assert_eq!(column(&history, "stream:s", 10, "requests"), [30]);
    assert_eq!(history.busiest(Subject::Stream, 5).count(), 1);
}

#[test]
fn measured_facts_are_kept_for_each_step() {
    let mut history = History::new(2);
    for now in 1..=20u32 {
        history.begin(now.into());
        let gauge = |cpu| Gauge { connections: now, cpu };
        history.measure(gauge(300), [gauge(100), gauge(200)].into_iter());
        history.end();
    }
    assert_eq!(column(&history, "worker:1", 10, "connections"), [10, 20]);
    let cpu = |of: &str, step| history.columns(of, step).unwrap()["cpu"][0].as_f64().unwrap();
    assert_eq!((cpu("gateway", 1), cpu("worker:0", 10), cpu("worker:1", 10)), (0.3, 0.1, 0.2));
}
