//! Protocols inspected within streams, compiled from stream routes.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use sdk::Chain;
use sdk::expr::Expr;
use wire::redis::Keys;

/// The protocol of a stream route.
#[derive(Debug, Clone)]
pub struct Protocol {
    pub spoken: Spoken,
    /// In the configured order.
    pub loggers: Vec<CallLogger>,
    /// Whether calls are counted.
    pub counts: bool,
}

#[derive(Debug, Clone)]
pub enum Spoken {
    Redis(Faults),
    Dubbo,
}

/// A plugin that logs finished calls.
#[derive(Debug, Clone)]
pub struct CallLogger {
    /// The calls it logs; `None` means all.
    pub filter: Option<Expr>,
    pub chain: Arc<Chain>,
}

/// Delays of Redis commands, by command name in lower case.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    commands: HashMap<Box<[u8]>, CommandFaults>,
}

/// The delays of a command.
#[derive(Debug, Clone)]
pub struct CommandFaults {
    /// The positions of its keys.
    pub keys: Keys,
    by_key: HashMap<Box<[u8]>, Duration>,
    /// The delay for all other keys.
    pub otherwise: Option<Duration>,
    /// Length of the longest key in bytes.
    pub longest: usize,
}

/// The longest delay of a command.
const MOST_DELAY: Duration = Duration::from_secs(24 * 60 * 60);

impl Faults {
    /// Compiles configured rules.
    pub fn new(rules: &[model::xrpc::Fault]) -> Faults {
        let mut faults = Faults::default();
        for rule in rules {
            // Negative delays have no effect.
            let delay =
                Duration::try_from_secs_f64(rule.delay.max(0.0)).map_or(MOST_DELAY, |it| it.min(MOST_DELAY));
            for name in &rule.commands {
                let name = name.to_ascii_lowercase();
                let keys = Keys::of(&name);
                let nothing = CommandFaults { keys, by_key: HashMap::new(), otherwise: None, longest: 0 };
                let command = faults.commands.entry(name.into_bytes().into()).or_insert(nothing);
                match &rule.key {
                    // As in APISIX, a rule with a key for a command without keys applies to all
                    // calls.
                    Some(key) if !keys.are_none() => {
                        command.longest = command.longest.max(key.len());
                        command.by_key.insert(key.as_bytes().into(), delay);
                    }
                    _ => command.otherwise = Some(delay),
                }
            }
        }
        faults
    }

    /// The delays of the command of this name, in lower case.
    #[inline]
    pub fn of(&self, command: &[u8]) -> Option<&CommandFaults> {
        if self.commands.is_empty() { None } else { self.commands.get(command) }
    }
}

impl CommandFaults {
    #[inline]
    pub fn with_key(&self, key: &[u8]) -> Option<Duration> {
        self.by_key.get(key).copied()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn faults(rules: Value) -> Faults {
        Faults::new(&serde_json::from_value::<Vec<model::xrpc::Fault>>(rules).unwrap())
    }

    #[test]
    fn rules_are_found_by_command_and_key() {
        let faults = faults(json!([
            {"commands": ["GET", "mget"], "key": "a", "delay": 1},
            {"commands": ["get"], "delay": 2},
            {"commands": ["Get"], "key": "a", "delay": 0.5},
            {"commands": ["ping"], "key": "a", "delay": 3},
        ]));
        let get = faults.of(b"get").unwrap();
        let ms = |delay: Option<Duration>| delay.map(|delay| delay.as_millis());
        assert_eq!(
            (ms(get.with_key(b"a")), ms(get.with_key(b"b")), ms(get.otherwise)),
            (Some(500), None, Some(2000))
        );
        assert_eq!(get.longest, 1);
        assert_eq!(faults.of(b"mget").unwrap().otherwise, None);
        assert_eq!(ms(faults.of(b"ping").unwrap().otherwise), Some(3000));
        assert!(faults.of(b"set").is_none() && Faults::default().of(b"get").is_none());
    }

    #[test]
    fn delays_are_bounded() {
        for (written, expected) in
            [(json!(-1), Duration::ZERO), (json!(1e300), MOST_DELAY), (json!(1e6), MOST_DELAY)]
        {
            let faults = faults(json!([{"commands": ["get"], "delay": written}]));
            assert_eq!(faults.of(b"get").unwrap().otherwise, Some(expected), "{written}");
        }
    }
}
