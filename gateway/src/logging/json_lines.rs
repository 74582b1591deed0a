//! The error log as JSON: an object a line with `time`, `level`, `message` and the line's fields.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Formats an event as one JSON object.
pub struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        writeln!(writer, "{}", line(&now(), &level, fields))
    }
}

fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut text = Vec::new();
    sdk::vars::write_rfc3339(since.as_millis() as u64, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Writes the fixed members first, so that people find them, and the line's fields after them.
fn line(time: &str, level: &str, fields: Fields) -> String {
    let fixed = [("time", time), ("level", level), ("message", &fields.message)];
    let fixed = fixed.map(|(name, text)| format!("\"{name}\":{}", Value::from(text)));
    let rest = fields.others.iter().map(|(name, value)| format!("{}:{value}", Value::from(name.as_str())));
    format!("{{{}}}", fixed.into_iter().chain(rest).collect::<Vec<_>>().join(","))
}

/// The fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            ("message", other) => self.message = other.to_string(),
            // These two names are the line's own.
            (name @ ("time" | "level"), value) => _ = self.others.insert(format!("field_{name}"), value),
            (name, value) => _ = self.others.insert(name.to_owned(), value),
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_is_one_object_with_any_content() {
        let others =
            Map::from_iter([("route".to_owned(), json!("r\n\u{1b}\"")), ("status".to_owned(), json!(502))]);
        let written =
            line("2026-11-27T10:00:00.000Z", "error", Fields { message: "a \"b\"\nc".to_owned(), others });
        assert!(
            written.starts_with(r#"{"time":"2026-11-27T10:00:00.000Z","level":"error","message":"#),
            "{written}"
        );
        assert_eq!(written.lines().count(), 1);
        assert_eq!(
            serde_json::from_str::<Value>(&written).unwrap(),
            json!({"time": "2026-11-27T10:00:00.000Z", "level": "error", "message": "a \"b\"\nc",
                "route": "r\n\u{1b}\"", "status": 502})
        );
    }
}
