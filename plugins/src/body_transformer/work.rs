//! One transformation: reading the body and running the template, on the worker or on a background thread.
//!
//! A run on a background thread has no exchange, so the variables of the request are found before it. Where the template
//! makes the name of a variable, a run ends with the names that were missing, and the next one has them.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use sdk::Exchange;
use sdk::budget::Reservation;
use sdk::vars::{Var, multipart, reading_body};
use serde_json::Value as Json;

use super::run::{self, Input, Request};
use super::value::{self, Parts, Table, Value, text};
use super::{Bounds, Failed, Format, Transform, xml};
use crate::tree;

/// Bounds of the work that a worker does itself, about a millisecond: bytes of the body, bytes of the values that are
/// read from it, and steps of the template.
const LONGEST_HERE: usize = 64 << 10;
const HEAVIEST_HERE: usize = 2 << 20;
const STEPS_HERE: u64 = 10_000;

/// Turns on background threads for one body, the weighing included. Each run of the template has the variables that
/// the run before it lacked.
const MOST_RUNS: usize = 16;
/// Variables that a run may lack.
const MOST_LACKED: usize = 1000;
pub(super) const TOO_MANY_RUNS: &str =
    "the template makes the names of too many variables, or each from the one before";

/// A body, and the parts of its message by which it is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Given<'a> {
    pub side: &'static str,
    pub format: Option<Format>,
    /// Content-Type.
    pub kind: &'a [u8],
    pub query: &'a [u8],
    /// Empty where there is no body.
    pub body: &'a [u8],
    /// The fields are read without a body, too.
    pub get: bool,
}

impl Given<'_> {
    /// The format, where there is something to read.
    fn read_as(&self) -> Option<Format> {
        self.format.filter(|format| *format != Format::Plain && (self.get || !self.body.is_empty()))
    }

    /// The most bytes that the values which are read may take.
    fn weight(&self) -> usize {
        match self.read_as() {
            None => 0,
            Some(Format::Xml) => xml::weight(self.body),
            Some(Format::Args) => tree::weight(self.query),
            Some(_) => tree::weight(self.body),
        }
    }
}

pub(super) fn spent(side: &str) -> Failed {
    Failed { status: 503, words: format!("{side} body decode: the worker holds as much as it may") }
}

impl Transform {
    /// Makes the other body, if the worker has time for it; else none, and it is work for a background thread.
    pub fn try_here(
        &self,
        x: &Exchange<'_>,
        given: Given<'_>,
        bounds: Bounds,
    ) -> Option<Result<Vec<u8>, Failed>> {
        if given.body.len().max(given.query.len()) > LONGEST_HERE {
            return None;
        }
        let weight = given.weight();
        if weight > HEAVIEST_HERE {
            return None;
        }
        let mut memory = Reservation::default();
        if memory.resize(x.world().budget(), weight).is_err() {
            return Some(Err(spent(given.side)));
        }
        let steps = bounds.steps.min(STEPS_HERE);
        let request = Request {
            size: searched(x),
            consumer: x.consumer().map(|consumer| &*consumer.name),
            now: x.world().now_ms() / 1000,
            var: &mut |name| Var::parse(name).of(x).map_or(Value::Nil, |value| text(&value)),
        };
        let made = self.run(given, request, Bounds { steps, ..bounds });
        let is_cut = steps < bounds.steps && made.as_ref().is_err_and(|failed| failed.bound().is_some());
        (!is_cut).then_some(made)
    }

    fn run<'a>(&self, given: Given<'a>, request: Request<'a>, bounds: Bounds) -> Result<Vec<u8>, Failed> {
        let Given { side, format, body, .. } = given;
        let read = given.read_as().map(|format| read(format, given));
        let (mut fields, parts) = read
            .unwrap_or_else(|| Ok((Table::default(), None)))
            .map_err(|words| Failed { status: 400, words: format!("{side} body decode: {words}") })?;
        // A field of the body never stands for what templates call.
        for name in ["_ctx", "_body", "_escape_xml", "_escape_json", "_multipart"] {
            fields.map.remove(name.as_bytes());
        }
        let in_base64 =
            self.base64 || format.is_some_and(|format| !matches!(format, Format::Encoded | Format::Args));
        let template =
            if in_base64 { self.decoded.as_ref().or(self.plain.as_ref()) } else { self.plain.as_ref() };
        let template = template.or(self.decoded.as_ref()).ok_or_else(|| spent(side))?;
        let body = Some(body).filter(|body| !body.is_empty());
        run::run(template, Input { request, fields, body, multipart: parts, bounds })
            .map_err(|words| Failed { status: 503, words: format!("{side} template rendering: {words}") })
    }
}

/// Bytes that the search of a variable may go through.
fn searched(x: &Exchange<'_>) -> usize {
    let fields = x.request().fields.iter().fold(0, |all, (name, value, _)| all + name.len() + value.len());
    x.query().len() + fields + x.body().len()
}

/// A transformation that owns all it needs.
pub(super) struct Work {
    transform: Arc<Transform>,
    side: &'static str,
    format: Option<Format>,
    kind: Vec<u8>,
    query: Vec<u8>,
    body: Vec<u8>,
    get: bool,
    bounds: Bounds,
    size: usize,
    consumer: Option<String>,
    now: u64,
    vars: HashMap<Box<str>, Option<Box<[u8]>>>,
    /// The memory of the values was counted.
    is_counted: bool,
}

/// The end of a turn on a background thread.
enum Outcome {
    /// Bytes that must be counted first.
    Weighs(usize),
    /// Variables that are not known yet.
    Lacks(HashSet<Box<str>>),
    Made(Result<Vec<u8>, Failed>),
}

impl Work {
    /// `body` stands for that of `given`.
    pub fn new(
        x: &Exchange<'_>,
        transform: &Arc<Transform>,
        given: Given<'_>,
        body: Vec<u8>,
        bounds: Bounds,
    ) -> Work {
        let only = |needed: Format, text: &[u8]| {
            if given.format == Some(needed) { text.to_vec() } else { Vec::new() }
        };
        Work {
            transform: transform.clone(),
            side: given.side,
            format: given.format,
            kind: only(Format::Multipart, given.kind),
            query: only(Format::Args, given.query),
            body,
            get: given.get,
            bounds,
            size: searched(x),
            consumer: x.consumer().map(|consumer| consumer.name.clone()),
            now: x.world().now_ms() / 1000,
            vars: HashMap::new(),
            is_counted: false,
        }
    }

    /// Runs on the background threads. Gives back the body as well, and `memory`, which counts for it.
    pub async fn run(
        self,
        x: &mut Exchange<'_>,
        mut memory: Reservation,
    ) -> (Result<Vec<u8>, Failed>, Vec<u8>, Reservation) {
        let (world, transform) = (x.world(), self.transform.clone());
        let mut work = self;
        let templates = transform.plain.iter().chain(&transform.decoded);
        let mut more = work.find(x, templates.flat_map(|template| &template.vars).map(|name| &**name));
        let mut counted = work.kind.capacity() + work.query.capacity() + work.body.capacity();
        let mut turns = 0;
        loop {
            counted += more;
            if memory.resize(world.budget(), counted).is_err() {
                return (Err(spent(work.side)), work.body, memory);
            }
            let job = world.offload(memory, move |_| {
                let outcome = work.turn();
                (work, outcome)
            });
            let outcome;
            ((work, outcome), memory) = job.await;
            more = match outcome {
                Outcome::Made(made) => return (made, work.body, memory),
                Outcome::Weighs(bytes) => bytes,
                Outcome::Lacks(_) if turns == MOST_RUNS => {
                    let words = format!("{} template rendering: {TOO_MANY_RUNS}", work.side);
                    return (Err(Failed { status: 503, words }), work.body, memory);
                }
                Outcome::Lacks(names) => work.find(x, names.iter().map(|name| &**name)),
            };
            turns += 1;
        }
    }

    /// Finds variables, and returns how many bytes they take.
    fn find<'n>(&mut self, x: &mut Exchange<'_>, names: impl Iterator<Item = &'n str>) -> usize {
        // The request's body is parsed once for all names.
        reading_body(x, |x| {
            let mut bytes = 0;
            for name in names {
                let value: Option<Box<[u8]>> = Var::parse(name).of(x).map(|value| (*value).into());
                bytes += 64 + name.len() + value.as_ref().map_or(0, |value| value.len());
                self.vars.insert(name.into(), value);
            }
            bytes
        })
    }

    fn turn(&mut self) -> Outcome {
        let is_counted = std::mem::replace(&mut self.is_counted, true);
        let Work { side, format, get, .. } = *self;
        let given = Given { side, format, kind: &self.kind, query: &self.query, body: &self.body, get };
        if !is_counted {
            return Outcome::Weighs(given.weight());
        }
        let mut lacks = HashSet::new();
        let request = Request {
            size: self.size,
            consumer: self.consumer.as_deref(),
            now: self.now,
            var: &mut |name| match self.vars.get(name) {
                Some(value) => value.as_deref().map_or(Value::Nil, text),
                // The output of this run is dropped, but it finds more of the names if it goes on: with a text that is
                // a number as well, few expressions fail.
                None => {
                    if lacks.len() < MOST_LACKED {
                        lacks.insert(name.into());
                    }
                    text(b"0")
                }
            },
        };
        let made = self.transform.run(given, request, self.bounds);
        if lacks.is_empty() { Outcome::Made(made) } else { Outcome::Lacks(lacks) }
    }
}

fn read(format: Format, given: Given<'_>) -> Result<(Table, Option<Parts>), String> {
    let body = given.body;
    match format {
        Format::Json => match tree::read(body)? {
            Json::Object(members) => Ok((value::of_members(members), None)),
            Json::Array(list) => {
                let list = list.into_iter().map(value::of_json).collect();
                Ok((Table::of_list(list, true), None))
            }
            _ => Err("it is neither an object nor a list".into()),
        },
        Format::Xml => xml::read(body).map(|fields| (fields, None)),
        Format::Encoded => Ok((value::of_members(tree::form(body)), None)),
        Format::Args => Ok((value::of_members(tree::form(given.query)), None)),
        Format::Multipart => {
            let mut all = Vec::new();
            let boundary = multipart::parts(given.kind, body, |name, value| {
                all.push((name.to_vec(), value.to_vec()));
                Ok(())
            });
            let boundary = boundary.map_err(|_| "no boundary separates the parts")?.to_vec();
            let mut fields = Table::default();
            for (name, value) in &all {
                let value = text(value);
                match fields.map.get_mut(&name[..]) {
                    Some(Value::Table(list)) => list.borrow_mut().list.push(value),
                    Some(first) => {
                        let list = vec![first.clone(), value];
                        *first = value::table(Table::of_list(list, false));
                    }
                    None => fields.map.insert(name.clone().into(), value),
                }
            }
            Ok((fields, Some(Parts { boundary, all })))
        }
        Format::Plain => Ok((Table::default(), None)),
    }
}
