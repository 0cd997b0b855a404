//! The keeper against a driver that does what it is told.

use std::sync::{Arc, Mutex};

use super::*;
use crate::agent::driver::Survivor;
use berth_api::engine::Amounts;

#[derive(Default)]
struct Stage {
    up: BTreeMap<InstanceId, Sight>,
    told: Vec<(InstanceId, Firmness)>,
    starts: Vec<(InstanceId, i64)>,
    survivors: Vec<Survivor>,
    broken: bool,
}

struct Puppets(Arc<Mutex<Stage>>);

impl Driver for Puppets {
    fn name(&self) -> &'static str {
        "puppets"
    }

    fn needs_kvm(&self) -> bool {
        false
    }

    fn recover(&mut self) -> io::Result<Vec<Survivor>> {
        Ok(self.0.lock().unwrap().survivors.clone())
    }

    fn start(&mut self, launch: &Launch) -> io::Result<()> {
        let mut stage = self.0.lock().unwrap();
        if stage.broken {
            return Err(io::Error::other("out of strings"));
        }
        stage.starts.push((launch.instance, launch.fence));
        stage.up.insert(launch.instance, Sight::Running);
        Ok(())
    }

    fn look(&mut self, instance: InstanceId) -> Sight {
        let stage = self.0.lock().unwrap();
        stage.up.get(&instance).copied().unwrap_or(Sight::Gone(Exit::Unwatched))
    }

    fn stop(&mut self, instance: InstanceId, firmness: Firmness) {
        self.0.lock().unwrap().told.push((instance, firmness));
    }

    fn forget(&mut self, instance: InstanceId) {
        self.0.lock().unwrap().up.remove(&instance);
    }
}

const ONE: InstanceId = InstanceId::from_u128(1);

struct Scene {
    stage: Arc<Mutex<Stage>>,
    keeper: Keeper,
    now: Instant,
}

impl Scene {
    fn new(restart: Restart, survivors: Vec<Survivor>) -> Self {
        let up = survivors.iter().map(|one| (one.instance, Sight::Running)).collect();
        let stage = Arc::new(Mutex::new(Stage { survivors, up, ..Stage::default() }));
        let habits = Habits { stop_grace: Duration::from_secs(10), restart };
        let now = Instant::now();
        let keeper = Keeper::new(Box::new(Puppets(Arc::clone(&stage))), habits, now).unwrap();
        Self { stage, keeper, now }
    }

    fn hear(&mut self, assignments: &[(ClaimState, i64)]) {
        let assignments = assignments.iter().map(|(state, fence)| Assignment {
            instance: ONE,
            state: *state,
            fence: *fence,
            owner: "acme".to_owned(),
            name: None,
            workload: None,
            image: None,
            resources: Amounts::new(1000, 512),
            tags: BTreeMap::new(),
            volumes: Vec::new(),
            values: Vec::new(),
            elastic: None,
        });
        let orders = Orders { assignments: assignments.collect(), refused: Vec::new() };
        self.keeper.take(orders, self.now);
        // Once to act, once to see what came of it.
        self.pass(0);
        self.pass(0);
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.keeper.tick(self.now);
    }

    fn die(&mut self, exit: Exit) {
        self.stage.lock().unwrap().up.insert(ONE, Sight::Gone(exit));
        self.pass(1);
    }

    fn said(&self) -> Option<(RunState, i64, Option<String>)> {
        let word = self.keeper.report().words.into_iter().next()?;
        Some((word.running.state, word.running.fence?, word.give_up))
    }

    fn state(&self) -> Option<RunState> {
        self.said().map(|(state, _, _)| state)
    }

    fn starts(&self) -> usize {
        self.stage.lock().unwrap().starts.len()
    }

    fn told(&self) -> Vec<Firmness> {
        self.stage.lock().unwrap().told.iter().map(|(_, firmness)| *firmness).collect()
    }
}

#[test]
fn a_bound_instance_is_started_once_however_often_it_is_listed() {
    let mut scene = Scene::new(Restart::Never, Vec::new());
    scene.hear(&[(ClaimState::Held, 5)]);
    assert_eq!(scene.starts(), 0, "what is held is bound first");
    scene.hear(&[(ClaimState::Binding, 5)]);
    scene.hear(&[(ClaimState::Binding, 5)]);
    scene.hear(&[(ClaimState::Active, 5)]);
    assert_eq!(scene.starts(), 1);
    assert_eq!(scene.said(), Some((RunState::Running, 5, None)));
}

#[test]
fn a_released_instance_is_asked_then_killed_and_reported_until_it_is_unlisted() {
    let mut scene = Scene::new(Restart::Never, Vec::new());
    scene.hear(&[(ClaimState::Binding, 5)]);
    scene.hear(&[(ClaimState::Releasing, 5)]);
    assert_eq!(scene.state(), Some(RunState::Stopping));
    scene.pass(9);
    assert_eq!(scene.told(), [Firmness::Ask]);
    scene.pass(1);
    assert_eq!(scene.told(), [Firmness::Ask, Firmness::Force]);
    scene.die(Exit::Signal(9));
    assert_eq!(scene.said(), Some((RunState::Stopped, 5, None)));
    scene.hear(&[]);
    assert_eq!(scene.said(), None);
}

#[test]
fn an_instance_is_kept_until_answers_leave_it_out_for_a_while() {
    let mut scene = Scene::new(Restart::Never, Vec::new());
    scene.hear(&[(ClaimState::Binding, 5)]);
    scene.hear(&[]);
    scene.hear(&[(ClaimState::Active, 5)]);
    scene.hear(&[]);
    // Silence says nothing, however long.
    scene.pass(3600);
    assert_eq!(scene.state(), Some(RunState::Running));
    assert!(scene.keeper.report().in_doubt);
    scene.hear(&[]);
    assert_eq!(scene.state(), Some(RunState::Stopping));
}

#[test]
fn nothing_is_stopped_before_a_server_answered() {
    let mut scene = Scene::new(Restart::Never, vec![Survivor { instance: ONE, fence: 5 }]);
    scene.pass(3600);
    assert_eq!(scene.state(), Some(RunState::Running));
    scene.hear(&[(ClaimState::Active, 5)]);
    assert_eq!((scene.state(), scene.starts()), (Some(RunState::Running), 0));
}

#[test]
fn a_higher_fence_replaces_what_runs_and_a_lower_one_is_void() {
    let mut scene = Scene::new(Restart::Never, Vec::new());
    scene.hear(&[(ClaimState::Binding, 5)]);
    scene.hear(&[(ClaimState::Releasing, 4)]);
    assert_eq!(scene.state(), Some(RunState::Running));
    scene.hear(&[(ClaimState::Binding, 9)]);
    assert_eq!(scene.said(), Some((RunState::Stopping, 5, None)));
    scene.die(Exit::Signal(15));
    scene.pass(1);
    assert_eq!(scene.stage.lock().unwrap().starts, [(ONE, 5), (ONE, 9)]);
}

#[test]
fn a_refused_report_stops_what_runs_under_that_fence_only() {
    let mut scene = Scene::new(Restart::Never, Vec::new());
    scene.hear(&[(ClaimState::Binding, 5)]);
    let refused = |fence| Orders { assignments: Vec::new(), refused: vec![(ONE, fence)] };
    scene.keeper.take(refused(4), scene.now);
    assert_eq!(scene.state(), Some(RunState::Running));
    scene.keeper.take(refused(5), scene.now);
    assert_eq!(scene.state(), Some(RunState::Stopping));
}

#[test]
fn what_dies_is_given_up_with_a_reason() {
    let mut scene = Scene::new(Restart::Never, Vec::new());
    scene.hear(&[(ClaimState::Binding, 5)]);
    scene.die(Exit::Code(3));
    let why = Some("ended with exit code 3".to_owned());
    assert_eq!(scene.said(), Some((RunState::Failed, 5, why)));
    scene.pass(3600);
    assert_eq!(scene.starts(), 1);
}

#[test]
fn what_dies_is_started_again_after_longer_and_longer_rests_if_that_is_wanted() {
    let mut scene = Scene::new(Restart::OnFailure, Vec::new());
    scene.hear(&[(ClaimState::Binding, 5)]);
    for (number, rest) in [(1, 1), (2, 2), (3, 4)] {
        scene.die(Exit::Code(3));
        assert_eq!((scene.state(), scene.starts()), (Some(RunState::Starting), number));
        scene.pass(rest - 1);
        assert_eq!(scene.starts(), number);
        scene.pass(1);
        assert_eq!(scene.starts(), number + 1);
    }
    scene.die(Exit::Code(0));
    let why = Some("ended with exit code 0".to_owned());
    assert_eq!(scene.said(), Some((RunState::Stopped, 5, why)));
}

#[test]
fn an_active_instance_that_is_not_here_is_given_up_or_started_as_the_policy_says() {
    let mut scene = Scene::new(Restart::Never, Vec::new());
    scene.hear(&[(ClaimState::Active, 5)]);
    assert_eq!((scene.state(), scene.starts()), (Some(RunState::Failed), 0));
    let mut scene = Scene::new(Restart::OnFailure, Vec::new());
    scene.hear(&[(ClaimState::Active, 5)]);
    assert_eq!((scene.state(), scene.starts()), (Some(RunState::Running), 1));
}

#[test]
fn what_cannot_be_started_has_failed_and_what_is_released_and_gone_is_said_to_be_stopped() {
    let mut scene = Scene::new(Restart::Never, Vec::new());
    scene.stage.lock().unwrap().broken = true;
    scene.hear(&[(ClaimState::Binding, 5)]);
    assert_eq!(scene.said(), Some((RunState::Failed, 5, None)));
    let mut scene = Scene::new(Restart::Never, Vec::new());
    scene.hear(&[(ClaimState::Releasing, 5)]);
    assert_eq!(scene.said(), Some((RunState::Stopped, 5, None)));
}

#[test]
fn leaving_stops_everything_and_gives_it_up() {
    let mut scene = Scene::new(Restart::OnFailure, Vec::new());
    scene.hear(&[(ClaimState::Binding, 5)]);
    scene.keeper.leave(scene.now);
    assert!(!scene.keeper.is_empty());
    scene.die(Exit::Signal(15));
    assert!(scene.keeper.is_empty());
    assert!(matches!(scene.said(), Some((RunState::Stopped, 5, Some(_)))));
}
