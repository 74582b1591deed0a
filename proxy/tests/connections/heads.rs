//! The heads that servers get: forwarded headers, the client IP of trusted proxies, hop counts, and methods.

use std::net::IpAddr;
use std::sync::Arc;

use proxy::{RealIp, RealIpSource, Settings};

use super::{OK, case};
use crate::support::{Case, Do::*};

const OWN: &str = "X-Real-IP: 127.0.0.1\r\nX-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\n\
                   X-Forwarded-Host: a\r\nX-Forwarded-Port: 9080\r\n\r\n";

/// The fields of [`OWN`] for a request that another proxy has forwarded.
const COUNTED: &str = "X-Real-IP: 127.0.0.1\r\nX-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\n\
                       X-Forwarded-Host: a\r\nX-Forwarded-Port: 9080\r\nSluice-Hops: 1\r\n\r\n";

/// Sends a request with these fields, and checks what the server gets and does not get.
fn run(
    about: &str,
    fields: &str,
    heard: Vec<&'static str>,
    unheard: Vec<&'static str>,
    settings: fn(&mut Settings),
) {
    let ask = format!("GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n").leak() as &str;
    let servers = vec![vec![Until("\r\n\r\n"), Send(OK), ToEnd]];
    Case { client: vec![Send(ask), ToEnd], servers, heard, unheard, seeds: 2, settings, ..case() }.run(about);
}

const FORWARDED: &str = "Forwarded: for=9.9.9.9\r\nX-Real-IP: 8.8.8.8\r\nX-Forwarded-For: 9.9.9.9\r\n\
                         X-Forwarded-Proto: https\r\nX-Forwarded-Host: b\r\nX-Forwarded-Port: 8443\r\n";

#[test]
fn forwarded_headers_are_kept_only_from_trusted_peers() {
    run("no forwarded headers", "", vec![OWN], vec!["Forwarded: "], |_| {});
    run(
        "trusted addresses are not configured",
        FORWARDED,
        vec![
            "X-Real-IP: 127.0.0.1\r\nX-Forwarded-For: 9.9.9.9, 127.0.0.1\r\nX-Forwarded-Proto: http\r\n\
             X-Forwarded-Host: a\r\nX-Forwarded-Port: 9080\r\nSluice-Hops: 1\r\n\r\n",
        ],
        vec!["Forwarded: ", "https", "8443", "8.8.8.8"],
        |_| {},
    );
    run("the peer is not trusted", FORWARDED, vec![COUNTED], vec!["9.9.9.9", "https", "8443"], |settings| {
        settings.trusted = Some(Arc::new(|ip| ip != IpAddr::from([127, 0, 0, 1])));
    });
    let trusting = |settings: &mut Settings| {
        settings.trusted = Some(Arc::new(|ip| ip == IpAddr::from([127, 0, 0, 1])));
    };
    run(
        "the peer is trusted",
        FORWARDED,
        vec![
            "Forwarded: for=9.9.9.9\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: b\r\nX-Forwarded-Port: 8443\r\n\
             X-Real-IP: 127.0.0.1\r\nX-Forwarded-For: 9.9.9.9, 127.0.0.1\r\nSluice-Hops: 1\r\n\r\n",
        ],
        vec![],
        trusting,
    );
    run(
        "empty fields count as absent",
        "X-Forwarded-Proto:\r\nX-Forwarded-Host:\r\nX-Forwarded-Port:\r\n",
        vec![OWN],
        vec!["X-Forwarded-Proto: \r\n", "X-Forwarded-Host: \r\n", "X-Forwarded-Port: \r\n"],
        trusting,
    );
    let one = "X-Forwarded-Host: b\r\n";
    run(
        "a single field",
        one,
        vec![one, "X-Forwarded-Proto: http\r\n"],
        vec!["X-Forwarded-Host: a"],
        trusting,
    );
}

#[test]
fn hops_are_counted_for_trusted_and_untrusted_peers() {
    run("a client's own request", "", vec![OWN], vec!["Sluice-Hops"], |_| {});
    let claimed = "X-Forwarded-For: 9.9.9.9\r\nX-Forwarded-Proto: https\r\n";
    run("with a client's own forwarded headers", claimed, vec![], vec!["Sluice-Hops"], |_| {});
    let gateways = "X-Real-IP: 9.9.9.9\r\nX-Forwarded-For: 9.9.9.9\r\n";
    run("through a gateway", gateways, vec!["Sluice-Hops: 1\r\n\r\n"], vec![], |_| {});
    let counted = "Sluice-Hops: 15\r\nX-Forwarded-For: 9.9.9.9\r\n";
    run("through 15 gateways", counted, vec!["Sluice-Hops: 16\r\n\r\n"], vec!["Hops: 15"], |_| {});
    run("not trusted", counted, vec!["Sluice-Hops: 16\r\n\r\n"], vec!["Hops: 15", "9.9.9.9"], |settings| {
        settings.trusted = Some(Arc::new(|_| false));
    });
    run("no limit", "Sluice-Hops: 70000\r\n", vec!["Sluice-Hops: 65535\r\n\r\n"], vec![], |settings| {
        settings.limits.hops = u16::MAX;
    });
    Case {
        client: vec![
            Send("GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\nSluice-Hops: 16\r\n\r\n"),
            ToEnd,
        ],
        wants: vec!["HTTP/1.1 508 Loop Detected\r\n", "too many gateways"],
        silent: true,
        seeds: 2,
        ..case()
    }
    .run("through too many gateways");
}

fn real_ip(recursive: bool, from: fn(IpAddr) -> bool) -> Option<RealIp> {
    let source = RealIpSource::named("X-Forwarded-For").unwrap();
    Some(RealIp { source, from: Arc::new(from), recursive })
}

/// The trusted addresses: loopback and 10.0.0.0/8.
fn ours(ip: IpAddr) -> bool {
    ip.is_loopback() || matches!(ip, IpAddr::V4(ip) if ip.octets()[0] == 10)
}

#[test]
fn a_trusted_proxy_sets_the_client_ip() {
    fn last(settings: &mut Settings) {
        settings.real_ip = real_ip(false, ours);
    }
    fn first_foreign(settings: &mut Settings) {
        settings.real_ip = real_ip(true, ours);
    }
    let list = "X-Forwarded-For: 8.8.8.8, 9.9.9.9, 10.0.0.1\r\n";
    let lines = "X-Forwarded-For: 8.8.8.8\r\nX-Forwarded-For: 9.9.9.9\r\nX-Forwarded-For: 10.0.0.1\r\n";
    for (about, fields) in [("a list", list), ("several lines are one list", lines)] {
        run(about, fields, vec!["X-Real-IP: 10.0.0.1\r\n"], vec![], last);
        run(about, fields, vec!["X-Real-IP: 9.9.9.9\r\n"], vec![], first_foreign);
    }
    let all_ours = "X-Forwarded-For: 10.0.0.2\r\nX-Forwarded-For: 10.0.0.1\r\n";
    run("all addresses are trusted", all_ours, vec!["X-Real-IP: 10.0.0.2\r\n"], vec![], first_foreign);
    run("no header", "", vec!["X-Real-IP: 127.0.0.1\r\n"], vec![], first_foreign);
    run("no address", "X-Forwarded-For: x\r\n", vec!["X-Real-IP: 127.0.0.1\r\n"], vec![], last);
    run("an untrusted peer", list, vec!["X-Real-IP: 127.0.0.1\r\n"], vec![], |settings| {
        settings.real_ip = real_ip(false, |_| false);
    });
    run("PROXY protocol", list, vec!["X-Real-IP: 127.0.0.1\r\n"], vec![], |settings| {
        let source = RealIpSource::named("proxy_protocol").unwrap();
        settings.real_ip = Some(RealIp { source, from: Arc::new(ours), recursive: true });
    });
}

#[test]
fn a_plugin_s_method_and_unknown_methods_reach_the_server() {
    for (line, heard) in [
        ("GET /posted", "POST /posted HTTP/1.1\r\n"),
        ("PURGE /posted", "POST /posted HTTP/1.1\r\n"),
        ("GET /found", "PROPFIND /found HTTP/1.1\r\n"),
        ("PURGE /a", "PURGE /a HTTP/1.1\r\n"),
    ] {
        let ask = format!("{line} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").leak() as &str;
        Case {
            client: vec![Send(ask), ToEnd],
            servers: vec![vec![Until("\r\n\r\n"), Send(OK), ToEnd]],
            heard: vec![heard],
            seeds: 2,
            ..case()
        }
        .run(line);
    }
    Case {
        client: vec![Send("GET /a HTTP/1.0\r\n\r\n"), ToEnd],
        servers: vec![vec![Until("\r\n\r\n"), Send(OK), ToEnd]],
        heard: vec!["GET /a HTTP/1.1\r\nHost: 10.0.0.1\r\nX-Real-IP: "],
        unheard: vec!["X-Forwarded-Host"],
        seeds: 2,
        ..case()
    }
    .run("a client without Host");
}

#[test]
fn encoded_backslashes_and_control_characters_are_refused_by_default() {
    for (path, answer) in [
        ("/none;x", "HTTP/1.1 404 "),
        ("/none%2Fx", "HTTP/1.1 404 "),
        ("/none%5Cx", "HTTP/1.1 400 "),
        ("/none%01x", "HTTP/1.1 400 "),
    ] {
        let ask = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").leak() as &str;
        let (client, wants) = (vec![Send(ask), ToEnd], vec![answer]);
        Case { client, wants, silent: true, seeds: 1, ..case() }.run(path);
    }
}
