//! What is remembered of an instance's live migrations, and how long it is left alone after them.

use berth_api::MigrationState;
use berth_engine::elastic::MigrationSettings;
use berth_engine::{InstanceId, NodeId};

use super::migration::{MigrationRecord, Migrations, StoredMigration};

/// Longest rest after a failure.
const LONGEST_REST_S: i64 = 86_400;

/// An instance's migrations that are still remembered, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct MoveHistory(Vec<(String, StoredMigration)>);

impl MoveHistory {
    pub(super) fn of(migrations: &Migrations, instance: InstanceId) -> Self {
        Self(migrations.of(instance))
    }

    fn records(&self) -> impl DoubleEndedIterator<Item = &MigrationRecord> {
        self.0.iter().map(|(_, stored)| &stored.value)
    }

    /// The migration that is under way, and its id.
    pub(super) fn open(&self) -> Option<(&str, &MigrationRecord)> {
        let (id, stored) = self.0.iter().find(|(_, stored)| stored.value.is_open())?;
        Some((id, &stored.value))
    }

    /// Whether a target is held and agents copy the instance, or are about to.
    pub(super) fn is_in_transit(&self) -> bool {
        self.records().any(MigrationRecord::is_in_transit)
    }

    /// Nodes that the instance left recently.
    pub(super) fn nodes_left(&self) -> Vec<NodeId> {
        let moved = self.records().filter(|record| {
            matches!(record.state, MigrationState::Done | MigrationState::Switched)
        });
        moved.map(|record| record.source.clone()).collect()
    }

    /// For how many more seconds the instance must not be moved.
    pub(super) fn rest_s(&self, limits: MigrationSettings, now: i64) -> i64 {
        let Some(last) = self.records().max_by_key(|record| record.changed_at) else { return 0 };
        let rest = match last.state {
            // A cancelled migration counts like a finished one: someone did not want it moved.
            MigrationState::Done | MigrationState::Switched | MigrationState::Cancelled => {
                limits.cooldown_s.into()
            }
            MigrationState::Failed => {
                let failed = |record: &&MigrationRecord| record.state == MigrationState::Failed;
                let failures = self.records().rev().take_while(failed).count();
                let doublings =
                    u32::try_from(failures.saturating_sub(1)).unwrap_or(u32::MAX).min(20);
                let rest = i64::from(limits.backoff_s).saturating_mul(1_i64 << doublings);
                rest.min(LONGEST_REST_S)
            }
            MigrationState::Planned | MigrationState::TargetHeld | MigrationState::Copying => {
                return 0;
            }
        };
        last.changed_at.as_second().saturating_add(rest).saturating_sub(now).max(0)
    }

    /// How recently the instance was moved: a million right after a move, falling to zero within
    /// eight cooldowns, but at most a day.
    pub(super) fn recency_ppm(&self, limits: MigrationSettings, now: i64) -> u32 {
        let span = i64::from(limits.cooldown_s).saturating_mul(8).clamp(1, LONGEST_REST_S);
        let done = self.records().filter(|record| record.state == MigrationState::Done);
        let Some(last) = done.map(|record| record.changed_at.as_second()).max() else { return 0 };
        let left = span.saturating_sub(now.saturating_sub(last)).clamp(0, span);
        let ppm = left.saturating_mul(1_000_000).checked_div(span).unwrap_or(0);
        u32::try_from(ppm).unwrap_or(0)
    }
}

#[cfg(test)]
impl FromIterator<MigrationRecord> for MoveHistory {
    fn from_iter<I: IntoIterator<Item = MigrationRecord>>(records: I) -> Self {
        let stored = |(number, value): (usize, MigrationRecord)| {
            (
                number.to_string(),
                std::sync::Arc::new(crate::documents::Versioned { value, revision: 1 }),
            )
        };
        Self(records.into_iter().enumerate().map(stored).collect())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use berth_api::MigrationReason;
    use berth_engine::elastic::Size;
    use jiff::Timestamp;

    use super::*;

    pub(in crate::moves) fn record(state: MigrationState, at: i64) -> MigrationRecord {
        let at = Timestamp::from_second(at).unwrap();
        MigrationRecord {
            instance: InstanceId::from_u128(1),
            tenant: "acme".to_owned(),
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

    fn history(records: &[(MigrationState, i64)]) -> MoveHistory {
        records.iter().map(|(state, at)| record(*state, *at)).collect()
    }

    #[test]
    fn an_instance_rests_after_a_move_and_longer_after_each_failure() {
        use MigrationState::{Copying, Done, Failed};
        let limits = MigrationSettings { cooldown_s: 600, backoff_s: 60, ..Default::default() };
        let rest = |records: &[_], now| history(records).rest_s(limits, now);
        assert_eq!(rest(&[(Done, 1000)], 1100), 500);
        assert_eq!(rest(&[(Done, 1000)], 1700), 0);
        assert_eq!(rest(&[(Failed, 2000)], 2000), 60);
        assert_eq!(rest(&[(Failed, 2000), (Failed, 2100)], 2100), 120);
        assert_eq!(rest(&[(Done, 1000), (Copying, 2000)], 2000), 0);
        assert_eq!(rest(&[], 0), 0);
    }

    #[test]
    fn only_migrations_that_switched_count_as_leaving_a_node() {
        use MigrationState::{Cancelled, Done, Failed, Switched};
        let left = |state| history(&[(state, 1000)]).nodes_left();
        assert_eq!(left(Done), [NodeId::new("a")]);
        assert_eq!(left(Switched), [NodeId::new("a")]);
        assert!(left(Failed).is_empty() && left(Cancelled).is_empty());
    }

    #[test]
    fn a_move_counts_less_with_time() {
        let limits = MigrationSettings { cooldown_s: 100, ..Default::default() };
        let moved = history(&[(MigrationState::Done, 1000)]);
        assert_eq!(moved.recency_ppm(limits, 1000), 1_000_000);
        assert_eq!(moved.recency_ppm(limits, 1400), 500_000);
        assert_eq!(moved.recency_ppm(limits, 1800), 0);
    }
}
