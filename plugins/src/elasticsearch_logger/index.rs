//! The name of an index: a text with variables (`$host`), and times in braces (`{%Y.%m.%d}`).

use model::Invalid;
use sdk::Exchange;
use sdk::template::Template;
use sdk::vars::TimeFormat;

pub(super) struct Index {
    parts: Vec<Part>,
}

enum Part {
    Text(Template),
    Time(TimeFormat),
}

impl Index {
    /// # Errors
    /// A time whose format is unknown.
    pub(super) fn parse(written: &str) -> Result<Index, Invalid> {
        let mut parts = Vec::new();
        let (mut from, mut at) = (0, 0);
        while let Some(open) = written[at..].find('{').map(|open| at + open) {
            let Some(close) = written[open..].find('}').map(|close| open + close) else { break };
            at = close + 1;
            // `${name}` is a variable.
            if written[..open].ends_with('$') {
                continue;
            }
            parts.push(Part::Text(Template::parse(&written[from..open])));
            from = at;
            let format = &written[open + 1..close];
            // Lua's `os.date` gives a table for `*t`, which APISIX leaves out. `!` is UTC.
            if format.trim_start_matches('!').starts_with("*t") {
                continue;
            }
            let time = TimeFormat::parse(format.strip_prefix('!').unwrap_or(format)).map_err(|unknown| {
                Invalid::new(format!("the time has the unknown conversion {unknown}"))
                    .at("/field/index")
                    .expected("conversions of strftime, as in {%Y.%m.%d}")
            })?;
            parts.push(Part::Time(time));
        }
        parts.push(Part::Text(Template::parse(&written[from..])));
        Ok(Index { parts })
    }

    pub(super) fn name(&self, x: &Exchange<'_>) -> Vec<u8> {
        let mut name = Vec::with_capacity(32);
        for part in &self.parts {
            match part {
                Part::Text(text) => _ = text.render(x, &mut name),
                Part::Time(format) => format.write(x.world().now_ms(), &mut name),
            }
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    #[test]
    fn names_have_times_and_variables() {
        let mut probe = Probe::request("GET", "/", &[("Host", "h.example")]);
        let x = probe.exchange();
        for (written, expected) in [
            ("services", "services"),
            ("a-{%Y.%m.%d}", "a-2023.11.14"),
            ("{!%Y}-$host-${method}-{%d}", "2023-h.example-GET-14"),
            ("a{*t}b{}", "ab"),
            ("a-{%Y", "a-{%Y"),
        ] {
            assert_eq!(Index::parse(written).unwrap().name(&x), expected.as_bytes(), "{written}");
        }
    }
}
