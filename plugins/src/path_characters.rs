//! path-characters: refuses or keeps characters in a path that servers interpret differently.
//!
//! Sluice's own; APISIX has no such plugin. A path with a backslash or an encoded control
//! character is refused with 400 unless this plugin keeps it; an encoded slash and a semicolon
//! pass unless it refuses them. It stands on a route, service or plugin config, or in a global
//! rule for all routes that have none of their own, and is asked before any other plugin. What
//! is kept goes to the upstream encoded as it came. Dot segments hidden behind such a character
//! (`..;`, `..%2F`) are refused in any case, and so is a raw `#`, space or control character.

use model::Invalid;
use sdk::chain::Phases;
use sdk::{Build, Doubtful, Plugin};
use serde::Deserialize;
use serde_json::{Value, json};

/// The stage.
pub struct PathCharacters {
    refused: Doubtful,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    encoded_slash: Verdict,
    semicolon: Verdict,
    backslash: Verdict,
    encoded_control: Verdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Keep,
    Refuse,
}

impl Plugin for PathCharacters {
    const NAME: &'static str = "path-characters";
    const PRIORITY: i32 = 24000;
    const PHASES: Phases = Phases::NONE;

    type Config = Config;

    fn schema() -> Value {
        let verdict = |what: &str, default: &str| {
            json!({
                "description": what,
                "type": "string", "enum": ["keep", "refuse"], "default": default,
            })
        };
        json!({
            "type": "object",
            "properties": {
                "encoded_slash": verdict("`%2F`, which some servers take for a slash", "keep"),
                "semicolon": verdict("`;` and `%3B`, behind which some servers see parameters", "keep"),
                "backslash": verdict("`\\` and `%5C`, which some servers take for a slash", "refuse"),
                "encoded_control": verdict(
                    "`%00` to `%1F` and `%7F`, which may end a text or a line behind the gateway",
                    "refuse",
                ),
            },
            "additionalProperties": false,
        })
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<PathCharacters, Invalid> {
        let verdicts = [
            (config.encoded_slash, Doubtful::ENCODED_SLASH),
            (config.semicolon, Doubtful::SEMICOLON),
            (config.backslash, Doubtful::BACKSLASH),
            (config.encoded_control, Doubtful::CONTROL),
        ];
        let refused = verdicts.into_iter().filter(|(verdict, _)| *verdict == Verdict::Refuse);
        Ok(PathCharacters { refused: refused.fold(Doubtful::NONE, |all, (_, one)| all.with(one)) })
    }

    fn refused_in_path(&self) -> Option<Doubtful> {
        Some(self.refused)
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    #[test]
    fn unsaid_is_as_without_the_plugin() {
        let refused = |config: Value| {
            Probe::default().stage::<PathCharacters>(config).map(|stage| Plugin::refused_in_path(&stage))
        };
        assert_eq!(refused(json!({})), Ok(Some(Doubtful::REFUSED)));
        assert_eq!(refused(json!({"backslash": "keep"})), Ok(Some(Doubtful::CONTROL)));
        let all = json!({"encoded_slash": "refuse", "semicolon": "refuse", "encoded_control": "keep"});
        let expected = Doubtful::ENCODED_SLASH.with(Doubtful::SEMICOLON).with(Doubtful::BACKSLASH);
        assert_eq!(refused(all), Ok(Some(expected)));
        for (wrong, pointer) in [(json!({"semicolon": true}), "/semicolon"), (json!({"nul": "keep"}), "/nul")]
        {
            assert_eq!(refused(wrong).unwrap_err().pointer, pointer);
        }
    }
}
