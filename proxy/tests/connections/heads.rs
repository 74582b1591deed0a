//! What a server is told of a request, of the client and of those before it, and whose word about them is
//! believed.

use std::net::IpAddr;
use std::sync::Arc;

use proxy::{RealIp, RealIpSource, Settings};

use super::support::{Case, Do::*};
use super::{OK, case};

const OWN: &str = "X-Real-IP: 127.0.0.1\r\nX-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\n\
                   X-Forwarded-Host: a\r\nX-Forwarded-Port: 9080\r\n\r\n";

/// The same of a request that came by a proxy.
const COUNTED: &str = "X-Real-IP: 127.0.0.1\r\nX-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\n\
                       X-Forwarded-Host: a\r\nX-Forwarded-Port: 9080\r\nSluice-Hops: 1\r\n\r\n";

/// A request with these fields, and what the server is to get among others, and what not.
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

const OF_OTHERS: &str = "Forwarded: for=9.9.9.9\r\nX-Real-IP: 8.8.8.8\r\nX-Forwarded-For: 9.9.9.9\r\n\
                         X-Forwarded-Proto: https\r\nX-Forwarded-Host: b\r\nX-Forwarded-Port: 8443\r\n";

#[test]
fn only_who_is_trusted_tells_of_others() {
    run("nobody tells of others", "", vec![OWN], vec!["Forwarded: "], |_| {});
    run(
        "nobody said who is to be believed",
        OF_OTHERS,
        vec![
            "X-Real-IP: 127.0.0.1\r\nX-Forwarded-For: 9.9.9.9, 127.0.0.1\r\nX-Forwarded-Proto: http\r\n\
             X-Forwarded-Host: a\r\nX-Forwarded-Port: 9080\r\nSluice-Hops: 1\r\n\r\n",
        ],
        vec!["Forwarded: ", "https", "8443", "8.8.8.8"],
        |_| {},
    );
    run("the peer is not trusted", OF_OTHERS, vec![COUNTED], vec!["9.9.9.9", "https", "8443"], |settings| {
        settings.trusted = Some(Arc::new(|ip| ip != IpAddr::from([127, 0, 0, 1])));
    });
    let trusting = |settings: &mut Settings| {
        settings.trusted = Some(Arc::new(|ip| ip == IpAddr::from([127, 0, 0, 1])));
    };
    run(
        "the peer is trusted",
        OF_OTHERS,
        vec![
            "Forwarded: for=9.9.9.9\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: b\r\nX-Forwarded-Port: 8443\r\n\
             X-Real-IP: 127.0.0.1\r\nX-Forwarded-For: 9.9.9.9, 127.0.0.1\r\nSluice-Hops: 1\r\n\r\n",
        ],
        vec![],
        trusting,
    );
    run(
        "what it says without a value is not said",
        "X-Forwarded-Proto:\r\nX-Forwarded-Host:\r\nX-Forwarded-Port:\r\n",
        vec![COUNTED],
        vec!["X-Forwarded-Proto: \r\n", "X-Forwarded-Host: \r\n", "X-Forwarded-Port: \r\n"],
        trusting,
    );
    let one = "X-Forwarded-Host: b\r\n";
    run(
        "it says one thing",
        one,
        vec![one, "X-Forwarded-Proto: http\r\n"],
        vec!["X-Forwarded-Host: a"],
        trusting,
    );
}

#[test]
fn gateways_are_counted_whatever_the_peer_is_trusted_with() {
    let others = "X-Forwarded-For: 9.9.9.9\r\n";
    run("a client's own request", "", vec![OWN], vec!["Sluice-Hops"], |_| {});
    run("it came by a proxy", others, vec!["Sluice-Hops: 1\r\n\r\n"], vec![], |_| {});
    let counted = "Sluice-Hops: 15\r\nX-Forwarded-For: 9.9.9.9\r\n";
    run("by gateways", counted, vec!["Sluice-Hops: 16\r\n\r\n"], vec!["Hops: 15"], |_| {});
    run("not trusted", counted, vec!["Sluice-Hops: 16\r\n\r\n"], vec!["Hops: 15", "9.9.9.9"], |settings| {
        settings.trusted = Some(Arc::new(|_| false));
    });
    run("no limit", "Sluice-Hops: 70000\r\n", vec!["Sluice-Hops: 65535\r\n\r\n"], vec![], |settings| {
        settings.max_hops = u16::MAX;
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
    .run("by too many");
}

fn real_ip(recursive: bool, from: fn(IpAddr) -> bool) -> Option<RealIp> {
    let source = RealIpSource::named("X-Forwarded-For").unwrap();
    Some(RealIp { source, from: Arc::new(from), recursive })
}

/// Our own, and those in 10.0.0.0/8.
fn ours(ip: IpAddr) -> bool {
    ip.is_loopback() || matches!(ip, IpAddr::V4(ip) if ip.octets()[0] == 10)
}

#[test]
fn a_trusted_peer_tells_the_client_s_address() {
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
    run("all of them are ours", all_ours, vec!["X-Real-IP: 10.0.0.2\r\n"], vec![], first_foreign);
    run("nothing is told", "", vec!["X-Real-IP: 127.0.0.1\r\n"], vec![], first_foreign);
    run("no address", "X-Forwarded-For: x\r\n", vec!["X-Real-IP: 127.0.0.1\r\n"], vec![], last);
    run("of somebody else", list, vec!["X-Real-IP: 127.0.0.1\r\n"], vec![], |settings| {
        settings.real_ip = real_ip(false, |_| false);
    });
    run("PROXY protocol", list, vec!["X-Real-IP: 127.0.0.1\r\n"], vec![], |settings| {
        let source = RealIpSource::named("proxy_protocol").unwrap();
        settings.real_ip = Some(RealIp { source, from: Arc::new(ours), recursive: true });
    });
}

#[test]
fn a_stage_s_method_goes_to_the_server_and_an_unknown_one_as_it_came() {
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
    .run("a client that names no host");
}

#[test]
fn what_servers_may_read_in_two_ways_is_refused_only_where_somebody_says_so() {
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
