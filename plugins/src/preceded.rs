//! An instance with the code of `_meta.pre_function` before it.

use std::sync::Arc;
use std::task::{Context, Poll};

use sdk::chain::{Instance, LocalFuture, Stage};
use sdk::exchange::Chunk;
use sdk::stream::Side;
use sdk::target::Doubtful;
use sdk::{Exchange, Phase, Phases, Step};

/// Calls `before` and then the stage's instance in each phase. A response that `before` makes ends the request.
pub(crate) struct Preceded {
    pub before: Box<dyn Instance>,
    pub stage: Arc<Stage>,
}

/// Instances whose code has run in a phase, by their addresses. A phase function is called again after it has asked
/// for the body; the code before it runs once.
#[derive(Default)]
struct Ran(Vec<(usize, Phase)>);

impl Preceded {
    fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Notes that `before` is done in this phase.
    fn note(&self, phase: Phase, x: &mut Exchange<'_>) {
        let ran = (self.key(), phase);
        match x.note_mut::<Ran>() {
            Some(Ran(all)) => all.push(ran),
            None => x.set_note(Ran(vec![ran])),
        }
    }

    fn has_run(&self, phase: Phase, x: &Exchange<'_>) -> bool {
        x.note::<Ran>().is_some_and(|Ran(all)| all.contains(&(self.key(), phase)))
    }

    /// The step of the instance itself.
    fn rest(&self, phase: Phase, x: &mut Exchange<'_>) -> Step {
        self.stage.instance().ask(phase, x)
    }
}

impl Instance for Preceded {
    fn phases(&self) -> Phases {
        self.before.phases() | self.stage.instance().phases()
    }

    fn refused_in_path(&self) -> Option<Doubtful> {
        self.stage.instance().refused_in_path()
    }

    fn ask(&self, phase: Phase, x: &mut Exchange<'_>) -> Step {
        if !self.has_run(phase, x) {
            match self.before.ask(phase, x) {
                Step::Next => self.note(phase, x),
                step => return step,
            }
        }
        self.rest(phase, x)
    }

    fn wait<'a>(&'a self, phase: Phase, x: &'a mut Exchange<'_>) -> LocalFuture<'a, Step> {
        Box::pin(async move {
            if phase.is_before_upstream() && !self.has_run(phase, x) {
                match self.before.wait(phase, x).await {
                    Step::Next => self.note(phase, x),
                    step => return step,
                }
                match self.rest(phase, x) {
                    Step::Wait => {}
                    step => return step,
                }
            }
            self.stage.instance().wait(phase, x).await
        })
    }

    fn header_filter(&self, x: &mut Exchange<'_>) -> Step {
        let length = x.response_header("Content-Length").map(<[u8]>::to_vec);
        match self.before.header_filter(x) {
            Step::Next => {}
            step => return step,
        }
        // Code that may filter the body removes the length, but runs only where the instance filters it.
        if let Some(length) = length
            && !self.filters_body(x)
        {
            let _ = x.set_response_header("Content-Length", &length);
        }
        self.stage.instance().header_filter(x)
    }

    fn filters_body(&self, x: &Exchange<'_>) -> bool {
        self.stage.instance().filters_body(x)
    }

    fn holds_body(&self, x: &Exchange<'_>) -> bool {
        self.stage.instance().holds_body(x)
    }

    fn body_filter(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        match self.before.body_filter(x, chunk) {
            Step::Next => self.stage.instance().body_filter(x, chunk),
            step => step,
        }
    }

    fn wait_body<'a>(&'a self, x: &'a mut Exchange<'_>, chunk: &'a mut Chunk) -> LocalFuture<'a, Step> {
        self.stage.instance().wait_body(x, chunk)
    }

    fn stream_data(&self, x: &mut Exchange<'_>, from: Side, chunk: &mut Chunk) -> Step {
        self.stage.instance().stream_data(x, from, chunk)
    }

    fn poll_stream(
        &self,
        x: &mut Exchange<'_>,
        from: Side,
        chunk: &mut Chunk,
        cx: &mut Context<'_>,
    ) -> Poll<Step> {
        self.stage.instance().poll_stream(x, from, chunk, cx)
    }

    fn serve(&self, x: &mut Exchange<'_>) -> Step {
        self.stage.instance().serve(x)
    }

    fn log(&self, x: &mut Exchange<'_>) {
        self.before.log(x);
        self.stage.instance().log(x);
    }
}
