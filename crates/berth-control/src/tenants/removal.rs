//! The loop that removes tenants: every server works on every removal that has begun.

use std::sync::Arc;
use std::time::Duration;

use berth_api::HoldingKind;
use berth_engine::{BootOutcome, FactChange, NodeId};
use berth_ledger::{
    Answer, Audited, ClaimState, Expect, Op, Outcome, Release, TenantClaim, TenantHoldings,
    TenantRemoval, Text,
};
use futures_util::future::join_all;
use serde_json::Value;
use tokio::sync::watch;
use uuid::Uuid;

use super::documents::{TenantDocument, documents_of};
use crate::control_plane::{ControlPlane, unexpected};
use crate::error::ControlResult;
use crate::loop_runner::BackgroundLoop;

/// How often it is looked for removals that other servers have begun.
const IDLE: Duration = Duration::from_secs(5);

/// How often a removal is continued.
const BUSY: Duration = Duration::from_millis(500);

/// Claims that are released at once.
const RELEASES: usize = 256;

/// Continues removals until they have ended.
pub(crate) struct TenantRemovalReconciler {
    control: Arc<ControlPlane>,
    is_busy: bool,
}

impl TenantRemovalReconciler {
    pub(crate) const fn new(control: Arc<ControlPlane>) -> Self {
        Self { control, is_busy: false }
    }
}

impl BackgroundLoop for TenantRemovalReconciler {
    const NAME: &'static str = "tenant_removals";
    const STARTS_AT_ONCE: bool = true;
    const PERIOD: Duration = IDLE;

    fn period(&self) -> Duration {
        if self.is_busy { BUSY } else { IDLE }
    }

    fn wake_sources(&self) -> Vec<watch::Receiver<u64>> {
        vec![self.control.removals_started.subscribe()]
    }

    async fn pass(&mut self) -> ControlResult<()> {
        let removals = self.control.read(berth_ledger::Ledger::tenant_removals).await?;
        self.is_busy = !removals.is_empty();
        for (tenant, removal) in &removals {
            advance(&self.control, tenant, removal).await?;
        }
        Ok(())
    }
}

/// Does what can be done now. Nothing here depends on what was done before.
async fn advance(
    control: &ControlPlane,
    tenant: &Text,
    removal: &TenantRemoval,
) -> ControlResult<()> {
    let holder = Text::clone(tenant);
    let held = control.read(move |ledger| ledger.tenant_holdings(&holder)).await?;
    let documents = documents_of(control, tenant, &held).await?;
    // What belongs to moves and workloads is needed until their instances are gone.
    let (later, now): (Vec<_>, Vec<_>) = documents.into_iter().partition(|document| {
        use HoldingKind::{Migration, SchedulingReport, VolumeMove};
        matches!(document.holding, Migration | SchedulingReport | VolumeMove)
    });
    remove_documents(control, &now).await?;
    if !held.claims.is_empty() {
        end_workloads(control, tenant).await?;
        return release_claims(control, &held.claims, removal.force).await;
    }
    remove_documents(control, &later).await?;
    forget_boots(control, tenant).await?;
    remove_resources(control, tenant, held).await?;
    if now.is_empty() && later.is_empty() {
        end(control, tenant, removal).await?;
    }
    Ok(())
}

async fn remove_documents(
    control: &ControlPlane,
    documents: &[TenantDocument],
) -> ControlResult<()> {
    for document in documents {
        let (kind, id) = (Text::from(document.kind), Text::clone(&document.id));
        // One that was changed since is read again by the next pass.
        let expect = Expect::Revision(document.revision);
        let op = match &document.rewritten {
            Some(body) => Op::PutDocument { kind, id, body: body.clone(), expect },
            None => Op::RemoveDocument { kind, id, expect },
        };
        control.submit(op).await?;
    }
    Ok(())
}

/// Has workloads release their members and go, so that no member is replaced.
async fn end_workloads(control: &ControlPlane, tenant: &Text) -> ControlResult<()> {
    let ending: Vec<Op> = {
        let catalog = control.catalog.read();
        let mine = catalog.workloads.iter().filter(|(key, _)| key.0 == *tenant);
        let open = mine.filter(|(_, it)| !it.body.deleting && it.quarantined.is_none());
        open.map(|(_, definition)| Op::PutWorkload {
            workload: definition.changed(|next| next.body.deleting = true).row(),
            expect: Expect::Revision(definition.version),
        })
        .collect()
    };
    for op in ending {
        control.submit(op).await?;
    }
    Ok(())
}

async fn release_claims(
    control: &ControlPlane,
    claims: &[TenantClaim],
    force: bool,
) -> ControlResult<()> {
    let open: Vec<&TenantClaim> =
        claims.iter().filter(|claim| force || claim.state != ClaimState::Releasing).collect();
    for some in open.chunks(RELEASES) {
        let releases = some.iter().map(|claim| {
            control.submit(Op::Release(Release {
                request_id: Text::from(Uuid::now_v7().to_string()),
                key: claim.key,
                tenant: None,
                fence: None,
                confirmed: force,
                reason: Text::from("tenant_removed"),
            }))
        });
        for answer in join_all(releases).await {
            match answer? {
                // It may be gone by now.
                Answer::Claim(_) => {}
                other => return Err(unexpected(&other)),
            }
        }
    }
    Ok(())
}

/// Nodes that remember failed boots of a tenant's instances, with those boots that are not its.
pub(super) fn nodes_with_boots(
    control: &ControlPlane,
    tenant: &str,
) -> Vec<(NodeId, Vec<BootOutcome>)> {
    let is_own = |boot: &BootOutcome| boot.tenant.as_deref() == Some(tenant);
    let catalog = control.catalog.read();
    let nodes = catalog.nodes.iter().filter(|(_, node)| node.facts.boots.iter().any(is_own));
    nodes
        .map(|(id, node)| {
            let others = node.facts.boots.iter().filter(|boot| !is_own(boot));
            (id.clone(), others.cloned().collect())
        })
        .collect()
}

async fn forget_boots(control: &ControlPlane, tenant: &str) -> ControlResult<()> {
    for (node, boots) in nodes_with_boots(control, tenant) {
        let boots = serde_json::to_value(boots).unwrap_or(Value::Null);
        let change = Box::new(FactChange::Report([("boots".to_owned(), boots)].into()));
        control.submit(Op::ChangeFacts { node, change, create: None, expect: None }).await?;
    }
    Ok(())
}

async fn remove_resources(
    control: &ControlPlane,
    tenant: &Text,
    held: TenantHoldings,
) -> ControlResult<()> {
    let holder = Text::clone(tenant);
    let kept = control
        .read_at_length(move |ledger| ledger.remove_tenant_resources(&holder, &held))
        .await?;
    for kept in kept {
        let (kind, name, why) = (kept.kind, kept.name, kept.why);
        tracing::warn!(%tenant, kind, %name, why, "tenant removal waits");
    }
    Ok(())
}

async fn end(control: &ControlPlane, tenant: &Text, removal: &TenantRemoval) -> ControlResult<()> {
    // Boots are only known from the catalogue, which may be behind.
    if !nodes_with_boots(control, tenant).is_empty() {
        return Ok(());
    }
    let quarantine = control.lifecycle.settings().tenant_quarantine;
    let quarantine_s = i64::try_from(quarantine.as_secs()).unwrap_or(i64::MAX);
    let op = Op::Audited(Box::new(Audited {
        actor: Text::clone(&removal.actor),
        origin: Text::clone(&removal.origin),
        action: Text::from("tenant.removed"),
        subject: Text::clone(tenant),
        request_id: None,
        op: Op::EndTenantRemoval { tenant: Text::clone(tenant), quarantine_s },
    }));
    match control.submit(op).await? {
        Answer::Outcome(Outcome::Done) => tracing::info!(%tenant, "tenant removed"),
        // Something is left, or the name stays blocked for a while: the next pass tries again.
        Answer::Outcome(Outcome::Unchanged | Outcome::Impossible(_)) => {}
        other => return Err(unexpected(&other)),
    }
    Ok(())
}
