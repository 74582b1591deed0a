//! Compression in a plugin's body filter: brotli and zstd. (gzip runs behind the filters of all plugins.)

use std::io;

use sdk::budget::Reservation;
use sdk::{Chunk, Exchange, Method, Plugin, Step};
use smallvec::SmallVec;

use super::{Accepted, Choice, Compressor};

/// A plugin whose body filter compresses responses.
pub(crate) trait Filtered: Plugin {
    /// The name in `Accept-Encoding` and `Content-Encoding`.
    const CODING: &'static str;

    type Compressor: Compressor;

    fn choice(&self) -> &Choice;

    /// Bytes that the compressor of a body takes, rounded up; `length` is announced by the head.
    fn memory(&self, length: Option<u64>) -> usize;

    /// # Errors
    /// The library cannot make one.
    fn compressor(&self, length: Option<u64>) -> io::Result<Self::Compressor>;
}

/// A compressor at work on a response.
struct Work<C> {
    /// The address of the plugin instance: there may be one on a global rule and one on the route.
    instance: usize,
    compressor: C,
    /// The memory that the compressor takes from the worker's budget.
    memory: Reservation,
}

/// The compressors at work on one exchange: one, as the other instances find the response coded.
struct AtWork<C>(SmallVec<[Work<C>; 1]>);

/// Begins to compress a response whose head is here, if the client and the settings want it.
pub(crate) fn begin<P: Filtered>(plugin: &P, x: &mut Exchange<'_>) {
    // Drops the compressor of a failed response that the gateway's own replaces.
    if let Some(AtWork(all)) = x.note_mut::<AtWork<P::Compressor>>() {
        all.retain(|work| work.instance != id(plugin));
    }
    let accepted = matches!(super::accepted(x, P::CODING), Accepted::Named(true) | Accepted::Any(true));
    let has_body = !matches!(x.status(), 204 | 206 | 304);
    if !accepted || !has_body || super::is_coded(x) || !plugin.choice().takes(x) {
        return;
    }
    let length = super::announced(x);
    let mut memory = Reservation::default();
    if memory.resize(x.world().budget(), plugin.memory(length)).is_err() {
        x.complain(P::NAME, "the response is not compressed: the worker holds as much as it may");
        return;
    }
    // The head of a response to HEAD is that of a response to GET, but there is nothing to compress.
    if x.method() != Method::Head {
        let Ok(compressor) = plugin.compressor(length) else {
            x.complain(P::NAME, "the response is not compressed: the library failed to start");
            return;
        };
        keep(x, Work { instance: id(plugin), compressor, memory });
    }
    plugin.choice().add_vary(x);
    super::set_coding(x, P::CODING);
}

/// Whether this instance compresses the response.
pub(crate) fn is_at_work<P: Filtered>(plugin: &P, x: &Exchange<'_>) -> bool {
    x.note::<AtWork<P::Compressor>>()
        .is_some_and(|AtWork(all)| all.iter().any(|work| work.instance == id(plugin)))
}

/// Compresses a piece, or waits for [`code_away`] where that takes long.
pub(crate) fn code<P: Filtered>(plugin: &P, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
    if chunk.data.is_empty() && !chunk.last {
        return Step::Next;
    }
    let Some(mut work) = take(plugin, x) else { return Step::Next };
    let is_long = work.compressor.is_long(chunk.data.len());
    if !is_long {
        work.compressor.code(chunk);
    }
    if is_long || !chunk.last {
        keep(x, work);
    }
    if is_long { Step::Wait } else { Step::Next }
}

/// Compresses a piece on the background threads.
pub(crate) async fn code_away<P: Filtered>(plugin: &P, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
    let Some(Work { instance, compressor, memory }) = take(plugin, x) else { return Step::Next };
    let (compressor, memory) = super::code_away(x.world(), compressor, memory, chunk).await;
    if !chunk.last {
        keep(x, Work { instance, compressor, memory });
    }
    Step::Next
}

fn id<P>(plugin: &P) -> usize {
    std::ptr::from_ref(plugin).addr()
}

/// Keeps a compressor for the next piece.
fn keep<C: Compressor>(x: &mut Exchange<'_>, work: Work<C>) {
    match x.note_mut::<AtWork<C>>() {
        Some(AtWork(all)) => all.push(work),
        None => x.set_note(AtWork(SmallVec::from_iter([work]))),
    }
}

fn take<P: Filtered>(plugin: &P, x: &mut Exchange<'_>) -> Option<Work<P::Compressor>> {
    let AtWork(all) = x.note_mut::<AtWork<P::Compressor>>()?;
    let index = all.iter().position(|work| work.instance == id(plugin))?;
    Some(all.swap_remove(index))
}
