//! Admission: who is let in front of the planner and the explainer, and who is turned away at the door,
//! before anything was done for the request.
//!
//! Both have a window of instances that may be under way (`wait_window`). How much of it a tenant may fill
//! depends on how much is left: those that ask for much are turned away, and one that asks for little
//! finds room. The server's own work is counted and never turned away. Admission says
//! nothing about where an instance goes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::tick;
use super::turns::Lane;
use super::wait_window::{Departure, WaitWindow};
use crate::backlog::Backlog;
use crate::error::{ControlError, ErrorKind};
use crate::metrics::Metrics;

/// Instances that may always be under way in front of the planner and in the ledger, however long they take.
pub(crate) const LEAST_PLANNED: usize = 256;

/// Instances that may always wait for the explainer.
pub(crate) const LEAST_EXPLAINED: usize = 64;

/// How much of the room that is left a tenant may fill: with four parts of five, one that is alone leaves a
/// fifth to those that come, and several leave it together.
const SHARE_OF_FREE: usize = 4;

/// Longest that a caller is asked to wait.
const RETRY_AFTER_MAX_S: u64 = 30;

/// Limits on what is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdmissionLimits {
    /// Requests of one tenant that may wait for the planner, and as many for the explainer.
    pub(super) tenant_queue: usize,
    /// Instances of all tenants that may be under way, and as many that wait for the explainer; zero: any
    /// number.
    pub(super) in_flight: usize,
    /// How long requests should wait at most; zero: as long as it takes.
    pub(super) queue_delay: Duration,
}

/// Why a request was turned away, and when to send it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overload {
    /// Why.
    pub cause: OverloadCause,
    /// When.
    pub retry_after_s: u32,
}

/// Why a request was turned away. Nothing was claimed for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverloadCause {
    /// As many requests of its tenant wait as may.
    TenantQueue(usize),
    /// Its tenant has more under way than its share.
    TenantShare,
    /// All tenants together have as much under way as can be served in time.
    AllTenants,
    /// Whatever place was found was gone when it was to be claimed.
    Outrun,
}

/// What is under way.
pub(super) struct Admission {
    limits: AdmissionLimits,
    state: Mutex<AdmissionState>,
    metrics: Option<Arc<Metrics>>,
}

struct AdmissionState {
    /// Requests that the planner has not begun with.
    waiting: FxHashMap<Lane, usize>,
    planned: Stage,
    explained: Stage,
    turned_away: u64,
}

/// What is under way in front of the planner and in the ledger, or in front of the explainer.
struct Stage {
    window: WaitWindow,
    instances: usize,
    lanes: FxHashMap<Lane, Held>,
}

#[derive(Clone, Copy, Default)]
struct Held {
    requests: usize,
    instances: usize,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// In front of the planner.
    Waiting,
    /// Taken by the planner, or in the ledger.
    Planned,
    /// In front of the explainer.
    Explained,
}

/// A request that was let in. It is under way until this is dropped.
pub(super) struct Admitted {
    admission: Arc<Admission>,
    lane: Lane,
    instances: usize,
    position: Position,
    departure: Departure,
}

/// How long a queue is, and how long it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLength {
    /// The queue, as metrics name it.
    pub queue: &'static str,
    /// How much is in it.
    pub length: usize,
    /// How much may be.
    pub limit: usize,
}

impl From<&Overload> for ControlError {
    fn from(overload: &Overload) -> Self {
        let detail = match overload.cause {
            OverloadCause::TenantQueue(most) => {
                format!("{most} requests of this tenant wait already (limits.planner_queue)")
            }
            OverloadCause::TenantShare => {
                "this tenant has more requests under way than its share of what can be served in time"
                    .to_owned()
            }
            OverloadCause::Outrun => {
                "every place that was found was gone when it was to be claimed".to_owned()
            }
            OverloadCause::AllTenants => {
                let detail = "more requests are under way than can be served in time; nothing was done \
                              for this one";
                return Self::unavailable("overloaded", detail).retry_after(overload.retry_after_s);
            }
        };
        let title = "the tenant has too many requests under way";
        Self::new(ErrorKind::LimitReached, "tenant_busy", title, detail)
            .retry_after(overload.retry_after_s)
    }
}

impl QueueLength {
    pub(super) fn of(queue: &'static str, backlog: &Backlog) -> Self {
        Self { queue, length: backlog.waiting(), limit: backlog.most() }
    }
}

impl Admission {
    pub(super) fn new(limits: AdmissionLimits, metrics: Option<Arc<Metrics>>) -> Self {
        let most = if limits.in_flight == 0 { usize::MAX } else { limits.in_flight };
        let stage = |least| Stage {
            window: WaitWindow::new(most, least, limits.queue_delay, tick()),
            instances: 0,
            lanes: FxHashMap::default(),
        };
        let state = AdmissionState {
            waiting: FxHashMap::default(),
            planned: stage(LEAST_PLANNED),
            explained: stage(LEAST_EXPLAINED),
            turned_away: 0,
        };
        Self { limits, state: Mutex::new(state), metrics }
    }

    fn lock(&self) -> MutexGuard<'_, AdmissionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a request in.
    ///
    /// # Errors
    /// When it has to come again later.
    pub(super) fn admit(
        self: &Arc<Self>,
        lane: Lane,
        instances: usize,
    ) -> Result<Admitted, Overload> {
        let mut state = self.lock();
        self.check_lane(&mut state, &lane, instances)?;
        *state.waiting.entry(lane.clone()).or_default() += 1;
        let ahead = state.planned.enter(&lane, instances);
        drop(state);
        let departure = Departure { came_at: tick(), ahead };
        let admission = Arc::clone(self);
        Ok(Admitted { admission, lane, instances, position: Position::Waiting, departure })
    }

    /// Whether a request would be let in now. Without a lane it is not known yet whose it is.
    ///
    /// # Errors
    /// When it would not.
    pub(super) fn check(&self, lane: Option<&Lane>) -> Result<(), Overload> {
        let mut state = self.lock();
        match lane {
            Some(lane) => self.check_lane(&mut state, lane, 1),
            None if state.planned.is_full() => {
                Err(self.turn_away(&mut state, "in_flight", OverloadCause::AllTenants))
            }
            None => Ok(()),
        }
    }

    fn check_lane(
        &self,
        state: &mut AdmissionState,
        lane: &Lane,
        instances: usize,
    ) -> Result<(), Overload> {
        if *lane == Lane::Internal {
            return Ok(());
        }
        let most = self.limits.tenant_queue;
        if state.waiting.get(lane).is_some_and(|waiting| *waiting >= most) {
            return Err(self.turn_away(state, "planner", OverloadCause::TenantQueue(most)));
        }
        if let Err(cause) = state.planned.check(lane, instances) {
            let is_shrunk = state.planned.window.limit() < state.planned.window.most();
            let limit = if is_shrunk { "queue_delay" } else { "in_flight" };
            return Err(self.turn_away(state, limit, cause));
        }
        // Whatever else it asks for now would probably wait there, too.
        match state.explained.lanes.contains_key(lane) {
            true => self.check_explained(state, lane, 1),
            false => Ok(()),
        }
    }

    fn check_explained(
        &self,
        state: &mut AdmissionState,
        lane: &Lane,
        instances: usize,
    ) -> Result<(), Overload> {
        let waiting = state.explained.lanes.get(lane).map_or(0, |held| held.requests);
        let most = self.limits.tenant_queue;
        let checked = match waiting >= most {
            true => Err(OverloadCause::TenantQueue(most)),
            false => state.explained.check(lane, instances),
        };
        checked.map_err(|cause| self.turn_away(state, "explainer", cause))
    }

    fn turn_away(
        &self,
        state: &mut AdmissionState,
        limit: &'static str,
        cause: OverloadCause,
    ) -> Overload {
        if let Some(metrics) = &self.metrics {
            metrics.limited(limit);
        }
        state.turned_away = state.turned_away.wrapping_add(1);
        let waited = state.planned.window.recent().max(state.explained.window.recent());
        Overload { cause, retry_after_s: retry_after_s(waited, state.turned_away) }
    }

    /// How much is under way, and how much may be.
    pub(super) fn lengths(&self) -> [QueueLength; 3] {
        let state = self.lock();
        let stage = |queue, stage: &Stage| QueueLength {
            queue,
            length: stage.of_tenants(),
            limit: stage.window.limit(),
        };
        let waiting = state.waiting.values().sum();
        [
            QueueLength { queue: "planner", length: waiting, limit: state.planned.window.limit() },
            stage("placements", &state.planned),
            stage("explainer", &state.explained),
        ]
    }
}

/// After how long it is worth coming again: as long as requests waited of late, and up to twice that, so that
/// those who were turned away together do not come together again.
fn retry_after_s(waited: Duration, turned_away: u64) -> u32 {
    let base = u64::try_from(waited.as_millis().div_ceil(1000)).unwrap_or(u64::MAX);
    let base = base.clamp(1, RETRY_AFTER_MAX_S / 2);
    u32::try_from(base + turned_away % (base + 1)).unwrap_or(1)
}

impl Stage {
    /// Takes a request in; returns what is there then.
    fn enter(&mut self, lane: &Lane, instances: usize) -> usize {
        let held = self.lanes.entry(lane.clone()).or_default();
        held.requests += 1;
        held.instances += instances;
        self.instances += instances;
        self.instances
    }

    fn leave(&mut self, lane: &Lane, instances: usize, departure: Departure, now: Instant) {
        self.instances -= instances;
        if let Some(held) = self.lanes.get_mut(lane) {
            held.requests -= 1;
            held.instances -= instances;
            if held.requests == 0 {
                self.lanes.remove(lane);
            }
        }
        if *lane != Lane::Internal {
            self.window.observe(departure, now);
        }
    }

    /// Instances that are not the server's own.
    fn of_tenants(&self) -> usize {
        self.instances - self.lanes.get(&Lane::Internal).map_or(0, |held| held.instances)
    }

    /// Whether no tenant may have more, whoever asks.
    fn is_full(&self) -> bool {
        self.of_tenants() >= self.window.most()
    }

    /// Whether a tenant may have so many instances more.
    fn check(&self, lane: &Lane, instances: usize) -> Result<(), OverloadCause> {
        let own = self.lanes.get(lane).copied().unwrap_or_default();
        let has_internal = usize::from(self.lanes.contains_key(&Lane::Internal));
        let tenants = self.lanes.len() - has_internal + usize::from(own.requests == 0);
        let (limit, total) = (self.window.limit(), self.of_tenants());
        let free = limit.saturating_sub(total);
        // Half of an equal share is its own, also while others have more than theirs.
        let share = (limit / (2 * (tenants + 1))).max(free.saturating_mul(SHARE_OF_FREE));
        // Who has nothing under way may have one request, however large, while each of the others may.
        let is_within = match own.requests {
            0 => tenants <= limit,
            _ => own.instances.saturating_add(instances) <= share,
        };
        if is_within && !self.is_full() {
            return Ok(());
        }
        let is_alone = tenants == 1;
        let fills_it = own.instances.saturating_mul(tenants) > total || is_alone;
        Err(match own.requests > 0 && fills_it {
            true => OverloadCause::TenantShare,
            false => OverloadCause::AllTenants,
        })
    }
}

impl Admitted {
    /// The planner begins with it.
    pub(super) fn begin(&mut self) {
        if self.position == Position::Waiting {
            let mut state = self.admission.lock();
            leave_line(&mut state, &self.lane);
            self.position = Position::Planned;
        }
    }

    /// It is left to the explainer.
    ///
    /// # Errors
    /// When too much waits there; then it has left the planner all the same.
    pub(super) fn move_to_explainer(&mut self) -> Result<(), Overload> {
        if self.position == Position::Explained {
            return Ok(());
        }
        self.begin();
        let (admission, now) = (Arc::clone(&self.admission), tick());
        let mut state = admission.lock();
        if self.lane != Lane::Internal {
            admission.check_explained(&mut state, &self.lane, self.instances)?;
        }
        state.planned.leave(&self.lane, self.instances, self.departure, now);
        let ahead = state.explained.enter(&self.lane, self.instances);
        self.departure = Departure { came_at: now, ahead };
        self.position = Position::Explained;
        Ok(())
    }

    /// The explainer has given it back to the planner.
    pub(super) fn move_to_planner(&mut self) {
        if self.position != Position::Explained {
            return;
        }
        let now = tick();
        let mut state = self.admission.lock();
        state.explained.leave(&self.lane, self.instances, self.departure, now);
        let ahead = state.planned.enter(&self.lane, self.instances);
        self.departure = Departure { came_at: now, ahead };
        self.position = Position::Planned;
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let now = tick();
        let mut state = self.admission.lock();
        if self.position == Position::Waiting {
            leave_line(&mut state, &self.lane);
        }
        let stage = match self.position {
            Position::Waiting | Position::Planned => &mut state.planned,
            Position::Explained => &mut state.explained,
        };
        stage.leave(&self.lane, self.instances, self.departure, now);
    }
}

fn leave_line(state: &mut AdmissionState, lane: &Lane) {
    if let Some(waiting) = state.waiting.get_mut(lane) {
        *waiting -= 1;
        if *waiting == 0 {
            state.waiting.remove(lane);
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_ledger::Text;

    use super::*;

    fn tenant(name: &str) -> Lane {
        Lane::Tenant(Text::from(name))
    }

    fn admission(in_flight: usize) -> Arc<Admission> {
        let limits = AdmissionLimits { tenant_queue: 4096, in_flight, queue_delay: Duration::ZERO };
        Arc::new(Admission::new(limits, None))
    }

    /// Sends requests until one is turned away; returns those that were let in, and why it was.
    fn fill(admission: &Arc<Admission>, lane: &Lane) -> (Vec<Admitted>, OverloadCause) {
        let mut admitted = Vec::new();
        loop {
            match admission.admit(lane.clone(), 1) {
                Ok(one) => admitted.push(one),
                Err(overload) => return (admitted, overload.cause),
            }
        }
    }

    #[test]
    fn a_tenant_that_asks_for_much_is_turned_away_and_leaves_room_for_others() {
        let admission = admission(1000);
        let (heavy, cause) = fill(&admission, &tenant("heavy"));
        assert_eq!((heavy.len(), cause), (800, OverloadCause::TenantShare));
        let (light, cause) = fill(&admission, &tenant("light"));
        // Its equal share would be 500, of which others have taken 300.
        assert!((160..=200).contains(&light.len()), "{}", light.len());
        assert_eq!(cause, OverloadCause::AllTenants);
        assert!(admission.admit(tenant("late"), 1).is_ok());
        // Of what ends, the one that has less may have more.
        drop(heavy);
        let (more, cause) = fill(&admission, &tenant("light"));
        assert_eq!(light.len() + more.len(), 800);
        assert_eq!(cause, OverloadCause::TenantShare);
    }

    #[test]
    fn many_tenants_fill_it_together_and_the_servers_own_work_is_let_in() {
        let admission = admission(100);
        let names = |number| tenant(&format!("t{number}"));
        let all: Vec<_> = (0..100).map(|number| admission.admit(names(number), 1)).collect();
        assert!(all.iter().all(Result::is_ok));
        let late = admission.admit(tenant("late"), 1).map(|_| ()).map_err(|it| it.cause);
        assert_eq!(late, Err(OverloadCause::AllTenants));
        assert_eq!(admission.check(None).map_err(|it| it.cause), late);
        let own: Vec<_> = (0..500).map(|_| admission.admit(Lane::Internal, 10)).collect();
        assert!(own.iter().all(Result::is_ok));
        drop(all);
        assert!(admission.admit(tenant("late"), 1).is_ok(), "own work takes nobody's room");
        assert!(admission.check(None).is_ok());
    }

    #[test]
    fn the_first_request_of_a_tenant_is_let_in_however_large_it_is() {
        let admission = admission(100);
        let large = admission.admit(tenant("a"), 1000);
        assert!(large.is_ok());
        let second = admission.admit(tenant("a"), 1).map(|_| ()).map_err(|it| it.cause);
        assert_eq!(second, Err(OverloadCause::TenantShare));
        drop(large);
        assert!(admission.admit(tenant("a"), 1).is_ok());
    }

    #[test]
    fn what_waits_for_the_explainer_has_a_window_of_its_own() {
        let admission = admission(100);
        let (mut heavy, _) = fill(&admission, &tenant("heavy"));
        let moved: Vec<_> = heavy.iter_mut().map(Admitted::move_to_explainer).collect();
        assert!(moved.iter().all(Result::is_ok));
        assert_eq!(admission.lengths().map(|it| it.length), [0, 0, heavy.len()]);
        let turned_away = admission.admit(tenant("heavy"), 1).map(|_| ()).map_err(|it| it.cause);
        assert_eq!(turned_away, Err(OverloadCause::TenantShare));
        let light = admission.admit(tenant("light"), 1).map(|mut one| {
            one.begin();
            one.move_to_explainer()
        });
        assert!(matches!(light, Ok(Ok(()))));
        heavy.iter_mut().for_each(Admitted::move_to_planner);
        assert_eq!(admission.lengths().map(|it| it.length), [0, heavy.len(), 0]);
        drop(heavy);
        assert_eq!(admission.lengths().map(|it| it.length), [0; 3]);
    }

    #[test]
    fn callers_are_asked_to_come_again_at_different_times() {
        let waits: Vec<_> = (0..6).map(|n| retry_after_s(Duration::from_millis(1900), n)).collect();
        assert_eq!(waits, [2, 3, 4, 2, 3, 4]);
        assert_eq!(retry_after_s(Duration::ZERO, 0), 1);
        assert!((0..100).all(|n| retry_after_s(Duration::from_secs(3600), n) <= 30));
    }
}
