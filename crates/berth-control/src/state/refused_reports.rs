//! Reports of agents that were refused: which an event was logged for already. An agent repeats its
//! reports with every heartbeat, and may invent instances: neither may fill the log.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use berth_engine::{InstanceId, NodeId};
use rustc_hash::FxHashMap;

/// Events of one node within [`WINDOW_S`].
pub(crate) const MAX_PER_NODE: usize = 32;

/// After so many seconds, a refusal is logged again.
const WINDOW_S: i64 = 3600;

/// Refused reports, node by node.
#[derive(Default)]
pub struct RefusedReports(Mutex<FxHashMap<NodeId, NodeRefusals>>);

#[derive(Default)]
struct NodeRefusals {
    since_s: i64,
    logged: BTreeSet<(InstanceId, &'static str)>,
}

impl RefusedReports {
    /// Whether this refusal is to be logged; from then on it is known.
    pub fn is_new(
        &self,
        node: &NodeId,
        instance: InstanceId,
        code: &'static str,
        now_s: i64,
    ) -> bool {
        let mut nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = nodes.entry(node.clone()).or_default();
        if now_s.saturating_sub(known.since_s) >= WINDOW_S {
            *known = NodeRefusals { since_s: now_s, logged: BTreeSet::new() };
        }
        known.logged.len() < MAX_PER_NODE && known.logged.insert((instance, code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_new_once_an_hour_and_a_node_has_few_of_them() {
        let refused = RefusedReports::default();
        let is_new = |node: &str, number: u128, now_s: i64| {
            let instance = InstanceId::from_u128(number);
            refused.is_new(&NodeId::new(node), instance, "adoption_off", now_s)
        };
        assert!(is_new("n1", 1, 10_000));
        assert!(!is_new("n1", 1, 10_001));
        assert!(is_new("n2", 1, 10_001));
        let logged = (2..1000).filter(|number| is_new("n1", *number, 10_002)).count();
        assert_eq!(logged, MAX_PER_NODE - 1);
        assert!(is_new("n1", 1, 10_000 + WINDOW_S));
    }
}
