//! The loop that keeps workloads running.
//!
//! It reconciles workloads of which something changed, and all of them from time to time, since some
//! things change with time alone. What waits for room is tried again when there may be some. Tenants
//! take turns, so that none starves when room is short.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::CapacityMode;
use berth_engine::workload::Cause;
use berth_ledger::{Answer, Expect, LedgerError, Micros, Op, Outcome, Text};
use futures_util::future::join_all;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::watch;
use tokio::time::Instant;

use super::degraded::{self, PassResult};
use super::orphans;
use super::placing::{self, MemberTemplate, PlaceMode, PlaceOutcome, PlacementFailure};
use super::plan::{self, CreateAction, ReconcilePlan};
use super::releasing::{ReleaseOutcome, release_member};
use crate::control_plane::ControlPlane;
use crate::error::ControlResult;
use crate::loop_runner::BackgroundLoop;
use crate::state::degradations;
use crate::workload::WorkloadKey;

/// How often all workloads are reconciled.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// The least time between two passes.
const PAUSE: Duration = Duration::from_millis(10);

/// How long to wait before what has no room is tried again if nothing made room.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// How often it is explained again why there is no room.
const EXPLAIN_EVERY: Duration = Duration::from_secs(2);

/// How often the same refusal is recorded and reported again.
const RECORD_EVERY: Duration = Duration::from_secs(300);

/// Workloads that are explained in one pass: an explanation checks every node.
const MAX_EXPLAINED: usize = 32;

/// Members placed in one pass.
pub(crate) const MAX_PER_PASS: usize = 1024;

/// A workload some of whose members have no room.
struct WaitingWorkload {
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
    /// When all workloads are reconciled next. At the start at once: much may have changed.
    sweep_at: Instant,
    last_pass_ended: Instant,
    waiting: FxHashMap<WorkloadKey, WaitingWorkload>,
    /// Workloads to be reconciled again at some time.
    later: BTreeMap<Instant, FxHashSet<WorkloadKey>>,
    /// When each of those is.
    scheduled: FxHashMap<WorkloadKey, Instant>,
    /// When each tenant last got a place. A refusal does not count: else the tenant with the smallest
    /// requests would always be first, and take all room that comes in small amounts.
    served: FxHashMap<Text, u64>,
    serve_count: u64,
}

/// A member to be placed.
struct MemberRequest {
    plan: usize,
    create: CreateAction,
    template: Arc<MemberTemplate>,
    /// Its number among those of its workload and class.
    number: usize,
}

impl BackgroundLoop for WorkloadReconciler {
    const NAME: &'static str = "workloads";
    const PERIOD: Duration = SWEEP_EVERY;
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
            control.liveness.restart_listening(control.now().as_second());
        }
        let may_have_room = self.room.has_changed().unwrap_or(false);
        self.room.mark_unchanged();
        // What this server did itself is known before more is done.
        // Others may have released members since: what may be stopped depends on what runs now.
        control.placer.catch_up().await;
        let began = Instant::now();
        let mut orphans = Ok(());
        let mut keys = control.catalog.take_dirty();
        if began >= self.sweep_at {
            keys.extend(control.catalog.read().workloads.keys().cloned());
            // Also those of workloads that are gone.
            keys.extend(control.crashes.keys());
            self.sweep_at = began + SWEEP_EVERY;
            orphans = orphans::release_orphans(&control).await;
        }
        keys.extend(self.take_due(began, may_have_room));
        if !keys.is_empty() {
            self.reconcile(&control, keys, may_have_room).await;
        }
        control.metrics.stage("reconciled", began.elapsed());
        self.last_pass_ended = Instant::now();
        // Only now: what had changed was taken, and is reconciled all the same.
        orphans
    }

    /// Stores what was counted since the last pass.
    async fn finish(&mut self) {
        let control = &self.control;
        let keys: Vec<_> = control.catalog.read().workloads.keys().cloned().collect();
        store_crashes(control, &keys).await;
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
            serve_count: 0,
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

    fn schedule(&mut self, at: Instant, key: &WorkloadKey) {
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
        store_crashes(control, &keys).await;
        let plans = plan::plan_workloads(control, &keys);
        let busy: FxHashSet<&WorkloadKey> = plans.iter().map(|plan| &plan.definition.key).collect();
        for key in keys.iter().filter(|key| !busy.contains(key)) {
            self.waiting.remove(key);
        }
        let releases = plans.iter().flat_map(|plan| plan.releases.iter().map(move |it| (plan, it)));
        let released =
            join_all(releases.map(|(plan, release)| async move {
                (plan, release_member(control, release).await)
            }));
        for (plan, outcome) in released.await {
            if outcome == ReleaseOutcome::Outdated {
                self.schedule(Instant::now() + PAUSE, &plan.definition.key);
            }
        }
        for plan in &plans {
            if plan.is_over
                && let Err(error) = remove_workload(control, &plan.definition.key).await
            {
                tracing::warn!(%error, "failed to remove workload");
            }
        }
        let mut found: Vec<PassResult> = plans.iter().map(|_| PassResult::default()).collect();
        let wanted = self.collect_requests(control, &plans, may_have_room, &mut found).await;
        let refused = self.place(control, &plans, wanted, &mut found).await;
        self.explain_refusals(control, &plans, refused, &mut found).await;
        for (plan, found) in plans.iter().zip(found) {
            degraded::report(control, plan, found).await;
        }
    }

    /// The members to be placed now, in turns between tenants.
    async fn collect_requests(
        &mut self,
        control: &ControlPlane,
        plans: &[ReconcilePlan],
        may_have_room: bool,
        found: &mut [PassResult],
    ) -> Vec<MemberRequest> {
        let now = Instant::now();
        let mut by_tenant: BTreeMap<Text, Vec<MemberRequest>> = BTreeMap::new();
        for (at, plan) in plans.iter().enumerate() {
            if let Some(until) = plan.backs_off_until {
                let left = u64::try_from(until.0 - control.now().as_microsecond()).unwrap_or(0);
                self.schedule(now + Duration::from_micros(left), &plan.definition.key);
                found[at].untried = true;
            } else if plan.creates.is_empty() {
                self.waiting.remove(&plan.definition.key);
            }
            if plan.creates.is_empty() {
                continue;
            }
            if !self.may_try(plan, now, may_have_room) {
                found[at].untried = true;
                continue;
            }
            let mut templates: FxHashMap<i64, Arc<MemberTemplate>> = FxHashMap::default();
            let mut numbers: BTreeMap<_, usize> = BTreeMap::new();
            for create in &plan.creates {
                let revision = create.slot.revision;
                let template = match templates.get(&revision) {
                    Some(template) => Arc::clone(template),
                    None => match placing::read_template(control, &plan.definition, revision).await
                    {
                        Ok(template) => {
                            Arc::clone(templates.entry(revision).or_insert(template.into()))
                        }
                        Err(why) => {
                            found[at].waiting += 1;
                            found[at].why = Some(why);
                            self.record_waiting(plan, now);
                            // Room is not what it lacks: any change may help.
                            if let Some(waiting) = self.waiting.get_mut(&plan.definition.key) {
                                waiting.next = now;
                            }
                            continue;
                        }
                    },
                };
                let list = by_tenant.entry(plan.definition.key.0.clone()).or_default();
                let number = numbers.entry(create.class).or_default();
                *number += 1;
                let create = create.clone();
                list.push(MemberRequest { plan: at, create, template, number: *number });
            }
        }
        self.interleave_tenants(by_tenant, plans, found)
    }

    /// Whether a workload's members are to be tried now.
    fn may_try(&self, plan: &ReconcilePlan, now: Instant, may_have_room: bool) -> bool {
        match self.waiting.get(&plan.definition.key) {
            Some(waiting) if waiting.version == plan.definition.version => {
                may_have_room || now >= waiting.next
            }
            Some(_) | None => true,
        }
    }

    /// One of each tenant after the other, the one served longest ago first.
    fn interleave_tenants(
        &mut self,
        by_tenant: BTreeMap<Text, Vec<MemberRequest>>,
        plans: &[ReconcilePlan],
        found: &mut [PassResult],
    ) -> Vec<MemberRequest> {
        let mut tenants: Vec<(u64, Text, std::vec::IntoIter<MemberRequest>)> = by_tenant
            .into_iter()
            .map(|(tenant, mut list)| {
                // The first of each workload and class, then the second, …: none hides another.
                list.sort_by_key(|wanted| wanted.number);
                let served = self.served.get(&tenant).copied().unwrap_or(0);
                (served, tenant, list.into_iter())
            })
            .collect();
        tenants.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        let mut order = Vec::new();
        while order.len() < MAX_PER_PASS && !tenants.is_empty() {
            tenants.retain_mut(|(_, _, list)| {
                let Some(next) = list.next() else { return false };
                order.push(next);
                true
            });
        }
        // What did not fit into this pass comes with the next one.
        let now = Instant::now();
        for rest in tenants.into_iter().flat_map(|(_, _, list)| list) {
            found[rest.plan].untried = true;
            self.schedule(now, &plans[rest.plan].definition.key);
        }
        order
    }

    /// Places all of them, in this order. Returns those without room.
    async fn place(
        &mut self,
        control: &ControlPlane,
        plans: &[ReconcilePlan],
        wanted: Vec<MemberRequest>,
        found: &mut [PassResult],
    ) -> Vec<MemberRequest> {
        let asked: Vec<_> = wanted
            .into_iter()
            .map(|wanted| {
                let class = wanted.create.class;
                let answer = placing::submit(
                    control,
                    &wanted.template,
                    &wanted.create,
                    class,
                    PlaceMode::Quiet,
                );
                (wanted, answer)
            })
            .collect();
        let (mut refused, mut waits) = (Vec::new(), FxHashSet::default());
        for (wanted, answer) in asked {
            let plan = &plans[wanted.plan];
            match placing::await_outcome(answer).await {
                PlaceOutcome::Placed => self.record_served(plan),
                PlaceOutcome::Retry => {
                    found[wanted.plan].untried = true;
                    self.schedule(Instant::now() + PAUSE, &plan.definition.key);
                }
                PlaceOutcome::Unknown => {
                    found[wanted.plan].untried = true;
                    self.schedule(Instant::now() + Duration::from_secs(1), &plan.definition.key);
                }
                PlaceOutcome::Refused(why) => {
                    let is_placed = self.place_on_other_class(control, plan, &wanted).await;
                    if !is_placed {
                        count_waiting(&mut found[wanted.plan], plan, &wanted.create, why);
                        if waits.insert(wanted.plan) {
                            self.record_waiting(plan, Instant::now());
                        }
                        refused.push(wanted);
                    }
                }
            }
        }
        refused
    }

    /// Tries the other kind of capacity, where the rule allows it by now.
    async fn place_on_other_class(
        &mut self,
        control: &ControlPlane,
        plan: &ReconcilePlan,
        wanted: &MemberRequest,
    ) -> bool {
        let Some(class) = wanted.create.class else { return false };
        // One that has a place only moves to the kind that it should be on.
        if wanted.create.cause == Cause::Rebuild || !self.may_fall_back(plan) {
            return false;
        }
        let class = Some(placing::other_class(class));
        let answer =
            placing::submit(control, &wanted.template, &wanted.create, class, PlaceMode::Quiet);
        let placed = matches!(placing::await_outcome(answer).await, PlaceOutcome::Placed);
        if placed {
            self.record_served(plan);
        }
        placed
    }

    /// Records that a tenant got a place.
    fn record_served(&mut self, plan: &ReconcilePlan) {
        self.serve_count += 1;
        self.served.insert(plan.definition.key.0.clone(), self.serve_count);
    }

    fn may_fall_back(&self, plan: &ReconcilePlan) -> bool {
        match plan.definition.body.capacity.map(|rule| rule.mode) {
            Some(CapacityMode::Prefer) => true,
            Some(CapacityMode::FallbackAfter(seconds)) => {
                let waiting = self.waiting.get(&plan.definition.key);
                waiting.is_some_and(|it| it.since.elapsed().as_secs() >= u64::from(seconds))
            }
            Some(CapacityMode::Strict) | None => false,
        }
    }

    /// Records that a workload waits for room.
    fn record_waiting(&mut self, plan: &ReconcilePlan, now: Instant) {
        let version = plan.definition.version;
        let fresh =
            WaitingWorkload { version, since: now, explained: None, recorded: None, next: now };
        let waiting = self.waiting.entry(plan.definition.key.clone()).or_insert(fresh);
        if waiting.version != version {
            (waiting.version, waiting.explained) = (version, None);
            waiting.recorded = None;
        }
        waiting.next = now + RETRY_AFTER;
        let mode = plan.definition.body.capacity.map(|rule| rule.mode);
        if let Some(CapacityMode::FallbackAfter(seconds)) = mode {
            let end = waiting.since + Duration::from_secs(seconds.into());
            waiting.next = if end > now { waiting.next.min(end) } else { waiting.next };
        }
        let next = waiting.next;
        self.schedule(next, &plan.definition.key);
    }

    /// Explains once for each workload why there is no room, unless that was done just now. The first
    /// time and now and then it is recorded, like any refusal; in between only a changed reason is
    /// reported.
    async fn explain_refusals(
        &mut self,
        control: &ControlPlane,
        plans: &[ReconcilePlan],
        refused: Vec<MemberRequest>,
        found: &mut [PassResult],
    ) {
        let mut done = FxHashSet::default();
        for wanted in refused {
            let plan = &plans[wanted.plan];
            let found = &mut found[wanted.plan];
            if found.why.is_some() || found.waiting == 0 || !done.insert(wanted.plan) {
                continue;
            }
            let now = Instant::now();
            let Some(mode) = self.explain_mode(plan, now, done.len()) else { continue };
            found.refresh = mode == PlaceMode::Record;
            let answer = placing::submit(
                control,
                &wanted.template,
                &wanted.create,
                wanted.create.class,
                mode,
            );
            match placing::await_outcome(answer).await {
                PlaceOutcome::Refused(why) => found.why = why,
                PlaceOutcome::Placed if mode == PlaceMode::Record => {
                    found.waiting -= 1;
                    self.record_served(plan);
                }
                PlaceOutcome::Placed | PlaceOutcome::Retry | PlaceOutcome::Unknown => {
                    self.schedule(now + Duration::from_secs(1), &plan.definition.key);
                }
            }
        }
    }

    /// How a workload that has no room is explained now; absent: not now.
    fn explain_mode(
        &mut self,
        plan: &ReconcilePlan,
        now: Instant,
        explained: usize,
    ) -> Option<PlaceMode> {
        let key = &plan.definition.key;
        let waiting = self.waiting.get_mut(key)?;
        let lately = waiting.explained.filter(|_| plan.was.is_some());
        let soonest = lately.map_or(now, |at| at + EXPLAIN_EVERY);
        if explained > MAX_EXPLAINED || now < soonest {
            let next = soonest.max(now + Duration::from_secs(1));
            waiting.next = waiting.next.min(next);
            self.schedule(next, key);
            return None;
        }
        waiting.explained = Some(now);
        if lately.is_some() && waiting.recorded.is_some_and(|at| now < at + RECORD_EVERY) {
            return Some(PlaceMode::Preview);
        }
        waiting.recorded = Some(now);
        Some(PlaceMode::Record)
    }
}

/// Counts a member that has no room. One that has a place on the other kind meanwhile, where the
/// rule allows that, lacks nothing.
fn count_waiting(
    found: &mut PassResult,
    plan: &ReconcilePlan,
    create: &CreateAction,
    why: Option<PlacementFailure>,
) {
    let strict = plan.definition.body.capacity.is_none_or(|rule| rule.mode == CapacityMode::Strict);
    if create.cause == Cause::Rebuild && !strict {
        return;
    }
    found.waiting += 1;
    if found.why.is_none() {
        found.why = why;
    }
}

/// Stores how often members ended, where that changed. Of several servers one succeeds; the others
/// read what it stored.
async fn store_crashes(control: &ControlPlane, keys: &[WorkloadKey]) {
    let now = Micros(control.now().as_microsecond());
    let changed: Vec<Op> = {
        let catalog = control.catalog.read();
        let known = |key: &WorkloadKey| {
            catalog.workloads.get(key)?;
            catalog.crashes.get(key)?.lately(now)
        };
        keys.iter().filter_map(|key| control.crashes.store(key, known(key).as_ref())).collect()
    };
    for stored in join_all(changed.into_iter().map(|op| control.submit(op))).await {
        if let Err(error) = stored {
            tracing::warn!(%error, "failed to store the crash history of a workload");
        }
    }
}

/// Removes a workload that is being deleted, if it has no members left. Returns whether it did.
///
/// # Errors
/// When the ledger does not know what became of it.
pub async fn remove_workload(
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
        // A workload that is gone is not degraded.
        control.submit(degradations::set_degraded(key, None, None)).await?;
    }
    Ok(gone)
}
