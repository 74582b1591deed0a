//! A plugin that sets trailers on both sides, and copies the response trailer X-Check to X-Seen.

use std::sync::Arc;

use model::Invalid;
use sdk::build::Build;
use sdk::chain::{Fitting, Stage};
use sdk::{Chunk, Exchange, Factory, Instance, Phase, Phases, Step};
use serde_json::{Value, json};

pub struct Trailers;

impl Factory for Trailers {
    fn name(&self) -> &'static str {
        "trailers"
    }

    fn priority(&self) -> i32 {
        10
    }

    fn phases(&self) -> Phases {
        Phases::REWRITE | Phases::HEADER_FILTER | Phases::BODY_FILTER
    }

    fn schema(&self) -> Value {
        json!({"type": "object"})
    }

    fn build(&self, _: Value, _: &mut Build<'_>, fitting: Fitting) -> Result<Arc<Stage>, Invalid> {
        Ok(fitting.stage(Trailers))
    }
}

impl Instance for Trailers {
    fn phases(&self) -> Phases {
        Factory::phases(self)
    }

    fn ask(&self, _: Phase, x: &mut Exchange<'_>) -> Step {
        if x.query() == b"beginning" {
            x.want_body_prefix();
            if x.lacks_body(1) {
                return Step::Body(1);
            }
        }
        x.set_request_trailer("X-Up", b"set").unwrap();
        assert!(x.set_request_trailer("Content-Length", b"1").is_err(), "framing has no place there");
        Step::Next
    }

    fn header_filter(&self, x: &mut Exchange<'_>) -> Step {
        x.set_response_trailer("X-Down", b"set").unwrap();
        Step::Next
    }

    fn filters_body(&self, x: &Exchange<'_>) -> bool {
        matches!(x.query(), b"filter" | b"panic")
    }

    fn holds_body(&self, x: &Exchange<'_>) -> bool {
        assert_ne!(x.query(), b"panic", "as asked");
        false
    }

    fn body_filter(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        if chunk.last {
            let seen = x.response_trailers().get_named(b"x-check").map(<[u8]>::to_vec);
            x.set_response_trailer("X-Seen", &seen.unwrap_or_default()).unwrap();
            x.remove_response_trailer("X-Check");
        }
        Step::Next
    }
}
