//! A simulated host's part in migrations: it waits as long as a copy would take, and reports progress.

use std::collections::BTreeMap;

use berth_api::{MigrationAction, MigrationReport, MigrationStep, MigrationTask};
use berth_engine::InstanceId;
use tokio::time::Instant;

use super::pace::Pace;
use crate::fleet::SeededRng;

/// A task that is done at a certain moment.
#[derive(Clone, Debug)]
struct RunningTask {
    instance: InstanceId,
    action: MigrationAction,
    since: Instant,
    until: Instant,
}

/// All tasks of a host.
#[derive(Clone, Debug, Default)]
pub(super) struct Migrations(BTreeMap<String, RunningTask>);

impl Migrations {
    /// Updates the tasks from the server's answer. Tasks that are no longer listed are over.
    pub(super) fn update(
        &mut self,
        tasks: &[MigrationTask],
        pace: Pace,
        rng: &mut SeededRng,
        now: Instant,
    ) {
        self.0.retain(|id, known| {
            tasks.iter().any(|task| task.id == *id && task.action == known.action)
        });
        for task in tasks {
            let takes = match task.action {
                MigrationAction::Send => pace.between(rng, 2000, 6000),
                // The source says when it is done.
                MigrationAction::Receive => continue,
                MigrationAction::CleanUp | MigrationAction::Drop => pace.between(rng, 300, 1500),
            };
            let until = now + takes;
            let (instance, action) = (task.instance, task.action);
            let begun = RunningTask { instance, action, since: now, until };
            self.0.entry(task.id.clone()).or_insert(begun);
        }
    }

    /// The reports that are due now.
    pub(super) fn reports(&self, now: Instant) -> Vec<MigrationReport> {
        let reports = self.0.iter().filter_map(|(id, known)| {
            let over = known.until <= now;
            let (step, copied_permille) = match known.action {
                MigrationAction::Send if over => (MigrationStep::Switched, None),
                MigrationAction::Send => (MigrationStep::Copying, Some(known.share(now))),
                MigrationAction::CleanUp if over => (MigrationStep::CleanedUp, None),
                MigrationAction::Drop if over => (MigrationStep::Dropped, None),
                _ => return None,
            };
            Some(MigrationReport { id: id.clone(), step, copied_permille, reason: None })
        });
        reports.collect()
    }

    /// Whether an instance is on its way off the host, and must stay as large as it is.
    pub(super) fn is_sending(&self, instance: InstanceId) -> bool {
        let mut known = self.0.values();
        known.any(|one| one.instance == instance && one.action == MigrationAction::Send)
    }

    /// When the next of them is over.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.0.values().map(|known| known.until).min()
    }
}

impl RunningTask {
    fn share(&self, now: Instant) -> u16 {
        let whole = self.until.duration_since(self.since).as_millis().max(1);
        let part = now.duration_since(self.since).as_millis() * 1000 / whole;
        u16::try_from(part.min(1000)).unwrap_or(1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_engine::{Amounts, NodeId};
    use std::time::Duration;

    #[test]
    fn a_host_copies_for_a_while_then_says_that_it_switched_and_cleans_up() {
        let mut task = MigrationTask {
            id: "m".to_owned(),
            instance: InstanceId::from_u128(1),
            action: MigrationAction::Send,
            source: NodeId::new("a"),
            target: NodeId::new("b"),
            fence: 2,
            resources: Amounts::new(1000, 1024),
        };
        let (mut migrations, mut rng, now) =
            (Migrations::default(), SeededRng::new(1), Instant::now());
        let mut update = |migrations: &mut Migrations, task: &MigrationTask, now| {
            migrations.update(std::slice::from_ref(task), Pace::new(100), &mut rng, now);
        };
        let step = |migrations: &Migrations, now| {
            migrations.reports(now).first().map(|report| report.step)
        };
        update(&mut migrations, &task, now);
        assert_eq!(step(&migrations, now), Some(MigrationStep::Copying));
        assert!(migrations.is_sending(task.instance));
        // A task that is listed again does not start over.
        let later = now + Duration::from_secs(7);
        update(&mut migrations, &task, later);
        assert_eq!(step(&migrations, later), Some(MigrationStep::Switched));
        task.action = MigrationAction::CleanUp;
        update(&mut migrations, &task, later);
        assert_eq!(step(&migrations, later), None);
        let later = later + Duration::from_secs(2);
        assert_eq!(step(&migrations, later), Some(MigrationStep::CleanedUp));
        migrations.update(&[], Pace::new(100), &mut SeededRng::new(1), later);
        assert_eq!(step(&migrations, later), None);
    }
}
