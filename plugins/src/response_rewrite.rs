//! response-rewrite: changes the status, headers and body of a response.
//!
//! Settings and order as in APISIX 3.18. Compressed bodies are not decoded: a response with a
//! Content-Encoding passes unfiltered, and the error log says so. A body that filters look at is
//! held whole; what a worker holds in all is bounded by `nginx_config.http.held_bodies`. While
//! filters work, this counts the body, the new one that a filter writes once it has found a match,
//! and what its search keeps: for most patterns, half a MiB at most. Filters work in slices of about
//! a millisecond, between which the worker serves others, and no longer than `plugin_wait_timeout`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::Invalid;
use sdk::budget::Budget;
use sdk::chain::Phases;
use sdk::expr::Expr;
use sdk::pattern::{Progress, Slice, Substitution, Unreplaced};
use sdk::{Build, Chunk, Exchange, Plugin, Step};
use serde::Deserialize;
use serde_json::{Value, json};
use smallvec::SmallVec;

use crate::edits::{self, Edit};

/// The stage.
pub struct ResponseRewrite {
    status: Option<u16>,
    edits: Vec<Edit>,
    body: Option<Vec<u8>>,
    filters: Vec<Substitution>,
    vars: Option<Expr>,
    max_body: usize,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    status_code: Option<u16>,
    #[serde(default)]
    headers: Value,
    body: Option<String>,
    body_base64: bool,
    vars: Option<Value>,
    #[serde(default)]
    filters: Vec<FilterConfig>,
    max_resp_body_size: usize,
}

#[derive(Debug, Deserialize)]
struct FilterConfig {
    regex: String,
    scope: String,
    replace: String,
    options: String,
}

/// What the header filter decided, and the body gathered so far.
#[derive(Debug)]
struct Held {
    /// Whose: the plugin may stand on a global rule and on the route.
    stage: usize,
    body: Vec<u8>,
    /// How long the upstream said the body is; 0 if it did not.
    announced: usize,
    /// What it counts as in the worker's budget, until the client has taken it.
    memory: sdk::budget::Held,
    /// The body is longer than `max_resp_body_size`.
    cut: bool,
    work: Work,
}

/// How far the filters are, once all of the body is here.
#[derive(Debug, Default)]
struct Work {
    /// The filter that is at work.
    filter: usize,
    progress: Progress,
    /// One gave up.
    undecided: bool,
}

/// What came of the filters in one slice.
enum Filtered {
    /// The slice is used up.
    NotYet,
    /// The new body, and whether a filter gave up.
    Body(Vec<u8>, bool),
    /// More would have to be held than may be.
    Refused,
}

/// The stages at work on one exchange: one, or two.
struct AtWork(SmallVec<[Held; 1]>);

impl Plugin for ResponseRewrite {
    const NAME: &'static str = "response-rewrite";
    const PRIORITY: i32 = 899;
    const PHASES: Phases = Phases::ACCESS.with(Phases::HEADER_FILTER).with(Phases::BODY_FILTER);

    type Config = Config;

    fn schema() -> Value {
        let map = json!({
            "type": "object", "minProperties": 1,
            "patternProperties": {"^[^:]+$": {"oneOf": [{"type": "string"}, {"type": "number"}]}},
        });
        json!({
            "type": "object",
            "properties": {
                "max_resp_body_size": {
                    "type": "integer", "minimum": 1, "default": 67_108_864,
                    "description": "maximum response body size in bytes buffered into memory when filters are applied; larger responses are truncated",
                },
                "headers": {
                    "description": "new headers for response",
                    "anyOf": [
                        map,
                        {"properties": {
                            "add": {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": "^[^:]+:[^:]*[^/]$"}},
                            "set": map,
                            "remove": {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": "^[^:]+$"}},
                        }},
                    ],
                },
                "body": {"description": "new body for response", "type": "string"},
                "body_base64": {
                    "description": "whether new body for response need base64 decode before return",
                    "type": "boolean", "default": false,
                },
                "status_code": {
                    "description": "new status code for response",
                    "type": "integer", "minimum": 200, "maximum": 598,
                },
                "vars": {"type": "array"},
                "filters": {
                    "description": "a group of filters that modify response bodyby replacing one specified string by another",
                    "type": "array", "minItems": 1,
                    "items": {
                        "description": "filter that modifies response body",
                        "type": "object", "required": ["regex", "replace"],
                        "properties": {
                            "regex": {"description": "match pattern on response body", "type": "string", "minLength": 1},
                            "scope": {
                                "description": "regex substitution range",
                                "type": "string", "enum": ["once", "global"], "default": "once",
                            },
                            "replace": {"description": "regex substitution content", "type": "string"},
                            "options": {"description": "regex options", "type": "string", "default": "jo"},
                        },
                    },
                },
            },
            "dependencies": {
                "body": {"not": {"required": ["filters"]}},
                "filters": {"not": {"required": ["body"]}},
            },
        })
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<ResponseRewrite, Invalid> {
        let body = match (config.body, config.body_base64) {
            (body, false) => body.map(String::into_bytes),
            (body, true) => {
                let decoded = body.filter(|body| !body.is_empty()).and_then(|body| STANDARD.decode(body).ok());
                let decoded = decoded.ok_or_else(|| Invalid::new("invalid base64 content").at("/body"))?;
                Some(decoded)
            }
        };
        let vars = match &config.vars {
            Some(vars) => Some(Expr::compile(vars).map_err(|error| {
                Invalid::new(format!("failed to validate the 'vars' expression: {error}")).at("/vars")
            })?),
            None => None,
        };
        let filter = |(index, filter): (usize, FilterConfig)| {
            let invalid = |error: Invalid| {
                let reason = format!("regex \"{}\" validation failed: {error}", filter.regex);
                Invalid::new(reason).within(index).under("/filters")
            };
            let (any_case, global) = (filter.options.contains('i'), filter.scope == "global");
            Substitution::new(&filter.regex, any_case, &filter.replace, global).map_err(invalid)
        };
        Ok(ResponseRewrite {
            status: config.status_code,
            edits: edits::read(&config.headers).map_err(|error| error.under("/headers"))?,
            body,
            filters: config.filters.into_iter().enumerate().map(filter).collect::<Result<_, _>>()?,
            vars,
            max_body: config.max_resp_body_size,
        })
    }

    fn phases(&self) -> Phases {
        let mut phases = Phases::HEADER_FILTER;
        if self.body.is_some() || !self.filters.is_empty() {
            phases = phases | Phases::BODY_FILTER;
        }
        if self.vars.as_ref().is_some_and(Expr::is_doubtful) {
            phases = phases | Phases::ACCESS;
        }
        phases
    }

    /// What `vars` reads of the request must be here, and readable, before there is a response.
    fn access(&self, x: &mut Exchange<'_>) -> Step {
        self.vars.as_ref().map_or(Step::Next, |vars| vars.foresee(x))
    }

    fn header_filter(&self, x: &mut Exchange<'_>) {
        // Of an answer that failed, when this is the gateway's own in its place.
        if let Some(AtWork(all)) = x.note_mut::<AtWork>() {
            all.retain(|held| held.stage != self.id());
        }
        if self.vars.as_ref().is_some_and(|vars| !vars.matches(x)) {
            return;
        }
        if let Some(status) = self.status {
            x.set_status(status);
        }
        let encoded = x.response_header("Content-Encoding").is_some();
        let filtered = !self.filters.is_empty() && !encoded;
        if encoded && !self.filters.is_empty() {
            x.complain(Self::NAME, "the filters did not run: the response has a Content-Encoding");
        }
        if filtered || self.body.is_some() {
            let length = x.response_header("Content-Length").and_then(|it| std::str::from_utf8(it).ok()?.parse().ok());
            let announced = length.unwrap_or(0);
            for name in ["Content-Length", "Content-Encoding", "Last-Modified", "ETag"] {
                x.remove_response_header(name);
            }
            let held = Held { stage: self.id(), body: Vec::new(), announced, memory: Default::default(), cut: false, work: Work::default() };
            match x.note_mut::<AtWork>() {
                Some(AtWork(all)) => all.push(held),
                None => x.set_note(AtWork(SmallVec::from_iter([held]))),
            }
        }
        edits::on_response(&self.edits, x);
    }

    fn filters_body(&self, x: &Exchange<'_>) -> bool {
        x.note::<AtWork>().is_some_and(|AtWork(all)| all.iter().any(|held| held.stage == self.id()))
    }

    fn holds_body(&self, x: &Exchange<'_>) -> bool {
        self.body.is_none() && self.filters_body(x)
    }

    fn body_action(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        let world = x.world();
        let Some(held) = self.held(x) else { return Step::Next };
        if self.body.is_some() {
            chunk.data.clear();
            if chunk.last {
                chunk.data.extend_from_slice(self.body.as_deref().unwrap_or_default());
            }
            return Step::Next;
        }
        let room = self.max_body.saturating_sub(held.body.len());
        let piece = &chunk.data[..chunk.data.len().min(room)];
        let cut = piece.len() < chunk.data.len() && !held.cut;
        held.cut |= cut;
        let budget = world.budget();
        let needed = held.body.len() + piece.len();
        let more = match held.body.capacity() {
            capacity if capacity < needed => believed(needed, held.announced.min(self.max_body)) - held.body.len(),
            _ => piece.len(),
        };
        let Held { memory, body, .. } = &mut *held;
        if memory.reserve(budget, body, more, self.max_body).is_err()
            && memory.reserve(budget, body, piece.len(), self.max_body).is_err()
        {
            chunk.refused = true;
            return Step::Next;
        }
        held.body.extend_from_slice(piece);
        chunk.data.clear();
        let is_done = !chunk.last || self.go_on(x, chunk);
        if cut {
            x.complain(Self::NAME, "the response's body is longer than max_resp_body_size: its end is left out");
        }
        if is_done { Step::Next } else { Step::Wait }
    }

    async fn wait_body(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        loop {
            x.world().give_way().await;
            if self.go_on(x, chunk) {
                return Step::Next;
            }
        }
    }
}

/// What a body is believed to need of which so much is here, and so much was announced. A body that is moved
/// as it grows leaves its old places behind, so it is moved seldom; but whoever announces much has to send some
/// of it before room is held for more.
fn believed(needed: usize, announced: usize) -> usize {
    const FIRST: usize = 1 << 20;
    needed.max(announced.min(needed.saturating_mul(8).max(FIRST)))
}

impl ResponseRewrite {
    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn held<'x>(&self, x: &'x mut Exchange<'_>) -> Option<&'x mut Held> {
        x.note_mut::<AtWork>()?.0.iter_mut().find(|held| held.stage == self.id())
    }

    /// Goes on with the filters for a slice; whether that was all, and what came of it is in the chunk.
    fn go_on(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> bool {
        let budget = x.world().budget();
        let Some(held) = self.held(x) else { return true };
        let mut undecided = false;
        match self.filter(held, budget) {
            Filtered::NotYet => return false,
            Filtered::Refused => chunk.refused = true,
            Filtered::Body(body, gave_up) => {
                (chunk.data, undecided) = (body, gave_up);
                chunk.refused |= held.memory.resize(budget, chunk.data.capacity()).is_err();
            }
        }
        if undecided {
            x.complain(
                Self::NAME,
                "a filter gave up searching the response's body and left the rest of it as it was: its pattern takes too many steps",
            );
        }
        true
    }

    fn filter(&self, Held { body, memory, work, .. }: &mut Held, budget: &Budget) -> Filtered {
        let mut slice = Slice::default();
        while let Some(filter) = self.filters.get(work.filter) {
            // The new body will replace the old one, so it may take the memory of that, too. When the filter gives
            // way, both are in memory and both count.
            let most = budget.left() + body.capacity() + work.progress.held();
            match filter.go_on(&mut work.progress, body, most, &mut slice) {
                None if memory.resize(budget, body.capacity() + work.progress.held()).is_err() => {
                    return Filtered::Refused;
                }
                None => return Filtered::NotYet,
                Some(Err(Unreplaced::TooLong)) => return Filtered::Refused,
                Some(Err(Unreplaced::Spent)) => work.undecided = true,
                Some(Ok(_)) => {}
            }
            if let Some(text) = std::mem::take(&mut work.progress).into_text() {
                *body = text;
            }
            work.filter += 1;
        }
        Filtered::Body(std::mem::take(body), work.undecided)
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::{Probe, chunk, now, respond};

    use super::*;

    /// A piece through the stage, as often as it gives way.
    fn filter(stage: &ResponseRewrite, x: &mut Exchange<'_>, chunk: &mut Chunk) {
        if matches!(stage.body_action(x, chunk), Step::Wait) {
            assert!(matches!(now(stage.wait_body(x, chunk)), Step::Next));
        }
    }

    /// Status, a header and the body after the stage.
    fn rewritten(config: Value, headers: &[(&str, &str)], pieces: &[&str]) -> (u16, Option<String>, String) {
        let mut probe = Probe::get("/hello");
        let stage: ResponseRewrite = probe.stage(config).unwrap();
        let mut x = probe.exchange();
        respond(&mut x, 200, headers);
        stage.header_filter(&mut x);
        let mut body = Vec::new();
        for (index, piece) in pieces.iter().enumerate() {
            let mut chunk = chunk(piece.as_bytes(), index + 1 == pieces.len());
            if stage.phases().has(sdk::Phase::BodyFilter) {
                filter(&stage, &mut x, &mut chunk);
            }
            body.extend_from_slice(&chunk.data);
        }
        let header = x.response_header("X-A").map(|value| String::from_utf8_lossy(value).into_owned());
        (x.status(), header, String::from_utf8(body).unwrap())
    }

    #[test]
    fn status_headers_and_body_are_replaced() {
        let config = json!({"status_code": 201, "body": "new", "headers": {"X-A": "$remote_addr"}});
        let expected = (201, Some("127.0.0.1".into()), "new".into());
        assert_eq!(rewritten(config, &[("Content-Length", "6")], &["old", "old"]), expected);
        let base64 = json!({"body": "SGVsbG8=", "body_base64": true});
        assert_eq!(rewritten(base64, &[], &["x"]).2, "Hello");
    }

    #[test]
    fn memory_is_held_for_what_comes_and_not_for_what_is_announced() {
        let mut probe = Probe::get("/hello");
        let filters = json!([{"regex": "z", "replace": "y"}]);
        let stage: ResponseRewrite = probe.stage(json!({"filters": filters, "max_resp_body_size": 64 << 20})).unwrap();
        let mut x = probe.exchange();
        respond(&mut x, 200, &[("Content-Length", "67108864")]);
        stage.header_filter(&mut x);
        let mut came = 0;
        for piece in [1, 1000, 300_000, 300_000] {
            filter(&stage, &mut x, &mut chunk(&vec![b'a'; piece], false));
            came += piece;
            let taken = x.world().budget().taken();
            assert!((came..=(8 * came).max(1 << 20)).contains(&taken), "{taken} bytes are held for {came}");
        }
        // Moved once more, it has room for all that was announced, and no more.
        let mut probe = Probe::get("/hello");
        let mut x = probe.exchange();
        respond(&mut x, 200, &[("Content-Length", "5000000")]);
        stage.header_filter(&mut x);
        for (piece, held) in [(100_000, 1 << 20), (1_000_000, 5_000_000)] {
            filter(&stage, &mut x, &mut chunk(&vec![b'a'; piece], false));
            assert_eq!(x.world().budget().taken(), held);
        }
        // What was announced is not exceeded where all of it has come.
        assert_eq!([believed(1, 5), believed(5, 5), believed(9, 5), believed(1 << 20, 2 << 20)], [5, 5, 9, 2 << 20]);
        assert_eq!([believed(1, 2 << 20), believed(1 << 18, 9 << 20)], [1 << 20, 2 << 20]);
    }

    /// Room is made once for a body that was announced, and where there is none for it, for what comes.
    #[test]
    fn a_body_that_was_announced_is_moved_once() {
        for (most, held) in [(1 << 20, 50_000), (30_000, 20_000)] {
            let mut probe = Probe::get("/hello");
            probe.world.budget = sdk::budget::Budget::new(most);
            let stage: ResponseRewrite = probe.stage(json!({"filters": [{"regex": "z", "replace": "y"}]})).unwrap();
            let mut x = probe.exchange();
            respond(&mut x, 200, &[("Content-Length", "50000")]);
            stage.header_filter(&mut x);
            assert!(stage.holds_body(&x));
            for _ in 0..2 {
                let mut chunk = chunk(&[b'a'; 10_000], false);
                filter(&stage, &mut x, &mut chunk);
                assert!(!chunk.refused && chunk.data.is_empty());
            }
            assert_eq!(x.world().budget().taken(), held);
            let mut last = chunk(&[b'a'; 30_000], true);
            filter(&stage, &mut x, &mut last);
            assert_eq!((last.refused, last.data.len() == 50_000), (most < 50_000, most > 50_000));
        }
    }

    /// What filters make of a body counts as well.
    #[test]
    fn a_body_that_grows_is_paid_for() {
        // It may take the place of the body, and not more between two filters either.
        let filtered = |filters: Value, length: usize| {
            let mut probe = Probe::get("/hello");
            probe.world.budget = Budget::new(10_000);
            let stage: ResponseRewrite = probe.stage(json!({"filters": filters})).unwrap();
            let mut x = probe.exchange();
            respond(&mut x, 200, &[]);
            stage.header_filter(&mut x);
            let mut chunk = chunk(&vec![b'a'; length], true);
            filter(&stage, &mut x, &mut chunk);
            chunk
        };
        for (length, grown, refused) in [(1000, 2, false), (3000, 2, false), (1000, 40, true)] {
            let filters = json!([
                {"regex": "a", "replace": "b".repeat(grown), "scope": "global"},
                {"regex": "b{40}", "replace": "", "scope": "global"},
                {"regex": "z", "replace": ""},
            ]);
            assert_eq!(filtered(filters, length).refused, refused, "{length} {grown}");
        }
        // The memory counts that a text has, which may be more than its bytes.
        for (length, refused) in [(2000, false), (2800, true)] {
            let chunk = filtered(json!([{"regex": "a", "replace": "bbb", "scope": "global"}]), length);
            assert_eq!((chunk.refused, chunk.data.len()), (refused, 3 * length));
            assert_eq!(chunk.data.capacity() > 10_000, refused);
        }
    }

    #[test]
    fn a_body_over_the_bound_is_cut_and_told_of_once() {
        for (pieces, given, told) in [(&["abc"][..], "ABC", 0), (&["abcd"], "ABC", 1), (&["ab", "c", "d", "e", ""], "ABC", 1)] {
            let mut probe = Probe::get("/hello");
            let filters = json!([{"regex": "abc", "replace": "ABC"}]);
            let stage: ResponseRewrite = probe.stage(json!({"max_resp_body_size": 3, "filters": filters})).unwrap();
            let mut x = probe.exchange();
            respond(&mut x, 200, &[]);
            assert!(!stage.filters_body(&x) && !stage.holds_body(&x));
            stage.header_filter(&mut x);
            assert!(stage.filters_body(&x) && stage.holds_body(&x));
            let mut out = Vec::new();
            for (index, piece) in pieces.iter().enumerate() {
                let mut chunk = chunk(piece.as_bytes(), index + 1 == pieces.len());
                filter(&stage, &mut x, &mut chunk);
                out.extend_from_slice(&chunk.data);
            }
            drop(x);
            assert_eq!((String::from_utf8(out).unwrap().as_str(), probe.world.complaints.borrow().len()), (given, told));
        }
    }

    #[test]
    fn a_filter_that_comes_to_no_end_is_told_of() {
        for (text, given, told) in [("xyyz", "-z", 0), (&*format!("x{}", "y".repeat(4000)), "x", 1)] {
            let mut probe = Probe::get("/hello");
            let filters = json!([{"regex": r"x(y|y)*(?=z)(?!\1)", "replace": "-"}, {"regex": "y", "replace": "", "scope": "global"}]);
            let stage: ResponseRewrite = probe.stage(json!({"filters": filters})).unwrap();
            let mut x = probe.exchange();
            respond(&mut x, 200, &[]);
            stage.header_filter(&mut x);
            let mut chunk = chunk(text.as_bytes(), true);
            filter(&stage, &mut x, &mut chunk);
            drop(x);
            assert_eq!(String::from_utf8(chunk.data).unwrap(), given);
            assert_eq!(probe.world.complaints.borrow().len(), told);
        }
    }

    /// What lies here while others have their turn counts: the body, what is made of it, and what the search keeps.
    #[test]
    fn a_long_body_is_filtered_in_slices() {
        const LENGTH: usize = 1 << 20;
        for (most, refused) in [(3 * LENGTH, false), (2 * LENGTH - 1, true)] {
            let mut probe = Probe::get("/hello");
            probe.world.budget = Budget::new(most);
            let filters = json!([
                {"regex": "^.|a.*c|b", "replace": "d", "scope": "global"},
                {"regex": "z", "replace": ""},
                {"regex": "$", "replace": "e", "scope": "global"},
            ]);
            let stage: ResponseRewrite = probe.stage(json!({"filters": filters})).unwrap();
            let mut x = probe.exchange();
            respond(&mut x, 200, &[("Content-Length", &LENGTH.to_string())]);
            stage.header_filter(&mut x);
            let mut chunk = chunk(&vec![b'a'; LENGTH], true);
            assert!(matches!(stage.body_action(&mut x, &mut chunk), Step::Wait) != refused);
            if !refused {
                // And some states of the search.
                let taken = x.world().budget().taken();
                assert!((2 * LENGTH + 100..2 * LENGTH + 10_000).contains(&taken), "{taken}");
                assert!(chunk.data.is_empty() && !chunk.refused);
                assert!(matches!(now(stage.wait_body(&mut x, &mut chunk)), Step::Next));
                assert_eq!((chunk.data.len(), chunk.data.last()), (LENGTH + 1, Some(&b'e')));
            }
            assert_eq!(chunk.refused, refused);
            drop(x);
            assert!(refused || probe.world.turns.get() > 8, "{} turns", probe.world.turns.get());
        }
    }

    /// A filter that finds nothing takes no memory for a new body, and hands on the old one as it lies.
    #[test]
    fn a_body_without_matches_stays_where_it_is() {
        const LENGTH: usize = 1 << 20;
        let mut probe = Probe::get("/hello");
        probe.world.budget = Budget::new(LENGTH + 10_000);
        let filters = json!([{"regex": "a.*c|b", "replace": "d"}, {"regex": "[yz]", "replace": ""}]);
        let stage: ResponseRewrite = probe.stage(json!({"filters": filters})).unwrap();
        let mut x = probe.exchange();
        respond(&mut x, 200, &[("Content-Length", &LENGTH.to_string())]);
        stage.header_filter(&mut x);
        let mut whole = chunk(&vec![b'a'; LENGTH], true);
        assert!(matches!(stage.body_action(&mut x, &mut whole), Step::Wait));
        let body = stage.held(&mut x).unwrap().body.as_ptr();
        assert!(matches!(now(stage.wait_body(&mut x, &mut whole)), Step::Next));
        assert_eq!((whole.data.as_ptr(), whole.data.len(), whole.refused), (body, LENGTH, false));
    }

    #[test]
    fn only_filters_need_the_whole_body_and_only_one_that_is_plain() {
        for (config, head, filters, holds, complaints) in [
            (json!({"body": "x"}), &[][..], true, false, 0),
            (json!({"headers": {"X-A": "1"}}), &[], false, false, 0),
            (json!({"headers": {"X-A": "1"}}), &[("Content-Encoding", "gzip")], false, false, 0),
            (json!({"filters": [{"regex": "a", "replace": "b"}]}), &[("Content-Encoding", "gzip")], false, false, 1),
            (json!({"body": "x"}), &[("Content-Encoding", "gzip")], true, false, 0),
        ] {
            let mut probe = Probe::get("/hello");
            let stage: ResponseRewrite = probe.stage(config.clone()).unwrap();
            let mut x = probe.exchange();
            respond(&mut x, 200, head);
            stage.header_filter(&mut x);
            assert_eq!((stage.filters_body(&x), stage.holds_body(&x)), (filters, holds), "{config}");
            drop(x);
            assert_eq!(probe.world.complaints.borrow().len(), complaints, "{config}");
        }
    }

    #[test]
    fn filters_see_the_whole_body() {
        let once = json!({"filters": [{"regex": "he(l+)o", "replace": "<$1>"}]});
        assert_eq!(rewritten(once, &[], &["hel", "lo hello"]).2, "<ll> hello");
        let global = json!({"filters": [{"regex": "HELLO", "replace": "x", "scope": "global", "options": "ijo"}]});
        assert_eq!(rewritten(global.clone(), &[], &["hel", "lo hello"]).2, "x x");
        assert_eq!(rewritten(global, &[("Content-Encoding", "gzip")], &["hello"]).2, "hello");
        let bounded = json!({"filters": [{"regex": "z", "replace": "y"}], "max_resp_body_size": 4});
        assert_eq!(rewritten(bounded, &[], &["abc", "def"]).2, "abcd");
    }

    #[test]
    fn two_stages_do_not_mix_up_what_they_hold() {
        let mut probe = Probe::get("/hello");
        let global: ResponseRewrite = probe.stage(json!({"body": "hello"})).unwrap();
        let own: ResponseRewrite =
            probe.stage(json!({"filters": [{"regex": "hello", "replace": "bye"}]})).unwrap();
        let of_heads: ResponseRewrite = probe.stage(json!({"status_code": 201})).unwrap();
        let mut x = probe.exchange();
        respond(&mut x, 200, &[]);
        for (stage, filters) in [(&global, true), (&own, true), (&of_heads, false)] {
            stage.header_filter(&mut x);
            assert_eq!(stage.filters_body(&x), filters);
        }
        let mut body = Vec::new();
        for (text, last) in [("ab", false), ("cd", true)] {
            let mut chunk = chunk(text.as_bytes(), last);
            for stage in [&global, &own] {
                filter(stage, &mut x, &mut chunk);
            }
            body.extend(chunk.data);
        }
        assert_eq!(body, b"bye");
    }

    #[test]
    fn conditions_hold_it_back() {
        let config = json!({"headers": {"X-A": "1"}, "vars": [["status", "==", 404]]});
        assert_eq!(rewritten(config, &[], &[""]).1, None);
        let config = json!({"headers": {"add": ["X-A: 1"], "remove": ["X-B"]}, "vars": [["status", "==", 200]]});
        assert_eq!(rewritten(config, &[("X-B", "2")], &[""]).1.as_deref(), Some("1"));
    }

    #[test]
    fn mistakes_are_named() {
        let probe = Probe::get("/");
        let error = |config: Value| probe.stage::<ResponseRewrite>(config).err().unwrap().to_string();
        assert_eq!(error(json!({"body": "!", "body_base64": true})), "invalid base64 content");
        assert!(error(json!({"body": "a", "filters": [{"regex": "a", "replace": "b"}]})).contains("failed"));
        assert!(error(json!({"filters": [{"regex": "(", "replace": ""}]})).starts_with("regex \"(\" validation failed"));
        assert!(error(json!({"status_code": 100})).contains("status_code"));
    }
}
