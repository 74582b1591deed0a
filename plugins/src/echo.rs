//! hot path
//!
//! echo: adds text before or after a response's body, or replaces it, and sets headers.
//!
//! As in APISIX 3.18, for tests and demonstrations. A body that is replaced is read to its end and
//! dropped, so that its connection stays of use.

use model::Invalid;
use sdk::chain::Phases;
use sdk::{Build, Chunk, Exchange, Plugin};
use serde::Deserialize;
use serde_json::{Value, json};
use smallvec::SmallVec;

use crate::edits::{self, Edit};

/// The stage.
pub struct Echo {
    before: Vec<u8>,
    body: Option<Vec<u8>>,
    after: Vec<u8>,
    edits: Vec<Edit>,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    before_body: Option<String>,
    body: Option<String>,
    after_body: Option<String>,
    #[serde(default)]
    headers: Value,
}

/// The stages that have put out what comes first on this exchange: the plugin may stand on a global
/// rule and on the route.
struct Begun(SmallVec<[usize; 2]>);

impl Plugin for Echo {
    const NAME: &'static str = "echo";
    const PRIORITY: i32 = 412;
    const PHASES: Phases = Phases::HEADER_FILTER.with(Phases::BODY_FILTER);

    type Config = Config;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "before_body": {"type": "string"},
                "body": {"type": "string"},
                "after_body": {"type": "string"},
                "headers": {"type": "object", "minProperties": 1},
            },
            "anyOf": [{"required": ["before_body"]}, {"required": ["body"]}, {"required": ["after_body"]}],
            "minProperties": 1,
        })
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<Echo, Invalid> {
        let bytes = |text: Option<String>| text.unwrap_or_default().into_bytes();
        Ok(Echo {
            before: bytes(config.before_body),
            body: config.body.map(String::into_bytes),
            after: bytes(config.after_body),
            edits: edits::read(&config.headers).map_err(|invalid| invalid.under("/headers"))?,
        })
    }

    fn header_filter(&self, x: &mut Exchange<'_>) {
        // Of an answer that failed, when this is the gateway's own in its place.
        if let Some(Begun(all)) = x.note_mut::<Begun>() {
            all.retain(|stage| *stage != self.id());
        }
        for name in ["Content-Length", "Content-Encoding", "Last-Modified", "ETag"] {
            x.remove_response_header(name);
        }
        edits::on_response(&self.edits, x);
    }

    fn body_filter(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) {
        let id = self.id();
        let first = match x.note_mut::<Begun>() {
            Some(Begun(all)) if all.contains(&id) => false,
            Some(Begun(all)) => {
                all.push(id);
                true
            }
            None => {
                x.set_note(Begun(SmallVec::from_iter([id])));
                true
            }
        };
        if let Some(body) = &self.body {
            chunk.data.clear();
            if first {
                chunk.data.extend_from_slice(body);
            }
        }
        if first {
            chunk.data.splice(0..0, self.before.iter().copied());
        }
        if chunk.last {
            chunk.data.extend_from_slice(&self.after);
        }
    }
}

impl Echo {
    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::{Probe, chunk, respond};

    use super::*;

    /// The body and a header after the stage.
    fn echoed(config: Value, pieces: &[&str]) -> (String, Option<String>) {
        let mut probe = Probe::get("/");
        let stage: Echo = probe.stage(config).unwrap();
        let mut x = probe.exchange();
        respond(&mut x, 200, &[("Content-Length", "6"), ("ETag", "x")]);
        stage.header_filter(&mut x);
        assert!(x.response_header("Content-Length").is_none() && x.response_header("ETag").is_none());
        let mut body = Vec::new();
        for (index, piece) in pieces.iter().enumerate() {
            let mut chunk = chunk(piece.as_bytes(), index + 1 == pieces.len());
            stage.body_filter(&mut x, &mut chunk);
            body.extend_from_slice(&chunk.data);
        }
        let header = x.response_header("X-A").map(|value| String::from_utf8_lossy(value).into_owned());
        (String::from_utf8(body).unwrap(), header)
    }

    #[test]
    fn text_goes_around_the_body_or_in_its_place() {
        let around = json!({"before_body": "<", "after_body": ">"});
        assert_eq!(echoed(around.clone(), &["ab", "cd", ""]).0, "<abcd>");
        assert_eq!(echoed(around, &[""]).0, "<>");
        let instead = json!({"before_body": "<", "body": "new", "after_body": ">"});
        assert_eq!(echoed(instead, &["ab", "cd"]).0, "<new>");
        let headers = json!({"body": "new", "headers": {"X-A": 5}});
        assert_eq!(echoed(headers, &["ab"]), ("new".to_owned(), Some("5".to_owned())));
    }

    /// As where one stands on the route and one is global; and an answer may take another's place.
    #[test]
    fn each_of_them_has_its_say_once_an_answer() {
        let mut probe = Probe::get("/");
        let make = |mark: &str| {
            probe.stage::<Echo>(json!({"before_body": format!("{mark}("), "after_body": ")"})).unwrap()
        };
        let (first, second) = (make("a"), make("b"));
        for (stages, before, after) in [(&[&first][..], "a(", ")"), (&[&first, &second], "b(a(", "))")] {
            probe.messages.clear();
            let mut x = probe.exchange();
            respond(&mut x, 200, &[]);
            for pieces in [&["1", "2", ""][..], &["3", "4"]] {
                stages.iter().for_each(|stage| stage.header_filter(&mut x));
                let mut body = Vec::new();
                for (index, piece) in pieces.iter().enumerate() {
                    let mut chunk = chunk(piece.as_bytes(), index + 1 == pieces.len());
                    stages.iter().for_each(|stage| stage.body_filter(&mut x, &mut chunk));
                    body.extend_from_slice(&chunk.data);
                }
                assert_eq!(String::from_utf8(body).unwrap(), format!("{before}{}{after}", pieces.concat()));
            }
        }
    }

    #[test]
    fn a_setting_without_any_text_is_refused() {
        let probe = Probe::get("/");
        assert!(probe.stage::<Echo>(json!({"headers": {"X-A": "1"}})).is_err());
    }
}
