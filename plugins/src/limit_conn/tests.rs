//! Tests of limit-conn.

use sdk::testing::{Probe, now, respond};
use serde_json::json;

use super::*;

/// Another client of the same gateway: its requests last until it is dropped.
fn client(first: &Probe, headers: &[(&str, &str)]) -> Probe {
    Probe { services: first.services.clone(), ..Probe::request("GET", "/", headers) }
}

/// Milliseconds of delay, or the status of the refusal. The request stays in until the probe asks
/// again or goes.
fn hit(stage: &LimitConn, probe: &mut Probe) -> Result<u64, u16> {
    let mut x = probe.exchange();
    let mut step = stage.access(&mut x);
    if matches!(step, Step::Wait) {
        step = now(stage.wait(Phase::Access, &mut x));
    }
    drop(x);
    match step {
        Step::Next => Ok(probe.world.slept.borrow().iter().map(|time| time.as_millis() as u64).sum()),
        Step::Reply(reply) => Err(reply.status),
        step => panic!("{step:?}"),
    }
}

fn config(conn: u64, burst: u64) -> Value {
    json!({"conn": conn, "burst": burst, "default_conn_delay": 0.1, "key": "remote_addr"})
}

#[test]
fn so_many_are_in_and_some_more_wait() {
    let first = Probe::default();
    let stage: LimitConn = first.stage(config(2, 3)).unwrap();
    let mut clients: Vec<_> = (0..6).map(|_| client(&first, &[])).collect();
    let got: Vec<_> = clients.iter_mut().map(|probe| hit(&stage, probe)).collect();
    assert_eq!(got, [Ok(0), Ok(0), Ok(100), Ok(100), Ok(200), Err(503)]);
    // The one refused did not count; one that is over makes room.
    assert_eq!(hit(&stage, &mut client(&first, &[])), Err(503));
    clients[0].messages.clear();
    assert_eq!(hit(&stage, &mut client(&first, &[])), Ok(200));
    clients.clear();
    assert_eq!(hit(&stage, &mut client(&first, &[])), Ok(0));
    let Limit::Local(local) = &stage.limit else { panic!("not local") };
    assert_eq!(local.within(b"127.0.0.1"), 0);
}

#[test]
fn standard_fields_show_each_rule() {
    let first = Probe::default();
    let mut config = json!({"default_conn_delay": 0.1, "show_ratelimit_fields": true, "rules": [
        {"conn": 1, "burst": 1, "key": "$remote_addr"}, {"conn": 4, "burst": 0, "key": "$host $remote_addr"},
    ]});
    let policy = [r#""1";q=2;qu="concurrent-requests""#, r#""2";q=4;qu="concurrent-requests""#];
    for is_shown in [true, false] {
        config["show_ratelimit_fields"] = json!(is_shown);
        let stage: LimitConn = first.stage(config.clone()).unwrap();
        let mut clients: Vec<_> = (0..3).map(|_| client(&first, &[])).collect();
        let got: Vec<_> = clients
            .iter_mut()
            .map(|probe| {
                let mut x = probe.exchange();
                if matches!(stage.access(&mut x), Step::Wait) {
                    now(stage.wait(Phase::Access, &mut x));
                }
                respond(&mut x, 200, &[]);
                crate::limits::fields::tests::shown(&x)
            })
            .collect();
        // The first rule refuses the third request.
        let rows = [
            (&policy[..], &["\"1\";r=1", "\"2\";r=3"][..]),
            (&policy, &["\"1\";r=0", "\"2\";r=2"]),
            (&policy[..1], &["\"1\";r=0"]),
        ];
        for (got, (policy, state)) in got.iter().zip(rows) {
            let expected = [policy, state].map(|row| if is_shown { row } else { &[] });
            assert_eq!(*got, expected);
        }
    }
}

#[test]
fn refusals_are_as_configured() {
    let first = Probe::default();
    let mut config = config(1, 0);
    config["rejected_code"] = json!(429);
    config["rejected_msg"] = json!("too many");
    let stage: LimitConn = first.stage(config).unwrap();
    let mut one = client(&first, &[]);
    assert_eq!(hit(&stage, &mut one), Ok(0));
    let mut two = client(&first, &[]);
    let Step::Reply(reply) = stage.access(&mut two.exchange()) else { panic!("let in") };
    assert_eq!((reply.status, &reply.body[..]), (429, &b"{\"error_msg\":\"too many\"}\n"[..]));
}

#[test]
fn keys_are_variables_or_combinations() {
    for (key, key_type, second) in [
        ("http_x_user", "var", Ok(0)),
        ("http_x_none", "var", Err(503)),
        ("$http_x_user-$remote_addr", "var_combination", Ok(0)),
        ("$http_x_none", "var_combination", Err(503)),
    ] {
        let first = Probe::default();
        let mut config = config(1, 0);
        config["key"] = json!(key);
        config["key_type"] = json!(key_type);
        let stage: LimitConn = first.stage(config).unwrap();
        let mut one = client(&first, &[("X-User", "a")]);
        assert_eq!(hit(&stage, &mut one), Ok(0));
        assert_eq!(hit(&stage, &mut client(&first, &[("X-User", "b")])), second, "{key}");
    }
}

#[test]
fn amounts_may_come_from_the_request() {
    let first = Probe::default();
    let config = json!({"conn": "${http_x_conn ?? 1}", "burst": "$http_x_burst", "default_conn_delay": 1, "key": "uri"});
    let stage: LimitConn = first.stage(config.clone()).unwrap();
    let mut one = client(&first, &[("X-Burst", "0")]);
    assert_eq!(hit(&stage, &mut one), Ok(0));
    assert_eq!(hit(&stage, &mut client(&first, &[("X-Burst", "0")])), Err(503));
    assert_eq!(hit(&stage, &mut client(&first, &[("X-Burst", "1")])), Ok(1000));
    assert_eq!(hit(&stage, &mut client(&first, &[("X-Burst", "0"), ("X-Conn", "2")])), Ok(0));
    for bad in [("X-Burst", "x"), ("X-Burst", "-1"), ("X-Conn", "0"), ("X-Conn", "1.5")] {
        assert_eq!(hit(&stage, &mut client(&first, &[bad])), Err(500), "{bad:?}");
    }
    let mut lenient = config;
    lenient["allow_degradation"] = json!(true);
    let stage: LimitConn = first.stage(lenient).unwrap();
    assert_eq!(hit(&stage, &mut client(&first, &[])), Ok(0));
}

#[test]
fn every_rule_counts() {
    let config = json!({"default_conn_delay": 0.1, "rules": [
        {"key": "${http_x_user}", "conn": 1, "burst": 1},
        {"key": "${http_x_team}", "conn": 1, "burst": "$http_x_burst"},
    ]});
    let first = Probe::default();
    let stage: LimitConn = first.stage(config).unwrap();
    let both = [("X-User", "a"), ("X-Team", "t"), ("X-Burst", "1")];
    let mut one = client(&first, &both);
    assert_eq!(hit(&stage, &mut one), Ok(0));
    // Either rule makes it wait.
    let mut two = client(&first, &both);
    assert_eq!(hit(&stage, &mut two), Ok(200));
    assert_eq!(hit(&stage, &mut client(&first, &both)), Err(503));
    // Refused by the second rule, a request does not stay counted by the first.
    let other_user = [("X-User", "b"), ("X-Team", "t"), ("X-Burst", "1")];
    assert_eq!(hit(&stage, &mut client(&first, &other_user)), Err(503));
    assert_eq!(hit(&stage, &mut client(&first, &[("X-User", "b")])), Ok(0));
    // A rule that cannot be read is passed over; where none is left, there is nothing to go by.
    assert_eq!(hit(&stage, &mut client(&first, &[("X-User", "c"), ("X-Team", "t")])), Ok(0));
    assert_eq!(hit(&stage, &mut client(&first, &[])), Err(500));
}

#[test]
fn a_full_table_is_reported() {
    let mut first = Probe::default();
    first.services.gauges = std::sync::Arc::new(sdk::counters::Gauges::over(sdk::counters::Table::new(0)));
    let mut config = config(1, 0);
    config["key"] = json!("http_x_user");
    let stage: LimitConn = first.stage(config.clone()).unwrap();
    let users: Vec<_> = (0..20).map(|user| format!("u{user}")).collect();
    let mut clients: Vec<_> = users.iter().map(|user| client(&first, &[("X-User", user)])).collect();
    let got: Vec<_> = clients.iter_mut().map(|probe| hit(&stage, probe)).collect();
    assert!(got.contains(&Ok(0)) && got.contains(&Err(500)), "{got:?}");
    assert!(clients.iter().any(|probe| !probe.world.complaints.borrow().is_empty()));
    config["allow_degradation"] = json!(true);
    let stage: LimitConn = first.stage(config).unwrap();
    assert_eq!(hit(&stage, &mut client(&first, &[("X-User", "one more")])), Ok(0));
}

#[test]
fn settings_are_checked() {
    let probe = Probe::default();
    let rule = json!({"key": "$a", "conn": 1, "burst": 0});
    for (config, reason) in [
        (json!({}), "value should match only one schema, but matches none"),
        (
            json!({"conn": 1, "burst": 0, "key": "a", "default_conn_delay": 1, "rules": [rule]}),
            "value should match only one schema, but matches both schemas 1 and 2",
        ),
        (
            json!({"conn": 0, "burst": 0, "key": "a", "default_conn_delay": 1}),
            "property \"conn\" validation failed: value should match only one schema, but matches none",
        ),
        (
            json!({"conn": 1, "burst": 0, "key": "a", "default_conn_delay": 1, "policy": "redis", "redis_host": "a.b"}),
            "policy redis is not available in this build",
        ),
        (
            json!({"conn": "x", "burst": 0, "key": "a", "default_conn_delay": 1}),
            "`x` is not an integer of 1 or more",
        ),
        (
            json!({"conn": 1, "burst": "-1", "key": "a", "default_conn_delay": 1}),
            "`-1` is not an integer of 0 or more",
        ),
        (
            json!({"default_conn_delay": 1, "rules": [rule, {"key": "$a", "conn": "0", "burst": 0}]}),
            "`0` is not an integer of 1 or more",
        ),
    ] {
        assert_eq!(probe.stage::<LimitConn>(config.clone()).err().unwrap().reason, reason, "{config}");
    }
}
