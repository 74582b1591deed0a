use serde_json::json;

use super::*;

#[test]
fn times_are_nginxs() {
    for (text, millis) in [
        ("60s", Some(60_000)),
        ("500ms", Some(500)),
        ("1h30m", Some(5_400_000)),
        ("1d 12h", Some(129_600_000)),
        ("10", Some(10_000)),
        ("", None),
        ("s", None),
        ("-1s", None),
        ("1x", None),
        ("99999999999999999999s", None),
        ("4294967295y", None),
    ] {
        let parsed = time(&json!(text)).ok().map(|time| time.as_millis());
        assert_eq!(parsed, millis, "{text}");
    }
    assert_eq!(time(&json!(2.5)).unwrap(), Duration::from_millis(2500));
    assert!(time(&json!(-1)).is_err());
    assert!(time(&json!(1e300)).is_err());
}

#[test]
fn sizes_are_nginxs() {
    for (text, bytes) in [
        ("10m", Some(10 << 20)),
        ("8K", Some(8 << 10)),
        ("1G", Some(1 << 30)),
        ("0", Some(0)),
        ("", None),
        ("m", None),
        ("1t", None),
        ("99999999999g", None),
    ] {
        assert_eq!(size(&json!(text)).ok(), bytes, "{text}");
    }
    assert_eq!(size(&json!(16384)).unwrap(), 16384);
    assert_eq!(buffers(&json!("4 8k")).unwrap(), 32 << 10);
    assert!(buffers(&json!("8k")).is_err());
}

#[test]
fn refusals_say_which_item() {
    let invalid = list(&json!(["127.0.0.1", "10.0.0.0/33"]), network).unwrap_err();
    assert_eq!(invalid.pointer, "/1");
    assert_eq!(invalid.got.as_deref(), Some("`10.0.0.0/33`"));
    let invalid = one_of(&json!("radixtree_urii"), &["radixtree_host_uri", "radixtree_uri"]).unwrap_err();
    assert_eq!(invalid.hint.as_deref(), Some("did you mean `radixtree_uri`?"));
    let invalid = zones(&json!([{"name": "a", "memory_size": "1m"}, {"name": "a", "memory_size": "1m"}]));
    assert_eq!(invalid.unwrap_err().pointer, "/1/name");
    let invalid = zones(&json!([{"name": "a", "memory_size": "1m", "disk_size": "1g"}])).unwrap_err();
    assert_eq!(invalid.reason, "property \"disk_path\" is required");
    assert_eq!(buckets(&json!([1, 2, 2])).unwrap_err().pointer, "/2");
}
