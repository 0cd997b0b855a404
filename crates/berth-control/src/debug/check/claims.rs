//! Rules about claims and migrations.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::MigrationState;
use berth_engine::elastic::{Permit, Size};
use berth_engine::{Elastic, InstanceId, NodeId};
use berth_ledger::{ClaimKey, ClaimState, Role};

use super::{CheckContext, CheckReport, Invariant};
use crate::adoption::is_adoption;
use crate::debug::dump::ClaimDump;

type ClaimsByKey<'a> = BTreeMap<ClaimKey, &'a ClaimDump>;

pub(super) fn check(context: &CheckContext<'_>, report: &mut CheckReport) {
    let fences: BTreeMap<&NodeId, i64> =
        context.dump.nodes.iter().map(|node| (&node.facts.id, node.fence)).collect();
    let mut by_key = ClaimsByKey::new();
    for claim in &context.dump.claims {
        let subject = format!("claim {}", claim.key());
        if let Some(other) = by_key.insert(claim.key(), claim) {
            let nodes = format!("on {} and {}", other.node, claim.node);
            let one = format!("on {} alone", claim.node);
            report.must(Invariant::OneClaimPerRole, &subject, "it", nodes, one);
        }
        match fences.get(&claim.node) {
            None => {
                let node = format!("{}, which is not there", claim.node);
                report.must(Invariant::KnownNode, &subject, "its node", node, "a known node");
            }
            Some(fence) if claim.fence > *fence => {
                let most = format!("at most {fence}, its node's");
                report.must(Invariant::Fence, &subject, "its fence", claim.fence, most);
            }
            Some(_) => {}
        }
        permit(claim, &subject, report);
    }
    second_claims(context, report);
    migrations(context, &by_key, report);
    volumes(context, report);
}

fn permit(claim: &ClaimDump, subject: &str, report: &mut CheckReport) {
    let Some(permit) = &claim.permit else { return };
    let charged = Size::of(&claim.charged);
    report.must(Invariant::Charge, &subject, "its charge", charged, permit.charge());
    let within = |report: &mut CheckReport, what: &str, found: Size, most: Size, why: &str| {
        if !most.covers(found) {
            let most = format!("at most {most}, {why}");
            report.must(Invariant::PermitWithin, &subject, what, found, most);
        }
    };
    within(report, "its permit", permit.granted, permit.wanted, "what it asked for");
    let denied = permit.wanted.less(permit.granted);
    within(report, "its pressure", permit.pressure, denied, "what it was denied");
    let elastic = claim.spec.get("elastic").cloned();
    let elastic = elastic.and_then(|it| serde_json::from_value::<Elastic>(it).ok());
    let Some(elastic) = elastic else { return };
    let (min, max) = elastic.bounds(permit.granted);
    let most = max.most(permit.granted);
    within(report, "its permit with what is set aside", permit.reserved(), most, "its maximum");
    outside(permit, min, max, subject, report);
}

/// What was granted stands when bounds change, so it may be outside of them for a while.
fn outside(permit: &Permit, min: Size, max: Size, subject: &str, report: &mut CheckReport) {
    if !max.covers(permit.granted) || !permit.granted.covers(min) {
        let granted = permit.granted;
        report.notes.push(format!(
            "{subject}: its permit is {granted}, outside of {min} to {max}: its bounds changed \
             since, and it has not asked since"
        ));
    }
}

/// A second claim of an instance belongs to a migration, was found there, or is a place that it has left
/// and that its agent has to confirm.
fn second_claims(context: &CheckContext<'_>, report: &mut CheckReport) {
    let records = context.dump.migrations.iter().map(|it| &it.record);
    let targets: BTreeSet<(InstanceId, &NodeId)> =
        records.clone().map(|record| (record.instance, &record.target)).collect();
    let sources: BTreeSet<(InstanceId, &NodeId)> =
        records.map(|record| (record.instance, &record.source)).collect();
    for claim in &context.dump.claims {
        let place = (claim.instance, &claim.node);
        let known = match claim.role {
            Role::Primary => continue,
            Role::MigrationTarget => {
                targets.contains(&place) || is_adoption(claim.instance, &claim.request_id)
            }
            Role::MigrationSource => {
                sources.contains(&place) || claim.state == ClaimState::Releasing
            }
        };
        if !known {
            let (subject, found) = (format!("claim {}", claim.key()), format!("on {}", claim.node));
            let expected = "of a migration there, found there by its agent, or left and releasing";
            report.must(Invariant::MigrationRecord, &subject, "it", found, expected);
        }
    }
}

/// A place is held while it is said to be held; and what switched runs on the target. An instance
/// that is gone meanwhile is noticed with the next look.
fn migrations(context: &CheckContext<'_>, by_key: &ClaimsByKey<'_>, report: &mut CheckReport) {
    for migration in &context.dump.migrations {
        let record = &migration.record;
        let on = |key: ClaimKey| by_key.get(&key).map(|claim| &claim.node);
        let Some(runs_on) = on(ClaimKey::primary(record.instance)) else { continue };
        let subject = format!("migration {} of {}", migration.id, record.instance);
        let nowhere = NodeId::new("nowhere");
        match record.state {
            MigrationState::TargetHeld | MigrationState::Copying => {
                let held = on(ClaimKey::target(record.instance)).unwrap_or(&nowhere);
                let what = "the place that is held";
                report.must(Invariant::MigrationClaims, &subject, what, held, &record.target);
            }
            MigrationState::Switched => {
                let left = on(ClaimKey::source(record.instance));
                // Once nothing is left on the source it may be moved on.
                if left.is_some() {
                    let what = "where it runs";
                    report.must(
                        Invariant::MigrationClaims,
                        &subject,
                        what,
                        runs_on,
                        &record.target,
                    );
                }
            }
            MigrationState::Planned
            | MigrationState::Done
            | MigrationState::Failed
            | MigrationState::Cancelled => {}
        }
    }
}

fn volumes(context: &CheckContext<'_>, report: &mut CheckReport) {
    let attached: BTreeMap<&str, Option<InstanceId>> =
        context.dump.volumes.iter().map(|it| (it.id.as_str(), it.attached_to)).collect();
    let primaries = context.dump.claims.iter().filter(|claim| claim.role == Role::Primary);
    for claim in primaries {
        for volume in claim.ties.iter().flat_map(|ties| &ties.volumes) {
            let subject = format!("volume {volume}");
            let found = match attached.get(&**volume) {
                Some(Some(instance)) => instance.to_string(),
                Some(None) => "nothing".to_owned(),
                None => "not there".to_owned(),
            };
            let what = "what it is attached to";
            report.must(Invariant::VolumeAttached, &subject, what, found, claim.instance);
        }
    }
    let held = context.dump.claims.iter().flat_map(|claim| {
        let volumes = claim.ties.iter().flat_map(|ties| &ties.volumes);
        volumes.map(|volume| (&**volume, claim.instance))
    });
    let held: BTreeSet<(&str, InstanceId)> = held.collect();
    for (volume, instance) in attached {
        let Some(instance) = instance.filter(|instance| !held.contains(&(volume, *instance)))
        else {
            continue;
        };
        let (subject, what) = (format!("volume {volume}"), "what it is attached to");
        let expected = "nothing, or an instance that holds it";
        report.must(Invariant::VolumeHolder, &subject, what, instance, expected);
    }
}
