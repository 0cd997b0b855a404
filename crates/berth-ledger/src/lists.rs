//! What can be looked up beside the claim path.

use berth_engine::{NodeFacts, NodeId};

use crate::error::{Fault, LedgerError};
use crate::ledger::Ledger;
use crate::model::{
    AuditEntry, AuditFilter, Claim, ClaimKey, Document, Grant, Micros, Pool, QuotaUse, Seen,
    StoredPolicy, Workload,
};
use crate::tables::ReceiptRow;
use crate::work::StoredAnswer;

/// What a database must be able to look up. Each is a transaction of its own.
pub(crate) trait Lists {
    /// One document.
    fn document(&mut self, kind: &str, id: &str) -> Result<Option<Document>, Fault>;
    /// Documents of a kind after this id, in the order of their ids; at least as many as asked for
    /// if there are.
    fn documents(&mut self, kind: &str, after: &str, limit: usize) -> Result<Vec<Document>, Fault>;
    /// Entries of the audit log before this one, newest first; at least as many as asked for if
    /// there are.
    fn audit(
        &mut self,
        before: i64,
        limit: usize,
        filter: &AuditFilter,
    ) -> Result<Vec<AuditEntry>, Fault>;
    /// All policies, in the order of their names.
    fn policies(&mut self) -> Result<Vec<StoredPolicy>, Fault>;
    /// When which policy was put in force, newest first; at least as many as asked for if there
    /// are.
    fn policy_history(&mut self, limit: usize) -> Result<Vec<(i64, String, Micros)>, Fault>;
    /// One node, and what a plan on it would rest on.
    fn node(&mut self, id: &NodeId) -> Result<Option<(NodeFacts, Seen)>, Fault>;
    /// All pools, in the order of their ids, each with how many of its values are in use.
    fn pools(&mut self) -> Result<Vec<(Pool, i64)>, Fault>;
    /// All tenants with limits, in the order of their names.
    fn quotas(&mut self) -> Result<Vec<QuotaUse>, Fault>;
    /// All workloads, in the order of owner and name.
    fn workloads(&mut self) -> Result<Vec<Workload>, Fault>;
    /// Claims after this one, in the order of their keys; at least as many as asked for if there
    /// are.
    fn claims_page(&mut self, after: Option<ClaimKey>, limit: usize) -> Result<Vec<Claim>, Fault>;
    /// Receipts with decisions up to a place and with it, newest first: so many that they have as
    /// many decisions as asked for, or some of them. None means that there are no more.
    fn receipts_until(
        &mut self,
        place: &ReceiptPlace,
        decisions: usize,
    ) -> Result<Vec<ReceiptRow>, Fault>;
    /// The answer that was given to a request, if it is kept.
    fn answer(&mut self, request_id: &str, owner: &str) -> Result<Option<StoredAnswer>, Fault>;
}

/// A place among all receipts: in the order of time, then chain, then number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReceiptPlace {
    pub(crate) at: i64,
    pub(crate) chain: String,
    pub(crate) n: i64,
}

/// Whether texts can be stored at all. What cannot be is not there, and must not reach a database
/// that would refuse the question.
pub(crate) fn storable<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> bool {
    !texts.into_iter().any(|text| text.as_ref().contains('\0'))
}

/// The most rows that one page can have.
const PAGE_MOST: usize = 10_000;

impl Ledger {
    /// One document.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn document(&self, kind: &str, id: &str) -> Result<Option<Document>, LedgerError> {
        if !storable([kind, id]) {
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
        if !storable([kind, after]) {
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
        if !storable(texts.into_iter().flatten()) {
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

    /// When which policy was put in force, newest first: a growing number, the hash, the time.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn policy_history(&self, limit: usize) -> Result<Vec<(i64, String, Micros)>, LedgerError> {
        self.page(limit, |tables, limit| tables.policy_history(limit))
    }

    /// One node, and what a plan on it would rest on: the generation of its facts among it.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn node(&self, id: &NodeId) -> Result<Option<(NodeFacts, Seen)>, LedgerError> {
        if !storable([id.as_str()]) {
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

    /// All workloads, in the order of owner and name.
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
    pub fn answer(&self, owner: &str, request_id: &str) -> Result<Option<Grant>, LedgerError> {
        if !storable([owner, request_id]) {
            return Ok(None);
        }
        Ok(match self.read(|tables| tables.answer(request_id, owner))? {
            Some(StoredAnswer::Granted(grant)) => Some(grant),
            Some(StoredAnswer::Stands(_)) | None => None,
        })
    }

    /// Reads one page. Databases are asked for one of a few sizes, each a statement of its own
    /// that can be planned for its size, and what is too much is cut off.
    fn page<T>(
        &self,
        limit: usize,
        read: impl Fn(&mut dyn crate::tables::Tables, usize) -> Result<Vec<T>, Fault>,
    ) -> Result<Vec<T>, LedgerError> {
        let limit = limit.min(PAGE_MOST);
        if limit == 0 {
            return Ok(Vec::new());
        }
        let mut found = self.read(|tables| read(tables, limit.next_power_of_two()))?;
        found.truncate(limit);
        Ok(found)
    }
}
