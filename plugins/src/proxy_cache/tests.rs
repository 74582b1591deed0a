//! The stage in front of a pretended upstream.

mod collapse;
mod keys;
mod purge;
mod requests;
mod stored;
mod validation;
mod zones;

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use cache::{Caches, Settings};
use sdk::Framing;
use sdk::testing::{Probe, chunk, respond};
use serde_json::json;

use sdk::exchange::Source;

use super::*;

const NOW: u64 = 1_700_000_000_000;

/// A route with the plugin on it, over a memory zone.
struct Site {
    caches: Arc<Caches>,
    config: Value,
    now: u64,
}

/// The upstream's answer.
struct Origin<'a> {
    status: u16,
    headers: &'a [(&'a str, &'a str)],
    chunks: &'a [&'a str],
    framing: Framing,
    /// The last chunk comes.
    whole: bool,
}

#[derive(Debug)]
struct Got {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
    /// The upstream was not asked.
    stored: bool,
}

impl Got {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|one| one.0.eq_ignore_ascii_case(name)).map(|one| one.1.as_str())
    }

    fn cache(&self) -> &str {
        self.header(STATUS).unwrap_or_default()
    }
}

fn origin<'a>(headers: &'a [(&'a str, &'a str)], chunks: &'a [&'a str]) -> Origin<'a> {
    let length = chunks.iter().map(|chunk| chunk.len() as u64).sum();
    Origin { status: 200, headers, chunks, framing: Framing::Length(length), whole: true }
}

impl Site {
    fn new(mut config: Value) -> Site {
        config["cache_strategy"] = json!("memory");
        config["cache_zone"] = json!("m");
        let zone = Settings { name: "m".into(), memory_size: 1 << 20, disk: None };
        Site { caches: Arc::new(Caches::new(vec![zone])), config, now: NOW }
    }

    fn probe(&self, method: &str, target: &str, headers: &[(&str, &str)]) -> Probe {
        let mut all = vec![("Host", "a.example")];
        all.extend(headers);
        let mut probe = Probe::request(method, target, &all);
        probe.services.extensions = sdk::build::Extensions::default().with(self.caches.clone());
        probe.world.now_ms.set(self.now);
        probe
    }

    fn get(&self, target: &str, origin: Origin<'_>) -> Got {
        self.ask("GET", target, &[], origin)
    }

    fn ask(&self, method: &str, target: &str, headers: &[(&str, &str)], origin: Origin<'_>) -> Got {
        self.run(self.probe(method, target, headers), |_| {}, origin)
    }

    fn run(&self, probe: Probe, before: impl FnOnce(&mut Exchange<'_>), origin: Origin<'_>) -> Got {
        self.run_from(probe, before, origin, Source::Upstream)
    }

    /// As [`Site::run`], with a response of this source.
    fn run_from(
        &self,
        mut probe: Probe,
        before: impl FnOnce(&mut Exchange<'_>),
        origin: Origin<'_>,
        source: Source,
    ) -> Got {
        let stage: ProxyCache = probe.stage(self.config.clone()).unwrap();
        let mut x = probe.exchange();
        before(&mut x);
        let mut step = stage.access(&mut x);
        if matches!(step, Step::Next) {
            step = stage.before_proxy(&mut x);
        }
        if matches!(step, Step::Wait) {
            step = block_on(stage.wait(Phase::BeforeProxy, &mut x));
        }
        let (body, stored) = match step {
            Step::Reply(reply) => {
                x.engine_mut().messages.response.status = reply.status;
                for (name, value) in &reply.headers {
                    x.engine_mut().messages.response.fields.append(name.as_bytes(), value).unwrap();
                }
                x.engine_mut().source = Source::Plugin;
                x.engine_mut().apply_early_edits();
                stage.header_action(&mut x);
                assert!(!stage.filters_body(&x), "what is given from the cache is not looked at");
                let mut whole = chunk(&reply.body, true);
                stage.body_filter(&mut x, &mut whole);
                (whole.data, true)
            }
            Step::Next => {
                respond(&mut x, origin.status, origin.headers);
                x.engine_mut().messages.response.framing = origin.framing;
                x.engine_mut().source = source;
                if let Step::Reply(reply) = stage.header_action(&mut x) {
                    assert!(matches!(replaced(&stage, &mut x, &reply), Step::Next), "it is replaced once");
                    return got(&x, reply.body.to_vec(), false);
                }
                let mut body = Vec::new();
                for (at, text) in origin.chunks.iter().enumerate() {
                    let last = origin.whole && at + 1 == origin.chunks.len();
                    let mut piece = chunk(text.as_bytes(), last);
                    if x.method() != Method::Head {
                        stage.body_filter(&mut x, &mut piece);
                    }
                    body.extend(piece.data);
                }
                (body, false)
            }
            step => panic!("{step:?}"),
        };
        got(&x, body, stored)
    }

    /// Whether a second GET of the same is answered from the cache.
    fn keeps(&self, first: Origin<'_>) -> bool {
        self.get("/keeps", first);
        self.get("/keeps", origin(&[], &["other"])).stored
    }
}

/// Puts a reply in the place of the upstream's response, as the engine does.
fn replaced(stage: &ProxyCache, x: &mut Exchange<'_>, reply: &Reply) -> Step {
    let head = &mut x.engine_mut().messages.response;
    head.clear();
    head.status = reply.status;
    for (name, value) in &reply.headers {
        head.fields.append(name.as_bytes(), value).unwrap();
    }
    for (name, value, _) in reply.fields.iter().flat_map(|fields| fields.iter()) {
        head.fields.append(name, value).unwrap();
    }
    x.engine_mut().source = Source::Plugin;
    stage.header_action(x)
}

fn got(x: &Exchange<'_>, body: Vec<u8>, stored: bool) -> Got {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let fields = &x.response().fields;
    Got {
        status: x.status(),
        headers: fields.iter().map(|(name, value, _)| (text(name), text(value))).collect(),
        body: text(&body),
        stored,
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
        std::thread::yield_now();
    }
}
