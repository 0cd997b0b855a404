//! Documents that belong to a tenant.
//!
//! The ledger does not know whose a document is: that is in its id or in its content.

use berth_api::HoldingKind;
use berth_ledger::{Document, Ledger, LedgerError, Scheduling, TenantHoldings, Text};
use serde_json::{Map, Value};

use crate::control_plane::ControlPlane;
use crate::error::ControlResult;
use crate::placement::attachments;
use crate::state::{crash_records, migrations, tickets, volume_moves};

/// The kind of document that a token is stored as. Its tenants are in `token.tenants`.
pub const TOKEN_KIND: &str = "token";

/// Documents that are read at once.
const PAGE: usize = 1000;

/// A document that belongs to a tenant.
pub(super) struct TenantDocument {
    /// What it is, for people.
    pub(super) holding: HoldingKind,
    /// Its name, for people.
    pub(super) name: String,
    /// What it is stored as.
    pub(super) kind: &'static str,
    /// Its id.
    pub(super) id: Text,
    /// The revision that was read.
    pub(super) revision: i64,
    /// What it becomes if it is not only this tenant's; else it is removed.
    pub(super) rewritten: Option<String>,
}

/// The documents of a tenant, as the ledger has them now.
pub(super) async fn documents_of(
    control: &ControlPlane,
    tenant: &str,
    held: &TenantHoldings,
) -> ControlResult<Vec<TenantDocument>> {
    let (tenant, volumes) = (tenant.to_owned(), held.volumes.clone());
    control
        .read_at_length(move |ledger| {
            let mut found = Vec::new();
            for kind in [
                TOKEN_KIND,
                tickets::KIND,
                attachments::KIND,
                migrations::KIND,
                volume_moves::KIND,
                Scheduling::KIND,
                crash_records::KIND,
            ] {
                collect(ledger, kind, &tenant, &volumes, &mut found)?;
            }
            Ok(found)
        })
        .await
}

fn collect(
    ledger: &Ledger,
    kind: &'static str,
    tenant: &str,
    volumes: &[Text],
    found: &mut Vec<TenantDocument>,
) -> Result<(), LedgerError> {
    let mut after: Option<Text> = None;
    loop {
        let page = ledger.documents(kind, after.as_deref(), PAGE)?;
        let Some(last) = page.last() else { return Ok(()) };
        after = Some(Text::clone(&last.id));
        for document in &page {
            let Some((holding, name, rewritten)) = belongs(kind, document, tenant, volumes) else {
                continue;
            };
            let (id, revision) = (Text::clone(&document.id), document.rev);
            found.push(TenantDocument { holding, name, kind, id, revision, rewritten });
        }
    }
}

/// Whether an object is a tenant's. Stored ones say `owner`, or `tenant` where they are newer.
fn is_of(object: &Map<String, Value>, tenant: &str) -> bool {
    let of = object.get("tenant").or_else(|| object.get("owner"));
    of.and_then(Value::as_str) == Some(tenant)
}

/// Whether a document belongs to a tenant: what it is, its name, and what is left for others. Only
/// what says so is read: a document that this version cannot decode belongs to its tenant all the
/// same.
fn belongs(
    kind: &str,
    document: &Document,
    tenant: &str,
    volumes: &[Text],
) -> Option<(HoldingKind, String, Option<String>)> {
    let id = document.id.to_string();
    let read = |error| tracing::error!(%error, kind, id, "failed to decode stored document");
    let body = || serde_json::from_str::<Value>(&document.body).map_err(read).ok();
    match kind {
        TOKEN_KIND => {
            let mut body = body()?;
            let name = body.pointer("/token/name").and_then(Value::as_str).unwrap_or_default();
            let name = format!("{id} ({name})");
            let tenants = body.pointer_mut("/token/tenants")?.as_array_mut()?;
            let before = tenants.len();
            tenants.retain(|other| other.as_str() != Some(tenant));
            if tenants.len() == before {
                return None;
            }
            let is_shared = !tenants.is_empty();
            Some((HoldingKind::Token, name, is_shared.then(|| body.to_string())))
        }
        tickets::KIND => {
            let ticket = body()?.pointer("/ticket")?.as_object()?.clone();
            is_of(&ticket, tenant).then_some((HoldingKind::QueuedRequest, id, None))
        }
        attachments::KIND => {
            let (of, name) = attachments::tenant_and_name(document)?;
            (of == tenant).then(|| (HoldingKind::Attachment, name.to_owned(), None))
        }
        migrations::KIND => {
            is_of(body()?.as_object()?, tenant).then_some((HoldingKind::Migration, id, None))
        }
        volume_moves::KIND if volumes.contains(&document.id) => {
            Some((HoldingKind::VolumeMove, id, None))
        }
        volume_moves::KIND => {
            let mut body = body()?;
            let stopped = body.as_object_mut()?.remove("stopped")?;
            is_of(stopped.pointer("/request")?.as_object()?, tenant)
                .then(|| (HoldingKind::VolumeMove, id, Some(body.to_string())))
        }
        Scheduling::KIND | crash_records::KIND => {
            let (of, workload) = id.split_once('\n')?;
            (of == tenant).then(|| (HoldingKind::SchedulingReport, workload.to_owned(), None))
        }
        _ => None,
    }
}
