//! Plugins of streams: one that reads the first bytes, one that waits, and one that sees all bytes.

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use model::Invalid;
use proxy::testing;
use sdk::build::Build;
use sdk::catalog::{About, Catalog, Configured, Facts, SchemaType, Scope, Subsystem};
use sdk::chain::{Chain, Fitting, LocalFuture, Stage};
use sdk::consumers::Credential;
use sdk::exchange::Chunk;
use sdk::stream::Side;
use sdk::{Exchange, Factory, Instance, Phase, Phases, Reply, Step};
use serde_json::{Value, json};

/// A catalog that allows all plugins on streams, those of routes among them.
#[derive(Debug)]
pub struct WithStreams(pub Arc<plugins::Catalog>);

impl Catalog for WithStreams {
    fn check(&self, name: &str, config: &Value, place: SchemaType) -> Result<(), Invalid> {
        self.0.check(name, config, place)
    }

    fn chain(&self, entries: &[Configured<'_>], scope: &Scope<'_>) -> Result<Arc<Chain>, Invalid> {
        self.0.chain(entries, scope)
    }

    fn stream_chain(&self, entries: &[Configured<'_>], scope: &Scope<'_>) -> Result<Arc<Chain>, Invalid> {
        self.0.chain(entries, scope)
    }

    fn credential(&self, name: &str, config: &Value) -> Result<Option<(&'static str, Credential)>, Invalid> {
        self.0.credential(name, config)
    }

    fn about(&self) -> Vec<About> {
        self.0.about()
    }

    fn facts(&self, subsystem: Subsystem, name: &str) -> Option<Facts> {
        self.0.facts(subsystem, name)
    }
}

/// Reads the first `asks` bytes, and refuses the stream unless they begin with `wants`. If they are `again`, it asks
/// for the same number of bytes again, which is an error.
#[derive(Default)]
pub struct First {
    asks: usize,
    wants: Vec<u8>,
    again: Vec<u8>,
}

impl Factory for First {
    fn name(&self) -> &'static str {
        "first"
    }

    fn priority(&self) -> i32 {
        20
    }

    fn phases(&self) -> Phases {
        Phases::PREREAD
    }

    fn schema(&self) -> Value {
        json!({"type": "object"})
    }

    fn build(&self, config: Value, _: &mut Build<'_>, fitting: Fitting) -> Result<Arc<Stage>, Invalid> {
        let asks = config["asks"].as_u64().unwrap() as usize;
        let bytes = |name: &str| config[name].as_str().unwrap_or_default().into();
        Ok(fitting.stage(First { asks, wants: bytes("wants"), again: bytes("again") }))
    }
}

impl Instance for First {
    fn phases(&self) -> Phases {
        Factory::phases(self)
    }

    fn ask(&self, _: Phase, x: &mut Exchange<'_>) -> Step {
        if x.body_asked() < self.asks {
            return Step::Body(self.asks);
        }
        match x.body_prefix() {
            seen if !self.again.is_empty() && seen == self.again => Step::Body(self.asks),
            seen if seen.starts_with(&self.wants) => Step::Next,
            _ => Step::Reply(Reply::status(403)),
        }
    }
}

/// Waits a second.
pub struct Waits;

impl Factory for Waits {
    fn name(&self) -> &'static str {
        "waits"
    }

    fn priority(&self) -> i32 {
        30
    }

    fn phases(&self) -> Phases {
        Phases::PREREAD
    }

    fn schema(&self) -> Value {
        json!({"type": "object"})
    }

    fn build(&self, _: Value, _: &mut Build<'_>, fitting: Fitting) -> Result<Arc<Stage>, Invalid> {
        Ok(fitting.stage(Waits))
    }
}

impl Instance for Waits {
    fn phases(&self) -> Phases {
        Factory::phases(self)
    }

    fn ask(&self, _: Phase, _: &mut Exchange<'_>) -> Step {
        Step::Wait
    }

    fn wait<'a>(&'a self, _: Phase, _: &'a mut Exchange<'_>) -> LocalFuture<'a, Step> {
        Box::pin(async {
            testing::sleep(Duration::from_secs(1)).await;
            Step::Next
        })
    }
}

/// Makes the client's bytes large, and keeps those of the server, and its end, for a second. It closes streams of a
/// client that sends `!`, and fails at `?`.
pub struct Sees;

/// Bytes of the server that are kept.
struct Kept {
    data: Vec<u8>,
    last: bool,
    sleep: LocalFuture<'static, ()>,
}

impl Factory for Sees {
    fn name(&self) -> &'static str {
        "sees"
    }

    fn priority(&self) -> i32 {
        10
    }

    fn phases(&self) -> Phases {
        Phases::STREAM_DATA
    }

    fn schema(&self) -> Value {
        json!({"type": "object"})
    }

    fn build(&self, _: Value, _: &mut Build<'_>, fitting: Fitting) -> Result<Arc<Stage>, Invalid> {
        Ok(fitting.stage(Sees))
    }
}

impl Instance for Sees {
    fn phases(&self) -> Phases {
        Factory::phases(self)
    }

    fn stream_data(&self, x: &mut Exchange<'_>, from: Side, chunk: &mut Chunk) -> Step {
        assert!(!chunk.data.contains(&b'?'), "the plugin fails");
        if chunk.data.contains(&b'!') && from == Side::Client {
            return Step::Reply(Reply::status(403));
        }
        chunk.data.make_ascii_uppercase();
        if from == Side::Client {
            return Step::Next;
        }
        let (data, last) = (std::mem::take(&mut chunk.data), std::mem::take(&mut chunk.last));
        let sleep = Box::pin(testing::sleep(Duration::from_secs(1)));
        assert!(x.note::<Option<Kept>>().is_none_or(Option::is_none), "nothing is read while it waits");
        x.set_note(Some(Kept { data, last, sleep }));
        Step::Wait
    }

    fn poll_stream(
        &self,
        x: &mut Exchange<'_>,
        from: Side,
        chunk: &mut Chunk,
        cx: &mut Context<'_>,
    ) -> Poll<Step> {
        let Some(place) = x.note_mut::<Option<Kept>>().filter(|_| from == Side::Upstream) else {
            return Poll::Pending;
        };
        let Some(kept) = place else { return Poll::Pending };
        ready!(kept.sleep.as_mut().poll(cx));
        (chunk.data, chunk.last) = (std::mem::take(&mut kept.data), kept.last);
        *place = None;
        Poll::Ready(Step::Next)
    }
}
