//! An instance that is to leave its node, or may be asked to.

use std::fmt;
use std::sync::Arc;

use berth_engine::elastic::{ElasticSettings, Permit, ReliefInstance, Size};
use berth_engine::{InstanceId, InstanceRequest, NodeId, RebalanceInstance};
use berth_ledger::ClaimState;

use super::history::MoveHistory;
use super::migration::Migrations;
use crate::catalog::ClaimEntry;

/// An instance as planners of moves see it: its claim, and its earlier moves.
#[derive(Clone, Debug)]
pub(super) struct Evacuee {
    pub(super) claim: Arc<ClaimEntry>,
    pub(super) history: MoveHistory,
}

/// Why an instance must stay where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PinnedReason {
    NotElastic,
    OptedOut,
    NotRunning,
    HasVolumes,
    Migrating { to: NodeId, migration: String },
    Resting { seconds: i64 },
}

impl fmt::Display for PinnedReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotElastic => {
                write!(out, "it is not elastic, and instances like that are moved with `all` only")
            }
            Self::OptedOut => write!(out, "it opted out of being moved (elastic.stays)"),
            Self::NotRunning => write!(out, "it does not run"),
            Self::HasVolumes => write!(out, "it uses local volumes, which do not move with it"),
            Self::Migrating { to, migration } => {
                write!(out, "it is being moved to {to} already: migration {migration}")
            }
            Self::Resting { seconds } => {
                write!(out, "its last migration ended recently; it is left alone for {seconds} s")
            }
        }
    }
}

impl Evacuee {
    pub(super) fn new(migrations: &Migrations, claim: &Arc<ClaimEntry>) -> Self {
        let history = MoveHistory::of(migrations, claim.key.instance);
        Self { claim: Arc::clone(claim), history }
    }

    pub(super) fn id(&self) -> InstanceId {
        self.claim.key.instance
    }

    /// Why it must not be migrated now, if so. Only elastic instances are migrated without being
    /// asked for by name, since their agents know how to, unless `all` says otherwise.
    pub(super) fn pinned(
        &self,
        settings: &ElasticSettings,
        all: bool,
        now: i64,
    ) -> Option<PinnedReason> {
        let claim = &self.claim;
        match claim.request.elastic.as_ref() {
            None if !all => return Some(PinnedReason::NotElastic),
            Some(elastic) if elastic.stays => return Some(PinnedReason::OptedOut),
            _ => {}
        }
        if claim.state != ClaimState::Active {
            return Some(PinnedReason::NotRunning);
        }
        if !claim.request.volumes.is_empty() {
            return Some(PinnedReason::HasVolumes);
        }
        if let Some((id, record)) = self.history.open() {
            let (to, migration) = (record.target.clone(), id.to_owned());
            return Some(PinnedReason::Migrating { to, migration });
        }
        let seconds = self.history.rest_s(settings.migration, now);
        (seconds > 0).then_some(PinnedReason::Resting { seconds })
    }

    /// Its request, without nodes that it left recently, so that it does not go back and forth, and
    /// without those that are closed.
    fn request_without(&self, closed: &[NodeId]) -> Arc<InstanceRequest> {
        let mut excluded = self.history.nodes_left();
        excluded.extend(closed.iter().cloned());
        if excluded.is_empty() {
            return Arc::clone(&self.claim.request);
        }
        let mut request = InstanceRequest::clone(&self.claim.request);
        request.excluded_nodes.extend(excluded);
        Arc::new(request)
    }

    /// As a candidate for relieving its node. Takes the newest permit, which the claim may not have
    /// yet, since pressure changes quickly.
    pub(super) fn for_relief(
        &self,
        permit: Option<&Permit>,
        settings: &ElasticSettings,
        movable: bool,
        now: i64,
    ) -> ReliefInstance {
        let pressure = permit.map(|it| it.charged_pressure(now, settings.pressure_half_life_s));
        ReliefInstance {
            id: self.id(),
            request: self.request_without(&[]),
            charge: Size::of(&self.claim.amounts),
            pressure: pressure.unwrap_or_default(),
            copy_mib: self.copy_mib(permit),
            load_milli: permit.and_then(|permit| permit.load_milli),
            priority: self.claim.request.priority,
            movable,
            moved_recently_ppm: self.history.recency_ppm(settings.migration, now),
        }
    }

    /// As part of a rebalance. An instance that stays is part of it too: its rules must hold.
    pub(super) fn for_rebalance(&self, movable: bool, closed: &[NodeId]) -> RebalanceInstance {
        let permit = self.claim.permit.as_ref();
        let request = match movable {
            true => self.request_without(closed),
            false => Arc::clone(&self.claim.request),
        };
        RebalanceInstance {
            id: self.id(),
            request,
            copy_mib: self.copy_mib(permit),
            load_milli: permit.and_then(|permit| permit.load_milli),
            priority: self.claim.request.priority,
            movable,
        }
    }

    /// Memory that must be copied to migrate it: what it may use, which can be more than its charge.
    fn copy_mib(&self, permit: Option<&Permit>) -> u32 {
        permit.map_or(self.claim.amounts.memory_mib, |permit| permit.granted.memory_mib)
    }
}
