//! The catalog: chains, checks and facts of plugins.

mod chains;
mod checks;
mod facts;
mod meta;
mod nested;
mod stored;

use sdk::testing::{FixedNames, Probe};
use sdk::{Catalog as _, Phase, Phases, Step};

use super::*;

fn catalog() -> Catalog {
    Catalog::new(Services::for_tests(), IndexMap::new())
}

fn chain(catalog: &Catalog, entries: &[(&str, Value)]) -> Result<Arc<Chain>, Invalid> {
    let owner = Owner { collection: "routes", id: "1".into() };
    let entries: Vec<_> =
        entries.iter().map(|(name, config)| Configured { name, config, owner: &owner }).collect();
    let names = FixedNames::default();
    catalog.chain(&entries, &Scope::of_names(&names))
}
