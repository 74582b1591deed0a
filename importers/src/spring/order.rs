//! The order of the original: the first route that matches wins.
//!
//! The router prefers exact paths, then longer prefixes; only routes of the same path are ordered by
//! `priority`. A route that comes before another therefore also gets those paths of the other that
//! lie within its own: there the priorities decide, and they follow the order of the original.

use std::collections::{HashMap, HashSet};

use super::path::Anchor;

/// Paths of all routes together.
const MAX_PATHS: usize = 200_000;

/// More paths than can be ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooMany;

/// Completes the paths of routes, which stand in the order in which they are tried.
///
/// # Errors
/// The routes overlap so often that there would be too many paths.
pub fn complete(routes: &mut [Vec<Anchor>]) -> Result<(), TooMany> {
    // Earlier routes by their prefixes.
    let mut prefixes: HashMap<String, Vec<usize>> = HashMap::new();
    let mut known: Vec<HashSet<Anchor>> = Vec::with_capacity(routes.len());
    let mut count: usize = routes.iter().map(Vec::len).sum();
    for at in 0..routes.len() {
        let own = routes[at].clone();
        for anchor in &own {
            for earlier in anchor.shorter().filter_map(|prefix| prefixes.get(prefix)).flatten() {
                if known[*earlier].insert(anchor.clone()) {
                    routes[*earlier].push(anchor.clone());
                    count += 1;
                }
            }
            if count > MAX_PATHS {
                return Err(TooMany);
            }
        }
        for anchor in &own {
            if let Anchor::Prefix(path) = anchor {
                prefixes.entry(path.clone()).or_default().push(at);
            }
        }
        known.push(own.into_iter().collect());
    }
    Ok(())
}

/// The priority of the route at a place in the order.
pub fn priority(at: usize, count: usize) -> usize {
    count - at
}
