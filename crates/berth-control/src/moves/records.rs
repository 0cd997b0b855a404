//! Storing the progress of moves as documents of the ledger.

use std::sync::Arc;

use berth_ledger::{Answer, DocumentWrite, Expect, Op, Outcome, Text, WithDocuments};
use serde::Serialize;

use crate::caller::Caller;
use crate::control_plane::{ControlPlane, unexpected};
use crate::documents::DocumentFollower;
use crate::error::{ControlError, ControlResult};

/// Who changes a record, with action and subject, for the audit log.
pub(super) type Audit<'a> = (&'a Caller, &'static str, String);

/// Serializes a record.
pub(super) fn encode(kind: &str, record: &impl Serialize) -> ControlResult<String> {
    serde_json::to_string(record).map_err(|error| ControlError::invalid(format!("{kind}: {error}")))
}

/// Stores a record if it still is in the expected revision, together with another change if there is
/// one: both or neither. Reads it back so that this server serves it from then on. Returns whether it
/// was stored.
pub(super) async fn store(
    control: &Arc<ControlPlane>,
    cache: Arc<dyn DocumentFollower>,
    id: &str,
    record: &(impl Serialize + Sync),
    expect: Expect,
    with: Option<Op>,
    audit: Option<Audit<'_>>,
) -> ControlResult<bool> {
    let body = encode(cache.kind(), record)?;
    let (kind, id_text) = (Text::from(cache.kind()), Text::from(id));
    let op = match with {
        Some(op) => {
            let documents = vec![DocumentWrite { kind, id: id_text, body, expect }];
            Op::WithDocuments(Box::new(WithDocuments { op, documents }))
        }
        None => Op::PutDocument { kind, id: id_text, body, expect },
    };
    let answer = match audit {
        Some((caller, action, subject)) => control.call(caller, action, subject, None, op).await?,
        None => control.submit(op).await?,
    };
    let stored = match answer {
        Answer::Outcome(Outcome::Done | Outcome::Unchanged) => true,
        Answer::Outcome(Outcome::Stale { .. } | Outcome::Impossible(_)) => false,
        other => return Err(unexpected(&other)),
    };
    control.refresh_document(cache, id).await;
    Ok(stored)
}

/// Removes a record, unless it was changed since it was read.
pub(super) async fn remove(
    control: &Arc<ControlPlane>,
    cache: Arc<dyn DocumentFollower>,
    id: &str,
    revision: i64,
) -> ControlResult<()> {
    let (kind, expect) = (Text::from(cache.kind()), Expect::Revision(revision));
    control.submit(Op::RemoveDocument { kind, id: Text::from(id), expect }).await?;
    control.refresh_document(cache, id).await;
    Ok(())
}
