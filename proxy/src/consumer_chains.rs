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

/// The pairs met so far. Chains are told apart by address: those of one snapshot, which outlives this.
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
