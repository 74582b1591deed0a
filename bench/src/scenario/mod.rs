//! The scenarios. B1 to B10 are those of the published comparisons, see `published.rs`; the others
//! are ours.

mod changes;
mod http1;
mod protocols;

use serde::Serialize;

use crate::gateways::{Gateway, Setup};
use crate::load::Driver;

/// One comparison: the same load on several gateways with the same task.
#[derive(Clone, Debug, Serialize)]
pub struct Scenario {
    pub id: &'static str,
    /// Other names, including those of the published scenarios it repeats.
    pub also: &'static [&'static str],
    pub title: &'static str,
    pub kind: Kind,
    pub driver: Driver,
    /// The tasks of Sluice and every peer.
    pub setup: Setup,
    /// Further measurements of Sluice in the same run, to compare with.
    #[serde(skip)]
    pub references: &'static [Reference],
    #[serde(skip)]
    pub peers: &'static [Gateway],
    /// The peers of a `--quick` run; `None` excludes the scenario from it.
    #[serde(skip)]
    pub quick: Option<&'static [Gateway]>,
    /// Minimum number of cores.
    pub cores: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Load and its cost.
    Load,
    /// Load while the configuration changes, `per_second` times through Sluice's Admin API.
    Churn { per_second: u32 },
    /// The cost of a large configuration, and of a change of it.
    Scale,
    /// Memory without load: at rest, and per idle keep-alive connection.
    Idle,
}

/// Another setup within a scenario, usually of Sluice.
#[derive(Clone, Copy, Debug)]
pub struct Reference {
    pub label: &'static str,
    pub gateway: Gateway,
    pub setup: Setup,
    /// Whether routes change during it.
    pub churn: bool,
}

/// The defaults of scenarios.
const BASE: Scenario = Scenario {
    id: "",
    also: &[],
    title: "",
    kind: Kind::Load,
    driver: Driver::Wrk { threads: 1, connections: 50 },
    setup: Setup::PLAIN,
    references: &[],
    peers: http1::NATIVE,
    quick: None,
    cores: 1,
};

/// All scenarios, in the order they are run.
pub fn all() -> impl Iterator<Item = &'static Scenario> {
    http1::SCENARIOS.iter().chain(protocols::SCENARIOS).chain(changes::SCENARIOS)
}

/// The scenario of that name, in any case.
pub fn find(name: &str) -> Option<&'static Scenario> {
    all().find(|scenario| {
        scenario.id.eq_ignore_ascii_case(name)
            || scenario.also.iter().any(|also| also.eq_ignore_ascii_case(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_scenario_is_covered() {
        for number in 1..=10 {
            assert!(find(&format!("b{number}")).is_some(), "B{number}");
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = all().flat_map(|s| s.also.iter().chain([&s.id])).copied().collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
