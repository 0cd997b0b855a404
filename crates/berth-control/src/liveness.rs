//! Writes heartbeats, and loads that changed, once a second, however many agents there are; marks nodes as lost when their
//! agents fall silent, and as active when they respond again.
//!
//! Every server does so: a state is changed only from the generation that was read, so two servers
//! that disagree change it once.

use std::sync::Arc;
use std::time::Duration;

use berth_engine::{MeasuredLoad, NodeId, NodeState, Policy, Timestamp};
use berth_ledger::{Answer, Op, Outcome, Text};
use tokio::time::Instant;

use crate::control_plane::ControlPlane;
use crate::error::ControlResult;
use crate::loop_runner::BackgroundLoop;

/// Loads that are written in one transaction at most.
const LOADS_AT_ONCE: usize = 500;

/// How often the state of nodes is checked.
const CHECK_PERIOD: Duration = Duration::from_secs(2);

/// Writes the heartbeats that were received since the last pass.
pub(crate) struct HeartbeatWriter(pub(crate) Arc<ControlPlane>);

impl BackgroundLoop for HeartbeatWriter {
    const NAME: &'static str = "heartbeats";
    const PERIOD: Duration = Duration::from_secs(1);

    async fn pass(&mut self) -> ControlResult<()> {
        let control = &self.0;
        let heartbeats = control.liveness.take_heartbeats();
        if heartbeats.is_empty() {
            return Ok(());
        }
        let loads = changed_loads(control);
        let known = heartbeats.clone();
        control.placer.update_replica(move |replica| {
            for (node, at) in &known {
                replica.engine().fleet_mut().heartbeat(node, Timestamp(*at));
            }
        });
        control.submit(Op::Heartbeats(heartbeats)).await?;
        for some in loads.chunks(LOADS_AT_ONCE) {
            control.submit(Op::SetLoads(some.to_vec())).await?;
        }
        Ok(())
    }

    /// Writes what was received last.
    async fn finish(&mut self) {
        if let Err(error) = self.pass().await {
            tracing::warn!(error = error.detail(), "failed to persist heartbeats");
        }
    }
}

/// Loads that agents measured and that differ from what is kept, if the policy in force scores them.
fn changed_loads(control: &ControlPlane) -> Vec<(NodeId, Option<MeasuredLoad>)> {
    let loads = control.liveness.take_loads();
    let policy = control.catalog.policy();
    let counts = |policy: &Policy| policy.uses("measured-load");
    if !policy.is_some_and(|policy| counts(&policy)) {
        return Vec::new();
    }
    let catalog = control.catalog.read();
    let changed = loads.into_iter().filter_map(|(node, measured)| {
        let kept = catalog.nodes.get(&node)?.facts.load;
        let load = measured.map(|measured| measured.kept_after(kept));
        (load != kept).then_some((node, load))
    });
    changed.collect()
}

/// Marks nodes as lost when their agents fall silent, and as active when they respond again.
pub(crate) struct LivenessMonitor {
    control: Arc<ControlPlane>,
    /// Silence counts from here, in whole seconds: a server that was down, or stood still, received
    /// nothing.
    since: i64,
    last_pass_ended: Instant,
}

impl LivenessMonitor {
    pub(crate) fn new(control: Arc<ControlPlane>) -> Self {
        let since = control.now().as_second();
        Self { control, since, last_pass_ended: Instant::now() }
    }

    async fn mark_nodes(&mut self) -> ControlResult<()> {
        let control = &self.control;
        let at = control.now().as_second();
        if self.last_pass_ended.elapsed() > CHECK_PERIOD * 5 {
            self.since = at;
            control.liveness.restart_listening(at);
        }
        // A clock that jumped says nothing about agents.
        self.since = self.since.min(at);
        let lost_after = control.lifecycle.settings().lost_after.as_secs();
        let lost_after = i64::try_from(lost_after).unwrap_or(i64::MAX);
        let is_mostly_silent = is_mostly_silent(control, at, lost_after, self.since);
        control.liveness.record_silence(is_mostly_silent, at);
        for (node, is_lost, op) in changed_states(control, at, lost_after, self.since) {
            if let Answer::Outcome(Outcome::Done) = control.submit(op).await? {
                tracing::warn!(%node, is_lost, "node liveness changed");
            }
        }
        Ok(())
    }
}

impl BackgroundLoop for LivenessMonitor {
    const NAME: &'static str = "liveness";
    const PERIOD: Duration = CHECK_PERIOD;

    async fn pass(&mut self) -> ControlResult<()> {
        let result = self.mark_nodes().await;
        self.last_pass_ended = Instant::now();
        result
    }
}

/// Whether most nodes are silent: then the fault is likelier on this side, and what runs on them is
/// left alone.
fn is_mostly_silent(control: &ControlPlane, at: i64, lost_after: i64, since: i64) -> bool {
    let catalog = control.catalog.read();
    let is_silent =
        |node: &&crate::catalog::NodeEntry| at - node.heard_at().max(since) > lost_after;
    let silent = catalog.nodes.values().filter(is_silent).count();
    catalog.nodes.len() >= 3 && silent * 2 > catalog.nodes.len()
}

/// Nodes whose state no longer agrees with their silence: whether each is lost now, and the operation
/// that says so.
fn changed_states(
    control: &ControlPlane,
    at: i64,
    lost_after: i64,
    since: i64,
) -> Vec<(NodeId, bool, Op)> {
    let catalog = control.catalog.read();
    let had_time = at - since > lost_after;
    let changed = |(id, node): (&NodeId, &crate::catalog::NodeEntry)| {
        let heard_lately = at - node.heard_at() <= lost_after;
        let expect = Some(node.generation);
        match node.facts.state {
            NodeState::Active | NodeState::Degraded if had_time && !heard_lately => {
                let state = NodeState::Lost;
                Some((id.clone(), true, Op::SetNodeState { node: id.clone(), state, expect }))
            }
            NodeState::Lost if heard_lately => {
                // Degraded again if it was so before; its next heartbeat says whether it still is.
                let degraded = node.facts.state_reason.as_deref().map(Text::from);
                Some((id.clone(), false, Op::SetHealth { node: id.clone(), degraded, expect }))
            }
            _ => None,
        }
    };
    catalog.nodes.iter().filter_map(changed).collect()
}
