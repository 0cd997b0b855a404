//! A migration as stored, and as callers read it.

use std::sync::Arc;

use berth_api::Migration;
use berth_ledger::{
    Answer, Audited, DocumentWrite, Expect, ForTenants, Op, Outcome, Text, WithDocuments,
};

use super::{KIND, MigrationRecord};
use crate::control_plane::{ControlPlane, unexpected};
use crate::error::{ControlError, ControlResult};
use crate::moves::records::{Audit, encode};

/// A migration as callers read it.
#[must_use]
pub fn view(id: &str, record: &MigrationRecord) -> Migration {
    Migration {
        id: id.to_owned(),
        instance: record.instance,
        tenant: record.tenant.clone(),
        source: record.source.clone(),
        target: record.target.clone(),
        state: record.state,
        reason: record.reason,
        message: record.message(),
        cost: record.cost,
        frees: record.frees,
        copied_permille: record.copied_permille,
        since: record.since,
        changed_at: record.changed_at,
    }
}

/// The document of a migration, to be written with other changes.
pub(super) fn document(
    id: &str,
    record: &MigrationRecord,
    expect: Expect,
) -> ControlResult<DocumentWrite> {
    let body = encode(KIND, record)?;
    Ok(DocumentWrite { kind: Text::from(KIND), id: Text::from(id), body, expect })
}

/// What became of a commit.
pub(super) enum CommitOutcome {
    /// It is stored.
    Done,
    /// Another server changed the migration; read it again.
    Stale,
    /// The ledger rejected it.
    Rejected(ControlError),
}

/// Commits a change of claims together with the migration that it belongs to, or the migration alone.
pub(super) async fn commit(
    control: &Arc<ControlPlane>,
    id: &str,
    claims: Option<Op>,
    document: DocumentWrite,
) -> ControlResult<CommitOutcome> {
    commit_guarded(control, id, claims, document, Vec::new(), None, None).await
}

/// Like [`commit`], with other documents that must be in the expected revision, with an entry in
/// the audit log, and for a new migration unless its tenant is being removed.
pub(super) async fn commit_guarded(
    control: &Arc<ControlPlane>,
    id: &str,
    claims: Option<Op>,
    document: DocumentWrite,
    mut documents: Vec<DocumentWrite>,
    audit: Option<Audit<'_>>,
    made_for: Option<Text>,
) -> ControlResult<CommitOutcome> {
    let op = match claims {
        Some(op) => {
            documents.push(document);
            op
        }
        None => {
            let DocumentWrite { kind, id, body, expect } = document;
            Op::PutDocument { kind, id, body, expect }
        }
    };
    let op = match made_for {
        Some(tenant) => Op::ForTenants(Box::new(ForTenants { tenants: vec![tenant], op })),
        None => op,
    };
    let op = Op::WithDocuments(Box::new(WithDocuments { op, documents }));
    let op = match audit {
        Some((caller, action, subject)) => Op::Audited(Box::new(Audited {
            actor: Text::from(caller.actor()),
            origin: Text::from(caller.origin()),
            action: Text::from(action),
            subject: Text::from(subject),
            request_id: None,
            op,
        })),
        None => op,
    };
    let outcome = match control.submit(op).await? {
        Answer::Claim(Ok(_)) | Answer::Outcome(Outcome::Done | Outcome::Unchanged) => {
            CommitOutcome::Done
        }
        Answer::Outcome(Outcome::Stale { .. }) => CommitOutcome::Stale,
        Answer::Claim(Err(rejected)) => CommitOutcome::Rejected(rejected.into()),
        Answer::Outcome(Outcome::Impossible(why)) => {
            CommitOutcome::Rejected(ControlError::conflict("impossible", why))
        }
        Answer::Outcome(Outcome::TenantRemoving(tenant)) => {
            CommitOutcome::Rejected(ControlError::tenant_removing(&tenant))
        }
        other => return Err(unexpected(&other)),
    };
    // Not the guard: it must not be known before the decision that it stands for.
    control.refresh_document(Arc::clone(&control.moves.migrations) as _, id).await;
    Ok(outcome)
}
