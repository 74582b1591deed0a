//! Bad input: errors with a place and help, and no panic.

use super::*;
use crate::Severity;

#[test]
fn errors_have_a_place_and_help() {
    for (text, place, message) in [
        ("http {\n  server {\n", (2, 3), "has no end"),
        ("server { listen 80 }", (1, 10), "has no end"),
        ("server { } }", (1, 12), "unexpected `}`"),
        ("server { return 200 \"a; }", (1, 21), "has no end"),
        ("server { return 200 \"a\"b; }", (1, 24), "unexpected `b`"),
        ("server { ; }", (1, 10), "without a name"),
        ("server { include absent.conf; }", (1, 10), "does not exist"),
        ("http { include loop.conf; }", (1, 1), "includes itself"),
        ("events { }", (0, 0), "no `http`"),
        ("server { \0 }", (0, 0), "not text"),
    ] {
        let error = try_import(text).expect_err(text);
        assert_eq!((error.line, error.column), place, "{text}: {error}");
        assert!(error.message.contains(message), "{text}: {error}");
        assert!(error.hint.is_some(), "{text}");
    }
    let deep = format!("server {}", "{ a ".repeat(500));
    assert!(try_import(&deep).expect_err("deep").message.contains("nested deeper"));
    let long = "a b;\n".repeat(7 << 20);
    assert!(try_import(&long).expect_err("long").message.contains("longer than"));
}

#[test]
fn files_are_included_in_their_order() {
    let import = import("http { include conf.d/*.conf; include none/*.conf; }");
    let ports: Vec<u16> = import.listeners.iter().map(|one| one.port).collect();
    assert_eq!(ports, [81, 82]);
    assert_eq!(findings(&import), Vec::<String>::new());
    assert_eq!(&*resource(&import, "routes/port-82").place.file, "conf.d/b.conf");
    // A folder of the image that lies beside the file.
    let import = super::import("http { include /etc/nginx/conf.d/*.conf; }");
    assert_eq!(import.listeners.len(), 2);
    assert!(findings(&import)[0].starts_with("cosmetic: include /etc/nginx/conf.d/*.conf"));
}

#[test]
fn files_that_cannot_be_read_close_the_routes_around_them() {
    let import =
        server("location /a { include /srv/auth.conf; return 200 a; }\nlocation /b { return 200 b; }");
    let guard = import.findings.iter().find(|finding| finding.severity == crate::Severity::Guard).unwrap();
    let closed: Vec<&str> = guard.resources.iter().map(|key| key.id.as_str()).collect();
    assert_eq!(closed, ["port-80-a"]);
}

#[test]
fn changed_and_cut_texts_never_panic() {
    let mut seed = 7_u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below.max(1)
    };
    let parts = [
        "{",
        "}",
        ";",
        "\"",
        "'",
        "$",
        "${",
        "\\",
        "#",
        "~",
        "(",
        "[",
        "*",
        "if ",
        "location ",
        "\n",
        "é",
        "1",
    ];
    for (_, fixture) in FIXTURES {
        let chars: Vec<char> = fixture.chars().collect();
        for _ in 0..120 {
            let mut text = chars.clone();
            for _ in 0..random(6) {
                let at = random(text.len());
                match random(3) {
                    0 => text.truncate(at),
                    1 => text.splice(at..at, parts[random(parts.len())].chars()).for_each(drop),
                    _ => {
                        let end = (at + random(40)).min(text.len());
                        text.drain(at..end);
                    }
                }
            }
            let text: String = text.into_iter().collect();
            if let Ok(import) = try_import(&text) {
                check(&import);
            }
        }
    }
}

#[test]
fn every_directive_is_carried_over_or_reported() {
    for (name, fixture) in FIXTURES {
        import(fixture);
        let blocks: Vec<usize> = fixture.match_indices("{\n").map(|(at, _)| at + 1).collect();
        for at in blocks {
            let mut text = fixture.to_owned();
            text.insert_str(at, "\n  unknown_thing a b;\n");
            let import = import(&text);
            let found = findings(&import);
            let line = fixture[..at].lines().last().unwrap_or_default().trim_start();
            // Within `map`, any word is an entry.
            let is_entry = ["map", "geo"].iter().any(|word| line.starts_with(word));
            assert!(
                is_entry || found.iter().any(|finding| finding.contains("unknown_thing a b")),
                "{name}: {:?}\n{found:#?}",
                fixture[..at].lines().last()
            );
        }
    }
}

#[test]
fn files_that_may_not_be_read_close_the_routes_they_may_protect() {
    let site = "server { listen 81; location / { return 200 a; } }";
    for (text, severity) in [
        (format!("http {{ include /srv/access.conf; {site} }}"), Some(Severity::Guard)),
        (format!("http {{ include /srv/sites/*.conf; {site} }}"), Some(Severity::Guard)),
        (site.replace("location", "include /srv/access.conf; location"), Some(Severity::Guard)),
        (format!("include /usr/share/nginx/modules/*.conf; http {{ {site} }}"), Some(Severity::Cosmetic)),
        (format!("http {{ include /etc/nginx/mime.types; {site} }}"), Some(Severity::Cosmetic)),
        (format!("http {{ include conf.d/a.conf; {site} }}"), None),
    ] {
        let import = import(&text);
        let found = import.findings.iter().find(|finding| finding.construct.starts_with("include"));
        assert_eq!(found.map(|finding| finding.severity), severity, "{text}");
        let key = &import.resources.iter().find(|one| one.key.kind == model::Kind::Route).unwrap().key;
        assert_eq!(import.guards(key).count(), usize::from(severity == Some(Severity::Guard)), "{text}");
    }
}

#[test]
fn thousands_of_servers_are_read_in_a_moment() {
    let server = |at: usize| {
        format!(
            "server {{ listen 80; server_name h{at}.test *.h{at}.test; location / {{ proxy_pass http://10.0.0.1:{}; }} }}\n",
            at % 60_000 + 1
        )
    };
    let text: String = (0..10_000).map(server).collect();
    let begun = std::time::Instant::now();
    let import = import(&text);
    assert_eq!(import.resources.iter().filter(|one| one.key.kind == model::Kind::Upstream).count(), 10_000);
    // Quadratic work takes minutes.
    assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
}
