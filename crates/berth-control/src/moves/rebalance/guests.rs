//! Who may move in a rebalance, and why the others stay.

use std::fmt;
use std::sync::Arc;

use berth_engine::elastic::ElasticSettings;
use berth_engine::{InstanceRequest, NodeId, RebalanceInstance};
use berth_ledger::{ClaimState, Role};

use crate::catalog::ClaimEntry;
use crate::control_plane::ControlPlane;
use crate::moves::migration::{Known, MigrationRecord};
use crate::moves::relief::{left_lately, rest};

/// Why an instance stays where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stays {
    NotElastic,
    OptedOut,
    NotRunning,
    HasVolumes,
    Moves { to: NodeId, migration: String },
    Rests { seconds: i64 },
}

impl fmt::Display for Stays {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotElastic => {
                write!(out, "it is not elastic, and instances like that are moved with `all` only")
            }
            Self::OptedOut => write!(out, "it opted out of being moved (elastic.stays)"),
            Self::NotRunning => write!(out, "it does not run"),
            Self::HasVolumes => write!(out, "it uses local volumes, which do not move with it"),
            Self::Moves { to, migration } => {
                write!(out, "it is being moved to {to} already: migration {migration}")
            }
            Self::Rests { seconds } => {
                write!(out, "a migration of it ended of late; it is left alone for {seconds} s")
            }
        }
    }
}

/// An instance's migrations as far as anybody remembers.
pub(super) struct Past(Vec<(String, Known)>);

impl Past {
    pub(super) fn of(control: &ControlPlane, claim: &ClaimEntry) -> Self {
        Self(control.migrations.of(claim.key.instance))
    }

    fn records(&self) -> Vec<&MigrationRecord> {
        self.0.iter().map(|(_, known)| &known.value).collect()
    }

    /// Nodes that it left within a day: nobody is passed to and fro.
    pub(super) fn left(&self) -> Vec<NodeId> {
        left_lately(&self.records())
    }

    /// Why it stays, if it does.
    pub(super) fn stays(
        &self,
        claim: &ClaimEntry,
        settings: &ElasticSettings,
        all: bool,
        now: i64,
    ) -> Option<Stays> {
        match claim.request.elastic.as_ref() {
            None if !all => return Some(Stays::NotElastic),
            Some(elastic) if elastic.stays => return Some(Stays::OptedOut),
            _ => {}
        }
        if claim.state != ClaimState::Active {
            return Some(Stays::NotRunning);
        }
        if !claim.request.volumes.is_empty() {
            return Some(Stays::HasVolumes);
        }
        if let Some((id, known)) = self.0.iter().find(|(_, known)| known.value.is_open()) {
            return Some(Stays::Moves { to: known.value.target.clone(), migration: id.clone() });
        }
        let seconds = rest(&self.records(), settings.migration, now);
        (seconds > 0).then_some(Stays::Rests { seconds })
    }
}

/// Nodes that somebody is leaving. Whoever came there now would undo what that is for.
pub(super) fn being_left(control: &ControlPlane) -> Vec<NodeId> {
    let mut nodes: Vec<NodeId> =
        control.migrations.open().iter().map(|known| known.value.source.clone()).collect();
    nodes.sort();
    nodes.dedup();
    nodes
}

/// All instances: also those who stay have rules that a move must not break.
pub(super) fn everybody(
    control: &ControlPlane,
    claims: &[Arc<ClaimEntry>],
    settings: &ElasticSettings,
    all: bool,
    now: i64,
) -> Vec<RebalanceInstance> {
    let closed = being_left(control);
    let primary = claims.iter().filter(|claim| claim.key.role == Role::Primary);
    let guest = |claim: &Arc<ClaimEntry>| {
        let past = Past::of(control, claim);
        let movable = past.stays(claim, settings, all, now).is_none();
        let mut excluded = past.left();
        excluded.extend(closed.iter().cloned());
        let request = if movable && !excluded.is_empty() {
            let mut request = InstanceRequest::clone(&claim.request);
            request.excluded_nodes.extend(excluded);
            Arc::new(request)
        } else {
            Arc::clone(&claim.request)
        };
        RebalanceInstance {
            id: claim.key.instance,
            request,
            copy_mib: copy_mib(claim),
            load_milli: claim.permit.as_ref().and_then(|permit| permit.load_milli),
            priority: claim.request.priority,
            movable,
        }
    };
    primary.map(guest).collect()
}

/// Memory that must be copied to move an instance: what it may use, whatever it is charged.
fn copy_mib(claim: &ClaimEntry) -> u32 {
    claim.permit.as_ref().map_or(claim.amounts.memory_mib, |permit| permit.granted.memory_mib)
}

/// What moving an instance costs, as a plan counts it.
pub(super) fn cost(claim: &ClaimEntry) -> u64 {
    let guest = RebalanceInstance {
        id: claim.key.instance,
        request: Arc::clone(&claim.request),
        copy_mib: copy_mib(claim),
        load_milli: claim.permit.as_ref().and_then(|permit| permit.load_milli),
        priority: claim.request.priority,
        movable: true,
    };
    guest.cost()
}
