//! Evacuation plans as API objects.

use berth_api::{DrainMove, MoveState};
use berth_engine::{EvacuationPlan, InstanceId, MoveOutcome, NodeId, PlannedMove, Refusal};

use crate::moves::sandbox::Sandbox;

/// Whether nodes can be emptied, and why, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) can_be_emptied: bool,
    pub(super) message: String,
}

/// All moves of a plan.
pub(super) fn moves(sandbox: &Sandbox, plan: EvacuationPlan) -> Vec<DrainMove> {
    plan.moves.into_iter().map(|planned| to_drain_move(sandbox, planned)).collect()
}

fn to_drain_move(sandbox: &Sandbox, planned: PlannedMove) -> DrainMove {
    let claim = sandbox.claim(planned.instance);
    let tolerates_absence = claim.is_some_and(|claim| sandbox.tolerates_absence(claim));
    let id = claim.map_or(planned.instance, |claim| claim.key.instance);
    let code = planned.outcome.code().map(str::to_owned);
    let report = describe(planned.outcome, id, tolerates_absence);
    let is_blocked = report.state == MoveState::Blocked;
    DrainMove {
        instance: id,
        tenant: claim.map_or_else(String::new, |claim| claim.request.tenant.clone()),
        workload: claim.and_then(|claim| claim.request.workload.clone()),
        from: planned.from,
        to: report.to,
        state: report.state,
        code: code.filter(|_| is_blocked),
        message: report.message,
        unblock: report.unblock,
    }
}

struct MoveReport {
    state: MoveState,
    to: Option<NodeId>,
    message: String,
    unblock: Vec<String>,
}

impl MoveReport {
    fn planned(to: NodeId, message: String) -> Self {
        Self { state: MoveState::Planned, to: Some(to), message, unblock: Vec::new() }
    }

    fn blocked(message: String, unblock: Vec<String>) -> Self {
        Self { state: MoveState::Blocked, to: None, message, unblock }
    }
}

fn describe(outcome: MoveOutcome, id: InstanceId, tolerates_absence: bool) -> MoveReport {
    match outcome {
        MoveOutcome::Moves { to } => {
            let message = format!("a replacement fits on {to}");
            MoveReport::planned(to, message)
        }
        MoveOutcome::Refused { after_release: Some(to), .. } if tolerates_absence => {
            let message = format!(
                "it stands in its own way and may be missed for a while, so it goes first; \
                 its next place is {to}"
            );
            MoveReport::planned(to, message)
        }
        MoveOutcome::Refused { refusal, after_release: Some(to) } => {
            let why = refusal.map_or_else(no_room, |refusal| refusal.headline());
            let message = format!("it stands in its own way: {why}; without it, {to} could");
            let release = format!("let it go first: berth claims release {id}");
            let lack = "let its workload run with one less: rolling.max_unavailable of 1 or more";
            MoveReport::blocked(message, vec![lack.to_owned(), release])
        }
        MoveOutcome::Refused { refusal, after_release: None } => {
            let message = refusal.as_ref().map_or_else(no_room, |refusal| refusal.headline());
            MoveReport::blocked(message, refusal.as_deref().map(unblock).unwrap_or_default())
        }
        MoveOutcome::VolumeNeedsMove { volumes, to, refusal } => {
            describe_volumes(&volumes, to.as_ref(), refusal.as_deref())
        }
        MoveOutcome::Invalid(invalid) => {
            let message = format!("its request is not valid any more: {invalid}");
            MoveReport::blocked(message, Vec::new())
        }
        MoveOutcome::RequestUnknown => {
            MoveReport::blocked("its request is unknown".to_owned(), Vec::new())
        }
    }
}

fn describe_volumes(
    volumes: &[String],
    to: Option<&NodeId>,
    refusal: Option<&Refusal>,
) -> MoveReport {
    let are = if volumes.len() == 1 { "volume" } else { "volumes" };
    let names = volumes.join(", ");
    let why = match (to, refusal) {
        (Some(to), _) => format!("it could run on {to} if they were there"),
        (None, Some(refusal)) => format!("and nowhere is room for it: {}", refusal.headline()),
        (None, None) => "and nowhere is room for it".to_owned(),
    };
    let why = if volumes.len() == 1 { why.replace("they were", "it were") } else { why };
    let message = format!("it uses local {are} {names}; {why}");
    let to = to.map_or("NODE", NodeId::as_str);
    let mut help: Vec<String> =
        volumes.iter().map(|name| format!("berth volumes move {name} --to {to}")).collect();
    help.extend(refusal.map(unblock).unwrap_or_default());
    MoveReport::blocked(message, help)
}

fn no_room() -> String {
    "no node can take a replacement".to_owned()
}

/// Fixes that were tried and work, otherwise the general remedy.
fn unblock(refusal: &Refusal) -> Vec<String> {
    let fixes: Vec<String> = refusal.fixes.iter().map(ToString::to_string).collect();
    if fixes.is_empty() { vec![refusal.remedy.to_string()] } else { fixes }
}

/// The verdict on all moves together.
pub(super) fn verdict(moves: &[DrainMove]) -> Verdict {
    let mut blocked = moves.iter().filter(|one| one.state == MoveState::Blocked);
    // Prefer one that has a code.
    let explained = blocked.clone().find(|one| one.code.is_some());
    let count = blocked.clone().count();
    let Some(first) = explained.or_else(|| blocked.next()) else {
        let message = match moves.len() {
            0 => "it is empty".to_owned(),
            1 => "its one instance has a place elsewhere".to_owned(),
            some => format!("all {some} instances have a place elsewhere"),
        };
        return Verdict { can_be_emptied: true, message };
    };
    let have = if count == 1 { "has" } else { "have" };
    let whose = match &first.workload {
        Some(workload) => format!("{}/{workload}", first.tenant),
        None => first.tenant.clone(),
    };
    let why = match &first.code {
        Some(code) if !first.message.contains(code.as_str()) => {
            format!("{code}: {}", first.message)
        }
        _ => first.message.clone(),
    };
    let message = format!(
        "{count} of {} {have} no place elsewhere: {} of {whose}: {why}",
        count_instances(moves.len()),
        first.instance
    );
    Verdict { can_be_emptied: false, message }
}

fn count_instances(count: usize) -> String {
    if count == 1 { "1 instance".to_owned() } else { format!("{count} instances") }
}
