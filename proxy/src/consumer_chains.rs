//! A plan's chain with a consumer's own plugins laid over it.
//!
//! Made when a consumer first meets a plan on this worker, then looked up. Which
//! pairs occur is only known from traffic: there may be thousands of plans and
//! thousands of consumers, and few of their pairs ever meet.

use std::cell::RefCell;
use std::sync::Arc;

use hashbrown::HashMap;
use sdk::Chain;

/// Pairs a worker remembers.
const MOST: usize = 4096;

/// The pairs met so far. Chains are told apart by identity; a chain in the map is kept
/// alive by it, so an address is never mistaken for another's.
#[derive(Default)]
pub(crate) struct ConsumerChains {
    met: RefCell<HashMap<(usize, usize), Met, foldhash::fast::RandomState>>,
}

struct Met {
    _plan: Option<Arc<Chain>>,
    _consumer: Arc<Chain>,
    merged: Arc<Chain>,
}

impl ConsumerChains {
    pub(crate) fn merged(&self, plan: Option<&Arc<Chain>>, consumer: &Arc<Chain>) -> Arc<Chain> {
        let Some(plan) = plan else { return consumer.clone() };
        let key = (address(plan), address(consumer));
        let mut met = self.met.borrow_mut();
        if let Some(known) = met.get(&key) {
            return known.merged.clone();
        }
        if met.len() >= MOST {
            met.clear();
        }
        let merged = Arc::new(plan.overlay(consumer));
        met.insert(
            key,
            Met { _plan: Some(plan.clone()), _consumer: consumer.clone(), merged: merged.clone() },
        );
        merged
    }
}

fn address(chain: &Arc<Chain>) -> usize {
    Arc::as_ptr(chain).addr()
}
