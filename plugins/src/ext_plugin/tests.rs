//! Calls of a runner in memory.

use std::path::Path;
use std::sync::Arc;

use sdk::build::Extensions;
use sdk::connection::{AsyncReadExt, AsyncWriteExt};
use sdk::exchange::Source;
use sdk::testing::{Pipe, Probe, now, pipe, reused_pipe};
use sdk::{Chunk, Phase, Plugin};

use super::flat::{Field, message};
use super::*;
use crate::ext_plugin_post_resp::ExtPluginPostResp;
use crate::ext_plugin_pre_req::ExtPluginPreReq;

const TOKEN: u32 = 7;

fn probe() -> Probe {
    let mut probe = Probe::request("GET", "/a?b=1", &[("Host", "example.com"), ("X-A", "1")]);
    probe.services.extensions = Extensions::default().with(Arc::new(Runner::new(Path::new("/runner.sock"))));
    probe.world.sleeps_last.set(true);
    probe
}

fn stage(probe: &Probe) -> ExtPluginPreReq {
    probe.stage(json!({"conf": [{"name": "one", "value": "{}"}]})).expect("a valid configuration")
}

fn frame(kind: u8, message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("a short message").to_be_bytes();
    [&[kind], &length[1..], message].concat()
}

fn token() -> Vec<u8> {
    frame(1, &message(&[Field::U32(TOKEN)]))
}

/// An answer that changes nothing.
fn nothing() -> Vec<u8> {
    frame(2, &message(&[Field::U32(1)]))
}

/// A runner that sends this on the next connection.
fn runner(
    probe: &Probe,
    (connection, mut server): (sdk::connection::Connection, Pipe),
    sends: &[u8],
) -> Pipe {
    now(server.write_all(sends)).expect("a client");
    probe.world.connections.borrow_mut().push_back(Ok(connection));
    server
}

fn run(stage: &ExtPluginPreReq, probe: &mut Probe) -> Step {
    let mut x = probe.exchange();
    match stage.rewrite(&mut x) {
        Step::Wait => now(stage.wait(Phase::Rewrite, &mut x)),
        step => step,
    }
}

/// The types of the messages that a runner has received.
fn received(server: &mut Pipe) -> Vec<u8> {
    let mut bytes = [0; 1 << 16];
    let length = now(server.read(&mut bytes)).expect("messages");
    let (mut rest, mut kinds) = (&bytes[..length], Vec::new());
    while let [kind, long, mid, low, after @ ..] = rest {
        kinds.push(*kind);
        let length = usize::from(*long) << 16 | usize::from(*mid) << 8 | usize::from(*low);
        rest = &after[length..];
    }
    kinds
}

#[test]
fn the_configuration_is_sent_until_it_is_known() {
    let mut probe = probe();
    let stage = stage(&probe);
    let mut first = runner(&probe, pipe(), &[token(), nothing()].concat());
    assert!(matches!(run(&stage, &mut probe), Step::Next));
    assert_eq!((received(&mut first), first.kept().is_some()), (vec![1, 2], true));
    let mut second = runner(&probe, pipe(), &nothing());
    assert!(matches!(run(&stage, &mut probe), Step::Next));
    assert_eq!(received(&mut second), [2]);
    // The process has ended.
    probe.services.extensions.get::<Runner>().expect("the runner").forget_tokens();
    let mut third = runner(&probe, pipe(), &[token(), nothing()].concat());
    assert!(matches!(run(&stage, &mut probe), Step::Next));
    assert_eq!(received(&mut third), [1, 2]);
    // It does not know the token: once more, on another connection.
    let unknown = frame(0, &message(&[Field::U8(2)]));
    let fourth = runner(&probe, pipe(), &unknown);
    let mut fifth = runner(&probe, pipe(), &[token(), nothing()].concat());
    assert!(matches!(run(&stage, &mut probe), Step::Next));
    assert_eq!((received(&mut fifth), fourth.kept()), (vec![1, 2], None));
    // Not for ever.
    for _ in 0..3 {
        runner(&probe, pipe(), &[token(), unknown.clone()].concat());
    }
    assert!(matches!(run(&stage, &mut probe), Step::Reply(reply) if reply.status == 503));
}

#[test]
fn idle_connections_may_be_dead() {
    let mut probe = probe();
    let stage = stage(&probe);
    for _ in 0..2 {
        let (connection, server) = reused_pipe();
        drop(server);
        probe.world.connections.borrow_mut().push_back(Ok(connection));
    }
    let _server = runner(&probe, pipe(), &[token(), nothing()].concat());
    assert!(matches!(run(&stage, &mut probe), Step::Next));
    assert!(probe.world.complaints.borrow().is_empty());
    assert_eq!(probe.world.opened.borrow().len(), 3);
}

#[test]
fn a_call_that_the_runner_has_got_is_not_repeated() {
    let mut probe = probe();
    let stage = stage(&probe);
    let mut server = runner(&probe, reused_pipe(), &[]);
    now(server.close()).expect("a client");
    let mut unused = runner(&probe, pipe(), &[token(), nothing()].concat());
    assert!(matches!(run(&stage, &mut probe), Step::Reply(reply) if reply.status == 503));
    assert_eq!(received(&mut server), [1]);
    assert_eq!((probe.world.opened.borrow().len(), unused.kept()), (1, None));
    now(unused.close()).expect("a client");
}

#[test]
fn a_runner_changes_the_arguments_that_it_has_seen() {
    for (uri, args, expected) in [
        (None, vec![], "/p?b=1"),
        (Some("/new?x=1"), vec![], "/p?x=1"),
        (Some("/new?x=1&b=2"), vec![(&b"b"[..], None), (b"y", Some(&b"3"[..]))], "/p?x=1&y=3"),
        (Some("/new"), vec![], "/p"),
    ] {
        let mut probe = probe();
        let mut x = probe.exchange();
        if let Some(uri) = uri {
            x.set_upstream_uri(uri.as_bytes());
        }
        changes::rewrite(&mut x, Some(b"/p"), &[], &args, &[]);
        assert_eq!(x.rewritten_uri(), Some(expected.as_bytes()));
    }
}

/// A response of the upstream, whose header filter has run.
fn responded(x: &mut Exchange<'_>, stage: &ExtPluginPostResp, status: u16) -> Step {
    let engine = x.engine_mut();
    engine.source = Source::Upstream;
    engine.messages.response.status = status;
    stage.header_action(x)
}

#[test]
fn a_response_in_the_place_of_the_upstream_s_is_not_the_runner_s() {
    let mut probe = probe();
    let stage: ExtPluginPostResp = probe.stage(json!({})).expect("a valid configuration");
    let mut x = probe.exchange();
    assert!(matches!(responded(&mut x, &stage, 200), Step::Next));
    assert!(stage.holds_body(&x));
    let mut chunk = Chunk { data: b"half".to_vec(), last: false, refused: false };
    assert!(matches!(stage.body_action(&mut x, &mut chunk), Step::Next) && chunk.data.is_empty());
    // The upstream breaks off.
    x.engine_mut().source = Source::Gateway;
    assert!(matches!(stage.header_action(&mut x), Step::Next));
    assert!(!stage.filters_body(&x) && !stage.holds_body(&x));
    drop(x);
    assert_eq!(probe.world.budget.taken(), 0);
}

#[test]
fn no_response_passes_without_the_runner() {
    for (status, waits) in [(200, false), (204, true), (205, true), (304, true)] {
        let mut probe = probe();
        let stage: ExtPluginPostResp = probe.stage(json!({})).expect("a valid configuration");
        let mut x = probe.exchange();
        assert_eq!(matches!(responded(&mut x, &stage, status), Step::Wait), waits, "{status}");
        assert!(stage.holds_body(&x));
    }
    for (degrades, refused) in [(false, true), (true, false)] {
        let mut probe = probe();
        let stage: ExtPluginPostResp =
            probe.stage(json!({"allow_degradation": degrades})).expect("a valid configuration");
        let step = responded(&mut probe.exchange(), &stage, 101);
        assert_eq!(matches!(step, Step::Reply(reply) if reply.status == 503), refused);
    }
}

#[test]
fn wrong_answers_are_refused() {
    for answer in [
        Vec::new(),
        frame(77, b""),
        frame(2, b""),
        frame(2, &[0xff; 40]),
        frame(2, &message(&[Field::U32(1), Field::U8(9)])),
        frame(0, b""),
        frame(0, &message(&[Field::U8(1)])),
        frame(1, &message(&[Field::U32(1)])),
        frame(3, b"no question"),
    ] {
        let mut probe = probe();
        let stage = stage(&probe);
        let mut server = runner(&probe, pipe(), &[token(), answer.clone()].concat());
        now(server.close()).expect("a client");
        assert!(matches!(run(&stage, &mut probe), Step::Reply(reply) if reply.status == 503), "{answer:?}");
        assert_eq!(probe.world.complaints.borrow().len(), 1);
        assert_eq!(probe.world.budget.taken(), 0);
    }
    let mut probe = probe();
    let lenient: ExtPluginPreReq =
        probe.stage(json!({"allow_degradation": true})).expect("a valid configuration");
    assert!(matches!(run(&lenient, &mut probe), Step::Next), "without a runner");
}
