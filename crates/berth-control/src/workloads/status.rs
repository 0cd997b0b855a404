//! How far a workload is, in numbers, one word and one sentence.

use berth_api::{
    Degraded, Env, EnvWorkload, RolloutStatus, Workload, WorkloadState, WorkloadStatus,
};
use berth_engine::CapacityType;
use berth_engine::workload::{
    Blocker, CapacityMode, Cause, HostState, Member, MemberState, Step, reconcile,
};
use jiff::Timestamp;

use super::members::desired;
use crate::workload::CrashHistory;
use crate::workload::Definition;

/// What a status is made of.
pub struct StatusInput<'a> {
    /// The workload's members.
    pub members: &'a [Member],
    /// What is wrong with it.
    pub degraded: Option<Degraded>,
    /// Members that ended without a release.
    pub crashes: Option<CrashHistory>,
    /// The time.
    pub now: Timestamp,
}

/// The workload as callers see it.
#[must_use]
pub fn view(definition: &Definition, input: StatusInput<'_>) -> Workload {
    Workload {
        tenant: definition.tenant().to_owned(),
        name: definition.name().to_owned(),
        version: definition.version,
        revision: definition.body.revision,
        env: definition.env().map(str::to_owned),
        spec: definition.spec(),
        deleting: definition.body.deleting,
        status: status(definition, input),
    }
}

fn count(members: &[Member], is_one: impl Fn(&Member) -> bool) -> u32 {
    u32::try_from(members.iter().filter(|member| is_one(member)).count()).unwrap_or(u32::MAX)
}

fn is_live(member: &Member) -> bool {
    member.state != MemberState::Leaving && member.host != HostState::Lost
}

fn runs(member: &Member) -> bool {
    member.state == MemberState::Ready && member.host != HostState::Lost
}

fn status(definition: &Definition, input: StatusInput<'_>) -> WorkloadStatus {
    let StatusInput { members, degraded, crashes, now } = input;
    let rollout = rollout(definition, members);
    let pending = pending(definition, members);
    let on = |class| count(members, |member| is_live(member) && member.class == class);
    let backs_off_until = crashes
        .and_then(|crashes| crashes.wait_until())
        .map(crate::clock::moment)
        .filter(|until| *until > now && !rollout.complete);
    let wrong = degraded.is_some() || backs_off_until.is_some();
    let state = state(definition, &rollout, wrong, pending.is_some());
    let degraded = degraded.or_else(|| crash_loop(backs_off_until, crashes, now));
    let mut status = WorkloadStatus {
        state,
        message: String::new(),
        placed: count(members, is_live),
        active: count(members, runs),
        leaving: count(members, |member| !is_live(member)),
        on_demand: on(CapacityType::OnDemand),
        spot: on(CapacityType::Spot),
        rollout,
        reason: degraded,
        backs_off_until,
    };
    if let Some(reason) = &status.reason {
        let suffix = format!("; {} ({})", reason.message, reason.code);
        status.rollout.message.push_str(&suffix);
    }
    status.message = message(definition, &status);
    if let (true, WorkloadState::Progressing, Some(pending)) =
        (status.rollout.complete, status.state, pending)
    {
        status.message = pending;
    }
    status
}

fn rollout(definition: &Definition, members: &[Member]) -> RolloutStatus {
    let revision = definition.body.revision;
    let is_new = |member: &Member| member.revision == revision;
    let updated = count(members, |member| is_new(member) && is_live(member));
    let updated_active = count(members, |member| is_new(member) && runs(member));
    let old = count(members, |member| !is_new(member));
    let complete = match definition.replicas {
        Some(_) => {
            let wanted = definition.wanted();
            old == 0 && updated == wanted && updated_active == wanted
        }
        None => old == 0 && updated == updated_active,
    };
    let wanted = definition.replicas.map_or(updated, |_| definition.wanted());
    let message = match (complete, old, definition.body.paused) {
        (true, _, _) => format!("revision {revision} runs, {updated_active} of {wanted}"),
        (false, 0, _) => format!("revision {revision}: {updated_active} of {wanted} run"),
        (false, old, paused) => {
            let still = if paused { "; it is paused" } else { "" };
            format!(
                "revision {revision}: {updated_active} of {wanted} run, {old} of earlier \
                 revisions are left{still}"
            )
        }
    };
    RolloutStatus { revision, updated, updated_active, old, complete, message }
}

/// Why a workload whose members keep ending is degraded.
fn crash_loop(
    until: Option<Timestamp>,
    crashes: Option<CrashHistory>,
    now: Timestamp,
) -> Option<Degraded> {
    let (until, crashes) = (until?, crashes?);
    let wait = until.as_second() - now.as_second();
    let count = crashes.count;
    let message = format!("{count} members ended in a row; the next try is in {wait} s");
    let since = crate::clock::moment(crashes.last);
    Some(Degraded { code: "crash_loop".to_owned(), message, since, members: 1, refusal: None })
}

/// What is still to be done though as many run as should: in one sentence.
fn pending(definition: &Definition, members: &[Member]) -> Option<String> {
    definition.replicas?;
    let outlook = reconcile(&desired(definition), members);
    let mode = definition.body.capacity.map_or(CapacityMode::Strict, |rule| rule.mode);
    let counts = |cause: Cause| cause != Cause::Rebuild || mode == CapacityMode::Strict;
    let steps = outlook.steps.iter().map(|step| match step {
        Step::Create { cause, .. } | Step::Release { cause, .. } => *cause,
    });
    // A volume keeps its member where it is until somebody moves it.
    let blocked = outlook.blocked.iter().filter(|it| it.blocker != Blocker::Volume);
    let mut causes: Vec<Cause> =
        steps.chain(blocked.map(|it| it.cause)).filter(|cause| counts(*cause)).collect();
    let number = causes.len();
    causes.sort_unstable();
    Some(match causes.first()? {
        Cause::Rebuild => {
            format!(
                "{number} members are on the other kind of capacity and are replaced one by one"
            )
        }
        Cause::Drain | Cause::Reclaim => {
            format!("{number} members leave nodes that are being emptied")
        }
        _ => format!("{number} members come or go"),
    })
}

fn state(
    definition: &Definition,
    rollout: &RolloutStatus,
    wrong: bool,
    pending: bool,
) -> WorkloadState {
    if definition.body.deleting {
        WorkloadState::Deleting
    } else if wrong {
        WorkloadState::Degraded
    } else if rollout.complete && !pending {
        WorkloadState::Ready
    } else if definition.body.paused && rollout.old > 0 {
        WorkloadState::Paused
    } else {
        WorkloadState::Progressing
    }
}

fn message(definition: &Definition, status: &WorkloadStatus) -> String {
    if let Some(reason) = status.reason.as_ref().filter(|_| status.backs_off_until.is_some()) {
        return reason.message.clone();
    }
    if let Some(reason) = &status.reason {
        let members = reason.members;
        let them = if members == 1 {
            "1 member waits".to_owned()
        } else {
            format!("{members} members wait")
        };
        return format!("{them} ({}): {}", reason.code, reason.message);
    }
    match status.state {
        WorkloadState::Deleting => {
            format!("being removed; {} members are left", status.placed + status.leaving)
        }
        WorkloadState::Ready if definition.wanted() == 0 && definition.replicas.is_some() => {
            "nothing should run, and nothing does".to_owned()
        }
        _ => status.rollout.message.clone(),
    }
}

/// An environment of these workloads.
#[must_use]
pub fn env(
    tenant: &str,
    name: &str,
    secrets_version: Option<String>,
    workloads: Vec<Workload>,
) -> Env {
    let rank = |state: WorkloadState| match state {
        WorkloadState::Ready => 0,
        WorkloadState::Deleting => 1,
        WorkloadState::Paused => 2,
        WorkloadState::Progressing => 3,
        WorkloadState::Degraded => 4,
    };
    let worst = workloads.iter().max_by_key(|workload| rank(workload.status.state));
    let state = worst.map_or(WorkloadState::Ready, |worst| worst.status.state);
    let message = match worst {
        Some(worst) if state != WorkloadState::Ready => {
            format!("{}: {}", worst.name, worst.status.message)
        }
        Some(_) => "everything runs as it should".to_owned(),
        None => "it has no workloads".to_owned(),
    };
    let workloads = workloads.into_iter().map(|workload| EnvWorkload {
        process: workload.spec.process.unwrap_or_else(|| workload.name.clone()),
        name: workload.name,
        state: workload.status.state,
        message: workload.status.message,
        replicas: workload.spec.replicas,
        active: workload.status.active,
        reason: workload.status.reason,
    });
    Env {
        tenant: tenant.to_owned(),
        name: name.to_owned(),
        state,
        message,
        secrets_version,
        workloads: workloads.collect(),
    }
}
