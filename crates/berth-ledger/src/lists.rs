//! Lookups outside the claim path.

use berth_engine::{NodeFacts, NodeId};

use crate::database::{Database, DurabilityWarning};
use crate::encoding::is_storable;
use crate::error::{Fault, LedgerError};
use crate::ledger::Ledger;
use crate::model::{
    AuditEntry, AuditFilter, Claim, ClaimKey, Document, Grant, Micros, NodeVersion, Pool, QuotaUse,
    StoredPolicy, TicketAnswer, UnmetDemand, Workload,
};
use crate::unit_of_work::StoredAnswer;

/// The most rows that one page can have.
const PAGE_MAX: usize = 10_000;

impl Ledger {
    /// The time by the database's clock.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn clock(&self) -> Result<Micros, LedgerError> {
        self.read(|tables| tables.clock())
    }

    /// Settings of the database under which acknowledged commits can be lost, as they are now.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn durability_warnings(&self) -> Result<Vec<DurabilityWarning>, LedgerError> {
        self.read(|tables| tables.durability_warnings())
    }

    /// Unmet demand, most recent first.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn demand(&self) -> Result<Vec<UnmetDemand>, LedgerError> {
        self.read(|tables| tables.demand())
    }

    /// One document.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn document(&self, kind: &str, id: &str) -> Result<Option<Document>, LedgerError> {
        if !is_storable([kind, id]) {
            return Ok(None);
        }
        self.read(|tables| tables.document(kind, id))
    }

    /// Documents of a kind, in the order of their ids, from after this one on.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn documents(
        &self,
        kind: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Document>, LedgerError> {
        // No document has an empty id.
        let after = after.unwrap_or("");
        if !is_storable([kind, after]) {
            return Ok(Vec::new());
        }
        self.page(limit, |tables, limit| tables.documents(kind, after, limit))
    }

    /// The audit log, newest first, from before this entry on.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn audit(
        &self,
        before: Option<i64>,
        limit: usize,
        filter: &AuditFilter,
    ) -> Result<Vec<AuditEntry>, LedgerError> {
        let texts = [&filter.actor, &filter.action, &filter.subject_contains];
        if !is_storable(texts.into_iter().flatten()) {
            return Ok(Vec::new());
        }
        let before = before.unwrap_or(i64::MAX);
        self.page(limit, |tables, limit| tables.audit(before, limit, filter))
    }

    /// All policies that are stored, in the order of their names.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn policies(&self) -> Result<Vec<StoredPolicy>, LedgerError> {
        self.read(|tables| tables.policies())
    }

    /// When which policy was activated, newest first: a growing number, the hash, the time.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn policy_history(&self, limit: usize) -> Result<Vec<(i64, String, Micros)>, LedgerError> {
        self.page(limit, |tables, limit| tables.policy_history(limit))
    }

    /// One node, and the version that a plan on it is based on: the generation of its facts among it.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn node(&self, id: &NodeId) -> Result<Option<(NodeFacts, NodeVersion)>, LedgerError> {
        if !is_storable([id.as_str()]) {
            return Ok(None);
        }
        self.read(|tables| tables.node(id))
    }

    /// All pools, in the order of their ids, each with how many of its values are in use. Values
    /// at rest are not.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn pools(&self) -> Result<Vec<(Pool, i64)>, LedgerError> {
        self.read(|tables| tables.pools())
    }

    /// All tenants with limits, in the order of their names, and what they use of them.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn quotas(&self) -> Result<Vec<QuotaUse>, LedgerError> {
        self.read(|tables| tables.quotas())
    }

    /// All workloads, in the order of tenant and name.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn workloads(&self) -> Result<Vec<Workload>, LedgerError> {
        self.read(|tables| tables.workloads())
    }

    /// Claims in the order of their keys, from after this one on.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn claims_page(
        &self,
        after: Option<ClaimKey>,
        limit: usize,
    ) -> Result<Vec<Claim>, LedgerError> {
        self.page(limit, |tables, limit| tables.claims_page(after, limit))
    }

    /// The grant that a request got, while its answer is kept.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn answer(&self, tenant: &str, request_id: &str) -> Result<Option<Grant>, LedgerError> {
        if !is_storable([tenant, request_id]) {
            return Ok(None);
        }
        Ok(match self.read(|tables| tables.answer(request_id, tenant))?.map(|row| row.answer) {
            Some(StoredAnswer::Granted(grant)) => Some(grant),
            Some(StoredAnswer::Status(_) | StoredAnswer::Ticket { .. }) | None => None,
        })
    }

    /// That a request waits under a ticket or did, while its answer is kept. None if it was granted.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn ticket_answer(
        &self,
        tenant: &str,
        request_id: &str,
    ) -> Result<Option<TicketAnswer>, LedgerError> {
        if !is_storable([tenant, request_id]) {
            return Ok(None);
        }
        let row = self.read(|tables| tables.answer(request_id, tenant))?;
        Ok(row.and_then(|row| match row.answer {
            StoredAnswer::Ticket { closed } => {
                Some(TicketAnswer { request_hash: row.body_hash, kept_from: row.at, closed })
            }
            StoredAnswer::Granted(_) | StoredAnswer::Status(_) => None,
        }))
    }

    /// Reads one page. Databases are asked for one of a few sizes, each a statement of its own
    /// that can be planned for its size, and what is too much is cut off.
    fn page<T>(
        &self,
        limit: usize,
        read: impl Fn(&mut dyn Database, usize) -> Result<Vec<T>, Fault>,
    ) -> Result<Vec<T>, LedgerError> {
        let limit = limit.min(PAGE_MAX);
        if limit == 0 {
            return Ok(Vec::new());
        }
        let mut found = self.read(|tables| read(tables, limit.next_power_of_two()))?;
        found.truncate(limit);
        Ok(found)
    }
}
