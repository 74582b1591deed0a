//! The shape of a case file. Unknown keys are errors, with their line.

use anyhow::{Context, Result};
use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The behaviour under test, in a sentence.
    pub about: String,
    /// Runs alone, after all others.
    #[serde(default)]
    pub serial: bool,
    /// `standard` for 9080, 9180, 9090 and 9091; otherwise free ports.
    #[serde(default)]
    pub ports: Ports,
    /// Where resources live: the admin's store or `apisix.yaml`.
    #[serde(default)]
    pub provider: Provider,
    /// Laid over the runner's own `config.yaml`; null removes a key.
    #[serde(default)]
    pub config: Value,
    /// A folder of the repository, copied as the gateway's own.
    pub conf: Option<String>,
    /// `config.yaml` as it is, nothing added.
    pub config_text: Option<String>,
    /// `apisix.yaml` as it is; implies `provider: yaml`.
    pub apisix_yaml: Option<String>,
    /// Sections of resources: PUT one by one, or written as `apisix.yaml`.
    #[serde(default)]
    pub resources: IndexMap<String, Vec<Value>>,
    /// Fake upstreams by name (`upstream::Spec`).
    #[serde(default)]
    pub upstreams: IndexMap<String, Value>,
    /// Environment of the gateway.
    #[serde(default)]
    pub env: IndexMap<String, String>,
    /// Shell commands run before the gateway in its process, such as `ulimit -n 100`.
    #[serde(default)]
    pub limits: String,
    /// Arguments of `sluice run` in place of the folder, such as a file of another gateway.
    #[serde(default)]
    pub run: Vec<String>,
    /// A real etcd, which is then the provider.
    pub etcd: Option<crate::etcd::Wanted>,
    /// Start the gateway before the first step.
    #[serde(default = "yes")]
    pub start: bool,
    pub steps: Vec<Step>,
}

#[derive(Deserialize, Default, Clone, Copy, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Ports {
    #[default]
    Free,
    Standard,
}

#[derive(Deserialize, Default, Clone, Copy, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Provider {
    #[default]
    Embedded,
    Yaml,
}

/// One thing done, or only looked at, and what is expected of it.
#[derive(Deserialize, Default, Clone)]
#[serde(deny_unknown_fields, default)]
pub struct Step {
    pub name: Option<String>,

    /// `METHOD TARGET`, sent by the runner's own client.
    pub request: Option<String>,
    /// `METHOD PATH` at the admin, with the key; waits until a write is live.
    pub admin: Option<String>,
    /// Bytes, each character one byte, on a fresh connection.
    pub raw: Option<String>,
    /// Several named `raw`s with the same expectations.
    pub raws: IndexMap<String, String>,
    /// A conversation in bytes.
    pub talk: Option<Vec<Move>>,
    /// A shell script.
    pub shell: Option<String>,
    /// Runs the program to its end with these arguments.
    pub sluice: Option<Vec<String>>,
    /// `stop 1`, `cont 1`, `kill 1` or `start 1` for a member of etcd; `cut`, `half-cut`, `late`, `crumbs`, `reset`,
    /// `heal` for the way there.
    pub etcd: Option<String>,
    /// Sends a signal (HUP, QUIT, TERM, INT, USR1) to the gateway.
    pub signal: Option<String>,
    /// Kills the gateway with SIGKILL.
    pub kill9: bool,
    /// Starts the gateway again (after `kill9`, `signal` or `start: false`).
    pub start_gateway: bool,
    /// Waits for the gateway to end; its exit code is `expect.exit`.
    pub wait_exit: bool,
    /// Files written into the gateway's folder, each in one rename.
    pub write: IndexMap<String, String>,
    /// Sections of resources, PUT one by one.
    pub put: IndexMap<String, Vec<Value>>,
    /// Waits; only for things that are about time.
    #[serde(deserialize_with = "duration")]
    pub sleep: Option<Duration>,

    /// Receiver of `request`, `raw` and `talk`: proxy (default), admin,
    /// control, metrics, `upstream.NAME` or an address.
    pub to: Option<String>,
    pub headers: Option<Headers>,
    pub body: Option<String>,
    pub json: Option<Value>,
    pub chunks: Option<Vec<String>>,
    pub trailers: Option<Headers>,
    /// A body of one text many times.
    pub many: Option<Many>,
    /// Sends the body in chunks of this size in bytes.
    pub chunk_size: Option<usize>,
    /// `1.1` (default) or `1.0`.
    pub version: Option<String>,
    pub no_host: bool,
    /// Keeps the connection under this name for later steps.
    pub connection: Option<String>,
    /// Sends `Expect: 100-continue` and waits for the 100 before the body.
    pub expect_continue: bool,
    /// Admin key of `admin` instead of the runner's; empty sends none.
    pub key: Option<String>,
    /// Do not wait for an admin write to be live.
    pub no_wait: bool,

    pub repeat: Option<usize>,
    pub parallel: Option<usize>,
    /// Tries again until the expectations hold, at most so long.
    #[serde(deserialize_with = "duration")]
    pub within: Option<Duration>,
    /// Name -> JSON pointer into the answer, or `header:NAME`.
    pub save: IndexMap<String, String>,
    pub expect: Expect,
}

/// The expectations after a step; absent fields are not checked.
#[derive(Deserialize, Default, Clone)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    pub status: Option<OneOrMany<u16>>,
    /// How often each status came, over all repetitions.
    pub statuses: Option<IndexMap<String, usize>>,
    /// Statuses of several answers on one connection.
    pub answers: Option<Vec<u16>>,
    /// 1xx answers that came first.
    pub interim: Option<Vec<u16>>,
    pub headers: IndexMap<String, Value>,
    pub trailers: IndexMap<String, Value>,
    pub body: Option<String>,
    pub body_contains: Option<OneOrMany<String>>,
    pub body_lacks: Option<OneOrMany<String>>,
    pub body_matches: Option<String>,
    pub body_size: Option<usize>,
    /// A subset of the JSON answer.
    pub json: Option<Value>,
    /// The server closes the connection after the answer, or does not.
    pub closed: Option<bool>,
    /// The answer breaks off before its end.
    pub truncated: Option<bool>,
    #[serde(deserialize_with = "duration")]
    pub at_least: Option<Duration>,
    #[serde(deserialize_with = "duration")]
    pub at_most: Option<Duration>,
    /// Exit code of `shell` (0 unless said), `sluice` and `wait_exit`.
    pub exit: Option<i32>,
    /// The requests that fake upstreams received.
    pub seen: IndexMap<String, Seen>,
    /// Regular expressions found in what the gateway wrote.
    pub log: Option<OneOrMany<String>>,
    /// Texts that must not be in what the gateway wrote.
    pub log_lacks: Option<OneOrMany<String>>,
}

/// The expected requests of one fake upstream, since the start of the case.
#[derive(Deserialize, Default, Clone)]
#[serde(deny_unknown_fields, default)]
pub struct Seen {
    pub count: Option<usize>,
    pub connections: Option<usize>,
    /// Of the last request: its first line.
    pub line: Option<String>,
    pub headers: IndexMap<String, Value>,
    pub body: Option<String>,
    pub body_matches: Option<String>,
    pub body_size: Option<usize>,
    pub trailers: IndexMap<String, Value>,
}

#[derive(Deserialize, Clone)]
#[serde(untagged)]
pub enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    pub fn all(&self) -> &[T] {
        match self {
            OneOrMany::One(one) => std::slice::from_ref(one),
            OneOrMany::Many(many) => many,
        }
    }
}

/// Fields in order: a map, or `Name: value` lines where a name comes twice.
#[derive(Deserialize, Clone)]
#[serde(untagged)]
pub enum Headers {
    Map(IndexMap<String, String>),
    Lines(Vec<String>),
}

impl Headers {
    pub fn pairs(&self) -> Vec<(String, String)> {
        match self {
            Headers::Map(map) => map.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            Headers::Lines(lines) => lines
                .iter()
                .map(|line| {
                    let (name, value) = line.split_once(':').unwrap_or((line, ""));
                    (name.to_owned(), value.trim().to_owned())
                })
                .collect(),
        }
    }
}

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
pub struct Many {
    pub text: String,
    pub times: usize,
}

impl Many {
    pub fn bytes(&self) -> Vec<u8> {
        self.text.as_bytes().repeat(self.times)
    }
}

/// One move in a conversation of bytes, on either side.
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Move {
    /// Each character one byte.
    Send(String),
    /// Reads until these bytes came, and takes them.
    Read(String),
    /// Reads to the end of a message head.
    ReadHead,
    /// Waits until this upstream has seen one request more than when the conversation began.
    Seen(String),
    /// Nothing may come for so long.
    Quiet(String),
    Sleep(String),
    /// The peer ends its side.
    ReadEnd,
    HalfClose,
    Close,
    Reset,
}

impl Case {
    pub fn load(path: &Path) -> Result<Case> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let case: Case = serde_saphyr::from_str(&text).with_context(|| path.display().to_string())?;
        Ok(case)
    }

    /// It has no traffic port to wait for.
    pub fn is_control_plane(&self) -> bool {
        self.config.pointer("/deployment/role").and_then(Value::as_str) == Some("control_plane")
    }

    pub fn uses_yaml(&self) -> bool {
        self.provider == Provider::Yaml || self.apisix_yaml.is_some()
    }
}

fn yes() -> bool {
    true
}

/// `250ms`, `2s`, `1m`.
pub fn parse_duration(text: &str) -> Result<Duration> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let number: f64 = text[..digits].parse().with_context(|| format!("duration {text:?}: no number"))?;
    let seconds = match &text[digits..] {
        "ms" => number / 1000.0,
        "s" => number,
        "m" => number * 60.0,
        _ => anyhow::bail!("duration {text:?}: want ms, s or m"),
    };
    Ok(Duration::from_secs_f64(seconds))
}

fn duration<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| parse_duration(&text).map_err(serde::de::Error::custom)).transpose()
}

#[cfg(test)]
mod tests {
    use super::{Case, Move, parse_duration};
    use crate::upstream::Spec;
    use std::time::Duration;

    #[test]
    fn every_case_file_reads() {
        let folders =
            ["tests/cases", "tests/engines"].map(|folder| crate::suite::files(&crate::root().join(folder)));
        assert!(folders.iter().all(|files| !files.is_empty()));
        let mut wrong = Vec::new();
        for (name, path) in folders.concat() {
            match Case::load(&path) {
                Err(error) => wrong.push(format!("{error:#}")),
                Ok(case) => {
                    for (upstream, value) in case.upstreams {
                        if let Err(error) = Spec::from_value(value) {
                            wrong.push(format!("{name}: upstream {upstream}: {error:#}"));
                        }
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(parse_duration("250ms").expect("valid"), Duration::from_millis(250));
        assert_eq!(parse_duration("1.5s").expect("valid"), Duration::from_millis(1500));
        assert!(parse_duration("5").is_err());
    }

    #[test]
    fn a_case_reads_and_an_unknown_key_is_an_error_with_its_line() {
        let text = "about: x\nsteps:\n  - talk: [{send: \"a\\r\\n\"}, read_head, {quiet: 10ms}, close]\n    within: 2s\n";
        let case: Case = serde_saphyr::from_str(text).expect("valid");
        let moves = case.steps[0].talk.as_ref().expect("there");
        assert!(matches!(&moves[0], Move::Send(text) if text == "a\r\n"));
        assert!(matches!(moves[3], Move::Close));

        let wrong =
            serde_saphyr::from_str::<Case>("about: x\nsteps:\n  - requst: GET /\n").err().expect("refused");
        assert!(wrong.to_string().contains("requst") && wrong.to_string().contains('3'), "{wrong}");
    }
}
