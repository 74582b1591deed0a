//! hot path
//!
//! The plugin instances of a plan, one slice per phase, called in order of priority.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use smallvec::SmallVec;

use crate::exchange::{Chunk, Exchange};
use crate::expr::Expr;
pub use crate::phase::{Phase, Phases};
pub use crate::step::LocalFuture;
use crate::step::{Reply, Step, SureAnswer};
use crate::stream::Side;
use wire::target::Doubtful;

/// A plugin instance. The functions correspond to those of [`Plugin`](crate::Plugin).
pub trait Instance: Any + Send + Sync {
    fn phases(&self) -> Phases;

    fn refused_in_path(&self) -> Option<Doubtful> {
        None
    }

    /// See [`crate::Plugin::is_pure`].
    fn is_pure(&self) -> bool {
        false
    }

    /// See [`crate::Plugin::sure_answer`].
    fn sure_answer(&self, _x: &Exchange<'_>) -> Option<SureAnswer> {
        None
    }

    /// Calls it in one of the phases before the upstream.
    fn ask(&self, _phase: Phase, _x: &mut Exchange<'_>) -> Step {
        Step::Next
    }

    /// See [`crate::Plugin::header_action`].
    fn header_filter(&self, _x: &mut Exchange<'_>) -> Step {
        Step::Next
    }

    fn filters_body(&self, _x: &Exchange<'_>) -> bool {
        true
    }

    fn holds_body(&self, _x: &Exchange<'_>) -> bool {
        false
    }

    /// See [`crate::Plugin::body_action`].
    fn body_filter(&self, _x: &mut Exchange<'_>, _chunk: &mut Chunk) -> Step {
        Step::Next
    }

    fn serve(&self, _x: &mut Exchange<'_>) -> Step {
        Step::Next
    }

    /// Sees bytes of a TCP stream before they go on to the other side, and its end. Those that it leaves in the chunk go
    /// on; those that it keeps count against [`crate::World::budget`], and a last chunk that is kept is no longer the
    /// last. With [`Step::Wait`] no more is read from this side until [`Instance::poll_stream`] is ready;
    /// [`Step::Reply`] closes the stream, with its status as the session's.
    fn stream_data(&self, _x: &mut Exchange<'_>, _from: Side, _chunk: &mut Chunk) -> Step {
        Step::Next
    }

    /// Puts bytes of a side that it has kept, and its end, into the empty chunk once they may go on. The results are
    /// those of [`Instance::stream_data`].
    fn poll_stream(
        &self,
        _x: &mut Exchange<'_>,
        _from: Side,
        _chunk: &mut Chunk,
        _cx: &mut Context<'_>,
    ) -> Poll<Step> {
        Poll::Pending
    }

    /// See [`crate::Plugin::logs_on_demand`].
    fn logs_on_demand(&self) -> bool {
        false
    }

    fn log(&self, _x: &mut Exchange<'_>) {}

    /// Called only after it returned [`Step::Wait`] in that phase, never for the body filter.
    fn wait<'a>(&'a self, _phase: Phase, _x: &'a mut Exchange<'_>) -> LocalFuture<'a, Step> {
        Box::pin(async { Step::Next })
    }

    /// Called only after it returned [`Step::Wait`] for that chunk of the body.
    fn wait_body<'a>(&'a self, _x: &'a mut Exchange<'_>, _chunk: &'a mut Chunk) -> LocalFuture<'a, Step> {
        Box::pin(async { Step::Next })
    }
}

/// The plugin instances of one plan (or of all global rules, or of a consumer), sorted by priority
/// within each phase. Built by [`crate::Catalog::chain`].
#[derive(Default)]
pub struct Chain {
    /// Phases with at least one instance. The proxy skips all others. Instances that log on demand do not count.
    phases: Phases,
    /// End of each phase in `by_phase`.
    ends: [u32; Phase::ALL.len()],
    /// The instances of all phases, phase after phase.
    by_phase: Box<[Arc<Stage>]>,
    /// All instances by priority.
    all: Box<[Arc<Stage>]>,
    /// Plugins this chain has with `_meta.disable`. They have no instance here, and
    /// [`Chain::overlay`] removes their instances from the chain below.
    disabled: Box<[&'static str]>,
}

/// A plugin instance with its name and priority in a chain.
pub struct Stage {
    name: &'static str,
    priority: i32,
    /// The parts of `_meta` that affect serving, if any. Boxed: few instances have one.
    meta: Option<Box<Meta>>,
    instance: Box<dyn Instance>,
}

/// All parts of a [`Stage`] except the instance.
pub struct Fitting {
    pub name: &'static str,
    pub priority: i32,
    pub meta: Option<Box<Meta>>,
}

/// The parts of `_meta` that affect serving; `disable` and `priority` are applied when the chain is
/// built.
#[derive(Debug, Default)]
pub struct Meta {
    /// The instance runs only if this condition holds.
    pub filter: Option<Expr>,
    /// Content type and body that replace the body of a rejection, to hide its cause from the
    /// client.
    pub error_response: Option<(&'static str, Bytes)>,
}

impl Fitting {
    pub fn stage(self, instance: impl Instance) -> Arc<Stage> {
        let Fitting { name, priority, meta } = self;
        Arc::new(Stage { name, priority, meta, instance: Box::new(instance) })
    }
}

impl Stage {
    pub fn name(&self) -> &'static str {
        self.name
    }

    pub fn priority(&self) -> i32 {
        self.priority
    }

    pub fn instance(&self) -> &dyn Instance {
        &*self.instance
    }

    /// Calls the instance in a phase, unless the plugin is skipped on this exchange or its
    /// `_meta.filter` does not hold; both are checked here and nowhere else. Returns [`Step::Next`]
    /// if the instance was not called. An undecidable filter returns the step that reads the body
    /// it needs, or that rejects the request.
    #[inline]
    pub fn run(
        &self,
        phase: Phase,
        x: &mut Exchange<'_>,
        ask: impl FnOnce(&dyn Instance, &mut Exchange<'_>) -> Step,
    ) -> Step {
        match self.meta {
            None if !x.skips_plugins() => ask(&*self.instance, x),
            _ => self.run_if_due(phase, x, ask),
        }
    }

    #[cold]
    #[inline(never)]
    fn run_if_due(
        &self,
        phase: Phase,
        x: &mut Exchange<'_>,
        ask: impl FnOnce(&dyn Instance, &mut Exchange<'_>) -> Step,
    ) -> Step {
        if x.skips(self.name) {
            return Step::Next;
        }
        let Some(meta) = &self.meta else { return ask(&*self.instance, x) };
        match self.passes(meta, phase, x) {
            Ok(true) => meta.wrap(ask(&*self.instance, x)),
            Ok(false) => Step::Next,
            Err(step) => step,
        }
    }

    /// Whether the filter lets the instance run in a phase; errors as for [`Stage::run`].
    fn passes(&self, meta: &Meta, phase: Phase, x: &mut Exchange<'_>) -> Result<bool, Step> {
        let Some(filter) = &meta.filter else { return Ok(true) };
        if !phase.is_before_upstream() {
            // An undecidable filter was handled with the request, if it depends on the request.
            return Ok(self.verdict(filter, x).unwrap_or_default());
        }
        if self.instance.phases().has(phase) {
            return self.verdict(filter, x);
        }
        // The instance is in this phase only because of its filter ([`Stage::checks_filter_early_in`]).
        match filter.check_early(x) {
            Step::Next => Ok(false),
            step => Err(step),
        }
    }

    /// Evaluates the filter once per request, as APISIX does, so that a plugin runs in all its
    /// phases or in none.
    fn verdict(&self, filter: &Expr, x: &mut Exchange<'_>) -> Result<bool, Step> {
        let key = std::ptr::from_ref(self).addr();
        if let Some(Verdicts(verdicts)) = x.note::<Verdicts>()
            && let Some((_, verdict)) = verdicts.iter().find(|(stage, _)| *stage == key)
        {
            return Ok(*verdict);
        }
        let verdict = filter.decide(x)?;
        match x.note_mut::<Verdicts>() {
            Some(Verdicts(verdicts)) => verdicts.push((key, verdict)),
            None => x.set_note(Verdicts(SmallVec::from_iter([(key, verdict)]))),
        }
        Ok(verdict)
    }

    /// Whether the filter must be checked in a phase in which the instance itself does nothing:
    /// with the response, it would be too late to read the request's body or to reject the request.
    fn checks_filter_early_in(&self, phase: Phase) -> bool {
        phase == Phase::Access
            && !Phase::ALL
                .iter()
                .any(|&early| early.is_before_upstream() && self.instance.phases().has(early))
            && self.filter().is_some_and(Expr::may_be_undecided)
    }

    fn filter(&self) -> Option<&Expr> {
        self.meta.as_ref()?.filter.as_ref()
    }
}

impl Chain {
    /// Sorts the instances by priority; those of equal priority keep their order.
    pub fn new(mut all: Vec<Arc<Stage>>, disabled: Vec<&'static str>) -> Chain {
        all.sort_by_key(|stage| std::cmp::Reverse(stage.priority));
        let (mut phases, mut by_phase) = (Phases::NONE, Vec::new());
        let ends = Phase::ALL.map(|phase| {
            let takes_part = |stage: &&Arc<Stage>| {
                stage.instance.phases().has(phase) || stage.checks_filter_early_in(phase)
            };
            let before = by_phase.len();
            by_phase.extend(all.iter().filter(takes_part).cloned());
            let is_due = |stage: &Arc<Stage>| phase != Phase::Log || !stage.instance.logs_on_demand();
            if by_phase[before..].iter().any(is_due) {
                phases = phases | Phases::of(phase);
            }
            by_phase.len() as u32
        });
        Chain { phases, ends, by_phase: by_phase.into(), all: all.into(), disabled: disabled.into() }
    }

    /// Returns a chain of one plugin.
    pub fn of(stage: Arc<Stage>) -> Chain {
        Chain::new(vec![stage], Vec::new())
    }

    /// Phases in which at least one instance runs; the log phase only if one runs there on every exchange.
    #[inline]
    pub fn phases(&self) -> Phases {
        self.phases
    }

    /// All instances by priority.
    pub fn stages(&self) -> impl Iterator<Item = &Stage> {
        self.all.iter().map(|stage| &**stage)
    }

    /// Names of the plugins, in order of priority.
    pub fn names(&self) -> Vec<&'static str> {
        self.all.iter().map(|stage| stage.name).collect()
    }

    /// The path characters that are rejected, if an instance restricts them; see
    /// [`crate::Plugin::refused_in_path`].
    pub fn refused_in_path(&self) -> Option<Doubtful> {
        self.all.iter().find_map(|stage| stage.instance.refused_in_path())
    }

    /// The instances that run in a phase, in order.
    #[inline]
    pub fn of_phase(&self, phase: Phase) -> &[Arc<Stage>] {
        let phase = phase as usize;
        let start = phase.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.by_phase[start as usize..self.ends[phase] as usize]
    }

    /// The name of the plugin at a cursor of [`Chain::run`].
    pub fn name_at(&self, phase: Phase, cursor: usize) -> Option<&'static str> {
        self.of_phase(phase).get(cursor).map(|stage| stage.name)
    }

    /// Runs `Rewrite`, `Access` or `BeforeProxy` from `*cursor` on. Leaves `*cursor` at the
    /// instance that returned something other than [`Step::Next`].
    pub fn run(&self, phase: Phase, cursor: &mut usize, x: &mut Exchange<'_>) -> Step {
        self.each_from(cursor, phase, x, |instance, x| instance.ask(phase, x))
    }

    /// Awaits the instance at `cursor`, which returned [`Step::Wait`] in this phase.
    pub fn wait<'a>(&'a self, phase: Phase, cursor: usize, x: &'a mut Exchange<'_>) -> LocalFuture<'a, Step> {
        // Only an instance that returned `Wait` is awaited, so there is one.
        let Some(stage) = self.of_phase(phase).get(cursor) else {
            return Box::pin(async { Step::Next });
        };
        let waiting = stage.instance.wait(phase, x);
        match &stage.meta {
            Some(meta) => Box::pin(async { meta.wrap(waiting.await) }),
            None => waiting,
        }
    }

    /// Runs the header filters from `*cursor` on; as [`Chain::run`].
    pub fn header_filter(&self, cursor: &mut usize, x: &mut Exchange<'_>) -> Step {
        self.each_from(cursor, Phase::HeaderFilter, x, |instance, x| instance.header_filter(x))
    }

    #[inline]
    fn each_from(
        &self,
        cursor: &mut usize,
        phase: Phase,
        x: &mut Exchange<'_>,
        mut ask: impl FnMut(&dyn Instance, &mut Exchange<'_>) -> Step,
    ) -> Step {
        for stage in self.of_phase(phase).get(*cursor..).unwrap_or_default() {
            let step = stage.run(phase, x, &mut ask);
            if !matches!(step, Step::Next) {
                return step;
            }
            *cursor += 1;
        }
        Step::Next
    }

    /// Awaits the instance at `cursor`, which returned [`Step::Wait`] for this chunk of the body.
    pub fn wait_body<'a>(
        &'a self,
        cursor: usize,
        x: &'a mut Exchange<'_>,
        chunk: &'a mut Chunk,
    ) -> LocalFuture<'a, Step> {
        match self.of_phase(Phase::BodyFilter).get(cursor) {
            Some(stage) => stage.instance.wait_body(x, chunk),
            None => Box::pin(async { Step::Next }),
        }
    }

    /// Whether an instance filters this exchange's response body; called after the header filter.
    pub fn filters_body(&self, x: &Exchange<'_>) -> bool {
        self.of_phase(Phase::BodyFilter).iter().any(|stage| stage.instance.filters_body(x))
    }

    /// Whether an instance buffers that body completely before passing any of it on.
    pub fn holds_body(&self, x: &Exchange<'_>) -> bool {
        self.of_phase(Phase::BodyFilter).iter().any(|stage| stage.instance.holds_body(x))
    }

    /// Runs the body filters from `*cursor` on; as [`Chain::run`].
    pub fn body_filter(&self, cursor: &mut usize, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        self.each_from(cursor, Phase::BodyFilter, x, |instance, x| instance.body_filter(x, chunk))
    }

    /// Shows bytes of a stream to the instances from `first` on, each what those before it have passed on. Any of them
    /// can end the reading for now with [`Step::Wait`].
    pub fn stream_data(&self, first: usize, x: &mut Exchange<'_>, from: Side, chunk: &mut Chunk) -> Step {
        let mut waits = false;
        for stage in self.of_phase(Phase::StreamData).iter().skip(first) {
            if chunk.data.is_empty() && !chunk.last {
                break;
            }
            match stage.run(Phase::StreamData, x, |instance, x| instance.stream_data(x, from, chunk)) {
                Step::Next => {}
                Step::Wait => waits = true,
                step => return step,
            }
        }
        if waits { Step::Wait } else { Step::Next }
    }

    /// Polls the instances that may keep bytes of a stream. Bytes that one passes on are shown to those behind it.
    pub fn poll_stream(
        &self,
        x: &mut Exchange<'_>,
        from: Side,
        chunk: &mut Chunk,
        cx: &mut Context<'_>,
    ) -> Poll<Step> {
        for (at, stage) in self.of_phase(Phase::StreamData).iter().enumerate() {
            let mut polled = Poll::Pending;
            stage.run(Phase::StreamData, x, |instance, x| {
                polled = instance.poll_stream(x, from, chunk, cx);
                Step::Next
            });
            match polled {
                Poll::Pending => {}
                Poll::Ready(step @ (Step::Next | Step::Wait)) => {
                    let behind = self.stream_data(at + 1, x, from, chunk);
                    return Poll::Ready(if matches!(behind, Step::Next) { step } else { behind });
                }
                ready => return ready,
            }
        }
        Poll::Pending
    }

    pub fn log(&self, x: &mut Exchange<'_>) {
        for stage in self.of_phase(Phase::Log) {
            stage.run(Phase::Log, x, |instance, x| {
                instance.log(x);
                Step::Next
            });
        }
    }

    /// Returns this chain with the instances of `over` added; they replace instances of the same
    /// plugin. Used when a consumer has its own plugins.
    #[must_use]
    pub fn overlay(&self, over: &Chain) -> Chain {
        let replaced =
            |name: &str| over.disabled.contains(&name) || over.all.iter().any(|stage| stage.name == name);
        let kept = self.all.iter().filter(|stage| !replaced(stage.name));
        Chain::new(over.all.iter().chain(kept).cloned().collect(), over.disabled.to_vec())
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all.iter().map(|stage| (stage.name, stage.priority))).finish()
    }
}

impl Meta {
    fn wrap(&self, step: Step) -> Step {
        match (step, &self.error_response) {
            (Step::Reply(mut reply), Some((content_type, body))) if reply.status >= 400 => {
                let mut headers = std::mem::take(&mut reply.headers);
                headers.retain(|(name, _)| !name.eq_ignore_ascii_case("Content-Type"));
                headers.push(("Content-Type", content_type.as_bytes().to_vec()));
                Step::Reply(Reply { headers, body: body.clone(), streamed: false, ..reply })
            }
            (step, _) => step,
        }
    }
}

/// Results of filters on one exchange, by the address of the stage, which lives as long as the
/// exchange's snapshot.
struct Verdicts(SmallVec<[(usize, bool); 8]>);

#[cfg(test)]
mod tests;
