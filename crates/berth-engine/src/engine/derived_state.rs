//! Per-node state that does not depend on a request: eligibility, and the points by facts and load.
//!
//! Follows the fleet's change log and the time that callers pass in. Every moment at which a result
//! changes with time (a heartbeat becomes stale, a failure fades, a reboot comes near) is known in
//! advance and waits as a timer in a heap, so that only the nodes concerned are recomputed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::filter::passes_node_tests;
use crate::fleet::{
    Availability, Bits, Change, ChangeKind, Column, Fleet, LANES, NodeIndex, NodeRow,
};
use crate::model::Timestamp;
use crate::policy::Policy;
use crate::score::{
    Scale, WeightedScorers, fact_points, load_expires_at, load_points, next_failure_step,
};

/// No timer is set.
const NEVER: i64 = i64::MAX;

/// The policy and its scorers by kind.
#[derive(Clone, Copy)]
struct Rules<'a> {
    policy: &'a Policy,
    scorers: &'a WeightedScorers,
}

/// Per-node answers under one policy.
#[derive(Clone, Debug)]
pub(crate) struct DerivedState {
    /// Passes every filter that looks only at facts and time.
    pub(crate) eligible: Bits,
    /// Points by facts and load.
    pub(crate) points: Column<i32>,
    /// Points by facts alone.
    fact_points: Column<i32>,
    /// The spans that fact points were measured against.
    pub(crate) scale: Scale,
    /// Rises when everything was recomputed.
    pub(crate) epoch: u64,
    scale_until: i64,
    cursor: u64,
    now: Timestamp,
    timers: BinaryHeap<Reverse<(i64, NodeIndex)>>,
    timer_at: Vec<i64>,
    // Scratch of `follow`.
    pending: Vec<Change>,
}

impl DerivedState {
    pub(crate) fn new() -> Self {
        Self {
            eligible: Bits::default(),
            points: Column::new(0),
            fact_points: Column::new(0),
            scale: Scale::default(),
            epoch: 0,
            scale_until: i64::MIN,
            cursor: 0,
            now: Timestamp(i64::MIN),
            timers: BinaryHeap::new(),
            timer_at: Vec::new(),
            pending: Vec::new(),
        }
    }

    /// Has everything recomputed with the next decision.
    pub(crate) fn restart(&mut self) {
        self.now = Timestamp(i64::MAX);
    }

    /// Brings everything up to date with the fleet and the time.
    pub(crate) fn catch_up(
        &mut self,
        fleet: &mut Fleet,
        policy: &Policy,
        scorers: &WeightedScorers,
        now: Timestamp,
    ) {
        let rules = Rules { policy, scorers };
        fleet.update_ranks();
        self.grow(fleet.columns().zone_of_block.len());
        let went_back = now < self.now;
        if went_back {
            self.scale_until = i64::MIN;
        }
        self.now = now;
        // Always called: it also updates the fleet's spans.
        let rescaled = self.scale_changed(fleet, policy);
        if went_back || rescaled || !self.follow(fleet, rules) {
            self.rebuild(fleet, rules);
            return;
        }
        for index in fleet.take_heartbeats() {
            // A fresh node's later staleness is found when its old timer expires. A load that was too
            // old counts again.
            if !self.eligible.get(index) || scorers.counts_measured_load {
                self.refresh_and_log(fleet, rules, index);
            }
        }
        self.run_timers(fleet, rules);
        self.cursor = fleet.changes_end();
    }

    /// Whether the spans moved, which changes every node's fact points.
    fn scale_changed(&mut self, fleet: &Fleet, policy: &Policy) -> bool {
        let facts_changed = fleet
            .changes_since(self.cursor)
            .is_none_or(|mut changes| changes.any(|change| change.kind == ChangeKind::Facts));
        if !facts_changed && self.now.0 < self.scale_until {
            return false;
        }
        let mut reboots = fleet.ranges().reboots();
        self.scale_until = reboots.find(|at| *at >= self.now).map_or(NEVER, |at| at.plus(1).0);
        let scale = Scale::new(fleet.ranges(), policy, self.now);
        let changed = scale != self.scale;
        self.scale = scale;
        changed
    }

    /// Applies the logged changes; false when some of them are gone.
    fn follow(&mut self, fleet: &mut Fleet, rules: Rules<'_>) -> bool {
        let Some(changes) = fleet.changes_since(self.cursor) else { return false };
        self.pending.clear();
        self.pending.extend(changes);
        for (number, place) in (self.cursor..).zip(0..self.pending.len()) {
            let Change { index, kind, .. } = self.pending[place];
            let before = self.points.get(index);
            match (kind, fleet.row(index)) {
                (ChangeKind::Claim(_), Some(row)) => {
                    let load = load_points(rules.scorers, row, &self.scale, rules.policy);
                    self.points.set(index, self.fact_points.get(index) + load);
                }
                // Logged by this follower itself, after the refresh.
                (ChangeKind::Eligibility, _) => {}
                (ChangeKind::Facts, _) | (ChangeKind::Claim(_), None) => {
                    self.refresh(fleet, index, rules)
                }
            }
            let points = self.points.get(index);
            let eligible = self.eligible.get(index);
            let mut after = Availability::new(fleet.columns(), index, eligible, points);
            after.points_delta = points - before;
            fleet.set_availability(number, after);
        }
        true
    }

    fn rebuild(&mut self, fleet: &mut Fleet, rules: Rules<'_>) {
        fleet.take_heartbeats();
        self.timers.clear();
        self.timer_at.iter_mut().for_each(|at| *at = NEVER);
        self.eligible.words_mut().iter_mut().for_each(|word| *word = 0);
        let indexes: Vec<NodeIndex> = fleet.columns().present.indexes().collect();
        for index in indexes {
            self.refresh(fleet, index, rules);
        }
        self.epoch += 1;
        self.cursor = fleet.changes_end();
    }

    fn run_timers(&mut self, fleet: &mut Fleet, rules: Rules<'_>) {
        while let Some(&Reverse((at, index))) = self.timers.peek() {
            if at > self.now.0 {
                return;
            }
            self.timers.pop();
            if self.timer_at[index.as_usize()] == at {
                self.timer_at[index.as_usize()] = NEVER;
                self.refresh_and_log(fleet, rules, index);
            }
        }
    }

    fn refresh_and_log(&mut self, fleet: &mut Fleet, rules: Rules<'_>, index: NodeIndex) {
        let before = (self.eligible.get(index), self.points.get(index));
        self.refresh(fleet, index, rules);
        if before != (self.eligible.get(index), self.points.get(index)) {
            let points = self.points.get(index);
            let after = Availability::new(fleet.columns(), index, self.eligible.get(index), points);
            fleet.log_eligibility_change(index, after);
        }
    }

    fn refresh(&mut self, fleet: &Fleet, index: NodeIndex, rules: Rules<'_>) {
        let Some(row) = fleet.row(index) else {
            self.eligible.set(index, false);
            return;
        };
        let Rules { policy, scorers } = rules;
        let eligible = passes_node_tests(row, policy, self.now);
        self.eligible.set(index, eligible);
        let facts = fact_points(row, &self.scale, policy, self.now);
        self.fact_points.set(index, facts);
        let points = facts + load_points(scorers, row, &self.scale, policy);
        self.points.set(index, points);
        let mut timer = next_timer(row, policy, self.now);
        if scorers.counts_measured_load {
            let expires = load_expires_at(row, policy).filter(|at| *at > self.now);
            timer = timer.min(expires.map_or(NEVER, |at| at.0));
        }
        if timer < self.timer_at[index.as_usize()] {
            self.timer_at[index.as_usize()] = timer;
            self.timers.push(Reverse((timer, index)));
        }
    }

    fn grow(&mut self, blocks: usize) {
        if self.eligible.words().len() < blocks {
            self.eligible.grow(blocks);
            self.points.grow(blocks);
            self.fact_points.grow(blocks);
            self.timer_at.resize(blocks * LANES, NEVER);
        }
    }
}

/// The next moment after `now` at which a node's own results may change with time.
fn next_timer(row: &NodeRow, policy: &Policy, now: Timestamp) -> i64 {
    let stale = row.heartbeat_at.plus(i64::from(policy.filters.heartbeat_grace_s) + 1);
    let healthy = row.sick_until(i64::from(policy.filters.sick_window_s));
    let reboot = row.pending_reboot();
    let days = policy.filters.no_reboot_within_days.unwrap_or(0);
    let too_close = reboot.map(|at| at.plus(1 - i64::from(days) * Timestamp::DAY));
    let missed = reboot.map(|at| at.plus(1));
    let fades = next_failure_step(row, policy, now);
    let moments = [Some(stale), healthy, too_close, missed, fades];
    moments.into_iter().flatten().filter(|at| *at > now).map(|at| at.0).min().unwrap_or(NEVER)
}
