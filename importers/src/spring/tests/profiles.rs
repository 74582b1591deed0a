//! Documents, profiles and imported files.

use super::{found, import_of, route};
use crate::Format;
use crate::finding::Severity;

const FORMAT: Format = Format::SpringCloudGateway;

fn with_port(port: u16) -> String {
    format!("server.port: {port}\n")
}

fn port(files: &[(&str, &str)], profiles: &[&str]) -> u16 {
    import_of(FORMAT, files, profiles).unwrap().listeners[0].port
}

#[test]
fn profiles_choose_documents_and_files() {
    let text = "server.port: 1\n---\nspring.config.activate.on-profile: prod & eu\nserver.port: 2\n\
                ---\nspring.profiles: dev\nserver.port: 3\n";
    let dev = with_port(4);
    let files = [("conf/application.yml", text), ("application-test.yaml", dev.as_str())];
    for (profiles, expected) in [
        (&[][..], 1),
        (&["prod"], 1),
        (&["prod", "eu"], 2),
        (&["dev"], 3),
        (&["dev,test"], 4),
        (&["none"], 1),
    ] {
        assert_eq!(port(&files, profiles), expected, "{profiles:?}");
    }
    let active = "spring.profiles.active: ${REGION}\nserver.port: 1\n";
    assert_eq!(port(&[("a.yml", active), ("a-eu.properties", "server.port=7")], &[]), 7);
    assert_eq!(port(&[("a.yml", active), ("a-eu.properties", "server.port=7")], &["us"]), 1);
}

#[test]
fn files_are_imported() {
    let text = "spring.config.import: ['optional:file:./none.yml', 'classpath:/b.yml', 'configserver:http://c']\n\
                server.port: 1\n";
    let routes =
        "spring.cloud.gateway.routes: [{id: a, uri: 'http://a:1', predicates: [Path=/a]}]\nserver.port: 2\n";
    let import = import_of(FORMAT, &[("a.yml", text), ("b.yml", routes)], &[]).unwrap();
    assert_eq!(import.listeners[0].port, 2);
    assert_eq!(route(&import, "a")["uris"][0], "/a");
    assert_eq!(import.resources[0].place.to_string(), "b.yml:1:36");
    let found = found(&import, Severity::Behaviour);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("spring.config.import[2]: settings of `configserver:` are not read"),
        "{found:?}"
    );

    for (text, expected) in [
        (
            "a: 1\nspring.config.import: 'file:none.yml'\n",
            "cannot import `none.yml`: the file does not exist",
        ),
        ("spring.config.import: a.yml\n", "`a.yml` imports itself"),
        ("spring.config.import: b.yml\n", "`a.yml` imports itself"),
    ] {
        let loop_back = "spring.config.import: a.yml\n";
        let error = import_of(FORMAT, &[("a.yml", text), ("b.yml", loop_back)], &[]).unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert!(error.contains("help"), "{error}");
    }
}

#[test]
fn lists_are_replaced_as_a_whole() {
    let text = "spring.cloud.gateway.routes:\n- {id: a, uri: 'http://a:1', predicates: [Path=/a]}\n\
                - {id: b, uri: 'http://b:1', predicates: [Path=/b]}\n---\nspring:\n  config.activate.on-profile: x\n  \
                cloud.gateway.routes:\n  - {id: c, uri: 'http://c:1', predicates: [Path=/c]}\n";
    let import = import_of(FORMAT, &[("a.yml", text)], &["x"]).unwrap();
    let ids: Vec<_> = import.resources.iter().map(|resource| resource.key.id.as_str()).collect();
    assert_eq!(ids, ["c", "preflight"]);
    assert_eq!(import.resources[0].place.position.line, 8);
}
