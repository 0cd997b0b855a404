//! The engine: a fleet, a policy, and the choice of one node.
//!
//! `derived` keeps per-node answers that no request changes, `masks` those that depend on the
//! static part of a request, `scan` reads the columns, and `rankings` keeps the result of a scan and
//! repairs it where nodes changed. All of them follow the fleet's change log.

mod candidates;
mod derived_state;
mod eligibility_bits;
mod fixes;
mod masks;
mod ranking;
mod rankings;
mod release;
mod scan;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::explain::{Explanation, ExplanationPage, Refusal, explain_choice, explain_page};
use crate::filter::{Needs, first_failure, passes_request_tests};
use crate::fleet::{Fleet, FleetIdentity, LANES, NodeIndex, NodeRow};
use crate::model::{Evidence, InstanceId, InstanceRequest, InvalidRequest, NodeId, Timestamp};
use crate::policy::{Policy, ScorerId};
use crate::prepared_request::{Notice, PreparedRequest};
use crate::score::{
    BlockScores, ScorerKind, WeightedScorers, all_totals, all_values, combine, notices_of,
};
use derived_state::DerivedState;
use masks::{MAX_MASKS, Masks};
use rankings::{MAX_RANKINGS, RankingLookup, Rankings};
use scan::{Inputs, Totals, scan_all};

pub(crate) use fixes::{
    Combination, FixLeads, LIMITS, RequestChange, Room, changed, changes_for_new_node,
    combined_fix, free, least_amount, least_release, least_shape, mend, mended_facts, new_name,
    numbered, shrink_to_count, smallest_node,
};
pub(crate) use release::{Departure, smallest_release};

/// Where an instance should go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Placement {
    /// The instance.
    pub instance: InstanceId,
    /// The node.
    pub node: NodeId,
    /// The generation of the node's facts that this rests on.
    pub constraint_gen: u64,
    /// The node's total.
    pub score: i64,
    /// What the caller should know about its rules.
    pub notices: Vec<Notice>,
}

/// Why there is no placement.
#[derive(Clone, Debug, Error)]
pub enum PlaceError {
    /// The request is not valid.
    #[error("the request is not valid")]
    Invalid(#[from] InvalidRequest),
    /// No node can take it.
    #[error("no node can take the instance: {}", .0.code)]
    Refused(Box<Refusal>),
}

/// Why one node cannot take an instance.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CheckError {
    /// The request is not valid.
    #[error("the request is not valid")]
    Invalid(#[from] InvalidRequest),
    /// The node is not known.
    #[error("node {0} is not known; register it first")]
    UnknownNode(NodeId),
    /// A filter removed it.
    #[error("{filter}: {evidence}")]
    Removed {
        /// The first filter that failed.
        filter: &'static str,
        /// Its reason code.
        code: &'static str,
        /// Why.
        evidence: Evidence,
    },
}

/// Which cached results a decision may use. All give the same result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Reuse {
    /// The ranking of the class, repaired where nodes changed.
    #[default]
    Ranking,
    /// Only the mask of the request's static part: every node is filtered and scored.
    Mask,
    /// Nothing: the mask, too, is built from the facts.
    Nothing,
}

/// The chosen node and its total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeChoice {
    pub(crate) index: NodeIndex,
    pub(crate) total: i32,
}

/// A fleet under a policy.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) fleet: Fleet,
    /// The fleet that everything below was derived from.
    fleet_identity: FleetIdentity,
    pub(crate) policy: Policy,
    scorers: WeightedScorers,
    derived: DerivedState,
    masks: Masks,
    rankings: Rankings,
    words: Vec<u64>,
    totals: Totals,
    work_done: u64,
}

impl Engine {
    /// Classes of requests whose ranking of nodes is kept.
    pub const RANKINGS_KEPT: usize = MAX_RANKINGS;

    /// Sets of requirements on facts whose nodes are kept.
    pub const MASKS_KEPT: usize = MAX_MASKS;

    /// An engine with an empty fleet.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self::with_fleet(Fleet::new(), policy)
    }

    /// An engine over an existing fleet.
    #[must_use]
    pub fn with_fleet(fleet: Fleet, policy: Policy) -> Self {
        Self {
            fleet_identity: fleet.identity().share(),
            fleet,
            scorers: WeightedScorers::new(&policy),
            policy,
            derived: DerivedState::new(),
            masks: Masks::default(),
            rankings: Rankings::default(),
            words: Vec::new(),
            totals: Totals::default(),
            work_done: 0,
        }
    }

    /// Steps taken so far: a choice, 64 nodes that a choice may have to scan, or a node that was
    /// diagnosed. What is kept from earlier choices makes them faster, and their count no smaller.
    #[must_use]
    pub const fn work_done(&self) -> u64 {
        self.work_done
    }

    /// Steps that one choice takes at most.
    pub(crate) fn steps_of_choice(&self) -> usize {
        1 + self.fleet.position_count() / LANES
    }

    fn count_work(&mut self, steps: usize) {
        let steps = u64::try_from(steps).unwrap_or(u64::MAX);
        self.work_done = self.work_done.wrapping_add(steps);
    }

    /// The fleet.
    #[must_use]
    pub const fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// The fleet, to change or to replace. Derived state is updated with the next decision.
    pub const fn fleet_mut(&mut self) -> &mut Fleet {
        &mut self.fleet
    }

    /// The policy.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Changes the policy. The fleet stays.
    pub fn set_policy(&mut self, policy: Policy) {
        self.scorers = WeightedScorers::new(&policy);
        self.policy = policy;
        self.drop_derived();
    }

    /// Chooses a node for one instance. Nothing is claimed.
    ///
    /// # Errors
    /// When the request is not valid, or when no node can take it; the refusal explains why.
    pub fn place(
        &mut self,
        request: &InstanceRequest,
        now: Timestamp,
    ) -> Result<Placement, PlaceError> {
        self.place_with(request, now, Reuse::Ranking)
    }

    /// Chooses a node, reusing cached results as allowed. The result does not depend on it.
    ///
    /// # Errors
    /// As [`Engine::place`].
    pub fn place_with(
        &mut self,
        request: &InstanceRequest,
        now: Timestamp,
        reuse: Reuse,
    ) -> Result<Placement, PlaceError> {
        self.validate(request)?;
        match self.pick(request, now, reuse) {
            Some(picked) => Ok(self.placement(request, picked, now)),
            None => Err(PlaceError::Refused(Box::new(self.refusal(request, now)))),
        }
    }

    /// Chooses a node without explaining a refusal, which costs far more than the choice: for
    /// callers that retry, and for queues.
    ///
    /// # Errors
    /// When the request is not valid.
    pub fn try_place(
        &mut self,
        request: &InstanceRequest,
        now: Timestamp,
    ) -> Result<Option<Placement>, InvalidRequest> {
        self.validate(request)?;
        let picked = self.pick(request, now, Reuse::Ranking);
        Ok(picked.map(|picked| self.placement(request, picked, now)))
    }

    /// Asks something as if an instance were not where it is. It is back afterwards exactly as it was,
    /// however much it has changed since its request.
    pub fn as_if_released<T>(&mut self, id: InstanceId, ask: impl FnOnce(&mut Self) -> T) -> T {
        let host = self.fleet.instance(id).map(|instance| instance.host.index());
        let detached = self.fleet.detach_instance(id);
        let answer = ask(self);
        if let Some((detached, host)) = detached.zip(host) {
            self.fleet.attach_instance(detached, host);
        }
        answer
    }

    /// Whether one node can take the instance now: the re-check of a plan.
    ///
    /// # Errors
    /// The first filter that fails, with its evidence.
    pub fn check(
        &self,
        request: &InstanceRequest,
        node: &NodeId,
        now: Timestamp,
    ) -> Result<(), CheckError> {
        self.check_with(request, node, now, |_, _| ())
    }

    /// The same with the node as it would be after a change.
    pub(crate) fn check_with(
        &self,
        request: &InstanceRequest,
        node: &NodeId,
        now: Timestamp,
        change: impl FnOnce(NodeIndex, &mut NodeRow),
    ) -> Result<(), CheckError> {
        self.validate(request)?;
        let unknown = || CheckError::UnknownNode(node.clone());
        let index = self.fleet.index_of(node).ok_or_else(unknown)?;
        let mut row = self.fleet.row(index).ok_or_else(unknown)?.clone();
        change(index, &mut row);
        let prepared = PreparedRequest::new(request, &self.policy, &self.fleet, now);
        match first_failure(&prepared, index, &row) {
            None => Ok(()),
            Some((id, evidence)) => Err(CheckError::Removed {
                filter: id.filter().name,
                code: id.filter().code,
                evidence,
            }),
        }
    }

    /// Explains what [`Engine::place`] would answer now: winner, runner-up, every node and term.
    ///
    /// # Errors
    /// When the request is not valid.
    pub fn explain(
        &mut self,
        request: &InstanceRequest,
        now: Timestamp,
    ) -> Result<Explanation, PlaceError> {
        self.explain_first(request, now, usize::MAX)
    }

    /// The same with only the first `limit` nodes, in order of id.
    ///
    /// # Errors
    /// When the request is not valid.
    pub fn explain_first(
        &mut self,
        request: &InstanceRequest,
        now: Timestamp,
        limit: usize,
    ) -> Result<Explanation, PlaceError> {
        self.validate(request)?;
        self.catch_up(now);
        let prepared = PreparedRequest::new(request, &self.policy, &self.fleet, now);
        Ok(explain_choice(&prepared, &self.derived.scale, limit))
    }

    /// The same with `limit` nodes from a position on, in order of id, and counts over all of them.
    ///
    /// # Errors
    /// When the request is not valid.
    pub fn explain_page(
        &mut self,
        request: &InstanceRequest,
        now: Timestamp,
        from: usize,
        limit: usize,
    ) -> Result<ExplanationPage, PlaceError> {
        self.validate(request)?;
        self.catch_up(now);
        let prepared = PreparedRequest::new(request, &self.policy, &self.fleet, now);
        Ok(explain_page(&prepared, &self.derived.scale, from, limit))
    }

    /// The total of one node for a request.
    pub(crate) fn total_at(
        &mut self,
        request: &InstanceRequest,
        index: NodeIndex,
        now: Timestamp,
    ) -> i32 {
        self.catch_up(now);
        let prepared = PreparedRequest::new(request, &self.policy, &self.fleet, now);
        let values = all_values(&prepared, &self.derived.scale, &[index]);
        values.first().map_or(0, |values| combine(&self.policy, values))
    }

    /// Refuses requests that are not valid for this fleet.
    pub(crate) fn validate(&self, request: &InstanceRequest) -> Result<(), InvalidRequest> {
        request.validate()?;
        if let Some(node) = self.fleet.node_of(request.id) {
            if self.fleet.tenant_of(request.id) != Some(&request.tenant) {
                return Err(InvalidRequest::InstanceIdUnavailable { id: request.id });
            }
            return Err(InvalidRequest::AlreadyPlaced { id: request.id, node: node.clone() });
        }
        let joins = |id: &str| {
            let tenant = self.fleet.group(id).map(|group| group.tenant.as_deref());
            tenant.is_some_and(|tenant| tenant.is_none_or(|tenant| tenant == request.tenant))
        };
        if let Some(group) = request.groups.iter().find(|id| !joins(id)) {
            return Err(InvalidRequest::UnknownGroup { group: group.clone() });
        }
        let uses =
            |id: &str| self.fleet.volume(id).is_some_and(|volume| volume.is_for(&request.tenant));
        if let Some(volume) = request.volumes.iter().find(|id| !uses(id)) {
            return Err(InvalidRequest::UnknownVolume { volume: volume.clone() });
        }
        Ok(())
    }

    /// Brings derived state up to date without deciding anything.
    pub(crate) fn catch_up(&mut self, now: Timestamp) {
        if !self.fleet_identity.is_same_as(self.fleet.identity()) {
            self.drop_derived();
        }
        self.weigh();
        self.derived.catch_up(&mut self.fleet, &self.policy, &self.scorers, now);
    }

    /// Makes the weights those of the fleet's load.
    fn weigh(&mut self) {
        let changed = self.policy.weigh_at(self.fleet.load_permille());
        if changed.is_empty() {
            return;
        }
        let version = self.scorers.version + 1;
        self.scorers = WeightedScorers { version, ..WeightedScorers::new(&self.policy) };
        let in_points =
            |id: &ScorerId| matches!(id.scorer().kind, ScorerKind::Facts(_) | ScorerKind::Load(_));
        if changed.iter().any(in_points) {
            self.derived.restart();
        }
    }

    /// Whether a node passed every filter on its own facts and the time when the engine last caught
    /// up.
    pub(crate) fn is_eligible(&self, index: NodeIndex) -> bool {
        self.derived.eligible.get(index)
    }

    /// Drops all derived state, after a change of the policy or the fleet.
    fn drop_derived(&mut self) {
        self.fleet_identity = self.fleet.identity().share();
        self.derived = DerivedState::new();
        self.masks.clear();
        self.rankings.clear();
    }

    pub(crate) fn placement(
        &self,
        request: &InstanceRequest,
        picked: NodeChoice,
        now: Timestamp,
    ) -> Placement {
        let row = self.fleet.row(picked.index);
        let has_rules = !request.affinity.is_empty()
            || !request.locality.is_empty()
            || !request.preferred_places.is_empty();
        let mut notices = if has_rules {
            notices_of(&PreparedRequest::new(request, &self.policy, &self.fleet, now))
        } else {
            Vec::new()
        };
        if request.elastic.is_some() {
            notices.extend(row.and_then(|row| self.limited_growth(request, row)));
        }
        Placement {
            instance: request.id,
            node: row.map_or_else(|| NodeId::new(""), |row| row.id.clone()),
            constraint_gen: row.map_or(0, |row| row.constraint_gen),
            score: i64::from(picked.total),
            notices,
        }
    }

    /// Says so if an elastic instance cannot grow to its maximum because its host is too small.
    fn limited_growth(&self, request: &InstanceRequest, row: &NodeRow) -> Option<Notice> {
        let max_cpu_milli = request.elastic.as_ref()?.max.cpu_milli;
        let host_cpu_milli = row.capacity.cpu_milli;
        let is_limited = self.policy.filters.cpu_within_host && max_cpu_milli > host_cpu_milli;
        is_limited.then_some(Notice::GrowthLimited { max_cpu_milli, host_cpu_milli })
    }

    /// Chooses a node for a valid request. Every choice of a node is made here.
    pub(crate) fn pick(
        &mut self,
        request: &InstanceRequest,
        now: Timestamp,
        reuse: Reuse,
    ) -> Option<NodeChoice> {
        self.catch_up(now);
        self.count_work(self.steps_of_choice());
        if reuse == Reuse::Nothing {
            self.masks.clear();
        }
        let prepared = PreparedRequest::new(request, &self.policy, &self.fleet, now);
        if !passes_request_tests(&prepared) {
            return None;
        }
        let mask = self.masks.get(&self.fleet, &self.policy, request);
        let needs = Needs::new(&self.fleet, request, &self.policy);
        let inputs = Inputs {
            prepared: &prepared,
            scorers: &self.scorers,
            derived: &self.derived,
            mask,
            needs: &needs,
            blocks: BlockScores::new(&self.scorers.blocks, &prepared),
        };
        let columnar = self.scorers.is_columnar;
        let found = if columnar && reuse == Reuse::Ranking {
            self.rankings.find(&prepared)
        } else {
            RankingLookup::Miss
        };
        if let RankingLookup::Hit(place) = found
            && let Some(choice) = self.rankings.choose(place, &inputs)
        {
            return choice.map(|(index, total)| NodeChoice { index, total });
        }
        eligibility_bits::fill_eligible(
            &prepared,
            self.derived.eligible.words(),
            mask,
            &mut self.words,
        );
        scan_all(&mut self.totals, &self.words, &inputs);
        if !columnar {
            return pick_without_columns(&prepared, &self.derived, &self.totals.survivors());
        }
        self.rankings.keep(&found, &self.totals, &inputs);
        let winner = self.totals.winner(self.fleet.columns());
        winner.map(|(index, total)| NodeChoice { index, total })
    }

    /// Every node that could take a valid request, in order of id.
    pub(crate) fn candidates(
        &mut self,
        request: &InstanceRequest,
        now: Timestamp,
    ) -> Vec<NodeIndex> {
        self.catch_up(now);
        self.count_work(self.steps_of_choice());
        let prepared = PreparedRequest::new(request, &self.policy, &self.fleet, now);
        if !passes_request_tests(&prepared) {
            return Vec::new();
        }
        let mask = self.masks.get(&self.fleet, &self.policy, request);
        let needs = Needs::new(&self.fleet, request, &self.policy);
        let inputs = Inputs {
            prepared: &prepared,
            scorers: &self.scorers,
            derived: &self.derived,
            mask,
            needs: &needs,
            blocks: BlockScores::new(&self.scorers.blocks, &prepared),
        };
        eligibility_bits::fill_eligible(
            &prepared,
            self.derived.eligible.words(),
            mask,
            &mut self.words,
        );
        scan_all(&mut self.totals, &self.words, &inputs);
        let mut indexes = self.totals.survivors();
        indexes.sort_unstable_by_key(|index| self.fleet.columns().rank.get(*index));
        indexes
    }

    /// Chooses the best node for a valid request that `admits` accepts. It is called for one node
    /// after the other, best first, until it accepts one.
    pub(crate) fn pick_where(
        &mut self,
        request: &InstanceRequest,
        now: Timestamp,
        admits: &mut dyn FnMut(NodeIndex, &NodeRow) -> bool,
    ) -> Option<NodeIndex> {
        let indexes = self.candidates(request, now);
        let totals = if self.scorers.is_columnar {
            indexes.iter().map(|index| self.totals.get(*index)).collect()
        } else {
            let prepared = PreparedRequest::new(request, &self.policy, &self.fleet, now);
            all_totals(&prepared, &self.derived.scale, &indexes)
        };
        // In the order of ids, so that of equals the first comes first.
        let ranked = totals.into_iter().zip((0..indexes.len()).map(Reverse));
        let mut ranked: BinaryHeap<(i32, Reverse<usize>)> = ranked.collect();
        while let Some((_, Reverse(place))) = ranked.pop() {
            if self.fleet.row(indexes[place]).is_some_and(|row| admits(indexes[place], row)) {
                return Some(indexes[place]);
            }
        }
        None
    }
}

/// The choice under a policy whose totals cannot be scanned from columns.
fn pick_without_columns(
    prepared: &PreparedRequest<'_>,
    derived: &DerivedState,
    survivors: &[NodeIndex],
) -> Option<NodeChoice> {
    let totals = all_totals(prepared, &derived.scale, survivors);
    let rank = |index: NodeIndex| prepared.fleet.columns().rank.get(index);
    let scored = survivors.iter().zip(totals);
    let best = scored.map(|(&index, total)| (Reverse(total), rank(index), index)).min();
    best.map(|(total, _, index)| NodeChoice { index, total: total.0 })
}
