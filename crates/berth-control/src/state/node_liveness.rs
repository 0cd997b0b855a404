//! When nodes were last heard, and since when their silence counts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_engine::{MeasuredLoad, NodeId};

use crate::settings::Settings;

/// What this server knows of the liveness of nodes.
///
/// Heartbeats are gathered, so that a thousand agents cost one write a second. They are no part of the
/// log: the planner and the catalogue get them at once, other servers read them from the ledger.
pub(crate) struct NodeLiveness {
    /// Heartbeats since the last write, in whole seconds.
    heartbeats: Mutex<BTreeMap<NodeId, i64>>,
    /// What agents measured since the last write; absent: one that measures nothing.
    loads: Mutex<BTreeMap<NodeId, Option<MeasuredLoad>>>,
    /// When this server began to listen to agents, in whole seconds.
    listening_since: AtomicI64,
    /// Whether most nodes are silent, so that none of them counts as gone.
    is_mostly_silent: AtomicBool,
}

impl NodeLiveness {
    /// Listening from now on, in whole seconds.
    pub(crate) fn new(now: i64) -> Self {
        Self {
            heartbeats: Mutex::default(),
            loads: Mutex::default(),
            listening_since: AtomicI64::new(now),
            is_mostly_silent: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, i64>> {
        self.heartbeats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a heartbeat, in whole seconds.
    pub(crate) fn record_heartbeat(&self, node: &NodeId, at: i64) {
        self.lock().insert(node.clone(), at);
    }

    /// Takes the heartbeats since the last call.
    pub(crate) fn take_heartbeats(&self) -> Vec<(NodeId, i64)> {
        std::mem::take(&mut *self.lock()).into_iter().collect()
    }

    /// Records how busy a node is, as its agent says with a heartbeat.
    pub(crate) fn record_load(&self, node: &NodeId, load: Option<MeasuredLoad>) {
        let mut loads = self.loads.lock().unwrap_or_else(PoisonError::into_inner);
        loads.insert(node.clone(), load);
    }

    /// Takes the loads since the last call.
    pub(crate) fn take_loads(&self) -> BTreeMap<NodeId, Option<MeasuredLoad>> {
        std::mem::take(&mut *self.loads.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Seconds of silence after which a node's members count as gone: never, while most nodes are
    /// silent.
    pub(crate) fn gone_after_s(&self, settings: &Settings) -> i64 {
        let gone_after = if self.is_mostly_silent.load(Ordering::Relaxed) {
            Duration::MAX
        } else {
            settings.lost_after.saturating_add(settings.lost_grace)
        };
        i64::try_from(gone_after.as_secs()).unwrap_or(i64::MAX)
    }

    /// When this server began to listen to agents, in whole seconds.
    pub(crate) fn listening_since(&self) -> i64 {
        self.listening_since.load(Ordering::Relaxed)
    }

    /// Counts silence from now on: agents that were not heard so far are not lost yet.
    pub(crate) fn restart_listening(&self, now: i64) {
        self.listening_since.store(now, Ordering::Relaxed);
    }

    /// Records whether most nodes are silent.
    pub(crate) fn record_silence(&self, is_mostly_silent: bool, now: i64) {
        if self.is_mostly_silent.swap(is_mostly_silent, Ordering::Relaxed) == is_mostly_silent {
            return;
        }
        if is_mostly_silent {
            tracing::warn!("majority of nodes unresponsive; keeping their instances");
        } else {
            tracing::warn!("majority of nodes responsive again");
            // Agents come back one by one: each gets its time to report first.
            self.restart_listening(now);
        }
    }
}
