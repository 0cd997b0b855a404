//! Tenants: what one holds, and removing it with all of that.
//!
//! A removal is marked in the ledger first, in the commit that also keeps anything new from being
//! made for the tenant. From then on every server works on it, step by step: each step finds what is
//! left by looking, so any server may continue at any point, also after a crash. It ends with the
//! mark, when nothing is left and the name was blocked long enough.
//!
//! Events, audit log and receipts keep the tenant's name: they are records of what happened.

mod documents;
mod removal;

use std::collections::BTreeMap;

use berth_api::{HoldingKind, TenantHolding, TenantHoldings, TenantRemovalStatus};
use berth_engine::NodeState;
use berth_ledger::{Answer, ClaimState, Outcome, StartTenantRemoval, TenantClaim, Text};
use jiff::SignedDuration;

use crate::caller::{Caller, is_name};
use crate::clock::moment;
use crate::control_plane::{ControlPlane, unexpected};
use crate::error::{ControlError, ControlResult};
use crate::settings::UNMANAGED;
pub use documents::TOKEN_KIND;
use documents::{TenantDocument, documents_of};
pub(crate) use removal::TenantRemovalReconciler;

/// Most names of one kind that are listed.
const NAMED: usize = 20;

/// What a tenant holds, as the ledger knows it now.
///
/// # Errors
/// When it holds nothing and is not being removed: such a tenant is not known.
pub async fn holdings(control: &ControlPlane, tenant: &str) -> ControlResult<TenantHoldings> {
    check_tenant(tenant)?;
    let holder = tenant.to_owned();
    let held = control.read(move |ledger| ledger.tenant_holdings(&holder)).await?;
    let documents = documents_of(control, tenant, &held).await?;
    let boots = removal::nodes_with_boots(control, tenant);
    let mut found = BTreeMap::new();
    let mut add = |kind, name: String| found.entry(kind).or_insert_with(Vec::new).push(name);
    for document in &documents {
        add(document.holding, document.name.clone());
    }
    held.claims.iter().for_each(|claim| add(HoldingKind::Instance, claim.key.instance.to_string()));
    for (kind, names) in [
        (HoldingKind::Workload, &held.workloads),
        (HoldingKind::Group, &held.groups),
        (HoldingKind::Volume, &held.volumes),
        (HoldingKind::Pool, &held.pools),
        (HoldingKind::Secret, &held.secrets),
    ] {
        names.iter().for_each(|name| add(kind, name.to_string()));
    }
    if held.has_quota {
        add(HoldingKind::Quota, tenant.to_owned());
    }
    boots.iter().for_each(|(node, _)| add(HoldingKind::FailedBoot, node.to_string()));
    let mut holdings: Vec<TenantHolding> =
        found.into_iter().map(|(kind, names)| holding(kind, names)).collect();
    for (kind, count) in
        [(HoldingKind::StoredAnswer, held.answers), (HoldingKind::Demand, held.demand)]
    {
        if let Ok(count @ 1..) = u64::try_from(count) {
            holdings.push(TenantHolding { kind, count, names: Vec::new(), note: None });
        }
    }
    if holdings.is_empty() && held.removal.is_none() {
        return Err(ControlError::not_found("tenant", tenant));
    }
    let is_removing = held.removal.is_some();
    for holding in &mut holdings {
        holding.note = match holding.kind {
            HoldingKind::Instance => note_on_instances(control, &held.claims, is_removing),
            HoldingKind::Token => note_on_tokens(&documents),
            HoldingKind::Pool if held.claims.is_empty() => note_on_pools(control, tenant).await?,
            _ => None,
        };
    }
    let quarantine = control.lifecycle.settings().tenant_quarantine;
    let removal = held.removal.map(|removal| {
        let since = moment(removal.since);
        let blocked_until = since
            .saturating_add(SignedDuration::try_from(quarantine).unwrap_or(SignedDuration::ZERO));
        TenantRemovalStatus {
            since,
            force: removal.force,
            actor: removal.actor.to_string(),
            blocked_until: blocked_until.unwrap_or(since),
        }
    });
    Ok(TenantHoldings { tenant: tenant.to_owned(), removal, holdings })
}

/// Begins to remove a tenant with all it holds, or continues. Returns what is left to be done.
///
/// # Errors
/// When the tenant is not known, or must stay.
pub async fn remove(
    control: &ControlPlane,
    caller: &Caller,
    tenant: &str,
    force: bool,
) -> ControlResult<TenantHoldings> {
    if tenant == UNMANAGED {
        let value = Some(format!("{tenant:?}"));
        let accepted = "a tenant other than the one that stands for instances without a tenant";
        return Err(ControlError::field("tenant", value, accepted));
    }
    let before = holdings(control, tenant).await?;
    let start = StartTenantRemoval {
        tenant: Text::from(tenant),
        force,
        actor: Text::from(caller.actor()),
        origin: Text::from(caller.origin()),
    };
    let op = berth_ledger::Op::StartTenantRemoval(Box::new(start));
    let subject = describe(&before, force);
    match control.call(caller, "tenant.remove", subject, None, op).await? {
        Answer::Outcome(Outcome::Done | Outcome::Unchanged) => {}
        other => return Err(unexpected(&other)),
    }
    control.removals_started.send_modify(|count| *count += 1);
    holdings(control, tenant).await
}

fn check_tenant(tenant: &str) -> ControlResult<()> {
    if is_name(tenant) {
        return Ok(());
    }
    let value = Some(format!("{tenant:?}"));
    Err(ControlError::field("tenant", value, "1 to 200 characters without control characters"))
}

/// For the audit log: which tenant, and what it holds.
fn describe(held: &TenantHoldings, force: bool) -> String {
    let parts = held.holdings.iter();
    let parts = parts.map(|part| format!("{} {}", part.count, part.kind.noun(part.count)));
    let parts: Vec<String> = parts.collect();
    let how = if force { ", without waiting for agents" } else { "" };
    format!("{} with {}{how}", held.tenant, parts.join(", "))
}

fn holding(kind: HoldingKind, mut names: Vec<String>) -> TenantHolding {
    names.sort();
    let count = u64::try_from(names.len()).unwrap_or(u64::MAX);
    names.truncate(NAMED);
    TenantHolding { kind, count, names, note: None }
}

/// What releasing instances waits for.
fn note_on_instances(
    control: &ControlPlane,
    claims: &[TenantClaim],
    is_removing: bool,
) -> Option<String> {
    let waits = |claim: &&TenantClaim| match claim.state {
        ClaimState::Held => false,
        ClaimState::Binding | ClaimState::Active => true,
        ClaimState::Releasing => is_removing,
    };
    let mut nodes = BTreeMap::new();
    for claim in claims.iter().filter(waits) {
        *nodes.entry(&claim.node).or_insert(0) += 1;
    }
    if nodes.is_empty() {
        return None;
    }
    let catalog = control.catalog.read();
    let is_lost =
        |node| catalog.nodes.get(node).is_none_or(|entry| entry.facts.state == NodeState::Lost);
    let named = nodes.iter().take(NAMED).map(|(node, count)| {
        let lost = if is_lost(node) { ", which is lost" } else { "" };
        format!("{count} on {node}{lost}")
    });
    let mut named: Vec<String> = named.collect();
    if nodes.len() > NAMED {
        named.push(format!("and {} more nodes", nodes.len() - NAMED));
    }
    let verb = if is_removing { "waits for agents to stop" } else { "agents have to stop" };
    Some(format!("{verb} {}", named.join(", ")))
}

fn note_on_tokens(documents: &[TenantDocument]) -> Option<String> {
    let shared = documents.iter().filter(|document| document.holding == HoldingKind::Token);
    match shared.filter(|document| document.rewritten.is_some()).count() {
        0 => None,
        1 => Some("1 is also for other tenants and stays for those".to_owned()),
        shared => Some(format!("{shared} are also for other tenants and stay for those")),
    }
}

/// A pool that was open before it got this tenant may have values in use by others.
async fn note_on_pools(control: &ControlPlane, tenant: &str) -> ControlResult<Option<String>> {
    let pools = control.read(berth_ledger::Ledger::pools).await?;
    let in_use =
        pools.iter().filter(|(pool, in_use)| pool.tenant.as_deref() == Some(tenant) && *in_use > 0);
    let in_use: Vec<&str> = in_use.map(|(pool, _)| &*pool.id).collect();
    let text = format!(
        "values of {} are in use by instances of other tenants; release those, or open the pool",
        in_use.join(", ")
    );
    Ok((!in_use.is_empty()).then_some(text))
}
