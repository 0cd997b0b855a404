//! Beginning a drain, changing it, and ending it.

use std::sync::Arc;

use berth_engine::{NodeId, NodeState};
use berth_ledger::{Expect, Op, Outcome, Text};
use jiff::Timestamp;

use super::{DrainRecord, KIND};
use crate::caller::Caller;
use crate::control_plane::ControlPlane;
use crate::control_plane::unexpected;
use crate::error::{ControlError, ControlResult};

/// How often a drain is written anew when others write it at the same time.
const TRIES: u32 = 8;

/// What is wanted of a drain. What is absent stays as it was.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// Why.
    pub reason: Option<String>,
    /// By when it should be done.
    pub deadline: Option<Timestamp>,
    /// Whether the node will be taken away.
    pub reclaimed: bool,
}

impl Wish {
    /// The drain that it makes of what was there.
    fn over(&self, old: Option<&DrainRecord>, total: u32, now: Timestamp) -> DrainRecord {
        let Some(old) = old else {
            let (reason, deadline) = (self.reason.clone(), self.deadline);
            let reclaimed = self.reclaimed;
            return DrainRecord { since: now, reason, deadline, reclaimed, total };
        };
        let mut record = old.clone();
        if self.reclaimed && old.reclaimed {
            // The same notice again, though its "in so many seconds" counts from later.
            return record;
        }
        record.reason = self.reason.clone().or(record.reason);
        record.deadline = match (self.deadline, old.deadline) {
            // A node that is taken away waits for no deadline of ours.
            (Some(new), Some(old)) if self.reclaimed => Some(new.min(old)),
            (new, old) => new.or(old),
        };
        record.reclaimed |= self.reclaimed;
        record
    }
}

/// Begins to empty a node, or changes how. Safe to repeat.
///
/// # Errors
/// When the node is not there, or its facts are not in the generation that is expected.
pub async fn begin(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    node: &NodeId,
    wish: &Wish,
    expect: Option<i64>,
) -> ControlResult<()> {
    let subject = match wish.reason.as_deref() {
        Some(reason) => format!("{node}: {reason}"),
        None => node.to_string(),
    };
    let state = NodeState::Draining;
    let op = Op::SetNodeState { node: node.clone(), state, expect };
    let is_new = control.administer(caller, "node.drain", subject.as_str(), op).await?;
    control.settled().await;
    // The log has the beginning of a drain once, and every change of it.
    let by = Some((caller, subject.as_str())).filter(|_| !is_new);
    write(control, node, wish, by).await?;
    Ok(())
}

/// Writes what is known of a drain beside the node's state. Returns whether it was written by us.
pub(super) async fn write(
    control: &Arc<ControlPlane>,
    node: &NodeId,
    wish: &Wish,
    by: Option<(&Caller, &str)>,
) -> ControlResult<bool> {
    let total = {
        let books = control.catalog.books();
        books.nodes.get(node).map_or(0, |entry| entry.claims.len())
    };
    let total = u32::try_from(total).unwrap_or(u32::MAX);
    for _ in 0..TRIES {
        let id = node.to_string();
        let stored = control.read(move |ledger| ledger.document(KIND, &id)).await?;
        let old = stored.as_ref().and_then(|document| serde_json::from_str(&document.body).ok());
        let record = wish.over(old.as_ref(), total, control.now());
        if old.as_ref() == Some(&record) {
            take_in(control, node).await;
            return Ok(false);
        }
        let body = serde_json::to_string(&record)
            .map_err(|error| ControlError::invalid(format!("a drain: {error}")))?;
        let expect = stored.map_or(Expect::Absent, |document| Expect::Revision(document.rev));
        let (kind, id) = (Text::from(KIND), Text::from(node.as_str()));
        let op = Op::PutDocument { kind, id, body, expect };
        let answer = match by {
            Some((caller, subject)) => {
                control.call(caller, "node.drain", subject, None, op).await?
            }
            None => control.submit(op).await?,
        };
        match answer {
            berth_ledger::Answer::Outcome(Outcome::Stale { .. }) => {}
            berth_ledger::Answer::Outcome(_) => {
                take_in(control, node).await;
                return Ok(true);
            }
            other => return Err(unexpected(&other)),
        }
    }
    Err(ControlError::unavailable("contention", "others change this drain all the time"))
}

/// Forgets what was known of a drain that has ended. Of one that was begun anew meanwhile, nothing
/// is forgotten.
///
/// # Errors
/// When the ledger does not know what became of it.
pub async fn forget(
    control: &Arc<ControlPlane>,
    node: &NodeId,
    revision: i64,
) -> ControlResult<()> {
    let (kind, id) = (Text::from(KIND), Text::from(node.as_str()));
    let expect = Expect::Revision(revision);
    control.submit(Op::RemoveDocument { kind, id, expect }).await?;
    take_in(control, node).await;
    Ok(())
}

/// Reads a drain anew, so that whoever asks this server next is told of it.
async fn take_in(control: &Arc<ControlPlane>, node: &NodeId) {
    let drains = Arc::clone(&control.drains.records);
    control.refresh_document(drains, node.as_str()).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn draining_again_changes_what_is_named_and_keeps_the_rest() {
        let first = Wish { reason: Some("kernel".to_owned()), ..Wish::default() };
        let first = first.over(None, 5, at(10));
        assert_eq!((first.since, first.total), (at(10), 5));
        let later =
            Wish { deadline: Some(at(99)), ..Wish::default() }.over(Some(&first), 3, at(20));
        let expected = DrainRecord { deadline: Some(at(99)), ..first };
        assert_eq!(later, expected);
        assert_eq!(Wish::default().over(Some(&later), 1, at(30)), later);
    }

    #[test]
    fn a_notice_hastens_a_drain_once_and_changes_nothing_the_second_time() {
        let slow = Wish { deadline: Some(at(1000)), ..Wish::default() }.over(None, 5, at(10));
        let notice = |end| Wish {
            reason: Some("spot_reclaim".to_owned()),
            deadline: Some(at(end)),
            reclaimed: true,
        };
        let taken = notice(130).over(Some(&slow), 5, at(10));
        assert_eq!((taken.deadline, taken.reclaimed), (Some(at(130)), true));
        assert_eq!(notice(140).over(Some(&taken), 4, at(20)), taken);
    }
}
