//! Incidents: refusals, waits, outages and repairs.

use std::sync::Arc;
use std::time::Duration;

use berth_api::{Claim, DrainNode, Page, StartMigration};
use berth_client::{Client, ClientError};
use berth_engine::{BootOutcome, NodeFacts, NodeId, Platform, PlatformVersion, Timestamp};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::host_scheduler::HostCommand;
use super::pace::Pace;
use super::tenant_kinds::{impossible_request, waiting_request};
use super::tenants::is_refusal;
use crate::fleet::SeededRng;

/// A kind of incident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Incident {
    Impossible,
    Patient,
    Outage,
    Crash,
    Cordon,
    Drain,
    Upgrade,
    RebootPlanned,
    Move,
}

/// One round of incidents, shuffled each time.
const ROUND: [Incident; 14] = [
    Incident::Impossible,
    Incident::Patient,
    Incident::RebootPlanned,
    Incident::Cordon,
    Incident::Impossible,
    Incident::Upgrade,
    Incident::Drain,
    Incident::Impossible,
    Incident::Outage,
    Incident::Patient,
    Incident::Upgrade,
    Incident::Crash,
    Incident::Move,
    Incident::Move,
];

struct IncidentRunner {
    client: Client,
    nodes: Arc<[NodeId]>,
    commands: mpsc::Sender<HostCommand>,
    rng: SeededRng,
    pace: Pace,
    /// Tasks that undo an incident later.
    follow_ups: JoinSet<()>,
}

/// Triggers incidents until stopped.
pub(super) async fn run(
    client: Client,
    nodes: Arc<[NodeId]>,
    commands: mpsc::Sender<HostCommand>,
    seed: u64,
    pace: Pace,
) {
    let (rng, follow_ups) = (SeededRng::new(seed), JoinSet::new());
    let mut runner = IncidentRunner { client, nodes, commands, rng, pace, follow_ups };
    loop {
        let mut round = ROUND;
        for last in (1..round.len()).rev() {
            let other = usize::try_from(runner.rng.below(last as u64 + 1)).unwrap_or(0);
            round.swap(last, other);
        }
        for incident in round {
            let pause = pace.between(&mut runner.rng, 8000, 20_000);
            sleep(pause).await;
            while runner.follow_ups.try_join_next().is_some() {}
            if let Err(error) = runner.trigger(incident).await {
                tracing::debug!(%error, ?incident, "incident failed");
            }
        }
    }
}

impl IncidentRunner {
    fn pick_node(&mut self) -> NodeId {
        let number = self.rng.below(self.nodes.len() as u64);
        let number = usize::try_from(number).unwrap_or(0);
        self.nodes.get(number).cloned().unwrap_or_else(|| NodeId::new("none"))
    }

    async fn trigger(&mut self, incident: Incident) -> Result<(), ClientError> {
        let node = self.pick_node();
        let now = Timestamp(jiff::Timestamp::now().as_second());
        match incident {
            Incident::Impossible => {
                let request = impossible_request(&mut self.rng, now);
                accept_refusal(self.client.place(&request).await.map(drop))
            }
            Incident::Patient => {
                let request = waiting_request(&mut self.rng);
                accept_refusal(self.client.place(&request).await.map(drop))
            }
            Incident::Outage => {
                let how_long = self.pace.between(&mut self.rng, 110_000, 180_000);
                self.send(HostCommand::Silence { node, how_long, crash: false }).await
            }
            Incident::Crash => {
                let how_long = self.pace.between(&mut self.rng, 110_000, 180_000);
                self.send(HostCommand::Silence { node, how_long, crash: true }).await
            }
            Incident::Cordon => {
                self.client.set_node_state(&node, "cordon", Some("a fan is loud")).await?;
                let how_long = self.pace.between(&mut self.rng, 40_000, 90_000);
                self.follow_ups.spawn(uncordon(self.client.clone(), node, how_long));
                Ok(())
            }
            Incident::Drain => self.drain(node).await,
            Incident::Move => self.relocate(&node).await,
            Incident::Upgrade => {
                let change = move |facts: &mut NodeFacts| upgrade(facts, now);
                self.send(HostCommand::Change { node, change: Box::new(change) }).await
            }
            Incident::RebootPlanned => {
                let days = i64::from(self.rng.below_u32(14)) + 1;
                let at = now.plus(days * Timestamp::DAY);
                let change = move |facts: &mut NodeFacts| facts.next_reboot = Some(at);
                self.send(HostCommand::Change { node, change: Box::new(change) }).await
            }
        }
    }

    /// Live-migrates an instance off a host.
    async fn relocate(&mut self, node: &NodeId) -> Result<(), ClientError> {
        let query = [("node", node.as_str()), ("state", "active"), ("limit", "1")];
        let found: Page<Claim> = self.client.get("/v1/claims", &query).await?;
        let Some(claim) = found.items.first() else { return Ok(()) };
        let moved = self.client.migrate(claim.instance, &StartMigration::default()).await;
        accept_refusal(moved.map(drop))
    }

    async fn send(&self, command: HostCommand) -> Result<(), ClientError> {
        // A closed channel means that the demo is over.
        let _ = self.commands.send(command).await;
        Ok(())
    }

    /// Drains a host for a while; the server moves its instances.
    async fn drain(&mut self, node: NodeId) -> Result<(), ClientError> {
        let reason = Some("memory is to be replaced".to_owned());
        self.client.drain(&node, &DrainNode { reason, ..DrainNode::default() }).await?;
        self.follow_ups.spawn(uncordon(self.client.clone(), node, self.pace.time(60_000)));
        Ok(())
    }
}

/// Refusals are expected; other errors are not.
fn accept_refusal(outcome: Result<(), ClientError>) -> Result<(), ClientError> {
    match outcome {
        Err(error) if is_refusal(&error) => Ok(()),
        other => other,
    }
}

fn upgrade(facts: &mut NodeFacts, now: Timestamp) {
    let version = facts.platform.map_or(PlatformVersion::new(7, 1), |platform| {
        PlatformVersion::new(platform.version.major, platform.version.minor.saturating_add(1))
    });
    facts.platform = Some(Platform { version, built_at: now });
    facts.last_boot = Some(now);
    facts.next_reboot = None;
    facts.boots = vec![BootOutcome::new(now, false)];
}

/// Uncordons a node after a while, with retries.
async fn uncordon(client: Client, node: NodeId, how_long: Duration) {
    sleep(how_long).await;
    for _ in 0..10 {
        if client.set_node_state(&node, "uncordon", Some("repaired")).await.is_ok() {
            return;
        }
        sleep(Duration::from_secs(5)).await;
    }
}
