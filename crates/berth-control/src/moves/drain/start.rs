//! Starting, changing and ending drains.

use std::sync::Arc;

use berth_engine::{NodeId, NodeState};
use berth_ledger::{Expect, Op};
use jiff::Timestamp;

use super::{DrainRecord, KIND};
use crate::caller::Caller;
use crate::control_plane::ControlPlane;
use crate::documents::DocumentFollower;
use crate::error::{ControlError, ControlResult};
use crate::moves::records;

/// How often a write is retried when others change the same drain.
const TRIES: u32 = 8;

/// How a node is to be drained. Absent fields keep their values in a drain that is under way.
#[derive(Clone, Debug, Default)]
pub struct DrainRequest {
    /// Why.
    pub reason: Option<String>,
    /// When the node should be empty.
    pub deadline: Option<Timestamp>,
    /// Whether the provider takes the node away.
    pub reclaimed: bool,
}

impl DrainRequest {
    /// The record of the drain after this request.
    fn merge(&self, old: Option<&DrainRecord>, total: u32, now: Timestamp) -> DrainRecord {
        let Some(old) = old else {
            let (reason, deadline) = (self.reason.clone(), self.deadline);
            let reclaimed = self.reclaimed;
            return DrainRecord { since: now, reason, deadline, reclaimed, total };
        };
        let mut record = old.clone();
        if self.reclaimed && old.reclaimed {
            // The same notice again; its deadline is relative, so it would only be moved later.
            return record;
        }
        record.reason = self.reason.clone().or(record.reason);
        record.deadline = match (self.deadline, old.deadline) {
            // The provider does not wait for a later deadline.
            (Some(new), Some(old)) if self.reclaimed => Some(new.min(old)),
            (new, old) => new.or(old),
        };
        record.reclaimed |= self.reclaimed;
        record
    }
}

/// Starts to drain a node, or changes its drain. Idempotent.
///
/// # Errors
/// When there is no such node, or its facts are not in the expected generation.
pub async fn start(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    node: &NodeId,
    request: &DrainRequest,
    expect: Option<i64>,
) -> ControlResult<()> {
    let subject = match request.reason.as_deref() {
        Some(reason) => format!("{node}: {reason}"),
        None => node.to_string(),
    };
    let state = NodeState::Draining;
    let op = Op::SetNodeState { node: node.clone(), state, expect };
    let is_new = control.administer(caller, "node.drain", subject.as_str(), op).await?;
    control.wait_for_read_your_writes().await;
    // The audit log has the start of a drain once, and every change of it.
    let by = Some((caller, subject.as_str())).filter(|_| !is_new);
    write(control, node, request, by).await
}

/// Stores the document of a drain, unless it already says what is requested.
pub(super) async fn write(
    control: &Arc<ControlPlane>,
    node: &NodeId,
    request: &DrainRequest,
    by: Option<(&Caller, &str)>,
) -> ControlResult<()> {
    let total = {
        let catalog = control.catalog.read();
        catalog.nodes.get(node).map_or(0, |entry| entry.claims.len())
    };
    let total = u32::try_from(total).unwrap_or(u32::MAX);
    for _ in 0..TRIES {
        let id = node.to_string();
        let stored = control.read(move |ledger| ledger.document(KIND, &id)).await?;
        let old = stored.as_ref().and_then(|document| serde_json::from_str(&document.body).ok());
        let record = request.merge(old.as_ref(), total, control.now());
        if old.as_ref() == Some(&record) {
            control.refresh_document(cache(control), node.as_str()).await;
            return Ok(());
        }
        let expect = stored.map_or(Expect::Absent, |document| Expect::Revision(document.rev));
        let audit = by.map(|(caller, subject)| (caller, "node.drain", subject.to_owned()));
        let id = node.as_str();
        if records::store(control, cache(control), id, &record, expect, None, audit).await? {
            return Ok(());
        }
    }
    Err(ControlError::unavailable("contention", "too many concurrent changes of this drain; retry"))
}

/// Removes the document of a drain that has ended, unless the drain was started again since.
///
/// # Errors
/// When the ledger does not know what became of it.
pub async fn remove(
    control: &Arc<ControlPlane>,
    node: &NodeId,
    revision: i64,
) -> ControlResult<()> {
    records::remove(control, cache(control), node.as_str(), revision).await
}

fn cache(control: &ControlPlane) -> Arc<dyn DocumentFollower> {
    Arc::clone(&control.moves.drains.records) as _
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn draining_again_changes_what_is_named_and_keeps_the_rest() {
        let first = DrainRequest { reason: Some("kernel".to_owned()), ..DrainRequest::default() };
        let first = first.merge(None, 5, at(10));
        assert_eq!((first.since, first.total), (at(10), 5));
        let later = DrainRequest { deadline: Some(at(99)), ..DrainRequest::default() }.merge(
            Some(&first),
            3,
            at(20),
        );
        let expected = DrainRecord { deadline: Some(at(99)), ..first };
        assert_eq!(later, expected);
        assert_eq!(DrainRequest::default().merge(Some(&later), 1, at(30)), later);
    }

    #[test]
    fn a_notice_hastens_a_drain_once_and_changes_nothing_the_second_time() {
        let slow = DrainRequest { deadline: Some(at(1000)), ..DrainRequest::default() }.merge(
            None,
            5,
            at(10),
        );
        let notice = |end| DrainRequest {
            reason: Some("spot_reclaim".to_owned()),
            deadline: Some(at(end)),
            reclaimed: true,
        };
        let taken = notice(130).merge(Some(&slow), 5, at(10));
        assert_eq!((taken.deadline, taken.reclaimed), (Some(at(130)), true));
        assert_eq!(notice(140).merge(Some(&taken), 4, at(20)), taken);
    }
}
