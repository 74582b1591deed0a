//! The shape of `xtask/walls.toml`.

use super::circles::Circles;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    pub room: BTreeMap<String, Room>,
    pub files: Files,
    pub circles: Circles,
    #[serde(default)]
    pub ban: Vec<Ban>,
}

/// The dependencies that one room may have.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Room {
    /// Rooms it may depend on.
    pub may: Vec<String>,
    /// Libraries it must not depend on.
    pub never: Vec<String>,
    /// Rooms its tests may depend on besides.
    #[serde(default)]
    pub dev: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Files {
    pub warn: usize,
    pub fail: usize,
}

/// Words that may not stand in some files.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ban {
    pub words: Vec<String>,
    #[serde(rename = "in")]
    pub within: Vec<String>,
    #[serde(default)]
    pub except: Vec<String>,
    pub reason: String,
}

impl Ban {
    pub fn covers(&self, path: &str) -> bool {
        let starts = |list: &[String]| list.iter().any(|prefix| path.starts_with(prefix.as_str()));
        starts(&self.within) && !starts(&self.except)
    }
}
