//! Broken and hostile files.

use proptest::prelude::*;
use serde_json::json;

use super::*;

#[test]
fn broken_files_are_errors_with_places() {
    for (text, line) in [
        ("_format_version: \"3.0\"\nservices: [\n", 2),
        ("_format_version: \"9\"\n", 1),
        ("- a\n", 0),
        ("\0", 0),
        ("a: &a [*a]\n", 1),
        ("{\"_format_version\": \"3.0\"", 1),
        ("services:\n- name: a\n  name: b\n", 3),
    ] {
        let error = try_import(text).unwrap_err();
        assert!(error.line >= line && !error.message.is_empty(), "{text:?}: {error}");
    }
    let bomb = format!(
        "a: &a [x]\n{}",
        (0..30)
            .map(|n| format!("{}: &{} [*{}, *{}]\n", name(n + 1), name(n + 1), name(n), name(n)))
            .collect::<String>()
    );
    assert!(try_import(&bomb).is_err());
    assert!(try_import(&"[".repeat(100_000)).is_err());
    assert!(try_import(&format!("services: {}", "[{a: ".repeat(1000))).is_err());
}

fn name(number: usize) -> String {
    if number == 0 { "a".to_owned() } else { format!("a{number}") }
}

#[test]
fn values_of_other_types_are_no_panics() {
    for text in [
        "services: 5",
        "services: {a: b}",
        "services: [5, null, [a]]",
        "services: [{routes: 5}]",
        "plugins: [{name: 5}]",
        "services: [{url: 5, routes: [{paths: 5, hosts: {a: b}, headers: [a], methods: 7}]}]",
        "plugins: [{name: cors, config: 5}, {name: cors, config: [a]}, {name: rate-limiting}, {config: {}}]",
        "consumers: [{}, {username: 5}, {username: ''}, 7]",
        "upstreams: [{name: a, targets: [{target: ':'}, {target: '[::1'}, 5], healthchecks: 5}]",
        "routes: [{paths: ['', '~', '~(', '/%', '/%zz', '/é*?'], hosts: ['', '*', '*.', ':', '*:80', 'é']}]",
        "services: [{url: '://'}, {url: 'http://:80'}, {url: 'http://[::1]:x/'}, {url: ''}, {host: 'a b', port: 99999}]",
        "certificates: [5, {cert: 5, snis: 7}]",
        "snis: [5]",
        "_info: 5",
        "_plugin_configs: [a]",
        "_info: {defaults: 5}",
        "x: '${'",
        "x: '${{'",
        "x: '${{ env \"'",
        "x: '${}'",
        "x: '{vault://env/}'",
    ] {
        let imported = import(text);
        assert_valid(&imported, text);
    }
}

#[test]
fn files_with_too_many_routes_are_errors() {
    let many = "0,".repeat(crate::kong::MAX_ROUTES);
    let error = try_import(&format!("{{\"services\": [{many}0]}}")).err().unwrap();
    assert!(error.message.contains("more than 100000"), "{error}");
    assert!(error.hint.is_some());
    let list = |prefix: &str| (0..2001).map(|n| format!("{prefix}{n}")).collect::<Vec<_>>().join(", ");
    let pairs = format!("routes: [{{hosts: [{}], paths: [{}]}}]", list("h"), list("/p"));
    let error = try_import(&format!("_format_version: '3.0'\n{pairs}")).err().unwrap();
    assert!(error.message.contains("pairs of a host and a path"), "{error}");
    let plugins = "- {name: cors}\n".repeat(2001) + "routes:\n" + &"- {paths: [/]}\n".repeat(2000);
    let error = try_import(&format!("_format_version: '3.0'\nplugins:\n{plugins}")).err().unwrap();
    assert!(error.message.contains("apply more than"), "{error}");
}

/// Each part was once compared with all others of its kind, so that a file of twice the size took four times
/// as long.
#[test]
fn large_files_are_read_at_once() {
    let each = |make: &dyn Fn(usize) -> Value| (0..4000).map(make).collect::<Vec<_>>();
    let text = json!({
        "_format_version": "3.0",
        "services": each(&|n| json!({"name": format!("s{n}"), "host": format!("u{n}")})),
        // Without names: their ids are numbered.
        "routes": each(&|n| json!({
            "id": format!("r{n}"), "service": format!("s{}", n % 2), "hosts": [format!("h{n}.test")],
        })),
        "plugins": each(&|n| json!({"name": "request-termination", "route": format!("r{n}")})),
        "upstreams": each(&|n| json!({"name": format!("u{n}")})),
    });
    let import = import(&text.to_string());
    let of = |kind| import.resources.iter().filter(|one| one.key.kind == kind).count();
    let kinds = [model::Kind::Service, model::Kind::Route, model::Kind::Upstream];
    assert_eq!(kinds.map(of), [4000, 4000, 4000]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn cut_and_changed_files_are_no_panics(which in 0..FIXTURES.len(), from in 0.0..1.0_f64, length in 0..40_usize, with in "[ -~\n]{0,6}") {
        let (_, text) = FIXTURES[which];
        let start = text.floor_char_boundary((text.len() as f64 * from) as usize);
        let end = text.ceil_char_boundary((start + length).min(text.len()));
        let changed = format!("{}{with}{}", &text[..start], &text[end..]);
        if let Ok(import) = try_import(&changed) {
            let _ = document(&import);
        }
        let _ = try_import(&text[..start]);
    }
}

#[test]
fn lists_of_acl_are_bounded_together() {
    let consumers = |count: usize, group: &str| -> String {
        (0..count)
            .map(|n| {
                format!("- {{username: c{n}, acls: [{{group: {}}}]}}\n", group.replace('#', &n.to_string()))
            })
            .collect()
    };
    let services = |count: usize, group: &str| -> String {
        let acl = |n: usize| {
            format!("plugins: [{{name: acl, config: {{allow: [{}]}}}}]", group.replace('#', &n.to_string()))
        };
        (0..count)
            .map(|n| {
                format!("- {{name: s{n}, url: \"http://a\", {}, routes: [{{paths: [/{n}]}}]}}\n", acl(n))
            })
            .collect()
    };
    let closed = |services: String, consumers: String| {
        let text = format!("_format_version: \"3.0\"\nservices:\n{services}consumers:\n{consumers}");
        let import = import(&text);
        import.findings.iter().filter(|one| one.effect.starts_with("refuses all consumers")).count()
    };
    // Each list has one name, so that the length of the file decides.
    assert_eq!(closed(services(3_000, "g#"), consumers(3_000, "g#")), 0);
    let most = crate::kong::plugins::convert::MAX_NAMES;
    assert_eq!(closed(services(most / 1000 + 2, "g"), consumers(1_000, "g")), 2);
}
