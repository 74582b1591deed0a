//! A plan's chain with a consumer's own plugins laid over it.
//!
//! Made when a consumer first meets a plan on this worker, then looked up for as long as the snapshot
//! is current. Which pairs occur is only known from traffic: there may be thousands of plans and
//! thousands of consumers, and few of their pairs ever meet.

use std::cell::RefCell;
use std::sync::Arc;

use hashbrown::HashMap;
use sdk::Chain;

/// Pairs that are remembered for a snapshot.
const MOST: usize = 4096;

/// The pairs met so far. Chains are distinguished by address: those of one snapshot, which outlives this.
#[derive(Default)]
pub(crate) struct ConsumerChains {
    met: RefCell<HashMap<(usize, usize), Arc<Chain>, foldhash::fast::RandomState>>,
}

impl ConsumerChains {
    pub(crate) fn merged(&self, plan: Option<&Arc<Chain>>, consumer: &Arc<Chain>) -> Arc<Chain> {
        let Some(plan) = plan else { return consumer.clone() };
        let key = (address(plan), address(consumer));
        let mut met = self.met.borrow_mut();
        if let Some(known) = met.get(&key) {
            return known.clone();
        }
        if met.len() >= MOST {
            met.clear();
        }
        let merged = Arc::new(plan.overlay(consumer));
        met.insert(key, merged.clone());
        merged
    }
}

fn address(chain: &Arc<Chain>) -> usize {
    Arc::as_ptr(chain).addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_merged_once_and_the_memory_for_pairs_is_bounded() {
        let chains = ConsumerChains::default();
        let chain = || Arc::new(Chain::new(Vec::new(), Vec::new()));
        let (plan, other) = (chain(), chain());
        let consumers: Vec<_> = (0..MOST * 2).map(|_| chain()).collect();
        let (first, second) = (&consumers[0], &consumers[1]);
        assert!(Arc::ptr_eq(&chains.merged(None, first), first), "there is nothing to merge it with");
        let merged = [(&plan, first), (&plan, second), (&other, first), (&other, second)]
            .map(|(plan, consumer)| (plan, consumer, chains.merged(Some(plan), consumer)));
        for (at, (plan, consumer, chain)) in merged.iter().enumerate() {
            assert!(Arc::ptr_eq(&chains.merged(Some(plan), consumer), chain));
            assert!(merged[..at].iter().all(|(_, _, before)| !Arc::ptr_eq(before, chain)), "pair {at}");
        }
        for consumer in &consumers {
            chains.merged(Some(&plan), consumer);
            assert!(chains.met.borrow().len() <= MOST);
        }
    }
}
