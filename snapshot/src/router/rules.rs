//! All rules of a router by id: used for changes and for explanations, never by requests.
//!
//! Built like [`Map`](super::map::Map), so that copies share their contents, but as small as
//! possible: the key is in the rule, and there is no cache line layout.

use std::sync::Arc;

use super::Rule;
use super::map::page_number;
use crate::table::Table;

#[derive(Debug, Clone, Default)]
pub(super) struct Rules {
    pages: Table<Page>,
    /// How many pages there are.
    count: u32,
    len: usize,
}

/// Rules with the hashes of their ids.
type Page = Vec<(u64, Arc<Rule>)>;

/// Average rules per page: what a change copies.
const LOAD: usize = 12;

impl Rules {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, hash: u64, id: &str) -> Option<&Arc<Rule>> {
        let page = self.pages.get(page_number(hash, self.count))?;
        page.iter().find(|(own, rule)| *own == hash && *rule.id == *id).map(|(_, rule)| rule)
    }

    /// Adds a rule whose id is not there yet.
    pub(super) fn insert(&mut self, hash: u64, rule: Arc<Rule>) {
        self.len += 1;
        if self.len > self.count as usize * LOAD {
            self.grow();
        }
        let page = self.pages.entry(page_number(hash, self.count));
        page.reserve_exact(1);
        page.push((hash, rule));
    }

    pub(super) fn remove(&mut self, hash: u64, id: &str) {
        if self.get(hash, id).is_none() {
            return;
        }
        self.len -= 1;
        if self.len == 0 {
            *self = Rules::default();
            return;
        }
        let page = self.pages.entry(page_number(hash, self.count));
        page.retain(|(own, rule)| *own != hash || *rule.id != *id);
        page.shrink_to_fit();
    }

    /// Adds a page, and moves to it the rules of another page that now belong there.
    fn grow(&mut self) {
        let count = self.count + 1;
        // The page with the same number but for its highest bit; the first page has none.
        let from = self.count - (count.next_power_of_two() / 2).min(self.count);
        let number = |hash| page_number(hash, count);
        let page = self.pages.entry(from);
        let (mut moves, mut stays): (Page, Page) =
            std::mem::take(page).into_iter().partition(|(hash, _)| number(*hash) != from);
        stays.shrink_to_fit();
        *page = stays;
        if !moves.is_empty() {
            moves.shrink_to_fit();
            *self.pages.entry(self.count) = moves;
        }
        self.count = count;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::tests::rule;
    use super::*;

    #[test]
    fn matches_a_model_and_copies_are_independent() {
        // Few different hashes, so that full collisions come up, too.
        for spread in [u64::MAX, 0x3f, 0] {
            let hash = |id: &str| id.parse::<u64>().unwrap().wrapping_mul(0x9e37_79b9_7f4a_7c15) & spread;
            let mut rng = fastrand::Rng::with_seed(3);
            let (mut rules, mut model) = (Rules::default(), BTreeMap::new());
            let mut old = (rules.clone(), model.clone());
            for step in 0..6000u32 {
                let id = rng.u32(..1000).to_string();
                // It grows, then it shrinks to nothing.
                match rng.u32(..4000) > step && !model.contains_key(&id) {
                    true => {
                        let rule = Arc::new(rule(&id, &["/"]));
                        rules.insert(hash(&id), rule.clone());
                        model.insert(id, rule);
                    }
                    false => {
                        rules.remove(hash(&id), &id);
                        model.remove(&id);
                    }
                }
                assert_eq!(rules.len(), model.len());
                if step == 2000 {
                    old = (rules.clone(), model.clone());
                }
            }
            assert!(!old.1.is_empty());
            let left: Vec<String> = model.keys().cloned().collect();
            for (rules, model) in [old, (rules.clone(), model)] {
                for id in (0..1000).map(|id: u32| id.to_string()) {
                    let (found, wanted) = (rules.get(hash(&id), &id), model.get(&id));
                    assert_eq!(found.map(Arc::as_ptr), wanted.map(Arc::as_ptr), "{id}");
                }
            }
            left.iter().for_each(|id| rules.remove(hash(id), id));
            assert_eq!((rules.len(), rules.count), (0, 0));
        }
    }
}
