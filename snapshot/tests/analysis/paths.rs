//! Guards that other spellings of paths bypass.

use super::*;

/// The bypasses with these steps off, as `key/pointer, step`.
fn bypasses(text: &str, off: &[&str]) -> Vec<String> {
    let is_on = |step| !off.contains(&step);
    let paths = PathRules {
        merge_slashes: is_on("merge_slashes"),
        resolve_dots: is_on("resolve_dots"),
        decode_unreserved: is_on("decode_unreserved"),
        ..PathRules::default()
    };
    let analysis = analyse(Input {
        desired: &desired(text),
        mode: Mode::HostUri,
        options: Options::default(),
        paths,
        catalog: &Plugins,
        encrypts: true,
        stream_ports: &[],
        now: 0,
    });
    let of_code = analysis.findings.iter().filter(|one| one.code == Code::PathBypass);
    let step = |reason: &str| reason.rsplit("sluice.path.").next().unwrap().replace(" is false", "");
    of_code.map(|one| format!("{}{}, {}", one.key, one.invalid.pointer, step(&one.invalid.reason))).collect()
}

#[test]
fn routes_that_forward_other_spellings_of_a_guarded_path() {
    const DOTS: &[&str] = &["resolve_dots"];
    const SLASHES: &[&str] = &["merge_slashes"];
    const ESCAPES: &[&str] = &["decode_unreserved"];
    for (open, off, expected) in [
        ("uri: '/public/*', U", DOTS, "routes/admin/uri, resolve_dots"),
        ("uri: '/public/*', U", SLASHES, ""),
        ("uri: '/public/*', U", ESCAPES, ""),
        ("uri: '/public/*', U", &[], ""),
        ("uri: /public, U", DOTS, ""),
        ("uri: '/*', U", DOTS, "routes/admin/uri, resolve_dots"),
        ("uri: '/*', U", SLASHES, "routes/admin/uri, merge_slashes"),
        ("uri: '/*', U", ESCAPES, "routes/admin/uri, decode_unreserved"),
        ("uri: '/adm*', U", SLASHES, "routes/admin/uri, merge_slashes"),
        ("uri: '/admin/*', U", ESCAPES, ""),
        ("uri: '/*', upstream_id: same", ESCAPES, "routes/admin/uri, decode_unreserved"),
        ("uri: '/*', upstream_id: other", DOTS, ""),
        ("uri: '/*', service_id: same", DOTS, "routes/admin/uri, resolve_dots"),
        ("uri: '/*', host: other.test, U", DOTS, ""),
        ("uri: '/*', host: '*.test', U", DOTS, "routes/admin/uri, resolve_dots"),
        ("uri: '/*', plugins: {key: {}}, U", DOTS, ""),
        ("uri: '/*', plugins: {mocking: {response_example: a}}, U", DOTS, ""),
        ("uri: '/*', status: 0, U", DOTS, ""),
    ] {
        let text = format!(
            "routes:\n  - {{id: admin, uri: '/admin/*', host: a.test, plugins: {{key: {{}}}}, {UP}}}\n  - {{id: open, {}}}\n\
             upstreams:\n  - {{id: same, nodes: {{\"127.0.0.1:80\": 1}}}}\n  - {{id: other, nodes: {{\"127.0.0.1:81\": 1}}}}\n\
             services:\n  - {{id: same, upstream_id: same}}\n",
            open.replace('U', UP)
        );
        let expected: Vec<_> = (!expected.is_empty()).then(|| expected.to_owned()).into_iter().collect();
        assert_eq!(bypasses(&text, off), expected, "{open} {off:?}");
        let guarded = format!("{text}global_rules:\n  - {{id: g, plugins: {{key: {{}}}}}}\n");
        assert!(bypasses(&guarded, off).is_empty(), "{open} {off:?}");
    }
}

#[test]
fn paths_that_require_no_client_certificate() {
    let crt = include_str!("../../../tests/certs/server-ec.crt");
    let key = include_str!("../../../tests/certs/server-ec.key");
    for (skipped, expected) in [(Some(json!(["^/public/"])), 1), (None, 0)] {
        let mut client = json!({"ca": crt});
        if let Some(patterns) = skipped {
            client["skip_mtls_uri_regex"] = patterns;
        }
        let ssl = json!({"id": "1", "sni": "a.test", "cert": crt, "key": key, "client": client});
        let text = json!({"ssls": [ssl]}).to_string();
        let found = bypasses(&text, &["resolve_dots"]);
        assert_eq!(found, vec!["ssls/1/client/skip_mtls_uri_regex, resolve_dots"; expected]);
        assert!(bypasses(&text, &["merge_slashes", "decode_unreserved"]).is_empty());
    }
}
