//! What no request changes: whether a node is eligible at all, and the points it has by itself.
//!
//! Follows the fleet's change log and the clock that callers hand in. Every moment at which an
//! answer will change by itself (a heartbeat grows stale, a failure fades, a reboot comes near) is
//! known beforehand and waits in a heap, so that time passing costs only the nodes it concerns.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::filter::passes_node_tests;
use crate::fleet::{Bits, Change, Column, Fleet, LANES, NodeRow, Slot, Standing, What};
use crate::model::Timestamp;
use crate::policy::Policy;
use crate::score::{Scale, WeightedScorers, fact_points, load_points, next_failure_step};

/// Nothing will change by itself.
const NEVER: i64 = i64::MAX;

/// The policy and its scorers by kind.
#[derive(Clone, Copy)]
struct Rules<'a> {
    policy: &'a Policy,
    scorers: &'a WeightedScorers,
}

/// Per-node answers under one policy.
#[derive(Clone, Debug)]
pub(crate) struct Derived {
    /// Passes every filter that looks only at facts and time.
    pub(crate) eligible: Bits,
    /// Points by facts and load.
    pub(crate) points: Column<i32>,
    /// Points by facts alone.
    fact_points: Column<i32>,
    /// The spans that fact points were measured against.
    pub(crate) scale: Scale,
    /// Rises when everything was computed anew.
    pub(crate) epoch: u64,
    scale_until: i64,
    cursor: u64,
    now: Timestamp,
    flips: BinaryHeap<Reverse<(i64, Slot)>>,
    flip_at: Vec<i64>,
    // Scratch of `follow`.
    pending: Vec<Change>,
}

impl Derived {
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
            flips: BinaryHeap::new(),
            flip_at: Vec::new(),
            pending: Vec::new(),
        }
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
        fleet.settle_ranks();
        self.grow(fleet.columns().zone_of_block.len());
        let went_back = now < self.now;
        if went_back {
            self.scale_until = i64::MIN;
        }
        self.now = now;
        // Always asked: it also takes in what the fleet's spans have become.
        let rescaled = self.scale_changed(fleet, policy);
        if went_back || rescaled || !self.follow(fleet, rules) {
            self.rebuild(fleet, rules);
            return;
        }
        for slot in fleet.take_pulses() {
            // A fresh node's later staleness is found when its old flip comes up.
            if !self.eligible.get(slot) {
                self.refresh_and_tell(fleet, rules, slot);
            }
        }
        self.pass_time(fleet, rules);
        self.cursor = fleet.changes_end();
    }

    /// Whether the spans moved, which changes every node's fact points.
    fn scale_changed(&mut self, fleet: &Fleet, policy: &Policy) -> bool {
        let facts_changed = fleet
            .changes_since(self.cursor)
            .is_none_or(|mut changes| changes.any(|change| change.what == What::Facts));
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
            let Change { slot, what, .. } = self.pending[place];
            let before = self.points.get(slot);
            match (what, fleet.row(slot)) {
                (What::Claim(_), Some(row)) => {
                    let load = load_points(rules.scorers, row, &self.scale, rules.policy);
                    self.points.set(slot, self.fact_points.get(slot) + load);
                }
                // Told by this follower itself, after it had looked.
                (What::Eligibility, _) => {}
                (What::Facts, _) | (What::Claim(_), None) => self.refresh(fleet, slot, rules),
            }
            let points = self.points.get(slot);
            let eligible = self.eligible.get(slot);
            let mut after = Standing::new(fleet.columns(), slot, eligible, points);
            after.worth = points - before;
            fleet.set_after(number, after);
        }
        true
    }

    fn rebuild(&mut self, fleet: &mut Fleet, rules: Rules<'_>) {
        fleet.take_pulses();
        self.flips.clear();
        self.flip_at.iter_mut().for_each(|at| *at = NEVER);
        self.eligible.words_mut().iter_mut().for_each(|word| *word = 0);
        let slots: Vec<Slot> = fleet.columns().present.slots().collect();
        for slot in slots {
            self.refresh(fleet, slot, rules);
        }
        self.epoch += 1;
        self.cursor = fleet.changes_end();
    }

    fn pass_time(&mut self, fleet: &mut Fleet, rules: Rules<'_>) {
        while let Some(&Reverse((at, slot))) = self.flips.peek() {
            if at > self.now.0 {
                return;
            }
            self.flips.pop();
            if self.flip_at[slot.index()] == at {
                self.flip_at[slot.index()] = NEVER;
                self.refresh_and_tell(fleet, rules, slot);
            }
        }
    }

    fn refresh_and_tell(&mut self, fleet: &mut Fleet, rules: Rules<'_>, slot: Slot) {
        let before = (self.eligible.get(slot), self.points.get(slot));
        self.refresh(fleet, slot, rules);
        if before != (self.eligible.get(slot), self.points.get(slot)) {
            let points = self.points.get(slot);
            let after = Standing::new(fleet.columns(), slot, self.eligible.get(slot), points);
            fleet.touch(slot, after);
        }
    }

    fn refresh(&mut self, fleet: &Fleet, slot: Slot, rules: Rules<'_>) {
        let Some(row) = fleet.row(slot) else {
            self.eligible.set(slot, false);
            return;
        };
        let Rules { policy, scorers } = rules;
        let eligible = passes_node_tests(row, policy, self.now);
        self.eligible.set(slot, eligible);
        let facts = fact_points(row, &self.scale, policy, self.now);
        self.fact_points.set(slot, facts);
        let points = facts + load_points(scorers, row, &self.scale, policy);
        self.points.set(slot, points);
        let flip = next_flip(row, policy, self.now);
        if flip < self.flip_at[slot.index()] {
            self.flip_at[slot.index()] = flip;
            self.flips.push(Reverse((flip, slot)));
        }
    }

    fn grow(&mut self, blocks: usize) {
        if self.eligible.words().len() < blocks {
            self.eligible.grow(blocks);
            self.points.grow(blocks);
            self.fact_points.grow(blocks);
            self.flip_at.resize(blocks * LANES, NEVER);
        }
    }
}

/// The next moment after `now` at which a node's own answers may change by themselves.
fn next_flip(row: &NodeRow, policy: &Policy, now: Timestamp) -> i64 {
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
