//! Zones: their settings, their room, and those on disk.

use cache::DiskSettings;

use super::*;

#[test]
fn of_two_stages_on_one_request_the_later_keeps_the_answer() {
    let mut global = Site::new(json!({"cache_key": ["$uri"]}));
    global.caches = Arc::new(Caches::new(
        ["m", "n"].map(|name| Settings { name: name.into(), memory_size: 1 << 20, disk: None }).into(),
    ));
    let mut probe = global.probe("GET", "/", &[]);
    let first: ProxyCache = probe.stage(global.config.clone()).unwrap();
    let route = json!({"cache_strategy": "memory", "cache_zone": "n"});
    let second: ProxyCache = probe.stage(route).unwrap();
    let stages = [&first, &second];
    let mut x = probe.exchange();
    assert!(stages.iter().all(|stage| matches!(stage.access(&mut x), Step::Next)));
    respond(&mut x, 200, &[]);
    x.engine_mut().messages.response.framing = Framing::Length(1);
    stages.iter().for_each(|stage| drop(stage.header_action(&mut x)));
    assert_eq!(stages.map(|stage| stage.filters_body(&x)), [false, true]);
    stages.iter().for_each(|stage| stage.body_filter(&mut x, &mut chunk(b"x", true)));
    drop(x);
    let used = ["m", "n"].map(|name| global.caches.zone(name).unwrap().used() > 0);
    assert_eq!(used, [false, true]);
}

#[test]
fn what_is_on_its_way_into_a_zone_counts_as_much_as_it_is_long() {
    let mut site = Site::new(json!({}));
    let zone = Settings { name: "m".into(), memory_size: 8 << 10, disk: None };
    site.caches = Arc::new(Caches::new(vec![zone]));
    let piece = [b'x'; 700];
    let mut probes = [(); 3].map(|()| site.probe("GET", "/", &[]));
    let stage: ProxyCache = probes[0].stage(site.config.clone()).unwrap();
    // Three at a time, each of an unknown length: two have room, the third has none once it has grown.
    let mut gather = probes.iter_mut().map(|probe| {
        let mut x = probe.exchange();
        assert!(matches!(stage.access(&mut x), Step::Next));
        respond(&mut x, 200, &[]);
        x.engine_mut().messages.response.framing = Framing::Chunked;
        stage.header_action(&mut x);
        (0..5).for_each(|_| stage.body_filter(&mut x, &mut chunk(&piece, false)));
        x
    });
    let on_the_way: Vec<_> = gather.by_ref().collect();
    assert_eq!(on_the_way.iter().map(|x| stage.filters_body(x)).collect::<Vec<_>>(), [true, true, false]);
}

#[test]
fn disk_follows_nginx() {
    let folder = std::env::temp_dir().join(format!("sluice-proxy-cache-{}", std::process::id()));
    let seconds = std::time::Duration::from_secs;
    let disk = DiskSettings {
        path: folder.clone(),
        size: 1 << 20,
        levels: vec![1, 2],
        ttl: seconds(10),
        read_timeout: seconds(600),
    };
    let zone = Settings { name: "d".into(), memory_size: 1 << 20, disk: Some(disk) };
    let mut site = Site::new(json!({"cache_bypass": ["$arg_b"]}));
    site.caches = Arc::new(Caches::new(vec![zone]));
    site.config["cache_strategy"] = json!("disk");
    site.config["cache_zone"] = json!("d");
    // Files that have expired by the clock on the wall are removed at the start.
    let today = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    site.now = today.as_millis() as u64;
    let flush = |site: &Site| site.caches.zone("d").unwrap().flush();
    // Once from memory, once from the file.
    let stored = |site: &Site, target: &str, headers: &[(&str, &str)]| {
        site.get(target, origin(headers, &["x"]));
        let before = site.get(target, origin(headers, &["x"])).stored;
        flush(site);
        let after = site.get(target, origin(headers, &["x"])).stored;
        assert_eq!(before, after, "{target}");
        after
    };
    assert!(stored(&site, "/plain", &[]));
    assert!(stored(&site, "/s-maxage", &[("Cache-Control", "max-age=0, s-maxage=9")]));
    assert!(stored(&site, "/accel", &[("Cache-Control", "private"), ("X-Accel-Expires", "9")]));
    let never: [&[(&str, &str)]; 4] = [
        &[("Cache-Control", "max-age=0")],
        &[("Cache-Control", "no-cache")],
        &[("Set-Cookie", "a=b")],
        &[("X-Accel-Expires", "0"), ("Cache-Control", "max-age=9")],
    ];
    for headers in never {
        assert!(!stored(&site, "/never", headers), "{headers:?}");
    }
    let bypass = site.get("/plain?b=1", origin(&[], &["x"]));
    assert_eq!((bypass.cache(), bypass.stored), ("BYPASS", false));
    assert_eq!(site.ask("POST", "/plain", &[], origin(&[], &[])).cache(), "BYPASS");
    site.now += 10_000;
    assert_eq!(site.get("/plain", origin(&[], &["y"])).cache(), "EXPIRED");
    assert_eq!(site.ask("PURGE", "/plain", &[], origin(&[], &[])).status, 200);
    // The thread that writes still may; a file it makes now would keep the folder from going.
    flush(&site);
    drop(site);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn zones_are_checked_in_apisix_words() {
    let caches = Arc::new(Caches::for_checking(vec![
        Settings { name: "memory_cache".into(), memory_size: 1, disk: None },
        Settings {
            name: "disk_cache_one".into(),
            memory_size: 1,
            disk: Some(DiskSettings {
                path: "/proc/no/such".into(),
                size: 1,
                levels: vec![],
                ttl: std::time::Duration::ZERO,
                read_timeout: std::time::Duration::ZERO,
            }),
        },
    ]));
    let build = |config: Value| {
        let mut probe = Probe::get("/");
        probe.services.extensions = sdk::build::Extensions::default().with(caches.clone());
        probe.stage::<ProxyCache>(config).err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(build(json!({})), "");
    assert_eq!(build(json!({"cache_strategy": "memory", "cache_zone": "memory_cache"})), "");
    let message = build(json!({"cache_strategy": "memory", "cache_zone": "nowhere"}));
    assert!(message.contains("cache_zone nowhere not found"), "{message}");
    for (strategy, zone) in [("memory", "disk_cache_one"), ("disk", "memory_cache")] {
        let message = build(json!({"cache_strategy": strategy, "cache_zone": zone}));
        let expected = format!("invalid or empty cache_zone for cache_strategy: {strategy}");
        assert!(message.contains(&expected), "{message}");
    }
    let message = build(json!({"cache_key": ["$uri", "$request_method"]}));
    assert!(message.contains("cache_key variable $request_method unsupported"), "{message}");
    for bad in [
        json!({"cache_key": ["${uri}"]}),
        json!({"cache_key": "$uri"}),
        json!({"cache_key": []}),
        json!({"cache_method": ["PUT"]}),
        json!({"cache_strategy": "network"}),
        json!({"cache_ttl": 0}),
        json!({"cache_http_status": [100]}),
    ] {
        assert_ne!(build(bad.clone()), "", "{bad}");
    }
}
