//! Preemption on request: who of lower priority would make room for a request that finds none, and
//! placing it there.
//!
//! A tenant preempts instances of its own tenant, and is shown no others; an operator anyone's. A member
//! of a workload goes only while its workload can miss it, by the same guard that the reconciler stops
//! members with. The proposal is made on the explainer's copy of the fleet; the release of all victims
//! and the claim are one commit, under their fences.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::{
    ApplyPreemption, Mode, PlaceRequest, PreemptedInstance, PreemptionApplied, PreemptionVictim,
};
use berth_engine::{InstanceId, InstanceRequest, NodeId, PlaceError, Refusal, Timestamp};
use berth_ledger::{AvailabilityGuard, ClaimKey, ClaimState, Guard, PreemptVictim, Text};
use rustc_hash::FxHashSet;

use crate::caller::Caller;
use crate::catalog::{Catalog, ClaimEntry};
use crate::control_plane::ControlPlane;
use crate::error::{ControlError, ControlResult, describe_guard};
use crate::placement::{
    Audience, PreparedPlacement, actor, count_answer, decide, invalid_request, placed_or_error,
    prepare,
};
use crate::placer::{PlaceAnswer, PreemptionPlan};
use crate::queue::check_waiting_ticket;
use crate::tenant_limits::LimitKind;
use crate::workload::WorkloadKey;
use crate::workloads::{HostContext, PreemptionLimit, preemption_limit};

/// How often a proposal is made again without members that their workload cannot miss.
const PROPOSALS_MAX: usize = 16;

/// How often another set of victims is looked for when one changed before it was released.
const TRIES_MAX: usize = 4;

/// What the explainer found.
enum Found {
    /// There is room without.
    Fits(NodeId),
    /// These would make room.
    Preemption(berth_engine::Preemption),
    /// Nobody who may be preempted would.
    NoRoom(Box<Refusal>),
    /// The request means nothing.
    Invalid(ControlError),
}

/// Who would make room for a request. Claims and changes nothing.
///
/// # Errors
/// When nobody who may be preempted would make room; the error has the whole refusal.
pub async fn propose(
    control: &ControlPlane,
    caller: &Caller,
    request: PlaceRequest,
) -> ControlResult<berth_api::Preemption> {
    let prepared = prepare(control, caller, request, None).await?;
    let instance = one_instance(&prepared)?;
    control.admit(caller, &prepared.tenant, LimitKind::Explanations, 1)?;
    let audience = Audience::of(control, caller, &prepared.tenant);
    let (node, plan) = match find(control, caller, &prepared.tenant, &instance).await? {
        (Found::Fits(node), _) => (node, None),
        (Found::Preemption(found), plan) => (found.node, plan),
        (Found::NoRoom(refusal), _) => return Err(no_preemption(&audience, *refusal)),
        (Found::Invalid(error), _) => return Err(error),
    };
    let victims = plan.map_or_else(Vec::new, |plan| views(control, &instance, &plan.victims));
    let message = match (victims.len(), victims.iter().map(|it| it.priority).max()) {
        (0, _) => "it fits: nobody has to make room".to_owned(),
        (1, Some(highest)) => format!("1 instance of priority {highest} would make room"),
        (count, highest) => {
            let highest = highest.unwrap_or_default();
            format!("{count} instances of priority {highest} at most would make room")
        }
    };
    let node = audience.sees_nodes().then_some(node);
    Ok(berth_api::Preemption { tenant: prepared.tenant.clone(), node, victims, message })
}

/// Places a request: where there is room, else in the room of the victims that are named, or that are
/// found now. A retry with the same request id gets the first answer, and releases nobody.
///
/// # Errors
/// When it is not placed; nobody was released then.
pub async fn apply(
    control: &ControlPlane,
    caller: &Caller,
    asked: ApplyPreemption,
    request_id: Option<String>,
) -> ControlResult<PreemptionApplied> {
    let ApplyPreemption { request, victims } = asked;
    if request.dry_run || request.mode == Mode::Wait {
        let (field, value) = if request.dry_run { ("dry_run", "true") } else { ("mode", "wait") };
        let accepted = "a request that is placed now: false, and any mode but wait";
        let field = format!("request.{field}");
        return Err(ControlError::field(&field, Some(value.to_owned()), accepted));
    }
    let prepared = prepare(control, caller, request, request_id).await?;
    let instance = one_instance(&prepared)?;
    control.admit(caller, &prepared.tenant, LimitKind::Placements, 1)?;
    check_waiting_ticket(control, &prepared)?;
    let audience = Audience::of(control, caller, &prepared.tenant);
    // Where there is room nobody is preempted, and a retry is answered as before.
    let mut answer = decide(control, &prepared, Some(actor(caller)), false).await;
    let refusals = match &answer {
        PlaceAnswer::NoRoom(refusals) => refusals.clone(),
        _ => return applied(control, &prepared, answer, &audience).await,
    };
    for _ in 0..TRIES_MAX {
        let plan = match &victims {
            Some(named) => named_victims(control, caller, &instance, named).await?,
            None => match find(control, caller, &prepared.tenant, &instance).await? {
                // There is room by now: nobody makes any.
                (Found::Fits(node), _) => PreemptionPlan { node, victims: Vec::new() },
                (Found::Preemption(_), Some(plan)) => plan,
                (Found::Invalid(error), _) => return Err(error),
                (Found::NoRoom(refusal), _) => return Err(no_preemption(&audience, *refusal)),
                (Found::Preemption(_), None) => break,
            },
        };
        answer = place_preempting(control, caller, &prepared, plan).await;
        let is_outdated = match &answer {
            PlaceAnswer::NoRoom(_) => true,
            PlaceAnswer::Contended(conflict) => is_about_victims(&conflict.guard),
            _ => false,
        };
        if !is_outdated {
            count_answer(control, &answer, std::time::Duration::ZERO);
            return applied(control, &prepared, answer, &audience).await;
        }
        if victims.is_some() {
            break;
        }
    }
    Err(outdated(&answer).refusals(audience.refusals(refusals)))
}

fn one_instance(prepared: &PreparedPlacement) -> ControlResult<Arc<InstanceRequest>> {
    match prepared.instances() {
        [one] => Ok(Arc::clone(one)),
        several => {
            let value = Some(format!("{} instances", several.len()));
            Err(ControlError::field("instances", value, "1 instance: others make room for one"))
        }
    }
}

/// Looks for victims on the explainer's copy of the fleet.
async fn find(
    control: &ControlPlane,
    caller: &Caller,
    tenant: &str,
    instance: &Arc<InstanceRequest>,
) -> ControlResult<(Found, Option<PreemptionPlan>)> {
    let key = if caller.is_tenant() { tenant.to_owned() } else { caller.actor() };
    let _turn = control.explanations.of_requests.turn(&control.metrics, &key).await?;
    control.wait_for_read_your_writes().await;
    let scope = caller.is_tenant().then(|| tenant.to_owned());
    let mut spared = Spared::default();
    for _ in 0..PROPOSALS_MAX {
        let found = search(control, instance, scope.clone(), spared.clone()).await?;
        let Found::Preemption(proposed) = &found else { return Ok((found, None)) };
        let catalog = control.catalog.read();
        let claims = proposed.victims.iter().map(|id| catalog.claims.get(&ClaimKey::primary(*id)));
        // One that is gone meanwhile is not found again.
        let Some(claims) = claims.collect::<Option<Vec<_>>>() else { continue };
        let claims: Vec<&ClaimEntry> = claims.into_iter().map(|claim| &**claim).collect();
        match guards(control, &catalog, &claims) {
            Ok(guards) => {
                let victims = claims.iter().map(|claim| victim(claim, scope.as_deref(), &guards));
                let (node, victims) = (proposed.node.clone(), victims.collect());
                drop(catalog);
                return Ok((found, Some(PreemptionPlan { node, victims })));
            }
            Err(too_many) => spared.spare(too_many, &claims),
        }
    }
    let why = "too many members of workloads that cannot be missed are in the way";
    Err(ControlError::conflict("no_preemption", why))
}

/// Whom a proposal leaves alone, since their workload cannot miss them.
#[derive(Clone, Debug, Default)]
struct Spared {
    instances: FxHashSet<InstanceId>,
    workloads: FxHashSet<WorkloadKey>,
}

impl Spared {
    fn has(&self, claim: &ClaimEntry) -> bool {
        self.instances.contains(&claim.key.instance)
            || (!self.workloads.is_empty()
                && claim.workload().is_some_and(|workload| self.workloads.contains(&workload)))
    }

    /// Leaves alone those of a workload that are too many, and all of one that can miss none.
    fn spare(&mut self, too_many: TooManyOfWorkload, victims: &[&ClaimEntry]) {
        if too_many.at_most == 0 {
            self.workloads.insert(too_many.workload);
            return;
        }
        let of_it = victims.iter().filter(|it| it.workload().as_ref() == Some(&too_many.workload));
        let running = of_it.filter(|it| it.state == ClaimState::Active);
        self.instances.extend(running.skip(too_many.at_most).map(|it| it.key.instance));
    }
}

/// Members of a workload, of which only so many of those that run may go.
struct TooManyOfWorkload {
    workload: WorkloadKey,
    at_most: usize,
}

type Guards = BTreeMap<WorkloadKey, Option<Arc<AvailabilityGuard>>>;

/// What must hold for the workloads whose members are among the victims.
fn guards(
    control: &ControlPlane,
    catalog: &crate::catalog::CatalogState,
    victims: &[&ClaimEntry],
) -> Result<Guards, TooManyOfWorkload> {
    let mut members: BTreeMap<WorkloadKey, FxHashSet<InstanceId>> = BTreeMap::new();
    for claim in victims {
        if let Some(workload) = claim.workload() {
            members.entry(workload).or_default().insert(claim.key.instance);
        }
    }
    let mut guards = Guards::new();
    for (workload, released) in members {
        match preemption_limit(catalog, HostContext::of(control), &workload, &released) {
            PreemptionLimit::May(guard) => drop(guards.insert(workload, guard)),
            PreemptionLimit::AtMost(at_most) => {
                return Err(TooManyOfWorkload { workload, at_most });
            }
        }
    }
    Ok(guards)
}

fn victim(claim: &ClaimEntry, tenant: Option<&str>, guards: &Guards) -> PreemptVictim {
    PreemptVictim {
        instance: claim.key.instance,
        tenant: tenant.map(Text::from),
        fence: claim.fence,
        guard: claim.workload().and_then(|workload| guards.get(&workload).cloned().flatten()),
    }
}

async fn search(
    control: &ControlPlane,
    instance: &Arc<InstanceRequest>,
    tenant: Option<String>,
    spared: Spared,
) -> ControlResult<Found> {
    let now = Timestamp(control.now().as_second());
    let (catalog, instance) = (Arc::clone(&control.catalog), Arc::clone(instance));
    let found = control.placer.query_explainer(move |engine| {
        let may_go = |id: InstanceId| may_go(&catalog, id, tenant.as_deref(), &spared);
        match engine.try_place(&instance, now) {
            Ok(Some(placement)) => return Found::Fits(placement.node),
            Ok(None) => {}
            Err(invalid) => return Found::Invalid(invalid_request(&invalid)),
        }
        if let Some(found) = engine.propose_preemption(&instance, now, &may_go) {
            return Found::Preemption(found);
        }
        match engine.place(&instance, now) {
            Ok(placement) => Found::Fits(placement.node),
            Err(PlaceError::Refused(refusal)) => Found::NoRoom(refusal),
            Err(PlaceError::Invalid(invalid)) => Found::Invalid(invalid_request(&invalid)),
        }
    });
    found.await.ok_or_else(ControlError::stopping)
}

/// Whether an instance may be preempted by this caller. One without a claim is planned and not granted
/// yet, or the second place of one that moves.
fn may_go(catalog: &Catalog, id: InstanceId, tenant: Option<&str>, spared: &Spared) -> bool {
    let catalog = catalog.read();
    let claim = catalog.claims.get(&ClaimKey::primary(id));
    claim.is_some_and(|claim| {
        tenant.is_none_or(|tenant| claim.request.tenant == tenant)
            && claim.state != ClaimState::Releasing
            && !spared.has(claim)
    })
}

/// The victims that a caller names, if it may preempt them for this request.
async fn named_victims(
    control: &ControlPlane,
    caller: &Caller,
    instance: &InstanceRequest,
    named: &[PreemptionVictim],
) -> ControlResult<PreemptionPlan> {
    control.wait_for_read_your_writes().await;
    let scope = caller.is_tenant().then_some(instance.tenant.as_str());
    let catalog = control.catalog.read();
    let mut claims: Vec<&ClaimEntry> = Vec::with_capacity(named.len());
    for (place, victim) in named.iter().enumerate() {
        let field = format!("victims[{place}].instance");
        let wrong = |accepted: &str| {
            Err(ControlError::field(&field, Some(victim.instance.to_string()), accepted))
        };
        let claim = catalog
            .claims
            .get(&ClaimKey::primary(victim.instance))
            .filter(|claim| scope.is_none_or(|tenant| claim.request.tenant == tenant));
        let Some(claim) = claim else {
            return Err(ControlError::not_found("instance", &victim.instance.to_string()));
        };
        if claim.request.priority >= instance.priority {
            return wrong("an instance of lower priority than the request");
        }
        if claims.first().is_some_and(|first| first.node != claim.node) {
            return wrong("an instance on the node of the others");
        }
        if claims.iter().any(|other| other.key == claim.key) {
            return wrong("each instance once");
        }
        claims.push(claim);
    }
    let Some(node) = claims.first().map(|claim| claim.node.clone()) else {
        return Err(ControlError::field(
            "victims",
            None,
            "1 instance or more, or no victims at all",
        ));
    };
    let guards = guards(control, &catalog, &claims).map_err(|too_many| {
        let (workload, at_most) = (&too_many.workload.1, too_many.at_most);
        let why = format!("workload {workload} can miss {at_most} of its members now");
        ControlError::conflict("too_few_running", why).retry_after(1)
    })?;
    let mut victims: Vec<PreemptVictim> =
        claims.iter().map(|claim| victim(claim, scope, &guards)).collect();
    // The ledger compares them with what the claims have by then.
    victims.iter_mut().zip(named).for_each(|(victim, named)| victim.fence = named.fence);
    Ok(PreemptionPlan { node, victims })
}

async fn place_preempting(
    control: &ControlPlane,
    caller: &Caller,
    prepared: &PreparedPlacement,
    plan: PreemptionPlan,
) -> PlaceAnswer {
    let mut request = prepared.place_request();
    // The refusal was explained and recorded before.
    (request.by, request.quiet, request.explain) = (Some(actor(caller)), true, None);
    request.preemption = Some(Arc::new(plan));
    control.placer.send(request).await
}

/// The answer of a request that was granted, or an error.
async fn applied(
    control: &ControlPlane,
    prepared: &PreparedPlacement,
    answer: PlaceAnswer,
    audience: &Audience,
) -> ControlResult<PreemptionApplied> {
    let decision = match &answer {
        PlaceAnswer::Granted(granted) => Some(granted.grant.decision.clone()),
        _ => None,
    };
    let placed = placed_or_error(prepared, answer, audience)?;
    let decision = match decision {
        Some(id) => control.read(move |ledger| ledger.decision(&id)).await?,
        None => None,
    };
    let preempted =
        decision.map_or_else(Vec::new, |decision| audience.preempted(&decision.record.preempted));
    let message = match preempted.len() {
        0 => "placed; nobody had to make room".to_owned(),
        1 => "placed in the room of 1 instance".to_owned(),
        count => format!("placed in the room of {count} instances"),
    };
    Ok(PreemptionApplied { placed, preempted, message })
}

/// Whether another set of victims may do.
const fn is_about_victims(guard: &Guard) -> bool {
    matches!(
        guard,
        Guard::VictimChanged { .. } | Guard::TooFewRunning { .. } | Guard::WorkloadChanged { .. }
    )
}

fn no_preemption(audience: &Audience, refusal: Refusal) -> ControlError {
    let priority = "no instances of lower priority that may be preempted would make room";
    ControlError::conflict("no_preemption", format!("{}; {priority}", refusal.headline()))
        .titled("no node can take it")
        .remedy("raise its priority, ask for less, or wait for room with mode wait")
        .refusals(audience.refusals(vec![refusal]))
}

fn outdated(answer: &PlaceAnswer) -> ControlError {
    let remedy = "ask for a proposal again with POST /v1/placements/preemption";
    let error = match answer {
        PlaceAnswer::Contended(conflict) => {
            ControlError::conflict(conflict.guard.code(), describe_guard(&conflict.guard))
        }
        _ => {
            let why = "the victims would not make enough room any more; nobody was released";
            ControlError::conflict("preemption_outdated", why)
        }
    };
    error.remedy(remedy).retry_after(1)
}

/// Victims as a proposal shows them.
fn views(
    control: &ControlPlane,
    instance: &InstanceRequest,
    victims: &[PreemptVictim],
) -> Vec<PreemptedInstance> {
    let catalog = control.catalog.read();
    let view = |victim: &PreemptVictim| {
        let claim = catalog.claims.get(&ClaimKey::primary(victim.instance))?;
        let priority = claim.request.priority;
        Some(PreemptedInstance {
            instance: victim.instance,
            name: claim.name.as_deref().map(str::to_owned),
            tenant: claim.request.tenant.clone(),
            workload: claim.request.workload.clone(),
            priority,
            state: api_state(claim.state),
            fence: victim.fence,
            resources: claim.amounts,
            why: format!("its priority {priority} is lower than {}", instance.priority),
        })
    };
    victims.iter().filter_map(view).collect()
}

const fn api_state(state: ClaimState) -> berth_api::ClaimState {
    match state {
        ClaimState::Held => berth_api::ClaimState::Held,
        ClaimState::Binding => berth_api::ClaimState::Binding,
        ClaimState::Active => berth_api::ClaimState::Active,
        ClaimState::Releasing => berth_api::ClaimState::Releasing,
    }
}
