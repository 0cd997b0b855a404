//! Heartbeats are written once a second, however many agents there are, and nodes that fall silent
//! are marked as lost, and taken back when they are heard again.
//!
//! Any server may do so: the state is changed only from what it was read as, so two servers that
//! disagree change it once.

use std::sync::Arc;
use std::time::Duration;

use berth_engine::{NodeId, NodeState, Timestamp};
use berth_ledger::{Answer, Op, Outcome};

use crate::clock::now;
use crate::control_plane::ControlPlane;

/// How often silence is looked for.
const EVERY: Duration = Duration::from_secs(2);

/// How often heartbeats are written.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Writes what was gathered until the server stops, and once more then.
pub(crate) async fn keep_writing_heartbeats(control: Arc<ControlPlane>) {
    loop {
        let stopping =
            tokio::time::timeout(WRITE_EVERY, control.stopping.cancelled()).await.is_ok();
        let heard = control.heartbeats.take();
        if !heard.is_empty() {
            let known = heard.clone();
            control.placer.tell(move |replica| {
                for (node, at) in &known {
                    replica.engine().fleet_mut().heartbeat(node, Timestamp(*at));
                }
            });
            if let Err(error) = control.submit(Op::Heartbeats(heard)).await {
                tracing::warn!(%error, "failed to persist heartbeats");
            }
        }
        control.metrics.loop_ran("heartbeats");
        if stopping {
            return;
        }
    }
}

/// Marks nodes until the server stops.
pub(crate) async fn keep_watching(control: Arc<ControlPlane>) {
    // A server that was down heard nobody: agents get their time to speak first.
    let mut since = now().as_second();
    loop {
        let slept = tokio::time::Instant::now();
        if tokio::time::timeout(EVERY, control.stopping.cancelled()).await.is_ok() {
            return;
        }
        let at = now().as_second();
        // A server that stood still heard nobody either.
        if slept.elapsed() > EVERY * 5 {
            since = at;
            control.restart_listening();
        }
        let lost_after = control.settings.load().lost_after.as_secs();
        let lost_after = i64::try_from(lost_after).unwrap_or(i64::MAX);
        // A clock that jumped says nothing about agents.
        if at < since {
            since = at;
        }
        control.record_silence(mostly_silent(&control, at, lost_after, since));
        for (node, generation, state) in turned(&control, at, lost_after, since) {
            let op = Op::SetNodeState { node: node.clone(), state, expect: Some(generation) };
            match control.submit(op).await {
                Ok(Answer::Outcome(Outcome::Done)) => {
                    tracing::warn!(%node, state = state.name(), "a node's liveness changed");
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, %node, "a node could not be marked"),
            }
        }
        control.metrics.loop_ran("liveness");
    }
}

/// Whether most nodes are silent: then the fault is likelier on this side, and what runs on them is
/// left alone.
fn mostly_silent(control: &ControlPlane, at: i64, lost_after: i64, since: i64) -> bool {
    let catalog = control.catalog.read();
    let is_silent = |node: &&crate::catalog::NodeEntry| at - node.heard_at.max(since) > lost_after;
    let silent = catalog.nodes.values().filter(is_silent).count();
    catalog.nodes.len() >= 3 && silent * 2 > catalog.nodes.len()
}

/// Nodes whose state no longer agrees with their silence.
fn turned(
    control: &ControlPlane,
    at: i64,
    lost_after: i64,
    since: i64,
) -> Vec<(NodeId, i64, NodeState)> {
    let catalog = control.catalog.read();
    let had_time = at - since > lost_after;
    let turn = |(id, node): (&NodeId, &crate::catalog::NodeEntry)| {
        let heard_lately = at - node.heard_at <= lost_after;
        let state = match node.facts.state {
            NodeState::Active | NodeState::Degraded if had_time && !heard_lately => NodeState::Lost,
            NodeState::Lost if heard_lately => NodeState::Active,
            _ => return None,
        };
        Some((id.clone(), node.generation, state))
    };
    catalog.nodes.iter().filter_map(turn).collect()
}
