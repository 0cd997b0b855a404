//! The loop that keeps workloads running.
//!
//! It looks at workloads of which something changed, and at all of them from time to time, since
//! some things change by the clock alone. What waits for room is tried again when there may be some.
//! Members are asked for in turns between tenants, so that none starves when room is short.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::CapacityMode;
use berth_engine::workload::Cause;
use berth_ledger::{Answer, Expect, LedgerError, Op, Outcome, Release, Text};
use futures_util::future::join_all;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use super::degraded::{self, PassResult};
use super::orphans;
use super::placing::{self, Ask, Made, PlacementFailure, Recipe};
use super::plan::{self, CreateAction, ReconcilePlan, ReleaseAction};
use crate::control_plane::ControlPlane;
use crate::error::ControlResult;
use crate::loop_runner::BackgroundLoop;
use crate::state::degradations;
use crate::workload::WorkloadKey;

/// How often all workloads are looked at.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// The least time between two passes.
const PAUSE: Duration = Duration::from_millis(10);

/// How long what has no room is left alone when nothing seems to make room.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// How often it is asked anew why there is no room.
const EXPLAIN_EVERY: Duration = Duration::from_secs(2);

/// How often the same refusal is recorded and told again.
const RECORD_EVERY: Duration = Duration::from_secs(300);

/// Workloads that are explained in one pass: an explanation looks at every node.
const EXPLAINED_AT_ONCE: usize = 32;

/// Members asked for in one pass.
const AT_ONCE: usize = 1024;

/// A workload some of whose members have no room.
struct Waiting {
    /// The version that was tried.
    version: i64,
    /// Since when.
    since: Instant,
    /// When it was last explained.
    explained: Option<Instant>,
    /// When the explanation was last recorded.
    recorded: Option<Instant>,
    /// When it is tried again even if nothing seems to make room.
    next: Instant,
}

/// Keeps workloads running, and remembers from pass to pass what waits.
pub(crate) struct WorkloadReconciler {
    control: Arc<ControlPlane>,
    room: watch::Receiver<u64>,
    /// When all workloads are looked at next. At the start at once: much may have changed.
    sweep_at: Instant,
    last_pass_ended: Instant,
    waiting: FxHashMap<WorkloadKey, Waiting>,
    /// Workloads to be looked at again at some time.
    later: BTreeMap<Instant, FxHashSet<WorkloadKey>>,
    /// When each of those is.
    scheduled: FxHashMap<WorkloadKey, Instant>,
    /// When each tenant last got a place. To be asked and refused is no turn: else whoever asks for
    /// least would always be first, and room that comes one at a time would be its alone.
    served: FxHashMap<Text, u64>,
    turns: u64,
}

/// A member to be placed, and whose.
struct Wanted {
    turn: usize,
    creation: CreateAction,
    recipe: Arc<Recipe>,
    /// Which it is among those of its workload and kind.
    number: usize,
}

impl BackgroundLoop for WorkloadReconciler {
    const NAME: &'static str = "workloads";
    const STARTS_AT_ONCE: bool = true;

    fn period(&self) -> Duration {
        let first = self.later.keys().next().copied();
        let next = first.map_or(self.sweep_at, |first| first.min(self.sweep_at));
        next.saturating_duration_since(Instant::now())
    }

    /// Many workloads take a third of the planner at most; the rest is for new requests.
    fn pause(&self, took: Duration) -> Duration {
        (took * 2).clamp(PAUSE, Duration::from_secs(1))
    }

    fn wake_sources(&self) -> Vec<watch::Receiver<u64>> {
        vec![self.control.catalog.dirty_changes(), self.room.clone()]
    }

    async fn pass(&mut self) -> ControlResult<()> {
        let control = Arc::clone(&self.control);
        // A server that stood still received no heartbeat: no node is lost before it has listened.
        if self.last_pass_ended.elapsed() > SWEEP_EVERY * 3 {
            control.liveness.restart_listening();
        }
        let may_have_room = self.room.has_changed().unwrap_or(false);
        self.room.mark_unchanged();
        // What this server did itself is known before more is done.
        control.wait_for_read_your_writes().await;
        let began = Instant::now();
        let mut keys = control.catalog.take_dirty();
        if began >= self.sweep_at {
            keys.extend(control.catalog.read().workloads.keys().cloned());
            self.sweep_at = began + SWEEP_EVERY;
            orphans::release_orphans(&control).await;
        }
        keys.extend(self.take_due(began, may_have_room));
        if !keys.is_empty() {
            self.reconcile(&control, keys, may_have_room).await;
        }
        control.metrics.stage("reconciled", began.elapsed());
        self.last_pass_ended = Instant::now();
        Ok(())
    }
}

impl WorkloadReconciler {
    pub(crate) fn new(control: Arc<ControlPlane>) -> Self {
        let now = Instant::now();
        Self {
            room: control.catalog.room(),
            control,
            sweep_at: now,
            last_pass_ended: now,
            waiting: FxHashMap::default(),
            later: BTreeMap::new(),
            scheduled: FxHashMap::default(),
            served: FxHashMap::default(),
            turns: 0,
        }
    }

    /// Workloads whose time has come, and if there may be room, all that wait for it.
    fn take_due(&mut self, now: Instant, may_have_room: bool) -> FxHashSet<WorkloadKey> {
        let mut due = FxHashSet::default();
        while let Some(entry) = self.later.first_entry().filter(|entry| *entry.key() <= now) {
            due.extend(entry.remove());
        }
        for key in &due {
            self.scheduled.remove(key);
        }
        if may_have_room {
            due.extend(self.waiting.keys().cloned());
        }
        due
    }

    fn look_again(&mut self, at: Instant, key: &WorkloadKey) {
        // Once is enough, at the earliest of the times.
        if let Some(known) = self.scheduled.get(key).copied() {
            if known <= at {
                return;
            }
            if let Some(keys) = self.later.get_mut(&known) {
                keys.remove(key);
            }
        }
        self.scheduled.insert(key.clone(), at);
        self.later.entry(at).or_default().insert(key.clone());
    }

    /// One pass over these workloads.
    async fn reconcile(
        &mut self,
        control: &Arc<ControlPlane>,
        keys: FxHashSet<WorkloadKey>,
        may_have_room: bool,
    ) {
        let mut keys: Vec<WorkloadKey> = keys.into_iter().collect();
        keys.sort();
        let turns = plan::turns(control, &keys);
        let busy: FxHashSet<&WorkloadKey> = turns.iter().map(|turn| &turn.definition.key).collect();
        for key in keys.iter().filter(|key| !busy.contains(key)) {
            self.waiting.remove(key);
        }
        let partings = turns.iter().flat_map(|turn| &turn.partings);
        join_all(partings.map(|parting| release_member(control, parting))).await;
        for turn in &turns {
            if turn.is_over
                && let Err(error) = forget_workload(control, &turn.definition.key).await
            {
                tracing::warn!(%error, "a workload could not be removed");
            }
        }
        let mut found: Vec<PassResult> = turns.iter().map(|_| PassResult::default()).collect();
        let wanted = self.wanted(control, &turns, may_have_room, &mut found).await;
        let refused = self.place(control, &turns, wanted, &mut found).await;
        self.explain(control, &turns, refused, &mut found).await;
        for (turn, found) in turns.iter().zip(found) {
            degraded::tell(control, turn, found).await;
        }
    }

    /// The members to be placed now, in turns between tenants.
    async fn wanted(
        &mut self,
        control: &ControlPlane,
        turns: &[ReconcilePlan],
        may_have_room: bool,
        found: &mut [PassResult],
    ) -> Vec<Wanted> {
        let now = Instant::now();
        let mut by_tenant: BTreeMap<Text, Vec<Wanted>> = BTreeMap::new();
        for (at, turn) in turns.iter().enumerate() {
            if turn.creations.is_empty() {
                self.waiting.remove(&turn.definition.key);
                continue;
            }
            if !self.may_try(control, turn, now, may_have_room) {
                found[at].untried = true;
                continue;
            }
            let mut recipes: FxHashMap<i64, Arc<Recipe>> = FxHashMap::default();
            let mut numbers: BTreeMap<_, usize> = BTreeMap::new();
            for creation in &turn.creations {
                let revision = creation.seat.revision;
                let recipe = match recipes.get(&revision) {
                    Some(recipe) => Arc::clone(recipe),
                    None => match placing::recipe(control, &turn.definition, revision).await {
                        Ok(recipe) => Arc::clone(recipes.entry(revision).or_insert(recipe.into())),
                        Err(why) => {
                            found[at].waiting += 1;
                            found[at].why = Some(why);
                            self.wait(turn, now);
                            // Room is not what it lacks: any change may help.
                            if let Some(waiting) = self.waiting.get_mut(&turn.definition.key) {
                                waiting.next = now;
                            }
                            continue;
                        }
                    },
                };
                let list = by_tenant.entry(turn.definition.key.0.clone()).or_default();
                let number = numbers.entry(creation.class).or_default();
                *number += 1;
                let creation = creation.clone();
                list.push(Wanted { turn: at, creation, recipe, number: *number });
            }
        }
        self.in_turns(by_tenant, turns, found)
    }

    /// Whether a workload's members are to be tried now.
    fn may_try(
        &mut self,
        control: &ControlPlane,
        turn: &ReconcilePlan,
        now: Instant,
        may_have_room: bool,
    ) -> bool {
        let key = &turn.definition.key;
        if let Some(until) = turn.backs_off_until {
            let left = until.0 - control.now().as_microsecond();
            if let Ok(left @ 1..) = u64::try_from(left) {
                self.look_again(now + Duration::from_micros(left), key);
                return false;
            }
        }
        match self.waiting.get(key) {
            Some(waiting) if waiting.version == turn.definition.version => {
                may_have_room || now >= waiting.next
            }
            Some(_) | None => true,
        }
    }

    /// One of each tenant after the other, whoever was served longest ago first.
    fn in_turns(
        &mut self,
        by_tenant: BTreeMap<Text, Vec<Wanted>>,
        turns: &[ReconcilePlan],
        found: &mut [PassResult],
    ) -> Vec<Wanted> {
        let mut tenants: Vec<(u64, Text, std::vec::IntoIter<Wanted>)> = by_tenant
            .into_iter()
            .map(|(tenant, mut list)| {
                // The first of each workload and kind, then the second, …: none hides another.
                list.sort_by_key(|wanted| wanted.number);
                let served = self.served.get(&tenant).copied().unwrap_or(0);
                (served, tenant, list.into_iter())
            })
            .collect();
        tenants.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        let mut order = Vec::new();
        while order.len() < AT_ONCE && !tenants.is_empty() {
            tenants.retain_mut(|(_, _, list)| {
                let Some(next) = list.next() else { return false };
                order.push(next);
                true
            });
        }
        // What did not fit into this pass comes with the next one.
        let now = Instant::now();
        for rest in tenants.into_iter().flat_map(|(_, _, list)| list) {
            found[rest.turn].untried = true;
            self.look_again(now, &turns[rest.turn].definition.key);
        }
        order
    }

    /// Asks for all of them, in this order. Returns those without room.
    async fn place(
        &mut self,
        control: &ControlPlane,
        turns: &[ReconcilePlan],
        wanted: Vec<Wanted>,
        found: &mut [PassResult],
    ) -> Vec<Wanted> {
        let asked: Vec<_> = wanted
            .into_iter()
            .map(|wanted| {
                let class = wanted.creation.class;
                let answer =
                    placing::submit(control, &wanted.recipe, &wanted.creation, class, Ask::Quiet);
                (wanted, answer)
            })
            .collect();
        let (mut refused, mut waits) = (Vec::new(), FxHashSet::default());
        for (wanted, answer) in asked {
            let turn = &turns[wanted.turn];
            match placing::outcome(answer).await {
                Made::Placed => self.serve(turn),
                Made::Again => {
                    found[wanted.turn].untried = true;
                    self.look_again(Instant::now() + PAUSE, &turn.definition.key);
                }
                Made::Unknown => {
                    found[wanted.turn].untried = true;
                    self.look_again(Instant::now() + Duration::from_secs(1), &turn.definition.key);
                }
                Made::Refused(why) => {
                    let elsewhere = self.elsewhere(control, turn, &wanted).await;
                    if !elsewhere {
                        note(&mut found[wanted.turn], turn, &wanted.creation, why);
                        if waits.insert(wanted.turn) {
                            self.wait(turn, Instant::now());
                        }
                        refused.push(wanted);
                    }
                }
            }
        }
        refused
    }

    /// Tries the other kind of capacity, where the rule allows it by now.
    async fn elsewhere(
        &mut self,
        control: &ControlPlane,
        turn: &ReconcilePlan,
        wanted: &Wanted,
    ) -> bool {
        let Some(class) = wanted.creation.class else { return false };
        // One that has a place only moves to the kind that it should be on.
        if wanted.creation.cause == Cause::Rebuild || !self.may_fall_back(turn) {
            return false;
        }
        let class = Some(placing::other(class));
        let answer = placing::submit(control, &wanted.recipe, &wanted.creation, class, Ask::Quiet);
        let placed = matches!(placing::outcome(answer).await, Made::Placed);
        if placed {
            self.serve(turn);
        }
        placed
    }

    /// Remembers that a tenant got a place.
    fn serve(&mut self, turn: &ReconcilePlan) {
        self.turns += 1;
        self.served.insert(turn.definition.key.0.clone(), self.turns);
    }

    fn may_fall_back(&self, turn: &ReconcilePlan) -> bool {
        match turn.definition.body.capacity.map(|rule| rule.mode) {
            Some(CapacityMode::Prefer) => true,
            Some(CapacityMode::FallbackAfter(seconds)) => {
                let waiting = self.waiting.get(&turn.definition.key);
                waiting.is_some_and(|it| it.since.elapsed().as_secs() >= u64::from(seconds))
            }
            Some(CapacityMode::Strict) | None => false,
        }
    }

    /// Has a workload wait for room.
    fn wait(&mut self, turn: &ReconcilePlan, now: Instant) {
        let version = turn.definition.version;
        let fresh = Waiting { version, since: now, explained: None, recorded: None, next: now };
        let waiting = self.waiting.entry(turn.definition.key.clone()).or_insert(fresh);
        if waiting.version != version {
            (waiting.version, waiting.explained) = (version, None);
            waiting.recorded = None;
        }
        waiting.next = now + RETRY_AFTER;
        let mode = turn.definition.body.capacity.map(|rule| rule.mode);
        if let Some(CapacityMode::FallbackAfter(seconds)) = mode {
            let end = waiting.since + Duration::from_secs(seconds.into());
            waiting.next = if end > now { waiting.next.min(end) } else { waiting.next };
        }
        let next = waiting.next;
        self.look_again(next, &turn.definition.key);
    }

    /// Asks once for each workload why there is no room, unless that was explained just now. The
    /// first time and now and then it is recorded, like any refusal; in between it only says
    /// whether the reason is another one by now.
    async fn explain(
        &mut self,
        control: &ControlPlane,
        turns: &[ReconcilePlan],
        refused: Vec<Wanted>,
        found: &mut [PassResult],
    ) {
        let mut done = FxHashSet::default();
        for wanted in refused {
            let turn = &turns[wanted.turn];
            let found = &mut found[wanted.turn];
            if found.why.is_some() || found.waiting == 0 || !done.insert(wanted.turn) {
                continue;
            }
            let now = Instant::now();
            let Some(ask) = self.may_explain(turn, now, done.len()) else { continue };
            found.refresh = ask == Ask::Record;
            let answer = placing::submit(
                control,
                &wanted.recipe,
                &wanted.creation,
                wanted.creation.class,
                ask,
            );
            match placing::outcome(answer).await {
                Made::Refused(why) => found.why = why,
                Made::Placed if ask == Ask::Record => {
                    found.waiting -= 1;
                    self.serve(turn);
                }
                Made::Placed | Made::Again | Made::Unknown => {
                    self.look_again(now + Duration::from_secs(1), &turn.definition.key);
                }
            }
        }
    }

    /// How a workload that has no room is explained now; absent: not now.
    fn may_explain(&mut self, turn: &ReconcilePlan, now: Instant, explained: usize) -> Option<Ask> {
        let key = &turn.definition.key;
        let waiting = self.waiting.get_mut(key)?;
        let lately = waiting.explained.filter(|_| turn.was.is_some());
        let soonest = lately.map_or(now, |at| at + EXPLAIN_EVERY);
        if explained > EXPLAINED_AT_ONCE || now < soonest {
            let next = soonest.max(now + Duration::from_secs(1));
            waiting.next = waiting.next.min(next);
            self.look_again(next, key);
            return None;
        }
        waiting.explained = Some(now);
        if lately.is_some() && waiting.recorded.is_some_and(|at| now < at + RECORD_EVERY) {
            return Some(Ask::Preview);
        }
        waiting.recorded = Some(now);
        Some(Ask::Record)
    }
}

/// Counts a member that has no room. One that has a place on the other kind meanwhile, where the
/// rule allows that, lacks nothing.
fn note(
    found: &mut PassResult,
    turn: &ReconcilePlan,
    creation: &CreateAction,
    why: Option<PlacementFailure>,
) {
    let strict = turn.definition.body.capacity.is_none_or(|rule| rule.mode == CapacityMode::Strict);
    if creation.cause == Cause::Rebuild && !strict {
        return;
    }
    found.waiting += 1;
    if found.why.is_none() {
        found.why = why;
    }
}

/// Lets a member go. Whoever was faster has done the same.
pub(super) async fn release_member(control: &ControlPlane, parting: &ReleaseAction) {
    let release = Release {
        request_id: Text::from(Uuid::now_v7().to_string()),
        key: parting.key,
        tenant: None,
        fence: Some(parting.fence),
        confirmed: false,
        reason: Text::from(reason(parting.cause)),
    };
    match control.submit(Op::Release(release)).await {
        Ok(Answer::Claim(_)) => {}
        Ok(other) => tracing::error!(?other, "a release was answered by something else"),
        Err(error) => tracing::warn!(%error, instance = %parting.key, "a member was not let go"),
    }
}

/// The reason in the log for letting a member go.
const fn reason(cause: Cause) -> &'static str {
    match cause {
        Cause::Missing | Cause::ScaleDown => "scale_down",
        Cause::RollOut => "roll_out",
        Cause::Rebuild => "rebuild",
        Cause::Drain => "drain",
        Cause::Reclaim => "reclaim",
        Cause::NodeLost => "node_lost",
        Cause::Replaced => "replaced",
    }
}

/// Forgets a workload that is being removed, if it has no members left. Returns whether it did.
///
/// # Errors
/// When the ledger does not know what became of it.
pub async fn forget_workload(
    control: &ControlPlane,
    key: &WorkloadKey,
) -> Result<bool, LedgerError> {
    let (tenant, name) = key.clone();
    control.wait_for_read_your_writes().await;
    let known = control.catalog.read().workloads.get(key).cloned();
    let Some(known) = known else { return Ok(true) };
    if !known.body.deleting {
        return Ok(false);
    }
    // Not one that was stored again meanwhile.
    let expect = Expect::Revision(known.version);
    let answer = control.submit(Op::RemoveWorkload { tenant, name, expect }).await?;
    let gone = matches!(answer, Answer::Outcome(Outcome::Done | Outcome::Unchanged));
    if gone && control.degraded.get(key).is_some() {
        // What is not there lacks nothing.
        control.submit(degradations::set_degraded(key, None, None)).await?;
    }
    Ok(gone)
}
