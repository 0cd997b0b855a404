//! Who could leave a node, and what is known of them.

use std::sync::Arc;

use berth_api::MigrationState;
use berth_engine::elastic::{ElasticSettings, MigrationSettings, ReliefInstance, Size};
use berth_engine::{InstanceRequest, NodeId};
use berth_ledger::{ClaimKey, ClaimState, Role};

use crate::catalog::{CatalogState, ClaimEntry, NodeEntry};
use crate::control_plane::ControlPlane;
use crate::moves::migration::MigrationRecord;

/// Longest rest after a failure.
const LONGEST_REST_S: i64 = 86_400;

/// The instances of a node, as candidates for leaving it.
pub(super) fn of(
    control: &ControlPlane,
    books: &CatalogState,
    settings: &ElasticSettings,
    entry: &NodeEntry,
    now: i64,
) -> Vec<ReliefInstance> {
    let claims = entry.claims.iter().filter(|key| key.role == Role::Primary);
    let claims = claims.filter_map(|key| books.claims.get(key));
    claims.map(|claim| guest(control, books, settings, claim, now)).collect()
}

/// An instance as a candidate for leaving its node.
pub(crate) fn guest(
    control: &ControlPlane,
    books: &CatalogState,
    settings: &ElasticSettings,
    claim: &ClaimEntry,
    now: i64,
) -> ReliefInstance {
    let past = control.migrations.of(claim.key.instance);
    let past: Vec<&MigrationRecord> = past.iter().map(|(_, known)| &known.value).collect();
    let heard = |permit| control.permit_cache.newest(claim.key.instance, claim.fence, permit);
    let permit = claim.permit.map(heard);
    let permit = permit.as_ref();
    let elastic = claim.request.elastic.as_ref();
    // Only those whose agents speak of sizes are moved unasked: they know how to.
    let may = elastic.is_some_and(|elastic| !elastic.stays)
        && claim.state == ClaimState::Active
        && claim.request.volumes.is_empty()
        && !books.claims.contains_key(&ClaimKey::target(claim.key.instance))
        && !books.claims.contains_key(&ClaimKey::source(claim.key.instance))
        && past.iter().all(|record| !record.is_open());
    let rest = rest(&past, settings.migration, now);
    let mut request = InstanceRequest::clone(&claim.request);
    // A node that it left within the last day is no place to go: nobody is passed to and fro.
    request.excluded_nodes.extend(left_lately(&past));
    let pressure = permit.map(|it| it.charged_pressure(now, settings.pressure_half_life_s));
    ReliefInstance {
        id: claim.key.instance,
        request: Arc::new(request),
        charge: Size::of(&claim.amounts),
        pressure: pressure.unwrap_or_default(),
        copy_mib: permit.map_or(claim.amounts.memory_mib, |permit| permit.granted.memory_mib),
        load_milli: permit.and_then(|permit| permit.load_milli),
        priority: claim.request.priority,
        movable: may && rest == 0,
        moved_recently_ppm: recently_ppm(&past, settings.migration, now),
    }
}

/// Nodes that an instance left as far as anybody remembers.
pub(crate) fn left_lately(past: &[&MigrationRecord]) -> Vec<NodeId> {
    let done =
        |state: MigrationState| matches!(state, MigrationState::Done | MigrationState::Switched);
    past.iter().filter(|record| done(record.state)).map(|record| record.source.clone()).collect()
}

/// How many more seconds an instance is to be left alone.
pub(crate) fn rest(past: &[&MigrationRecord], limits: MigrationSettings, now: i64) -> i64 {
    let Some(last) = past.iter().max_by_key(|record| record.changed_at) else { return 0 };
    let until = match last.state {
        MigrationState::Done | MigrationState::Switched => {
            last.changed_at.as_second().saturating_add(limits.cooldown_s.into())
        }
        MigrationState::Failed => {
            let failed = |record: &&&MigrationRecord| record.state == MigrationState::Failed;
            let failures = past.iter().rev().take_while(failed).count();
            let doublings = u32::try_from(failures.saturating_sub(1)).unwrap_or(u32::MAX).min(20);
            let rest = i64::from(limits.backoff_s).saturating_mul(1_i64 << doublings);
            last.changed_at.as_second().saturating_add(rest.min(LONGEST_REST_S))
        }
        // Somebody did not want it moved.
        MigrationState::Cancelled => {
            last.changed_at.as_second().saturating_add(limits.cooldown_s.into())
        }
        MigrationState::Planned | MigrationState::TargetHeld | MigrationState::Copying => now,
    };
    until.saturating_sub(now).max(0)
}

/// How recently an instance was moved: all of a day counts, and less with every hour.
fn recently_ppm(past: &[&MigrationRecord], limits: MigrationSettings, now: i64) -> u32 {
    let day = i64::from(limits.cooldown_s).saturating_mul(8).clamp(1, LONGEST_REST_S);
    let done = past.iter().filter(|record| record.state == MigrationState::Done);
    let Some(last) = done.map(|record| record.changed_at.as_second()).max() else { return 0 };
    let left = day.saturating_sub(now.saturating_sub(last)).clamp(0, day);
    let ppm = left.saturating_mul(1_000_000).checked_div(day).unwrap_or(0);
    u32::try_from(ppm).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use berth_api::MigrationReason;
    use berth_engine::InstanceId;
    use jiff::Timestamp;

    use super::*;

    fn past(state: MigrationState, at: i64) -> MigrationRecord {
        let at = Timestamp::from_second(at).unwrap();
        MigrationRecord {
            instance: InstanceId::from_u128(1),
            owner: "acme".to_owned(),
            source: NodeId::new("a"),
            target: NodeId::new("b"),
            state,
            reason: MigrationReason::Pressure,
            cost: 1,
            frees: Size::ZERO,
            fence: 1,
            copied_permille: None,
            why: None,
            since: at,
            changed_at: at,
        }
    }

    #[test]
    fn an_instance_rests_after_a_move_and_longer_after_each_failure() {
        let limits = MigrationSettings { cooldown_s: 600, backoff_s: 60, ..Default::default() };
        let done = past(MigrationState::Done, 1000);
        assert_eq!(rest(&[&done], limits, 1100), 500);
        assert_eq!(rest(&[&done], limits, 1700), 0);
        let failed = [past(MigrationState::Failed, 2000), past(MigrationState::Failed, 2100)];
        assert_eq!(rest(&[&failed[0]], limits, 2000), 60);
        assert_eq!(rest(&[&failed[0], &failed[1]], limits, 2100), 120);
        assert_eq!(rest(&[], limits, 0), 0);
        assert_eq!(left_lately(&[&done, &failed[0]]), [NodeId::new("a")]);
    }
}
