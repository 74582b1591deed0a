//! Chains of instances that record their calls.

use std::sync::Mutex;

use serde_json::json;

use super::*;
use crate::exchange::Body;
use crate::testing::{Probe, chunk, now, respond, with_body};
use crate::verdict::Undecidable;

/// The calls of all instances of a test, in order.
type Calls = Arc<Mutex<Vec<String>>>;

/// Records its calls.
struct Recorder {
    name: &'static str,
    phases: Phases,
    calls: Calls,
    logs_on_demand: bool,
    /// In this phase it returns something other than [`Step::Next`].
    answers: Option<(Phase, fn() -> Step)>,
    looks_at_body: bool,
    holds_body: bool,
    refuses: Option<Doubtful>,
}

impl Recorder {
    fn record(&self, phase: Phase) -> Step {
        self.calls.lock().unwrap().push(format!("{} {phase:?}", self.name));
        match self.answers {
            Some((here, answer)) if here == phase => answer(),
            _ => Step::Next,
        }
    }
}

impl Instance for Recorder {
    fn phases(&self) -> Phases {
        self.phases
    }

    fn refused_in_path(&self) -> Option<Doubtful> {
        self.refuses
    }

    fn ask(&self, phase: Phase, _: &mut Exchange<'_>) -> Step {
        self.record(phase)
    }

    fn header_filter(&self, _: &mut Exchange<'_>) -> Step {
        self.record(Phase::HeaderFilter)
    }

    fn filters_body(&self, _: &Exchange<'_>) -> bool {
        self.looks_at_body
    }

    fn holds_body(&self, _: &Exchange<'_>) -> bool {
        self.holds_body
    }

    fn body_filter(&self, _: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        chunk.data.extend_from_slice(self.name.as_bytes());
        self.record(Phase::BodyFilter)
    }

    fn logs_on_demand(&self) -> bool {
        self.logs_on_demand
    }

    fn log(&self, _: &mut Exchange<'_>) {
        self.record(Phase::Log);
    }

    fn wait<'a>(&'a self, phase: Phase, _: &'a mut Exchange<'_>) -> LocalFuture<'a, Step> {
        self.calls.lock().unwrap().push(format!("{} waits in {phase:?}", self.name));
        Box::pin(async { Step::Reply(Reply::text(403, "waited")) })
    }

    fn wait_body<'a>(&'a self, _: &'a mut Exchange<'_>, chunk: &'a mut Chunk) -> LocalFuture<'a, Step> {
        chunk.data.clear();
        Box::pin(async { Step::Reply(Reply::status(502)) })
    }
}

/// Makes the instances of one test.
#[derive(Default)]
struct Fixture {
    calls: Calls,
}

const ALL: Phases = Phases::REWRITE
    .with(Phases::ACCESS)
    .with(Phases::HEADER_FILTER)
    .with(Phases::BODY_FILTER)
    .with(Phases::LOG);

impl Fixture {
    fn recorder(&self, name: &'static str) -> Recorder {
        Recorder {
            name,
            phases: ALL,
            calls: self.calls.clone(),
            logs_on_demand: false,
            answers: None,
            looks_at_body: false,
            holds_body: false,
            refuses: None,
        }
    }

    fn stage(&self, name: &'static str, priority: i32) -> Arc<Stage> {
        Fitting { name, priority, meta: None }.stage(self.recorder(name))
    }

    /// An instance with `_meta.filter`.
    fn filtered(&self, name: &'static str, phases: Phases, filter: serde_json::Value) -> Arc<Stage> {
        let meta = Meta { filter: Some(Expr::compile(&filter).unwrap()), error_response: None };
        let recorder = Recorder { phases, ..self.recorder(name) };
        Fitting { name, priority: 0, meta: Some(Box::new(meta)) }.stage(recorder)
    }

    /// The calls since the last look.
    fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

#[test]
fn a_chain_whose_instances_log_on_demand_has_no_log_phase_of_its_own() {
    let fixture = Fixture::default();
    let stage = |name, logs_on_demand| {
        let recorder = Recorder { logs_on_demand, ..fixture.recorder(name) };
        Fitting { name, priority: 0, meta: None }.stage(recorder)
    };
    let on_demand = Chain::of(stage("a", true));
    assert!(!on_demand.phases().has(Phase::Log) && on_demand.phases().has(Phase::Rewrite));
    let mixed = Chain::new(vec![stage("a", true), stage("b", false)], Vec::new());
    assert!(mixed.phases().has(Phase::Log));
    // Both are called where the exchange is logged.
    let mut probe = Probe::default();
    on_demand.log(&mut probe.exchange());
    mixed.log(&mut probe.exchange());
    assert_eq!(fixture.take_calls(), ["a Log", "a Log", "b Log"]);
}

#[test]
fn instances_are_sorted_by_priority_and_equal_ones_keep_their_order() {
    let fixture = Fixture::default();
    let second =
        Recorder { phases: Phases::LOG, refuses: Some(Doubtful::SEMICOLON), ..fixture.recorder("b") };
    let second = Fitting { name: "b", priority: 7, meta: None }.stage(second);
    let last = Recorder { refuses: Some(Doubtful::BACKSLASH), ..fixture.recorder("d") };
    let last = Fitting { name: "d", priority: -1, meta: None }.stage(last);
    let chain = Chain::new(vec![fixture.stage("c", 7), last, second, fixture.stage("a", 10)], Vec::new());
    assert_eq!(chain.names(), ["a", "c", "b", "d"]);
    let priorities: Vec<_> = chain.stages().map(|stage| (stage.name(), stage.priority())).collect();
    assert_eq!(priorities, [("a", 10), ("c", 7), ("b", 7), ("d", -1)]);
    assert_eq!(chain.phases(), ALL);
    let names: Vec<_> = chain.of_phase(Phase::Rewrite).iter().map(|stage| stage.name()).collect();
    assert_eq!(names, ["a", "c", "d"]);
    assert_eq!((chain.name_at(Phase::Rewrite, 1), chain.name_at(Phase::Rewrite, 3)), (Some("c"), None));
    assert_eq!(chain.refused_in_path(), Some(Doubtful::SEMICOLON), "the first instance that restricts paths");
    let none = Chain::of(fixture.stage("a", 1));
    assert_eq!((none.refused_in_path(), none.name_at(Phase::Preread, 0)), (None, None));
    assert_eq!(none.names(), ["a"]);
    assert_eq!(Chain::default().phases(), Phases::NONE);
}

#[test]
fn a_phase_stops_at_an_instance_that_responds_and_continues_after_it() {
    let fixture = Fixture::default();
    let answering = Recorder { answers: Some((Phase::Access, || Step::Wait)), ..fixture.recorder("b") };
    let answering = Fitting { name: "b", priority: 2, meta: None }.stage(answering);
    let chain = Chain::new(vec![fixture.stage("a", 3), answering, fixture.stage("c", 1)], Vec::new());
    let mut probe = Probe::default();
    let mut x = probe.exchange();
    let mut cursor = 0;
    assert!(matches!(chain.run(Phase::Access, &mut cursor, &mut x), Step::Wait));
    assert_eq!((cursor, fixture.take_calls()), (1, vec!["a Access".to_owned(), "b Access".to_owned()]));
    let step = now(chain.wait(Phase::Access, cursor, &mut x));
    assert!(matches!(step, Step::Reply(reply) if reply.status == 403));
    assert_eq!(fixture.take_calls(), ["b waits in Access"]);
    cursor += 1;
    assert!(matches!(chain.run(Phase::Access, &mut cursor, &mut x), Step::Next));
    assert_eq!((cursor, fixture.take_calls()), (3, vec!["c Access".to_owned()]));
    // There is no such instance.
    assert!(matches!(now(chain.wait(Phase::Access, 3, &mut x)), Step::Next));
    assert!(matches!(now(chain.wait_body(3, &mut x, &mut chunk(b"x", true))), Step::Next));
}

#[test]
fn response_filters_run_in_order() {
    let fixture = Fixture::default();
    let reply: fn() -> Step = || Step::Reply(Reply::status(500));
    let chain = |answers| {
        let second = Recorder { answers, looks_at_body: true, ..fixture.recorder("b") };
        let second = Fitting { name: "b", priority: 1, meta: None }.stage(second);
        Chain::new(vec![fixture.stage("a", 2), second, fixture.stage("c", 0)], Vec::new())
    };
    let mut probe = Probe::default();
    let mut x = probe.exchange();
    let all = chain(None);
    let (mut head, mut body, mut piece) = (0, 0, chunk(b"-", true));
    assert!(matches!(all.header_filter(&mut head, &mut x), Step::Next));
    assert_eq!(
        (head, fixture.take_calls().join(", ")),
        (3, "a HeaderFilter, b HeaderFilter, c HeaderFilter".to_owned())
    );
    assert!(matches!(all.body_filter(&mut body, &mut x, &mut piece), Step::Next));
    assert_eq!((body, &piece.data[..]), (3, &b"-abc"[..]));
    fixture.take_calls();
    all.log(&mut x);
    assert_eq!(fixture.take_calls().join(", "), "a Log, b Log, c Log");

    let (mut head, mut body) = (0, 0);
    let refusing = chain(Some((Phase::HeaderFilter, reply)));
    assert!(matches!(refusing.header_filter(&mut head, &mut x), Step::Reply(_)));
    assert_eq!(head, 1);
    let waiting = chain(Some((Phase::BodyFilter, || Step::Wait)));
    assert!(matches!(waiting.body_filter(&mut body, &mut x, &mut piece), Step::Wait));
    assert_eq!(body, 1);
    let step = now(waiting.wait_body(body, &mut x, &mut piece));
    assert!(matches!(step, Step::Reply(reply) if reply.status == 502));
    assert!(piece.data.is_empty());
}

#[test]
fn one_body_filter_is_enough() {
    let fixture = Fixture::default();
    let mut probe = Probe::default();
    let x = probe.exchange();
    for (looks, holds) in [(false, false), (true, false), (false, true)] {
        let recorder = Recorder { looks_at_body: looks, holds_body: holds, ..fixture.recorder("b") };
        let stage = Fitting { name: "b", priority: 0, meta: None }.stage(recorder);
        let chain = Chain::new(vec![fixture.stage("a", 1), stage], Vec::new());
        assert_eq!((chain.filters_body(&x), chain.holds_body(&x)), (looks, holds));
    }
}

#[test]
fn skipped_plugins_are_not_called() {
    let fixture = Fixture::default();
    let chain = Chain::new(vec![fixture.stage("a", 1), fixture.stage("b", 0)], Vec::new());
    let mut probe = Probe::default();
    let mut x = probe.exchange();
    chain.run(Phase::Rewrite, &mut 0, &mut x);
    x.skip_plugin("a");
    x.skip_plugin("a");
    chain.run(Phase::Access, &mut 0, &mut x);
    chain.log(&mut x);
    assert_eq!(fixture.take_calls(), ["a Rewrite", "b Rewrite", "b Access", "b Log"]);
}

#[test]
fn a_filter_applies_to_all_phases_of_its_plugin() {
    let fixture = Fixture::default();
    let filter = |value: &str| fixture.filtered("a", ALL, json!([["arg_a", "==", value]]));
    let chain = Chain::new(vec![filter("1"), filter("2"), fixture.stage("z", -1)], Vec::new());
    for (target, calls) in [("/?a=1", 2), ("/?a=2", 2), ("/?a=3", 1)] {
        let mut probe = Probe::get(target);
        let mut x = probe.exchange();
        chain.run(Phase::Rewrite, &mut 0, &mut x);
        assert_eq!(fixture.take_calls().len(), calls, "{target}");
        // It is evaluated once, even if the request changes later.
        x.set_query(b"a=3");
        respond(&mut x, 200, &[]);
        chain.header_filter(&mut 0, &mut x);
        assert_eq!(fixture.take_calls().len(), calls, "{target}");
    }
}

#[test]
fn a_filter_on_the_body_is_checked_while_the_request_can_be_rejected() {
    let fixture = Fixture::default();
    let form = [("Content-Type", "application/json")];
    let filter = json!([["post_arg.a", "==", "1"]]);
    // Of an instance that runs on the request, in that phase.
    let early = Chain::of(fixture.filtered("a", Phases::REWRITE.with(Phases::LOG), filter.clone()));
    assert_eq!(early.phases(), Phases::REWRITE | Phases::LOG);
    // Of an instance that runs on the response only, before the upstream is contacted.
    let late = Chain::of(fixture.filtered("a", Phases::HEADER_FILTER, filter.clone()));
    assert_eq!(late.phases(), Phases::ACCESS | Phases::HEADER_FILTER);
    for (chain, phase) in [(&early, Phase::Rewrite), (&late, Phase::Access)] {
        let mut probe = Probe::request("POST", "/", &form);
        let mut x = probe.exchange();
        x.engine_mut().body_state = Body::Streaming;
        assert!(matches!(chain.run(phase, &mut 0, &mut x), Step::Body(_)));
        with_body(&mut x, b"no json");
        assert!(matches!(chain.run(phase, &mut 0, &mut x), Step::Refuse(Undecidable::Unreadable)));
    }
    fixture.take_calls();
    for (body, calls) in [(&br#"{"a":"1"}"#[..], 1), (br#"{"a":"2"}"#, 0)] {
        let mut probe = Probe::request("POST", "/", &form);
        let mut x = probe.exchange();
        with_body(&mut x, body);
        assert!(matches!(late.run(Phase::Access, &mut 0, &mut x), Step::Next));
        assert_eq!(fixture.take_calls().len(), 0, "it does not run in that phase");
        respond(&mut x, 200, &[]);
        late.header_filter(&mut 0, &mut x);
        assert_eq!(fixture.take_calls().len(), calls);
    }
    // A filter that needs no body is evaluated with the response; a plugin without a filter runs
    // there only.
    let plain = Chain::of(fixture.filtered("a", Phases::HEADER_FILTER, json!([["status", "==", "200"]])));
    let none = Recorder { phases: Phases::HEADER_FILTER, ..fixture.recorder("a") };
    let none = Chain::of(Fitting { name: "a", priority: 0, meta: None }.stage(none));
    assert_eq!((plain.phases(), none.phases()), (Phases::HEADER_FILTER, Phases::HEADER_FILTER));
}

#[test]
fn error_response_replaces_the_body_of_a_rejection() {
    let reply = |status: u16| {
        let meta = Meta { filter: None, error_response: Some(("application/json", b"{}".as_slice().into())) };
        let answer: fn() -> Step = match status {
            399 => || Step::Reply(Reply::text(399, "own").header("X-A", "1")),
            _ => || Step::Reply(Reply::text(400, "own").header("X-A", "1")),
        };
        let recorder =
            Recorder { answers: Some((Phase::Access, answer)), ..Fixture::default().recorder("a") };
        let chain = Chain::of(Fitting { name: "a", priority: 0, meta: Some(Box::new(meta)) }.stage(recorder));
        let mut probe = Probe::default();
        let mut x = probe.exchange();
        let now_or_later =
            [chain.run(Phase::Access, &mut 0, &mut x), now(chain.wait(Phase::Access, 0, &mut x))];
        now_or_later.map(|step| match step {
            Step::Reply(Reply { status, headers, body, .. }) => {
                let headers = headers.iter().map(|(name, value)| format!("{name}: {}", value.escape_ascii()));
                (status, headers.collect::<Vec<_>>().join(", "), String::from_utf8(body.to_vec()).unwrap())
            }
            step => panic!("{step:?}"),
        })
    };
    let [now, later] = reply(400);
    assert_eq!(now, (400, "X-A: 1, Content-Type: application/json".into(), "{}".into()));
    assert_eq!(later, (403, "Content-Type: application/json".into(), "{}".into()));
    let [now, _] = reply(399);
    assert_eq!(now, (399, "Content-Type: text/plain; charset=utf-8, X-A: 1".into(), "own".into()));
}

#[test]
fn plugins_of_a_consumer_replace_those_of_the_route() {
    let fixture = Fixture::default();
    let route =
        Chain::new(vec![fixture.stage("a", 3), fixture.stage("b", 2), fixture.stage("c", 1)], vec!["x"]);
    let consumer = Chain::new(vec![fixture.stage("b", 9), fixture.stage("d", 0)], vec!["a"]);
    let both = route.overlay(&consumer);
    assert_eq!(both.names(), ["b", "c", "d"], "a is disabled, b is the consumer's own");
    assert_eq!(both.stages().next().map(Stage::priority), Some(9));
    assert_eq!(*both.disabled, ["a"]);
}

/// Puts its letter before each piece. Pieces that begin with a dot are kept until it is polled; behind one with a tilde as
/// well, it wants to wait again.
struct Marks {
    letter: u8,
    kept: Mutex<Vec<u8>>,
}

impl Instance for Marks {
    fn phases(&self) -> Phases {
        Phases::STREAM_DATA
    }

    fn stream_data(&self, _: &mut Exchange<'_>, _: Side, chunk: &mut Chunk) -> Step {
        match chunk.data.first() {
            Some(b'!') => return Step::Reply(Reply::status(403)),
            Some(b'.') => {
                *self.kept.lock().unwrap() = std::mem::take(&mut chunk.data);
                return Step::Wait;
            }
            Some(_) => chunk.data.insert(0, self.letter),
            None => {}
        }
        Step::Next
    }

    fn poll_stream(
        &self,
        _: &mut Exchange<'_>,
        _: Side,
        chunk: &mut Chunk,
        _: &mut Context<'_>,
    ) -> Poll<Step> {
        let mut kept = self.kept.lock().unwrap();
        if kept.is_empty() {
            return Poll::Pending;
        }
        chunk.data = kept.split_off(1);
        kept.clear();
        Poll::Ready(if chunk.data.starts_with(b"~") { Step::Wait } else { Step::Next })
    }
}

#[test]
fn bytes_of_a_stream_go_through_all_instances_also_those_that_were_kept() {
    let stage = |name, priority, letter| {
        let marks = Marks { letter, kept: Mutex::default() };
        Fitting { name, priority, meta: None }.stage(marks)
    };
    let chain = Chain::new(vec![stage("a", 2, b'a'), stage("b", 1, b'b')], Vec::new());
    assert!(chain.phases().has(Phase::StreamData));
    let mut probe = Probe::default();
    let mut x = probe.exchange();
    let mut cx = Context::from_waker(std::task::Waker::noop());
    let mut piece = chunk(b"x", false);
    assert!(matches!(chain.stream_data(0, &mut x, Side::Client, &mut piece), Step::Next));
    assert_eq!(piece.data, b"bax");
    let mut piece = chunk(b".y", false);
    assert!(matches!(chain.stream_data(0, &mut x, Side::Client, &mut piece), Step::Wait));
    assert!(piece.data.is_empty());
    // The first instance has kept it, and the second sees it once it is passed on.
    assert!(matches!(chain.poll_stream(&mut x, Side::Client, &mut piece, &mut cx), Poll::Ready(Step::Next)));
    assert_eq!(piece.data, b"by");
    assert!(chain.poll_stream(&mut x, Side::Client, &mut chunk(b"", false), &mut cx).is_pending());
    let mut piece = chunk(b".~z", false);
    assert!(matches!(chain.stream_data(0, &mut x, Side::Client, &mut piece), Step::Wait));
    assert!(matches!(chain.poll_stream(&mut x, Side::Client, &mut piece, &mut cx), Poll::Ready(Step::Wait)));
    assert_eq!(piece.data, b"b~z", "those behind it see the bytes also before a wait");
    let mut piece = chunk(b"!", true);
    assert!(matches!(chain.stream_data(0, &mut x, Side::Upstream, &mut piece), Step::Reply(_)));
}
