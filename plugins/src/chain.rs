//! hot path
//!
//! The stages of a plan, one slice a phase, asked in order of priority.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use sdk::chain::{Chain, LocalFuture, Phase, Phases};
use sdk::expr::Expr;
use sdk::{Chunk, Doubtful, Exchange, Step};
use smallvec::SmallVec;

use crate::Native;
use crate::meta::Meta;

/// One configured plugin, ready to run.
pub(crate) struct Stage {
    pub name: &'static str,
    pub priority: i32,
    pub native: Native,
    /// Its `_meta`, if that says anything for serving. Boxed: few stages have one.
    pub meta: Option<Box<Meta>>,
}

/// [`Chain`] over native stages.
pub(crate) struct Stages {
    phases: Phases,
    by_phase: [Box<[Arc<Stage>]>; 6],
    /// All stages by priority.
    all: Vec<Arc<Stage>>,
    /// Plugins this chain has with `_meta.disable`: nothing runs here, but laid
    /// over another chain they take that one's stage away.
    disabled: Vec<&'static str>,
}

const PHASES: [(Phase, Phases); 6] = [
    (Phase::Rewrite, Phases::REWRITE),
    (Phase::Access, Phases::ACCESS),
    (Phase::BeforeProxy, Phases::BEFORE_PROXY),
    (Phase::HeaderFilter, Phases::HEADER_FILTER),
    (Phase::BodyFilter, Phases::BODY_FILTER),
    (Phase::Log, Phases::LOG),
];

impl Stage {
    fn phases(&self) -> Phases {
        self.native.phases()
    }

    /// Whether its filter is looked at in a phase in which the stage has no work of its own: with
    /// the response, it would be too late to read the request's body or to refuse the request.
    fn is_foreseen_in(&self, phase: Phase) -> bool {
        const EARLY: [Phase; 3] = [Phase::Rewrite, Phase::Access, Phase::BeforeProxy];
        phase == Phase::Access
            && !EARLY.iter().any(|&early| self.phases().has(early))
            && self.filter().is_some_and(Expr::is_doubtful)
    }

    fn filter(&self) -> Option<&Expr> {
        self.meta.as_ref()?.filter.as_ref()
    }
}

impl Stages {
    /// Sorts the stages; those of equal priority stay in the order given.
    pub(crate) fn new(mut all: Vec<Arc<Stage>>, disabled: Vec<&'static str>) -> Stages {
        all.sort_by_key(|stage| std::cmp::Reverse(stage.priority));
        let by_phase: [Box<[_]>; 6] = PHASES.map(|(phase, _)| {
            let takes_part = |stage: &&Arc<Stage>| stage.phases().has(phase) || stage.is_foreseen_in(phase);
            all.iter().filter(takes_part).cloned().collect()
        });
        let phases = PHASES
            .iter()
            .zip(&by_phase)
            .filter(|pair| !pair.1.is_empty())
            .fold(Phases::NONE, |phases, ((_, one), _)| phases | *one);
        Stages { phases, by_phase, all, disabled }
    }

    #[inline]
    fn of(&self, phase: Phase) -> &[Arc<Stage>] {
        &self.by_phase[phase as usize]
    }
}

impl Chain for Stages {
    fn phases(&self) -> Phases {
        self.phases
    }

    fn refused_in_path(&self) -> Option<Doubtful> {
        self.all.iter().find_map(|stage| stage.native.refused_in_path())
    }

    fn run(&self, phase: Phase, cursor: &mut usize, x: &mut Exchange<'_>) -> Step {
        let stages = self.of(phase);
        while let Some(stage) = stages.get(*cursor) {
            let step = match &stage.meta {
                None => stage.native.ask(phase, x),
                Some(meta) => match (stage.phases().has(phase), &meta.filter) {
                    (false, Some(filter)) => filter.foresee(x),
                    _ => match applies(stage, meta, x) {
                        Ok(true) => meta.wrap(stage.native.ask(phase, x)),
                        Ok(false) => Step::Next,
                        Err(step) => step,
                    },
                },
            };
            if !matches!(step, Step::Next) {
                return step;
            }
            *cursor += 1;
        }
        Step::Next
    }

    fn wait<'a>(&'a self, phase: Phase, cursor: usize, x: &'a mut Exchange<'_>) -> LocalFuture<'a, Step> {
        let stage = self.of(phase).get(cursor);
        Box::pin(async move {
            // Only a stage that answered `Wait` is waited for, so there is one.
            let Some(stage) = stage else { return Step::Next };
            let step = stage.native.wait(phase, x).await;
            match &stage.meta {
                Some(meta) => meta.wrap(step),
                None => step,
            }
        })
    }

    fn header_filter(&self, x: &mut Exchange<'_>) {
        for stage in self.of(Phase::HeaderFilter) {
            if wanted(stage, x) {
                stage.native.header_filter(x);
            }
        }
    }

    fn filters_body(&self, x: &Exchange<'_>) -> bool {
        self.of(Phase::BodyFilter).iter().any(|stage| stage.native.filters_body(x))
    }

    fn holds_body(&self, x: &Exchange<'_>) -> bool {
        self.of(Phase::BodyFilter).iter().any(|stage| stage.native.holds_body(x))
    }

    fn body_filter(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) {
        for stage in self.of(Phase::BodyFilter) {
            if wanted(stage, x) {
                stage.native.body_filter(x, chunk);
            }
        }
    }

    fn log(&self, x: &mut Exchange<'_>) {
        for stage in self.of(Phase::Log) {
            if wanted(stage, x) {
                stage.native.log(x);
            }
        }
    }

    fn overlay(&self, over: &dyn Chain) -> Arc<dyn Chain> {
        // Every chain comes from this crate's catalog; a foreign one has no stages to take.
        let Some(over) = over.as_any().downcast_ref::<Stages>() else {
            return Arc::new(Stages::new(self.all.clone(), self.disabled.clone()));
        };
        let replaced =
            |name: &str| over.disabled.contains(&name) || over.all.iter().any(|stage| stage.name == name);
        let kept = self.all.iter().filter(|stage| !replaced(stage.name));
        Arc::new(Stages::new(over.all.iter().chain(kept).cloned().collect(), over.disabled.clone()))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn names(&self) -> Vec<&'static str> {
        self.all.iter().map(|stage| stage.name).collect()
    }
}

impl fmt::Debug for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all.iter().map(|stage| (stage.name, stage.priority))).finish()
    }
}

#[inline]
fn wanted(stage: &Stage, x: &mut Exchange<'_>) -> bool {
    match &stage.meta {
        None => true,
        // What cannot be judged was refused with the request, as far as it is the request's.
        Some(meta) => applies(stage, meta, x).unwrap_or_default(),
    }
}

/// Verdicts of filters on one exchange, by the address of the stage, which lives
/// as long as the exchange's snapshot.
struct Verdicts(SmallVec<[(usize, bool); 8]>);

/// Whether the stage's filter lets it run: evaluated once a request, as APISIX
/// does, so that a plugin runs in all its phases or in none. The error is what must be done first,
/// or that the request must be refused since the filter cannot be judged.
fn applies(stage: &Stage, meta: &Meta, x: &mut Exchange<'_>) -> Result<bool, Step> {
    let Some(filter) = &meta.filter else { return Ok(true) };
    let key = std::ptr::from_ref(stage).addr();
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
