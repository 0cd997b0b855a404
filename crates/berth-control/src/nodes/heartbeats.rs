//! Signs of life, gathered so that a thousand agents cost one write a second.
//!
//! They are no part of the log: the planner and the catalogue are told at once, other servers look
//! in the ledger.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_engine::{NodeId, Timestamp};
use berth_ledger::Op;

use crate::control_plane::ControlPlane;

/// Nodes heard since the last write.
#[derive(Default)]
pub struct Heartbeats(Mutex<BTreeMap<NodeId, i64>>);

/// How often they are written.
const EVERY: Duration = Duration::from_secs(1);

impl Heartbeats {
    /// Notes that a node was heard, in whole seconds.
    pub fn note(&self, node: &NodeId, at: i64) {
        self.lock().insert(node.clone(), at);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<NodeId, i64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Vec<(NodeId, i64)> {
        std::mem::take(&mut *self.lock()).into_iter().collect()
    }
}

/// Writes what was gathered until the server stops, and once more then.
pub(crate) async fn keep_writing(control: Arc<ControlPlane>) {
    loop {
        let stopping = tokio::time::timeout(EVERY, control.stopping.cancelled()).await.is_ok();
        let heard = control.heartbeats.take();
        if !heard.is_empty() {
            let known = heard.clone();
            control.placer.tell(move |replica| {
                for (node, at) in &known {
                    replica.engine().fleet_mut().heartbeat(node, Timestamp(*at));
                }
            });
            if let Err(error) = control.submit(Op::Heartbeats(heard)).await {
                tracing::warn!(%error, "signs of life could not be written");
            }
        }
        control.metrics.loop_ran("heartbeats");
        if stopping {
            return;
        }
    }
}
