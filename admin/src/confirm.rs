//! Changes that undo themselves: `X-Sluice-Confirm` on a write, and `/apisix/admin/revisions/unconfirmed`.
//!
//! That a change waits to be confirmed is a note of the store, written in the same transaction as the
//! change itself: it survives a restart, and no change becomes permanent by one. Every node that serves
//! the Admin API looks at the note; the first that finds its time over, or its traffic out of bounds, undoes the
//! change. Resources that later writes have changed or need stay as they are, and are named.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use control::store::{Decide, Record, Refused, Step, Store, StoreError, View, WriteResult, unix_ms};
use http::{HeaderMap, StatusCode};
use model::{Invalid, boot};
use sdk::meters::Trials;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior};

use crate::Admin;
use crate::answer::{self, Answer, ErrorAnswer, said};
use crate::author::Author;

mod start;
mod undo;

pub(crate) use start::Start;
use undo::Plan;

/// The name of the store's note about the change that waits.
const NOTE: &str = "unconfirmed";
/// The header of a write that must be confirmed.
const HEADER: &str = "x-sluice-confirm";
/// The interval at which a node checks the note, the deadline and the traffic.
const LOOK: Duration = Duration::from_millis(250);
/// The time until an undo that the store refused, on a full disk for example, is tried again.
const AGAIN: Duration = Duration::from_secs(10);
/// The number of requests in a window below which the bounds are not checked.
const FEW: u64 = 20;
/// The longest window; bounds the counts that are kept, of which there are four a second.
const LONGEST_WINDOW: Duration = Duration::from_secs(300);
/// The longest time a change may wait for its confirmation.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// A parsed `X-Sluice-Confirm` header.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Confirm {
    within: Duration,
    bounds: Bounds,
}

/// The bounds that traffic must keep while a change waits.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bounds {
    /// The share of requests, from 0 to 1, that may fail: answered with 5xx, or cut off.
    error_rate: Option<f64>,
    p99: Option<Duration>,
    /// The bounds hold for the requests of the last `window`.
    window: Duration,
}

impl Confirm {
    /// Reads `5m; max-error-rate=1%; max-p99=200ms; window=10s`; all but the first may be left out.
    ///
    /// # Errors
    /// 400 that names the invalid part.
    pub fn of_head(headers: &HeaderMap) -> Result<Option<Confirm>, ErrorAnswer> {
        let Some(value) = headers.get(HEADER) else { return Ok(None) };
        let text = value.to_str().unwrap_or_default();
        Confirm::parse(text).map(Some).map_err(|wrong| {
            said(format!(
                "invalid header X-Sluice-Confirm: {wrong}, expected `5m; max-error-rate=1%; max-p99=200ms`"
            ))
        })
    }

    fn parse(text: &str) -> Result<Confirm, String> {
        let time = |text: &str| {
            let time = boot::time(&Value::from(text)).ok().filter(|time| !time.is_zero());
            time.ok_or_else(|| format!("{text:?} is not a duration"))
        };
        let mut parts = text.split(';').map(str::trim);
        let within = time(parts.next().unwrap_or_default())?;
        if within > LONGEST {
            return Err(format!("a change waits {} hours at most", LONGEST.as_secs() / 3600));
        }
        let mut bounds = Bounds { error_rate: None, p99: None, window: Duration::from_secs(10) };
        for part in parts.filter(|part| !part.is_empty()) {
            match part.split_once('=').map(|(name, value)| (name.trim(), value.trim())) {
                Some(("max-error-rate", value)) => bounds.error_rate = Some(rate(value)?),
                Some(("max-p99", value)) => bounds.p99 = Some(time(value)?),
                Some(("window", value)) => bounds.window = time(value)?,
                _ => return Err(format!("unknown option {part:?}")),
            }
        }
        if bounds.window > LONGEST_WINDOW {
            return Err(format!("a window lasts {} s at most", LONGEST_WINDOW.as_secs()));
        }
        Ok(Confirm { within, bounds })
    }

    /// Adds the note that the change waits to the steps of a write, if they change anything.
    ///
    /// # Errors
    /// [`Refused::Invalid`] if another change waits.
    fn guard(&self, view: &dyn View, by: &Author, steps: &mut Vec<Step>) -> Result<(), Refused> {
        if !steps
            .iter()
            .any(|step| matches!(step, Step::Put { .. } | Step::Delete { .. } | Step::Plugins { .. }))
        {
            return Ok(());
        }
        if view.note(NOTE).and_then(|text| Waiting::of_text(&text)).is_some() {
            return Err(another_waits(None).into());
        }
        let Confirm { within, bounds } = self;
        let until_ms = unix_ms().saturating_add(ms(*within));
        let waiting =
            Waiting { from: view.revision(), until_ms, within: *within, bounds: *bounds, author: by.name() };
        steps.push(Step::Note { name: NOTE, text: waiting.to_text() });
        Ok(())
    }
}

/// Returns the error for a change that must be confirmed while another one waits.
fn another_waits(revision: Option<u64>) -> Invalid {
    let what =
        revision.map_or_else(|| "another change".to_owned(), |revision| format!("revision {revision}"));
    Invalid::new(format!("{what} is waiting for `sluice confirm`; confirm or undo it first"))
        .hint("`sluice confirm` keeps it, `sluice confirm --undo` takes it back")
}

impl Author {
    /// Completes the steps of a write by this author.
    ///
    /// # Errors
    /// [`Refused::Invalid`] if the write must be confirmed while another change waits.
    pub fn complete(&self, view: &dyn View, mut steps: Vec<Step>) -> Result<Vec<Step>, Refused> {
        if let Some(confirm) = &self.confirm {
            confirm.guard(view, self, &mut steps)?;
        }
        Ok(steps)
    }
}

/// `1%` or `0.01`.
fn rate(text: &str) -> Result<f64, String> {
    let (number, of) = match text.strip_suffix('%') {
        Some(number) => (number.trim(), 100.0),
        None => (text, 1.0),
    };
    let rate = number.parse::<f64>().ok().map(|number| number / of);
    rate.filter(|rate| (0.0..=1.0).contains(rate))
        .ok_or_else(|| format!("{text:?} is no part of all requests"))
}

/// A change that waits.
#[derive(Debug, Clone, PartialEq)]
struct Waiting {
    /// The store's revision before it.
    from: u64,
    /// The deadline, in milliseconds since 1970. Read only when a node starts to watch the change; from then
    /// on, the node uses its monotonic clock.
    until_ms: u64,
    within: Duration,
    bounds: Bounds,
    author: String,
}

impl Waiting {
    /// Parses the note; `None` if no change waits.
    fn of_text(text: &str) -> Option<Waiting> {
        let value: Value = serde_json::from_str(text).ok()?;
        let number = |name: &str| value.get(name).and_then(Value::as_u64);
        let bounds = Bounds {
            error_rate: value.get("max_error_rate").and_then(Value::as_f64),
            p99: number("max_p99_ms").map(Duration::from_millis),
            window: Duration::from_millis(number("window_ms")?),
        };
        Some(Waiting {
            from: number("from")?,
            until_ms: number("until_ms")?,
            within: Duration::from_millis(number("within_ms")?),
            bounds,
            author: value.get("author")?.as_str()?.to_owned(),
        })
    }

    fn to_text(&self) -> String {
        json!({
            "from": self.from,
            "until_ms": self.until_ms,
            "within_ms": ms(self.within),
            "max_error_rate": self.bounds.error_rate,
            "max_p99_ms": self.bounds.p99.map(ms),
            "window_ms": ms(self.bounds.window),
            "author": self.author,
        })
        .to_string()
    }

    /// Returns the time left by the wall clock; at most `within`, since that clock may have been set back.
    fn left(&self, now_ms: u64) -> Duration {
        Duration::from_millis(self.until_ms.saturating_sub(now_ms)).min(self.within)
    }

    /// Returns the name of the change in messages: its revision, if the history has it.
    fn title(&self, revision: Option<u64>) -> String {
        match revision {
            Some(revision) => format!("revision {revision}"),
            None => format!("the change after revision {}", self.from),
        }
    }
}

async fn waiting(store: &dyn Store) -> Result<Option<(String, Waiting)>, StoreError> {
    let note = store.note(NOTE).await?;
    Ok(note.and_then(|text| Waiting::of_text(&text).map(|waiting| (text, waiting))))
}

/// Returns the record of a change that waits from the history.
async fn record(store: &dyn Store, waiting: &Waiting) -> Result<Option<Record>, StoreError> {
    // Several writes may begin from one revision if other nodes write to the store as well.
    let made_ms = waiting.until_ms.saturating_sub(ms(waiting.within));
    let records = store.history(waiting.from, u64::MAX, usize::MAX).await?.into_iter();
    let ours = records.filter(|record| record.from == waiting.from && record.author == waiting.author);
    Ok(ours.min_by_key(|record| record.time_ms.abs_diff(made_ms)))
}

async fn revision(store: &dyn Store, waiting: &Waiting) -> Option<u64> {
    record(store, waiting).await.ok().flatten().map(|record| record.revision)
}

/// Returns the change that waits to be confirmed, for the status of the program.
pub(crate) async fn shown(store: &dyn Store) -> Option<Value> {
    let (_, waiting) = waiting(store).await.ok().flatten()?;
    Some(json!({
        "revision": revision(store, &waiting).await,
        "from": waiting.from,
        "author": waiting.author,
        "left": waiting.left(unix_ms()).as_secs(),
    }))
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The state that a node keeps about the change that waits.
struct Watch {
    text: String,
    waiting: Waiting,
    title: String,
    deadline: Instant,
    /// The counts at moments of the window, oldest first.
    seen: VecDeque<(Instant, Trials)>,
    /// The change cannot be undone; this has been logged.
    given_up: bool,
    /// The time of the next try after the store refused the undo.
    again: Option<Instant>,
}

impl Watch {
    /// `before` holds the counts just before the write, if this node made it.
    fn new(text: String, waiting: Waiting, title: String, before: Option<(Instant, Trials)>) -> Watch {
        let deadline = Instant::now() + waiting.left(unix_ms());
        let seen = before.into_iter().collect();
        Watch { text, waiting, title, deadline, seen, given_up: false, again: None }
    }

    /// Returns whether there is nothing to do yet.
    fn rests(&self, now: Instant) -> bool {
        self.given_up || self.again.is_some_and(|again| now < again)
    }

    /// Records that the store refused the undo and returns whether that is an error. It is not if another
    /// write came first: the next check of the note shows the state of the change.
    fn refused(&mut self, why: &Refused, now: Instant) -> bool {
        let is_error = !matches!(why, Refused::Store(StoreError::Changed));
        self.again = is_error.then(|| now + AGAIN);
        is_error
    }

    /// Returns the reason to undo the change now; `None` as long as it may stay.
    fn verdict(&mut self, now: Instant, traffic: Trials) -> Option<String> {
        let Bounds { error_rate, p99, window } = self.waiting.bounds;
        // The last counts from before the window stay: the window is measured from them.
        while self.seen.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= window) {
            self.seen.pop_front();
        }
        let latest = self.seen.front().map(|(_, before)| traffic.since(before)).unwrap_or_default();
        self.seen.push_back((now, traffic));
        if latest.requests >= FEW {
            let rate = latest.error_rate();
            if let Some(most) = error_rate.filter(|most| rate > *most) {
                return Some(format!(
                    "{:.2}% of {} requests failed, more than {:.2}%",
                    rate * 100.0,
                    latest.requests,
                    most * 100.0
                ));
            }
            let slow = Duration::from_micros(latest.p99_us());
            if let Some(most) = p99.filter(|most| slow > *most) {
                return Some(format!("p99 was {} ms, more than {} ms", ms(slow), ms(most)));
            }
        }
        (now >= self.deadline)
            .then(|| format!("not confirmed within {} s", self.waiting.within.as_secs_f64()))
    }
}

impl Admin {
    /// Makes a write. Traffic is counted from before the write if it must be confirmed.
    pub(crate) async fn write_as(&self, author: &Author, decide: Decide) -> Result<WriteResult, Refused> {
        let Some(_) = &author.confirm else { return self.store.write(decide).await };
        let begun = self.start.begin(&*self.program);
        match self.store.write(decide).await {
            Ok(written) => {
                begun.made();
                Ok(written)
            }
            Err(Refused::Invalid(invalid)) if invalid == another_waits(None) => {
                let known = match waiting(&*self.store).await {
                    Ok(Some((_, waiting))) => revision(&*self.store, &waiting).await,
                    _ => None,
                };
                Err(another_waits(known).into())
            }
            Err(refused) => Err(refused),
        }
    }

    /// Undoes changes that are not confirmed, for as long as the program runs.
    pub async fn guard(self) {
        let mut tick = tokio::time::interval(LOOK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watch: Option<Watch> = None;
        loop {
            tick.tick().await;
            let made = self.start.made();
            // The store did not answer: keeps the state and tries again at the next tick.
            let Ok(found) = waiting(&*self.store).await else { continue };
            let Some((text, waiting)) = found else {
                watch = None;
                self.start.end(made, &*self.program);
                continue;
            };
            let watch = match watch.take().filter(|watch| watch.text == text) {
                Some(known) => watch.insert(known),
                None => {
                    let before = self.start.take(&*self.program);
                    let title = waiting.title(revision(&*self.store, &waiting).await);
                    let new = Watch::new(text, waiting, title, before);
                    tracing::warn!(
                        "{} by {:?} is undone in {:.0} s unless it is confirmed",
                        new.title,
                        new.waiting.author,
                        new.waiting.left(unix_ms()).as_secs_f64()
                    );
                    watch.insert(new)
                }
            };
            if watch.rests(Instant::now()) {
                continue;
            }
            let Some(why) = watch.verdict(Instant::now(), self.program.traffic()) else { continue };
            match self.undo(&watch.text, &watch.waiting, "", &why).await {
                Ok(Undone { change, revision, left }) => {
                    let but = but(&left);
                    tracing::warn!("revision {change} was undone (as revision {revision}): {why}{but}");
                }
                Err(Failed::Unknown) => {
                    watch.given_up = true;
                    tracing::error!(
                        "{} cannot be undone, as the history (sluice.history) does not have it: {why}; put things \
                         right, then confirm it",
                        watch.title
                    );
                }
                Err(Failed::Refused(why)) => {
                    if watch.refused(&why, Instant::now()) {
                        let seconds = AGAIN.as_secs();
                        tracing::error!(
                            "{} is not undone yet, trying again in {seconds} s: {why}",
                            watch.title
                        );
                    }
                }
            }
        }
    }

    /// Restores the resources of the change, except those that later writes have changed or need.
    async fn undo(&self, text: &str, waiting: &Waiting, author: &str, why: &str) -> Result<Undone, Failed> {
        let found = record(&*self.store, waiting).await;
        let record = found.map_err(|error| Failed::Refused(error.into()))?.ok_or(Failed::Unknown)?;
        let change = record.revision;
        let message = format!("undo of revision {change}: {why}");
        let by = Step::By { author: author.to_owned(), message };
        let left: Arc<Mutex<Vec<String>>> = Arc::default();
        let (skipped, text) = (left.clone(), text.to_owned());
        let decide = move |view: &dyn View| {
            if view.note(NOTE).as_deref() != Some(&text) {
                // The change was confirmed meanwhile, or undone by another node.
                return Err(StoreError::Changed.into());
            }
            let Plan { steps, left } = undo::plan(view, &record);
            *skipped.lock().unwrap_or_else(PoisonError::into_inner) = left;
            let first = [by.clone(), Step::Note { name: NOTE, text: String::new() }];
            Ok(first.into_iter().chain(steps).collect())
        };
        let written = self.store.write(Box::new(decide)).await.map_err(Failed::Refused)?;
        let left = std::mem::take(&mut *left.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(Undone { change, revision: written.revision, left })
    }

    async fn waiting(&self) -> Result<(String, Waiting), ErrorAnswer> {
        waiting(&*self.store).await?.ok_or_else(nothing_waits)
    }

    /// `GET revisions/unconfirmed`
    pub(crate) async fn unconfirmed(&self) -> Answer {
        let (_, waiting) = self.waiting().await?;
        let bounds = &waiting.bounds;
        let body = json!({
            "revision": revision(&*self.store, &waiting).await,
            "from": waiting.from,
            "author": waiting.author,
            "until": waiting.until_ms / 1000,
            "left": waiting.left(unix_ms()).as_secs(),
            "max_error_rate": bounds.error_rate,
            "max_p99_ms": bounds.p99.map(ms),
            "window_ms": ms(bounds.window),
        });
        Ok(answer::json(StatusCode::OK, &body))
    }

    /// `POST revisions/unconfirmed/confirm`
    pub(crate) async fn confirm(&self, author: &Author) -> Answer {
        let (text, waiting) = self.waiting().await?;
        let change = revision(&*self.store, &waiting).await;
        let by = author.step();
        let decide = move |view: &dyn View| match view.note(NOTE).as_deref() == Some(&text) {
            true => Ok(vec![by.clone(), Step::Note { name: NOTE, text: String::new() }]),
            false => Err(StoreError::Changed.into()),
        };
        let revision = self.store.write(Box::new(decide)).await?.revision;
        author.changed(&http::Method::POST, "revisions/unconfirmed/confirm", revision);
        let body = json!({ "confirmed": change, "from": waiting.from, "revision": revision });
        Ok(answer::json(StatusCode::OK, &body))
    }

    /// `POST revisions/unconfirmed/undo`
    pub(crate) async fn undo_unconfirmed(&self, author: &Author) -> Answer {
        let (text, waiting) = self.waiting().await?;
        let undone = self.undo(&text, &waiting, &author.name(), "taken back").await;
        let Undone { change, revision, left } = undone.map_err(|failed| match failed {
            Failed::Unknown => ErrorAnswer::new(
                StatusCode::CONFLICT,
                "the history (sluice.history) does not have the change any more: put things right, then confirm it",
            ),
            Failed::Refused(refused) => refused.into(),
        })?;
        author.changed(&http::Method::POST, "revisions/unconfirmed/undo", revision);
        Ok(answer::json(
            StatusCode::OK,
            &json!({ "undone": change, "from": waiting.from, "revision": revision, "left": left }),
        ))
    }
}

/// The result of an undo.
struct Undone {
    /// The revision of the change.
    change: u64,
    /// The store's revision after the undo.
    revision: u64,
    /// Resources that later writes have changed or need; they keep their value.
    left: Vec<String>,
}

enum Failed {
    /// The history does not have the change.
    Unknown,
    Refused(Refused),
}

fn but(left: &[String]) -> String {
    match left {
        [] => String::new(),
        left => format!("; left as they are, since later writes changed or need them: {}", left.join(", ")),
    }
}

fn nothing_waits() -> ErrorAnswer {
    ErrorAnswer::new(StatusCode::NOT_FOUND, "no change waits to be confirmed")
}

#[cfg(test)]
mod tests;
