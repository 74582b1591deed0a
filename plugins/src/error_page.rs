//! error-page: serves custom pages for errors of the gateway and of plugins.
//!
//! Pages stand in the plugin's metadata, one for each status, as in APISIX 3.18; a stage has no
//! settings. A page is for errors of the gateway and of plugins: no route, no server that answers, a
//! refused request. Answers of an upstream are never changed, regardless of status. Other
//! statuses from 404 on may have a page, too (`error_429`).

use bytes::Bytes;
use model::Invalid;
use sdk::chain::Phases;
use sdk::exchange::Source;
use sdk::{Build, Chunk, Exchange, Plugin};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The stage.
pub struct ErrorPage {
    pages: Vec<Page>,
}

#[derive(Debug, Deserialize)]
pub struct Config {}

struct Page {
    status: u16,
    body: Bytes,
    content_type: Vec<u8>,
}

/// Statuses that have a page of their own without a `body`, and its words.
const KNOWN: [(u16, &str); 4] = [
    (404, "404 Not Found"),
    (500, "500 Internal Server Error"),
    (502, "502 Bad Gateway"),
    (503, "503 Service Unavailable"),
];

const HTML: &str = "text/html";

impl Plugin for ErrorPage {
    const NAME: &'static str = "error-page";
    const PRIORITY: i32 = 450;
    const PHASES: Phases = Phases::HEADER_FILTER.with(Phases::BODY_FILTER);

    type Config = Config;

    fn schema() -> Value {
        json!({"type": "object", "properties": {}})
    }

    fn metadata_schema() -> Option<Value> {
        // No control characters: it stands in a head.
        let content_type =
            json!({"type": "string", "default": HTML, "pattern": "^[^\\x00-\\x08\\x0a-\\x1f\\x7f]*$"});
        let mut properties = Map::new();
        properties.insert("enable".to_owned(), json!({"type": "boolean", "default": false}));
        for (status, words) in KNOWN {
            let page = json!({
                "type": "object",
                "properties": {"body": {"type": "string", "default": own(words)}, "content_type": content_type},
            });
            properties.insert(format!("error_{status}"), page);
        }
        Some(json!({
            "type": "object",
            "properties": properties,
            "patternProperties": {"^error_": {
                "type": "object",
                "properties": {"body": {"type": "string"}, "content_type": content_type},
            }},
        }))
    }

    fn build(_: Config, cx: &mut Build<'_>) -> Result<ErrorPage, Invalid> {
        Ok(ErrorPage { pages: cx.metadata().and_then(Value::as_object).map_or_else(Vec::new, pages) })
    }

    fn phases(&self) -> Phases {
        if self.pages.is_empty() { Phases::NONE } else { Self::PHASES }
    }

    fn header_filter(&self, x: &mut Exchange<'_>) {
        let Some(page) = self.page(x) else {
            return;
        };
        // The gateway writes the length itself.
        for name in ["Content-Length", "Content-Encoding", "Last-Modified", "ETag"] {
            x.remove_response_header(name);
        }
        if x.set_response_header("Content-Type", &page.content_type).is_err() {
            x.complain(Self::NAME, "a content_type cannot stand in a header");
        }
    }

    fn filters_body(&self, x: &Exchange<'_>) -> bool {
        self.page(x).is_some()
    }

    fn body_filter(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) {
        let Some(page) = self.page(x) else {
            return;
        };
        // In the place of all pieces stands one, the last.
        chunk.data.clear();
        if chunk.last {
            chunk.data.extend_from_slice(&page.body);
        }
    }
}

impl ErrorPage {
    fn page(&self, x: &Exchange<'_>) -> Option<&Page> {
        let ours = x.source() != Source::Upstream;
        self.pages.iter().find(|page| ours && page.status == x.status())
    }
}

/// The pages of metadata that is switched on. Pages without text and for statuses below 404 are ignored.
fn pages(metadata: &Map<String, Value>) -> Vec<Page> {
    if metadata.get("enable") != Some(&Value::Bool(true)) {
        return Vec::new();
    }
    let page = |(name, page): (&String, &Value)| {
        let status = name.strip_prefix("error_")?.parse().ok().filter(|status| *status >= 404)?;
        let known = KNOWN.iter().find(|(known, _)| *known == status);
        let body = page.get("body").and_then(Value::as_str).map(str::to_owned);
        let body = body.or_else(|| known.map(|(_, words)| own(words)))?;
        let content_type = page.get("content_type").and_then(Value::as_str).unwrap_or(HTML);
        Some(Page { status, body: body.into(), content_type: content_type.into() })
    };
    metadata.iter().filter_map(page).filter(|page| !page.body.is_empty()).collect()
}

/// The page of a status that has no `body`.
fn own(words: &str) -> String {
    format!("<html><head><title>{words}</title></head><body><h1>{words}</h1></body></html>\n")
}

#[cfg(test)]
mod tests {
    use sdk::testing::{FixedNames, Probe, chunk};

    use super::*;

    /// Returns the text and Content-Type of an answer with this status whose text was `before`.
    fn answer(metadata: &Value, status: u16, source: Source) -> (String, String) {
        let mut probe = Probe::get("/");
        let stage: ErrorPage =
            probe.stage_with(json!({}), Some(metadata), &FixedNames::default()).expect("a stage");
        let mut x = probe.exchange();
        x.engine_mut().source = source;
        x.engine_mut().messages.response.status = status;
        for (name, value) in [("Content-Type", "text/plain"), ("Content-Encoding", "gzip"), ("ETag", "\"1\"")]
        {
            x.set_response_header(name, value.as_bytes()).unwrap();
        }
        let mut out = Vec::new();
        stage.header_filter(&mut x);
        let replaced = stage.filters_body(&x);
        for (data, last) in [("be", false), ("fore", true)] {
            let mut piece = chunk(data.as_bytes(), last);
            stage.body_filter(&mut x, &mut piece);
            out.extend(piece.data);
        }
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let body = text(&out);
        assert_eq!(replaced, body != "before", "a body that is not replaced is not looked at");
        let coded = x.response_header("Content-Encoding").or(x.response_header("ETag")).is_some();
        assert_eq!(coded, !replaced, "what was said of the old body is not said of the new one");
        (body, x.response_header("Content-Type").map(text).unwrap_or_default())
    }

    #[test]
    fn errors_of_the_gateway_and_of_plugins_get_the_page_of_their_status() {
        let metadata = json!({
            "enable": true,
            "error_404": {"body": "nothing here"},
            "error_500": {"body": "{}", "content_type": "application/json"},
            "error_502": {},
            "error_503": {"body": ""},
            "error_429": {"body": "slow down"},
            "error_403": {"body": "never"},
            "error_x": {"body": "never"},
        });
        let before = ("before".to_owned(), "text/plain".to_owned());
        let page = |body: &str, kind: &str| (body.to_owned(), kind.to_owned());
        for source in [Source::Gateway, Source::Plugin] {
            assert_eq!(answer(&metadata, 404, source), page("nothing here", "text/html"));
            assert_eq!(answer(&metadata, 500, source), page("{}", "application/json"));
            assert_eq!(answer(&metadata, 429, source), page("slow down", "text/html"));
            let own = answer(&metadata, 502, source);
            assert!(own.0.contains("<h1>502 Bad Gateway</h1>") && own.1 == "text/html", "{own:?}");
            for none in [200, 403, 405, 503, 504] {
                assert_eq!(answer(&metadata, none, source), before, "{none}");
            }
        }
        for status in [404, 500, 502] {
            assert_eq!(answer(&metadata, status, Source::Upstream), before, "{status} of an upstream");
        }
        for off in [json!({"error_404": {"body": "x"}}), json!({"enable": false, "error_404": {"body": "x"}})]
        {
            assert_eq!(answer(&off, 404, Source::Gateway), before, "it is off unless switched on");
        }
    }

    #[test]
    fn without_pages_a_stage_takes_part_in_no_phase() {
        let probe = Probe::get("/");
        let stage = |metadata: Option<&Value>| -> ErrorPage {
            probe.stage_with(json!({}), metadata, &FixedNames::default()).expect("a stage")
        };
        assert!(stage(None).phases().is_empty());
        assert!(stage(Some(&json!({"enable": true}))).phases().is_empty());
        let phases = stage(Some(&json!({"enable": true, "error_404": {}}))).phases();
        assert_eq!(phases, ErrorPage::PHASES);
    }

    #[test]
    fn metadata_is_checked() {
        let schema = model::Schema::new(&ErrorPage::metadata_schema().unwrap()).unwrap();
        for good in [json!({}), json!({"enable": true, "error_405": {"content_type": "text/html"}})] {
            assert!(schema.check(&good).is_ok(), "{good}");
        }
        for bad in [
            json!({"enable": "yes"}),
            json!({"error_404": "text"}),
            json!({"error_404": {"body": 1}}),
            json!({"error_418": {"body": 1}}),
            json!({"error_500": {"content_type": "a\r\nSet-Cookie: b"}}),
        ] {
            assert!(schema.check(&bad).is_err(), "{bad}");
        }
    }
}
