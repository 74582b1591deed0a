//! Tests of limit-count.

use sdk::build::Owner;
use sdk::testing::{FixedNames, Probe, respond};
use serde_json::json;

use super::*;

fn build(
    probe: &Probe,
    owner: &Owner,
    config: &Value,
    metadata: Option<&Value>,
) -> Result<LimitCount, Invalid> {
    let config = model::Schema::new(&LimitCount::schema())?.parse(config.clone())?;
    let config = serde_json::from_value(config).expect("what the schema lets through");
    let names = FixedNames::default();
    let metadata = || metadata;
    let mut cx = Build::new(owner, &probe.services, &names).with_metadata(&metadata);
    LimitCount::build(config, &mut cx)
}

fn owner(id: &str) -> Owner {
    Owner { collection: "routes", id: id.into() }
}

/// Runs a request; gives the status of the refusal (0 for none) and the three headers.
fn hit(stage: &LimitCount, probe: &mut Probe) -> (u16, [String; 3]) {
    probe.messages.response.clear();
    let mut x = probe.exchange();
    let status = match stage.access(&mut x) {
        Step::Next => 0,
        Step::Reply(reply) => reply.status,
        step => panic!("{step:?}"),
    };
    respond(&mut x, 200, &[]);
    let header = |name| String::from_utf8(x.response_header(name).unwrap_or_default().to_vec()).unwrap();
    (status, ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"].map(header))
}

fn shown(limit: &str, remaining: &str, reset: &str) -> [String; 3] {
    [limit, remaining, reset].map(str::to_owned)
}

#[test]
fn a_window_lets_count_requests_through_and_shows_what_is_left() {
    let mut probe = Probe::default();
    let stage = build(&probe, &owner("1"), &json!({"count": 2, "time_window": 60.0}), None).unwrap();
    assert_eq!(hit(&stage, &mut probe), (0, shown("2", "1", "60")));
    probe.world.now_ms.set(probe.world.now_ms.get() + 1_234);
    assert_eq!(hit(&stage, &mut probe), (0, shown("2", "0", "58.76")));
    assert_eq!(hit(&stage, &mut probe), (503, shown("2", "0", "58.76")));
    probe.world.now_ms.set(probe.world.now_ms.get() + 58_766);
    assert_eq!(hit(&stage, &mut probe), (0, shown("2", "1", "60")));
    // Another client has a limit of its own.
    let mut other = probe.from_ip("10.0.0.9");
    assert_eq!(hit(&stage, &mut other).1[1], "1");
}

#[test]
fn refusals_are_as_configured() {
    let mut probe = Probe::default();
    let config = json!({
        "count": 1, "time_window": 60, "rejected_code": 429, "rejected_msg": "slow \"down\"",
        "show_limit_quota_header": false,
    });
    let stage = build(&probe, &owner("1"), &config, None).unwrap();
    assert_eq!(hit(&stage, &mut probe), (0, shown("", "", "")));
    let mut x = probe.exchange();
    let Step::Reply(reply) = stage.access(&mut x) else { panic!("not refused") };
    assert_eq!(reply.status, 429);
    assert_eq!(&reply.body[..], b"{\"error_msg\":\"slow \\\"down\\\"\"}\n");
}

#[test]
fn limits_belong_to_resource_and_settings_and_groups_to_neither() {
    let mut probe = Probe::default();
    let config = json!({"count": 1, "time_window": 60, "key": "k", "key_type": "constant"});
    let first = build(&probe, &owner("1"), &config, None).unwrap();
    assert_eq!(hit(&first, &mut probe).0, 0);
    // The same resource and settings, compiled again: the count continues.
    assert_eq!(hit(&build(&probe, &owner("1"), &config, None).unwrap(), &mut probe).0, 503);
    assert_eq!(hit(&build(&probe, &owner("2"), &config, None).unwrap(), &mut probe).0, 0);
    let changed = json!({"count": 1, "time_window": 61, "key": "k", "key_type": "constant"});
    assert_eq!(hit(&build(&probe, &owner("1"), &changed, None).unwrap(), &mut probe).0, 0);

    let grouped = json!({"count": 1, "time_window": 60, "group": "g"});
    let first = build(&probe, &owner("1"), &grouped, None).unwrap();
    let second = build(&probe, &owner("2"), &grouped, None).unwrap();
    assert_eq!((hit(&first, &mut probe).0, hit(&second, &mut probe).0), (0, 503));
    let other = json!({"count": 2, "time_window": 60, "group": "g"});
    let checked = build(&probe, &Owner { collection: "", id: String::new() }, &other, None);
    assert_eq!(checked.err().unwrap().reason, "group conf mismatched");
}

#[test]
fn keys_are_variables_combinations_or_constants() {
    let cases = [
        (json!({"key": "http_x_user"}), "/", [("X-User", "a"), ("X-User", "b")], [0, 0]),
        (json!({"key": "http_x_user"}), "/", [("X-User", "a"), ("X-User", "a")], [0, 503]),
        // Without a value, the address counts.
        (json!({"key": "http_x_none"}), "/", [("X-User", "a"), ("X-User", "b")], [0, 503]),
        (
            json!({"key": "$http_x_user $remote_addr", "key_type": "var_combination"}),
            "/",
            [("X-User", "a"), ("X-User", "b")],
            [0, 0],
        ),
        (
            json!({"key": "$http_x_none", "key_type": "var_combination"}),
            "/",
            [("X-User", "a"), ("X-User", "b")],
            [0, 503],
        ),
        (json!({"key": "all", "key_type": "constant"}), "/", [("X-User", "a"), ("X-User", "b")], [0, 503]),
    ];
    for (mut config, target, headers, statuses) in cases {
        config["count"] = json!(1);
        config["time_window"] = json!(60);
        let first = Probe::default();
        let stage = build(&first, &owner("1"), &config, None).unwrap();
        let got = headers.map(|header| hit(&stage, &mut Probe::request("GET", target, &[header])).0);
        assert_eq!(got, statuses, "{config}");
    }
}

#[test]
fn clients_without_a_key_are_counted_by_address() {
    for config in [
        json!({"count": 1, "time_window": 60, "key": "http_x_none"}),
        json!({"count": 1, "time_window": 60, "key": "$http_x_none", "key_type": "var_combination"}),
    ] {
        let probe = Probe::default();
        let stage = build(&probe, &owner("1"), &config, None).unwrap();
        let mut ask = |ip: &str| hit(&stage, &mut Probe::default().from_ip(ip)).0;
        assert_eq!(["10.0.0.1", "10.0.0.2", "10.0.0.1"].map(&mut ask), [0, 0, 503], "{config}");
    }
}

#[test]
fn counts_and_windows_may_come_from_the_request() {
    let config = json!({"count": "${http_x_count ?? 2}", "time_window": "$http_x_window", "key": "uri"});
    let window = ("X-Window", "10");
    let mut probe = Probe::request("GET", "/", &[window]);
    let stage = build(&probe, &owner("1"), &config, None).unwrap();
    assert_eq!(hit(&stage, &mut probe), (0, shown("2", "1", "10")));
    let mut probe = Probe::request("GET", "/", &[window, ("X-Count", "9")]);
    assert_eq!(hit(&stage, &mut probe).1, shown("9", "7", "10"));
    for bad in ["0", "-3", "1.5", "many"] {
        let mut probe = Probe::request("GET", "/", &[window, ("X-Count", bad)]);
        assert_eq!(hit(&stage, &mut probe), (500, shown("", "", "")), "{bad}");
        assert_eq!(probe.world.complaints.borrow().len(), 1, "{bad}");
    }
    let mut lenient = config;
    lenient["allow_degradation"] = json!(true);
    let mut probe = Probe::default();
    let stage = build(&probe, &owner("1"), &lenient, None).unwrap();
    assert_eq!(hit(&stage, &mut probe).0, 0);
}

#[test]
fn rules_count_apart_and_show_apart() {
    let config = json!({"rules": [
        {"key": "${http_x_user}", "count": 1, "time_window": 60},
        {"key": "${http_x_team}", "count": 3, "time_window": 60, "header_prefix": "Team"},
    ]});
    let mut probe = Probe::request("GET", "/", &[("X-User", "a"), ("X-Team", "t")]);
    let stage = build(&probe, &owner("1"), &config, None).unwrap();
    let mut x = probe.exchange();
    assert!(matches!(stage.access(&mut x), Step::Next));
    respond(&mut x, 200, &[]);
    assert_eq!(x.response_header("X-1-RateLimit-Remaining"), Some(&b"0"[..]));
    assert_eq!(x.response_header("X-Team-RateLimit-Limit"), Some(&b"3"[..]));
    drop(x);
    assert_eq!(hit(&stage, &mut probe).0, 503);
    // A rule whose variable is absent does not apply; if none does, it is an error.
    let mut team = Probe::request("GET", "/", &[("X-Team", "t")]);
    assert_eq!(hit(&stage, &mut team).0, 0);
    let mut nobody = Probe::default();
    assert_eq!(hit(&stage, &mut nobody).0, 500);
    assert_eq!(
        nobody.world.complaints.borrow()[..],
        [("limit-count", "no rule applies: each has a key that is absent")]
    );
}

#[test]
fn a_sliding_window_remembers_the_last_one() {
    let mut probe = Probe::default();
    // A window of ten seconds begins here.
    probe.world.now_ms.set(1_700_000_000_000);
    let config = json!({"count": 10, "time_window": 10, "window_type": "sliding"});
    let stage = build(&probe, &owner("1"), &config, None).unwrap();
    for left in (0..10).rev() {
        assert_eq!(hit(&stage, &mut probe), (0, shown("10", &left.to_string(), "10")));
    }
    assert_eq!(hit(&stage, &mut probe), (503, shown("10", "0", "10")));
    // A quarter into the next window three quarters of the last one's ten still weigh.
    probe.world.now_ms.set(1_700_000_012_500);
    assert_eq!(hit(&stage, &mut probe).1[1], "1");
    assert_eq!(hit(&stage, &mut probe).1[1], "0");
    assert_eq!(hit(&stage, &mut probe).0, 0);
    let (status, headers) = hit(&stage, &mut probe);
    assert_eq!((status, headers[2].as_str()), (503, "0.5"));
    // Two windows later nothing weighs.
    probe.world.now_ms.set(1_700_000_032_000);
    assert_eq!(hit(&stage, &mut probe).1[1], "9");
}

#[test]
fn metadata_names_the_headers() {
    let mut probe = Probe::default();
    let metadata = json!({"limit_header": "X-My-Limit", "remaining_header": "no good"});
    let stage = build(&probe, &owner("1"), &json!({"count": 5, "time_window": 1}), Some(&metadata)).unwrap();
    let mut x = probe.exchange();
    assert!(matches!(stage.access(&mut x), Step::Next));
    respond(&mut x, 200, &[]);
    assert_eq!(x.response_header("X-My-Limit"), Some(&b"5"[..]));
    assert_eq!(x.response_header("X-RateLimit-Remaining"), None);
    assert_eq!(x.response_header("X-RateLimit-Reset"), Some(&b"1"[..]));
}

#[test]
fn the_seeds_limit_works() {
    let mut probe = Probe::default();
    let config =
        json!({"count": 2_000_000_000_000u64, "time_window": 60, "rejected_code": 503, "key": "remote_addr"});
    let stage = build(&probe, &owner("1"), &config, None).unwrap();
    assert_eq!(hit(&stage, &mut probe), (0, shown("2000000000000", "1999999999999", "60")));
}

#[test]
fn settings_are_checked() {
    let probe = Probe::default();
    let rule = json!({"key": "$a", "count": 1, "time_window": 1});
    for (config, reason) in [
        (json!({}), "value should match only one schema, but matches none"),
        (
            json!({"count": 0, "time_window": 60}),
            "property \"count\" validation failed: value should match only one schema, but matches none",
        ),
        (
            json!({"count": 2, "time_window": -1}),
            "property \"time_window\" validation failed: value should match only one schema, but matches none",
        ),
        (
            json!({"count": 2, "time_window": 60, "rejected_code": 199}),
            "property \"rejected_code\" validation failed: expected 199 to be at least 200",
        ),
        (
            json!({"count": 2, "time_window": 60, "key_type": "header"}),
            "property \"key_type\" validation failed: matches none of the enum values",
        ),
        (
            json!({"count": 2, "time_window": 60, "rules": [rule]}),
            "count/time_window and rules cannot be specified at the same time",
        ),
        (
            json!({"count": 2, "rules": [rule]}),
            "count/time_window and rules cannot be specified at the same time",
        ),
        (json!({"count": 2, "time_window": "60s"}), "`60s` is not an integer of 1 or more"),
        (json!({"count": "0", "time_window": 60}), "`0` is not an integer of 1 or more"),
        (
            json!({"rules": [{"key": "$a", "count": 1, "time_window": "1m"}]}),
            "`1m` is not an integer of 1 or more",
        ),
        (json!({"group": "g", "rules": [rule]}), "group and rules cannot be specified at the same time"),
        (json!({"rules": [rule, rule]}), "duplicate key '$a' in rules"),
        (
            json!({"count": 2, "time_window": 60, "policy": "redis", "redis_host": "127.0.0.1"}),
            "policy redis is not available in this build",
        ),
    ] {
        assert_eq!(build(&probe, &owner("1"), &config, None).err().unwrap().reason, reason, "{config}");
    }
}

#[test]
fn standard_fields_are_added_for_each_limit() {
    let fields = |config: &Value, requests: usize| {
        let mut probe = Probe::default();
        let stage = build(&probe, &owner("1"), config, None).unwrap();
        let mut found = Vec::new();
        for _ in 0..requests {
            probe.messages.response.clear();
            let mut x = probe.exchange();
            let _ = stage.access(&mut x);
            respond(&mut x, 200, &[]);
            found = crate::limits::fields::tests::shown(&x).to_vec();
        }
        found
    };
    let mut config = json!({"count": 2, "time_window": 60, "show_ratelimit_fields": true});
    let policy = vec![r#""default";q=2;w=60"#.to_owned()];
    assert_eq!(fields(&config, 1), [policy.clone(), vec![r#""default";r=1;t=60"#.to_owned()]]);
    assert_eq!(fields(&config, 3), [policy, vec![r#""default";r=0;t=60"#.to_owned()]]);
    config["show_ratelimit_fields"] = json!(false);
    assert_eq!(fields(&config, 1), [vec![], Vec::<String>::new()]);
    let rules = json!({"show_ratelimit_fields": true, "show_limit_quota_header": false, "rules": [
        {"count": 1, "time_window": 1, "key": "$remote_addr"},
        {"count": 9_007_199_254_740_991_u64, "time_window": 7, "key": "$remote_addr $host", "header_prefix": "team"},
    ]});
    let [policy, state] = &fields(&rules, 1)[..] else { panic!("two fields") };
    assert_eq!(policy, &[r#""1";q=1;w=1"#, r#""team";q=999999999999999;w=7"#]);
    assert_eq!(state, &[r#""1";r=0;t=1"#, r#""team";r=999999999999999;t=7"#]);
}

#[test]
fn standard_fields_leave_the_counters_alone() {
    let mut probe = Probe::default();
    let plain = json!({"count": 2, "time_window": 60, "group": "g"});
    let shown = json!({"count": 2, "time_window": 60, "group": "g", "show_ratelimit_fields": true});
    let first = build(&probe, &owner("1"), &plain, None).unwrap();
    let second = build(&probe, &owner("2"), &shown, None).unwrap();
    assert_eq!(hit(&first, &mut probe).1[1], "1");
    assert_eq!(hit(&second, &mut probe).1[1], "0");
}
