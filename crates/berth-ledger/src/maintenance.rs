//! What is done to a ledger from time to time: expired leases, counters, retention.

use berth_engine::{InstanceId, NodeId};

use crate::error::LedgerError;
use crate::ledger::{Ledger, unexpected};
use crate::model::{Answer, Drift, Op};
use crate::retention::{Retention, RetentionCutoffs};

impl Ledger {
    /// Releases every claim whose lease has expired, node by node. Any process may do so at any time.
    ///
    /// # Errors
    /// As [`Ledger::call`].
    pub fn reap(&self) -> Result<Vec<InstanceId>, LedgerError> {
        let mut reaped = Vec::new();
        for node in self.read(|tables| tables.expired_nodes())? {
            reaped.extend(self.reap_node(&node)?);
        }
        Ok(reaped)
    }

    /// Releases the expired claims of one node, for a planner that found no room there.
    ///
    /// # Errors
    /// As [`Ledger::call`].
    pub fn reap_node(&self, node: &NodeId) -> Result<Vec<InstanceId>, LedgerError> {
        match self.call(Op::Reap(node.clone()))? {
            Answer::Reaped(instances) => Ok(instances),
            other => Err(unexpected(&other)),
        }
    }

    /// Finds counters that are not the sum of their claims, recomputes those under their row's
    /// lock, and reports every difference: each is a bug.
    ///
    /// # Errors
    /// As [`Ledger::call`].
    pub fn reconcile(&self) -> Result<Vec<Drift>, LedgerError> {
        let drifted = self.read_at_leisure(|tables| tables.drifted())?;
        let nodes = drifted.nodes.into_iter().map(Op::ReconcileNode);
        let groups = drifted.groups.into_iter().map(Op::ReconcileGroup);
        let tenants = drifted.tenants.into_iter().map(Op::ReconcileTenant);
        let mut drifts = Vec::new();
        for op in nodes.chain(groups).chain(tenants) {
            match self.call(op)? {
                Answer::Drifts(found) => drifts.extend(found),
                other => return Err(unexpected(&other)),
            }
        }
        Ok(drifts)
    }

    /// Deletes what has passed its retention. Returns the number of deleted rows.
    ///
    /// # Errors
    /// When the database cannot be written.
    pub fn forget(&self, retention: &Retention) -> Result<u64, LedgerError> {
        self.read_at_leisure(|tables| {
            let (now, ends) = (tables.clock()?, tables.number_events()?);
            tables.forget(&RetentionCutoffs {
                events_before: ends.next - retention.events,
                answers_before: now.plus_seconds(-retention.answers_s),
                receipts_before: retention.receipts_s.map(|age| now.plus_seconds(-age)),
                refusals_before: retention.refusals_s.map(|age| now.plus_seconds(-age)),
                audit_before: retention.audit_s.map(|age| now.plus_seconds(-age)),
                now,
            })
        })
    }
}
