//! The agents' side: signs of life, what should run, what does.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{Event as ServerEvent, KeepAlive, Sse};
use berth_api::{
    Assignment, AssignmentList, FailureCause, Heartbeat, HeartbeatResponse, ReportedInstance,
    RunState, RunningInstance,
};
use berth_engine::{
    BootOutcome, Elastic, FactChange, FactLayer, InstanceId, MeasuredLoad, NodeId, NodeState,
    Timestamp,
};
use berth_ledger::{
    Advance, ClaimKey, ClaimState, ForTenants, Ledger, LedgerError, Op, Release, Role, Step, Text,
};
use futures_util::{Stream, StreamExt as _};
use uuid::Uuid;

use crate::http::extract::{OptionalJson, Path, RequestContext};
use crate::http::routes::claims::{state_of, values_of};
use crate::problem::{ApiError, ApiResult};
use berth_control::ControlPlane;
use berth_control::caller::Caller;
use berth_control::catalog::ClaimEntry;
use berth_control::moves::migration::{ObservationEffect, apply_observation};

/// Most characters of the reason why a node is degraded.
const MAX_REASON: usize = 200;

/// Boots of a node that are remembered.
const BOOTS: usize = 8;

/// Give a sign of life
///
/// Says that the node lives, what changed of its facts, and what runs there. The answer has
/// everything that should.
#[utoipa::path(post, path = "/v1/nodes/{node}/heartbeat", tag = "agents",
    params(("node" = String, Path, description = "The node.")),
    request_body = Heartbeat,
    responses((status = 200, description = "Received.", body = HeartbeatResponse)))]
pub(super) async fn heartbeat(
    RequestContext { control, caller }: RequestContext,
    Path(node): Path<NodeId>,
    OptionalJson(beat): OptionalJson<Heartbeat>,
) -> ApiResult<axum::Json<HeartbeatResponse>> {
    control.node_for(&caller, &node)?;
    if let Some(facts) = beat.facts {
        if facts.id != node {
            let value = Some(format!("{:?}", facts.id.as_str()));
            return Err(ApiError::field("facts.id", value, "the node that the path names"));
        }
        super::facts::store(&control, &caller, *facts, FactLayer::Reported, None).await?;
        control.wait_for_read_your_writes().await;
    }
    let at = control.now();
    known(&control, &node)?;
    check_load(beat.load)?;
    control.record_load(&node, beat.load);
    control.record_heartbeat(&node, at.as_second());
    apply_health(&control, &node, beat.degraded.as_deref()).await?;
    if let Some(notice) = &beat.reclaim {
        super::drains::take_notice(&control, &caller, &node, notice).await?;
    }
    let mut reported = Vec::new();
    for running in beat.running.unwrap_or_default() {
        let instance = running.instance;
        reported.push(match report(&control, &caller, &node, running).await {
            // What is wrong with one instance must not keep the agent from the others.
            Err(error) if error.is_callers() => {
                let refused = Some(error.problem().code.clone());
                ReportedInstance { instance, state: None, refused }
            }
            done => done?,
        });
    }
    control.wait_for_read_your_writes().await;
    let (state, generation) = known(&control, &node)?;
    let next_s = control.lifecycle.settings().heartbeat_every.as_secs();
    Ok(axum::Json(HeartbeatResponse {
        at,
        state,
        generation,
        next_s: u32::try_from(next_s).unwrap_or(u32::MAX),
        reported,
        assignments: list(&control, &node)?.assignments,
        volume_moves: control.moves.volume_moves.tasks(&node),
        migrations: control.moves.migrations.tasks(&control.catalog.read(), &node),
    }))
}

/// Shares of a host are at most all of it.
fn check_load(load: Option<MeasuredLoad>) -> ApiResult<()> {
    let shares = load.into_iter().flat_map(|load| {
        [("cpu_permille", Some(load.cpu_permille)), ("memory_permille", load.memory_permille)]
    });
    for (field, share) in shares {
        if let Some(share) = share.filter(|share| *share > MeasuredLoad::FULL) {
            let value = Some(share.to_string());
            return Err(ApiError::field(&format!("load.{field}"), value, "0 to 1000"));
        }
    }
    Ok(())
}

fn known(control: &ControlPlane, node: &NodeId) -> ApiResult<(NodeState, i64)> {
    let catalog = control.catalog.read();
    let entry = catalog.nodes.get(node).map(|entry| (entry.facts.state, entry.generation));
    entry.ok_or_else(|| {
        ApiError::not_found("node", node.as_str()).remedy("register it: PUT /v1/nodes/{node}")
    })
}

/// Has the node's state follow what its agent says of it, if that differs.
async fn apply_health(
    control: &ControlPlane,
    node: &NodeId,
    degraded: Option<&str>,
) -> ApiResult<()> {
    let degraded: Option<String> = degraded.map(|reason| {
        let printable = reason.chars().filter(|character| !character.is_control());
        printable.take(MAX_REASON).collect()
    });
    let op = {
        let catalog = control.catalog.read();
        let Some(entry) = catalog.nodes.get(node) else { return Ok(()) };
        let known = &entry.facts.state_reason;
        let differs = match entry.facts.state {
            NodeState::Lost => true,
            NodeState::Active => degraded.is_some(),
            NodeState::Degraded => known.is_some() && *known != degraded,
            NodeState::Joining | NodeState::Cordoned | NodeState::Draining => false,
        };
        if !differs {
            return Ok(());
        }
        // Whatever the state has become meanwhile, this is the agent's latest word.
        Op::SetHealth { node: node.clone(), degraded: degraded.map(Text::from), expect: None }
    };
    control.submit(op).await?;
    Ok(())
}

/// What should be on a node.
fn list(control: &ControlPlane, node: &NodeId) -> ApiResult<AssignmentList> {
    let catalog = control.catalog.read();
    let Some(entry) = catalog.nodes.get(node) else {
        return Err(ApiError::not_found("node", node.as_str()));
    };
    // What is being moved here is a task of its migration until it runs here; what was found here and
    // elsewhere is not. What may still run in the place that it left is not to be started here yet.
    let claims = entry.claims.iter().filter_map(|key| catalog.claims.get(key)).filter(|claim| {
        (claim.key.role != Role::MigrationTarget || claim.state == ClaimState::Active)
            && !catalog.awaits_stop_elsewhere(claim)
    });
    let assignments = claims.map(|claim| assignment(claim)).collect();
    Ok(AssignmentList { node: node.clone(), state: entry.facts.state, assignments })
}

fn assignment(claim: &ClaimEntry) -> Assignment {
    Assignment {
        instance: claim.key.instance,
        state: state_of(claim.state),
        fence: claim.fence,
        tenant: claim.request.tenant.clone(),
        name: claim.name.as_deref().map(str::to_owned),
        workload: claim.request.workload.clone(),
        slot: claim.instance_slot(),
        image: claim.request.image.clone(),
        resources: claim.amounts,
        tags: claim.request.tags.clone(),
        volumes: claim.request.volumes.clone(),
        values: values_of(&claim.values),
        elastic: elastic_of(claim),
    }
}

/// How far an instance may shrink and grow, with what it uses now.
fn elastic_of(claim: &ClaimEntry) -> Option<Elastic> {
    let elastic = claim.request.elastic.clone()?;
    let using = claim.permit.map(|permit| permit.granted);
    Some(Elastic { using, ..elastic })
}

/// Applies one report. Returns the result for the agent.
async fn report(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    node: &NodeId,
    running: RunningInstance,
) -> ApiResult<ReportedInstance> {
    let instance = running.instance;
    let claim = {
        let catalog = control.catalog.read();
        let roles = Role::ALL.map(|role| ClaimKey { instance, role });
        let mut claims = roles.iter().filter_map(|key| catalog.claims.get(key));
        claims.find(|claim| claim.node == *node).cloned()
    };
    // The catalogue may be a moment behind another server's grant; the ledger is not.
    let claim = match claim {
        Some(claim) => Some(ObservedClaim::of(&claim)),
        None => control.read(move |ledger| ObservedClaim::read(ledger, instance)).await?,
    };
    let claim = claim.filter(|claim| claim.node == *node);
    let refused =
        |code: &str| ReportedInstance { instance, state: None, refused: Some(code.to_owned()) };
    let Some(claim) = claim else {
        return match (running.fence, running.found) {
            (None, Some(found)) => {
                super::adoption::adopt(control, caller, node, instance, found).await
            }
            (Some(_), _) => Ok(refused("no_claim")),
            (None, None) => Ok(refused("unknown_instance")),
        };
    };
    let known =
        |code: &str| ReportedInstance { state: Some(state_of(claim.state)), ..refused(code) };
    match running.fence {
        Some(fence) if fence < claim.fence => return Ok(known("stale_fence")),
        Some(fence) if fence > claim.fence => return Ok(known("unknown_fence")),
        // It was adopted before; its assignment has its fence.
        None if running.found.is_some() => {
            return Ok(ReportedInstance { refused: None, ..known("") });
        }
        None => return Ok(known("fence_missing")),
        Some(_) => {}
    }
    let which = (claim.key.role, claim.state);
    match apply_observation(control, node, instance, which, running.state).await? {
        ObservationEffect::None => {}
        ObservationEffect::Applied => return Ok(ReportedInstance { refused: None, ..known("") }),
        ObservationEffect::Deferred => return Ok(known("migrating")),
    }
    let mut status = Ok(Some(claim.state));
    for op in steps(&claim, running.state, running.reason.as_deref()) {
        let done = control.step(caller, "agent.report", claim.key.to_string(), op).await?;
        status = done.map(|status| status.state);
        if status.is_err() {
            break;
        }
    }
    let boot = boot_of(&claim, &running, Timestamp(control.now().as_second()));
    if let Some(boot) = boot {
        note_boot(control, node, boot).await?;
    }
    Ok(match status {
        Ok(state) => ReportedInstance { instance, state: state.map(state_of), refused: None },
        Err(rejected) => refused(rejected.code()),
    })
}

/// What a report is compared with.
struct ObservedClaim {
    key: ClaimKey,
    node: NodeId,
    state: ClaimState,
    fence: i64,
    tenant: Text,
}

impl ObservedClaim {
    fn of(claim: &ClaimEntry) -> Self {
        let (key, node, tenant) = (claim.key, claim.node.clone(), claim.request.tenant.as_str());
        let tenant = Text::from(tenant);
        Self { key, node, state: claim.state, fence: claim.fence, tenant }
    }

    fn read(ledger: &Ledger, instance: InstanceId) -> Result<Option<Self>, LedgerError> {
        let claim = ledger.claim(ClaimKey::primary(instance))?;
        Ok(claim.map(|claim| Self {
            key: claim.key,
            node: claim.node,
            state: claim.state,
            fence: claim.fence,
            tenant: claim.tenant,
        }))
    }
}

/// How a boot ended, as it counts against its node. A failure that the instance caused does not
/// count, and one whose cause is unknown only together with those of other tenants.
fn boot_of(
    claim: &ObservedClaim,
    running: &RunningInstance,
    now: Timestamp,
) -> Option<BootOutcome> {
    // An instance that fails after it ran is no sign that its node cannot start others.
    let was_booting = matches!(claim.state, ClaimState::Held | ClaimState::Binding);
    match (running.state, running.cause.unwrap_or(FailureCause::Unknown)) {
        (RunState::Running, _) if claim.state != ClaimState::Active => {
            Some(BootOutcome::new(now, false))
        }
        (RunState::Failed, FailureCause::Node) if was_booting => Some(BootOutcome::new(now, true)),
        (RunState::Failed, FailureCause::Unknown) if was_booting => {
            Some(BootOutcome::failed_for(now, &claim.tenant))
        }
        _ => None,
    }
}

/// The steps that a report implies for a claim; none when it reports what is known.
fn steps(claim: &ObservedClaim, state: RunState, reason: Option<&str>) -> Vec<Op> {
    let reported = reason;
    let advance = |step: Step| {
        Op::Advance(Advance { key: claim.key, tenant: None, fence: claim.fence, step })
    };
    let gone = |reason: &str| {
        Op::Release(Release {
            request_id: Text::from(Uuid::now_v7().to_string()),
            key: claim.key,
            tenant: None,
            fence: Some(claim.fence),
            confirmed: true,
            reason: Text::from(reported.unwrap_or(reason)),
        })
    };
    match (state, claim.state) {
        (RunState::Starting, ClaimState::Held) => vec![advance(Step::Bind)],
        (RunState::Running, ClaimState::Held) => {
            vec![advance(Step::Bind), advance(Step::Activate)]
        }
        (RunState::Running, ClaimState::Binding) => vec![advance(Step::Activate)],
        (RunState::Stopped, _) => vec![gone("stopped")],
        (RunState::Failed, _) => vec![gone("failed")],
        (RunState::Starting | RunState::Running | RunState::Stopping, _) => Vec::new(),
    }
}

/// Remembers how a boot ended. Only failures, and the first success after one, change a node's
/// facts: else every boot would make plans on the node out of date.
async fn note_boot(control: &ControlPlane, node: &NodeId, boot: BootOutcome) -> ApiResult<()> {
    let known = control
        .catalog
        .read()
        .nodes
        .get(node)
        .map(|entry| (entry.facts.boots.clone(), entry.generation));
    let Some((mut boots, generation)) = known else { return Ok(()) };
    let was_failed = boots.last().is_some_and(|boot| boot.failed);
    if !boot.failed && !was_failed {
        return Ok(());
    }
    // Nothing is remembered of a tenant that is being removed.
    let tenants = boot.tenant.iter().map(|tenant| Text::from(tenant.as_str())).collect();
    // One tenant's failures count once, however many there are.
    boots.retain(|old| boot.tenant.is_none() || old.tenant != boot.tenant);
    boots.push(boot);
    let surplus = boots.len().saturating_sub(BOOTS);
    boots.drain(..surplus);
    let boots =
        serde_json::to_value(boots).map_err(|error| ApiError::invalid(error.to_string()))?;
    let change = Box::new(FactChange::Report([("boots".to_owned(), boots)].into()));
    let (node, expect) = (node.clone(), Some(generation));
    let op = Op::ChangeFacts { node, change, create: None, expect };
    let op = Op::ForTenants(Box::new(ForTenants { tenants, op }));
    // If the node was changed concurrently, the next failure is recorded instead.
    control.submit(op).await?;
    Ok(())
}

/// Read what should be on a node
#[utoipa::path(get, path = "/v1/nodes/{node}/assignments", tag = "agents",
    params(("node" = String, Path, description = "The node.")),
    responses((status = 200, description = "All instances assigned to the node.", body = AssignmentList)))]
pub(super) async fn assignments(
    RequestContext { control, caller }: RequestContext,
    Path(node): Path<NodeId>,
) -> ApiResult<axum::Json<AssignmentList>> {
    control.node_for(&caller, &node)?;
    control.wait_for_read_your_writes().await;
    list(&control, &node).map(axum::Json)
}

/// Watch what should be on a node
///
/// Server-sent events: `assignments` with the whole list, at once and whenever it changes.
#[utoipa::path(get, path = "/v1/nodes/{node}/assignments/stream", tag = "agents",
    params(("node" = String, Path, description = "The node.")),
    responses((status = 200, description = "A stream of lists.", content_type = "text/event-stream", body = String)))]
pub(super) async fn stream(
    RequestContext { control, caller }: RequestContext,
    Path(node): Path<NodeId>,
) -> ApiResult<Sse<impl Stream<Item = Result<ServerEvent, Infallible>>>> {
    control.node_for(&caller, &node)?;
    control.wait_for_read_your_writes().await;
    known(&control, &node)?;
    let changes = control.catalog.watch(&node);
    let state = (control, node, changes, true);
    let lists =
        futures_util::stream::unfold(state, |(control, node, mut changes, first)| async move {
            if !first {
                tokio::select! {
                    () = control.lifecycle.stopping().cancelled() => return None,
                    changed = changes.changed() => changed.ok()?,
                }
            }
            changes.mark_unchanged();
            // A node that was removed ends the stream.
            let list = list(&control, &node).ok()?;
            let event = ServerEvent::default().event("assignments").json_data(&list).ok()?;
            Some((Ok(event), (control, node, changes, false)))
        })
        .fuse();
    let keep_alive = KeepAlive::new().interval(Duration::from_secs(15)).text("keep-alive");
    Ok(Sse::new(lists).keep_alive(keep_alive))
}
