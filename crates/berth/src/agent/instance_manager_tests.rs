//! The instance manager with a fake driver and fake commands.

use std::sync::{Arc, Mutex};

use super::*;
use crate::agent::driver::RecoveredInstance;
use crate::agent::migration_tasks::{CommandRunner, CommandState, Commands};
use berth_api::engine::{Amounts, NodeId};
use berth_api::{MigrationAction, MigrationStep};

#[derive(Default)]
struct FakeHost {
    up: BTreeMap<InstanceId, Observation>,
    told: Vec<(InstanceId, StopMode)>,
    starts: Vec<(InstanceId, i64)>,
    survivors: Vec<RecoveredInstance>,
    broken: bool,
    /// Instances that a migration brought, with the fence of their task.
    brought: BTreeMap<InstanceId, i64>,
    /// How far the command of each task is, and tasks that an earlier agent began.
    courses: BTreeMap<String, CommandState>,
    begun: Vec<MigrationTask>,
    runner: Vec<String>,
}

struct FakeDriver(Arc<Mutex<FakeHost>>);

impl Driver for FakeDriver {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn needs_kvm(&self) -> bool {
        false
    }

    fn recover(&mut self) -> io::Result<Vec<RecoveredInstance>> {
        Ok(self.0.lock().unwrap().survivors.clone())
    }

    fn start(&mut self, launch: &Launch) -> io::Result<()> {
        let mut stage = self.0.lock().unwrap();
        if stage.broken {
            return Err(io::Error::other("out of processes"));
        }
        stage.starts.push((launch.instance, launch.fence));
        stage.up.insert(launch.instance, Observation::Running);
        Ok(())
    }

    fn adopt(&mut self, instance: InstanceId, under: i64, _fence: i64) -> io::Result<bool> {
        let mut stage = self.0.lock().unwrap();
        if stage.brought.get(&instance) == Some(&under) {
            stage.up.insert(instance, Observation::Running);
        }
        Ok(stage.up.contains_key(&instance))
    }

    fn migration_environment(&self, _instance: InstanceId) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    fn observe(&mut self, instance: InstanceId) -> Observation {
        let stage = self.0.lock().unwrap();
        stage.up.get(&instance).copied().unwrap_or(Observation::Gone(Exit::Unwatched))
    }

    fn stop(&mut self, instance: InstanceId, mode: StopMode) {
        self.0.lock().unwrap().told.push((instance, mode));
    }

    fn forget(&mut self, instance: InstanceId) {
        self.0.lock().unwrap().up.remove(&instance);
    }
}

impl CommandRunner for FakeDriver {
    fn recover(&mut self) -> io::Result<Vec<MigrationTask>> {
        Ok(self.0.lock().unwrap().begun.clone())
    }

    fn start(
        &mut self,
        task: &MigrationTask,
        command: &str,
        _more: BTreeMap<String, String>,
    ) -> io::Result<()> {
        let mut stage = self.0.lock().unwrap();
        stage.runner.push(command.to_owned());
        stage.courses.insert(task.id.clone(), CommandState::Running(None));
        Ok(())
    }

    fn state(&mut self, task: &MigrationTask) -> CommandState {
        self.0.lock().unwrap().courses.get(&task.id).cloned().unwrap_or(CommandState::NotStarted)
    }

    fn stop(&mut self, task: &MigrationTask, _firmness: StopMode) {
        self.0.lock().unwrap().courses.insert(task.id.clone(), CommandState::Lost);
    }

    fn forget(&mut self, task: &MigrationTask) {
        self.0.lock().unwrap().courses.remove(&task.id);
    }
}

const ONE: InstanceId = InstanceId::from_u128(1);

struct Fixture {
    stage: Arc<Mutex<FakeHost>>,
    manager: InstanceManager,
    now: Instant,
}

impl Fixture {
    fn new(restart: RestartPolicy, survivors: Vec<RecoveredInstance>) -> Self {
        let up = survivors.iter().map(|one| (one.instance, Observation::Running)).collect();
        Self::on(FakeHost { survivors, up, ..FakeHost::default() }, restart)
    }

    fn on(stage: FakeHost, restart: RestartPolicy) -> Self {
        let stage = Arc::new(Mutex::new(stage));
        let options = ManagerOptions { stop_grace: Duration::from_secs(10), restart };
        let now = Instant::now();
        let fake = || Box::new(FakeDriver(Arc::clone(&stage)));
        let command = |name: &str| Some(name.to_owned());
        let commands = Commands { migrate: command("send"), receive: command("wait"), drop: None };
        let moves = MigrationTasks::new(fake(), commands).unwrap();
        let manager = InstanceManager::new(fake(), moves, options, now).unwrap();
        Self { stage, manager, now }
    }

    fn hear(&mut self, assignments: &[(ClaimState, i64)]) {
        self.hear_moves(assignments, Vec::new());
    }

    fn hear_moves(&mut self, assignments: &[(ClaimState, i64)], migrations: Vec<MigrationTask>) {
        let assignments = assignments.iter().map(|(state, fence)| Assignment {
            instance: ONE,
            state: *state,
            fence: *fence,
            tenant: "acme".to_owned(),
            name: None,
            workload: None,
            image: None,
            resources: Amounts::new(1000, 512),
            tags: BTreeMap::new(),
            volumes: Vec::new(),
            values: Vec::new(),
            elastic: None,
        });
        let orders = DesiredState {
            assignments: assignments.collect(),
            migrations,
            ..DesiredState::default()
        };
        self.manager.set_desired(orders, self.now);
        // Once to act, once to see what came of it.
        self.pass(0);
        self.pass(0);
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.manager.tick(self.now);
    }

    fn die(&mut self, exit: Exit) {
        self.stage.lock().unwrap().up.insert(ONE, Observation::Gone(exit));
        self.pass(1);
    }

    fn said(&self) -> Option<(RunState, i64, Option<String>)> {
        let word = self.manager.report().instances.into_iter().next()?;
        Some((word.running.state, word.running.fence?, word.release))
    }

    fn state(&self) -> Option<RunState> {
        self.said().map(|(state, _, _)| state)
    }

    fn starts(&self) -> usize {
        self.stage.lock().unwrap().starts.len()
    }

    fn told(&self) -> Vec<StopMode> {
        self.stage.lock().unwrap().told.iter().map(|(_, mode)| *mode).collect()
    }
}

#[test]
fn a_bound_instance_is_started_once_however_often_it_is_listed() {
    let mut scene = Fixture::new(RestartPolicy::Never, Vec::new());
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
    let mut scene = Fixture::new(RestartPolicy::Never, Vec::new());
    scene.hear(&[(ClaimState::Binding, 5)]);
    scene.hear(&[(ClaimState::Releasing, 5)]);
    assert_eq!(scene.state(), Some(RunState::Stopping));
    scene.pass(9);
    assert_eq!(scene.told(), [StopMode::Graceful]);
    scene.pass(1);
    assert_eq!(scene.told(), [StopMode::Graceful, StopMode::Forced]);
    scene.die(Exit::Signal(9));
    assert_eq!(scene.said(), Some((RunState::Stopped, 5, None)));
    scene.hear(&[]);
    assert_eq!(scene.said(), None);
}

#[test]
fn an_instance_is_kept_until_answers_leave_it_out_for_a_while() {
    let mut scene = Fixture::new(RestartPolicy::Never, Vec::new());
    scene.hear(&[(ClaimState::Binding, 5)]);
    scene.hear(&[]);
    scene.hear(&[(ClaimState::Active, 5)]);
    scene.hear(&[]);
    // Silence says nothing, however long.
    scene.pass(3600);
    assert_eq!(scene.state(), Some(RunState::Running));
    assert!(scene.manager.report().in_doubt);
    scene.hear(&[]);
    assert_eq!(scene.state(), Some(RunState::Stopping));
}

#[test]
fn nothing_is_stopped_before_a_server_answered() {
    let mut scene = Fixture::new(
        RestartPolicy::Never,
        vec![RecoveredInstance { instance: ONE, fence: 5, arriving: false }],
    );
    scene.pass(3600);
    assert_eq!(scene.state(), Some(RunState::Running));
    scene.hear(&[(ClaimState::Active, 5)]);
    assert_eq!((scene.state(), scene.starts()), (Some(RunState::Running), 0));
}

#[test]
fn a_higher_fence_replaces_what_runs_and_a_lower_one_is_void() {
    let mut scene = Fixture::new(RestartPolicy::Never, Vec::new());
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
    let mut scene = Fixture::new(RestartPolicy::Never, Vec::new());
    scene.hear(&[(ClaimState::Binding, 5)]);
    let refused = |fence| DesiredState { refused: vec![(ONE, fence)], ..DesiredState::default() };
    scene.manager.set_desired(refused(4), scene.now);
    assert_eq!(scene.state(), Some(RunState::Running));
    scene.manager.set_desired(refused(5), scene.now);
    assert_eq!(scene.state(), Some(RunState::Stopping));
}

#[test]
fn what_dies_is_given_up_with_a_reason() {
    let mut scene = Fixture::new(RestartPolicy::Never, Vec::new());
    scene.hear(&[(ClaimState::Binding, 5)]);
    scene.die(Exit::Code(3));
    let why = Some("ended with exit code 3".to_owned());
    assert_eq!(scene.said(), Some((RunState::Failed, 5, why)));
    scene.pass(3600);
    assert_eq!(scene.starts(), 1);
}

#[test]
fn what_dies_is_started_again_after_longer_and_longer_rests_if_that_is_wanted() {
    let mut scene = Fixture::new(RestartPolicy::OnFailure, Vec::new());
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
    let mut scene = Fixture::new(RestartPolicy::Never, Vec::new());
    scene.hear(&[(ClaimState::Active, 5)]);
    assert_eq!((scene.state(), scene.starts()), (Some(RunState::Failed), 0));
    let mut scene = Fixture::new(RestartPolicy::OnFailure, Vec::new());
    scene.hear(&[(ClaimState::Active, 5)]);
    assert_eq!((scene.state(), scene.starts()), (Some(RunState::Running), 1));
}

#[test]
fn what_cannot_be_started_has_failed_and_what_is_released_and_gone_is_said_to_be_stopped() {
    let mut scene = Fixture::new(RestartPolicy::Never, Vec::new());
    scene.stage.lock().unwrap().broken = true;
    scene.hear(&[(ClaimState::Binding, 5)]);
    assert_eq!(scene.said(), Some((RunState::Failed, 5, None)));
    let mut scene = Fixture::new(RestartPolicy::Never, Vec::new());
    scene.hear(&[(ClaimState::Releasing, 5)]);
    assert_eq!(scene.said(), Some((RunState::Stopped, 5, None)));
}

#[test]
fn leaving_stops_everything_and_gives_it_up() {
    let mut scene = Fixture::new(RestartPolicy::OnFailure, Vec::new());
    scene.hear(&[(ClaimState::Binding, 5)]);
    scene.manager.stop_all(scene.now);
    assert!(!scene.manager.is_empty());
    scene.die(Exit::Signal(15));
    assert!(scene.manager.is_empty());
    assert!(matches!(scene.said(), Some((RunState::Stopped, 5, Some(_)))));
}

mod moving {
    use super::*;

    fn task(action: MigrationAction) -> MigrationTask {
        MigrationTask {
            id: "m".to_owned(),
            instance: ONE,
            action,
            source: NodeId::new("a"),
            target: NodeId::new("b"),
            fence: 9,
            resources: Amounts::new(1000, 512),
        }
    }

    impl Fixture {
        fn step(&self) -> Option<MigrationStep> {
            self.manager.report().migrations.first().map(|report| report.step)
        }

        fn course(&mut self, course: CommandState) {
            self.stage.lock().unwrap().courses.insert("m".to_owned(), course);
            self.pass(0);
        }

        fn up(&self) -> bool {
            self.stage.lock().unwrap().up.contains_key(&ONE)
        }
    }

    /// An instance that runs here under fence 5 and is to be sent.
    fn sending() -> Fixture {
        let mut scene = Fixture::new(RestartPolicy::Never, Vec::new());
        scene.hear(&[(ClaimState::Binding, 5)]);
        scene.hear_moves(&[(ClaimState::Active, 5)], vec![task(MigrationAction::Send)]);
        assert_eq!(scene.step(), Some(MigrationStep::Copying));
        scene
    }

    #[test]
    fn an_instance_that_is_sent_may_end_here_and_is_not_given_up() {
        let mut scene = sending();
        scene.die(Exit::Code(0));
        assert_eq!(scene.said(), Some((RunState::Running, 5, None)));
        scene.course(CommandState::Done);
        assert_eq!(scene.step(), Some(MigrationStep::Switched));
        assert_eq!(scene.said(), Some((RunState::Running, 5, None)));
        // The server took it in.
        scene.hear_moves(&[(ClaimState::Releasing, 5)], vec![task(MigrationAction::CleanUp)]);
        assert_eq!(scene.step(), Some(MigrationStep::CleanedUp));
        assert_eq!(scene.said(), Some((RunState::Stopped, 5, None)));
        assert_eq!(scene.stage.lock().unwrap().runner, ["send"], "it is sent once");
    }

    #[test]
    fn a_send_that_failed_is_said_and_an_instance_that_died_with_it_is_given_up() {
        let mut scene = sending();
        scene.course(CommandState::Failed("no route".to_owned()));
        assert_eq!(scene.step(), Some(MigrationStep::Failed));
        assert_eq!(scene.state(), Some(RunState::Running));
        let mut scene = sending();
        scene.die(Exit::Signal(9));
        scene.course(CommandState::Failed("no route".to_owned()));
        scene.pass(0);
        assert_eq!(scene.state(), Some(RunState::Failed));
    }

    #[test]
    fn after_a_restart_an_end_means_nothing_until_it_is_known_how_the_move_ended() {
        let survivors = vec![RecoveredInstance { instance: ONE, fence: 5, arriving: false }];
        let up = BTreeMap::from([(ONE, Observation::Gone(Exit::Unwatched))]);
        let begun = vec![task(MigrationAction::Send)];
        let stage = FakeHost { survivors, up, begun, ..FakeHost::default() };
        let mut scene = Fixture::on(stage, RestartPolicy::Never);
        scene.course(CommandState::Lost);
        assert_eq!((scene.state(), scene.step()), (Some(RunState::Running), None));
        assert_eq!(scene.stage.lock().unwrap().runner.len(), 0, "nobody asked for it yet");
        // It is still wanted: the command is run again, and finds that all is done.
        scene.hear_moves(&[(ClaimState::Active, 5)], vec![task(MigrationAction::Send)]);
        assert_eq!(scene.stage.lock().unwrap().runner, ["send"]);
        scene.course(CommandState::Done);
        assert_eq!(scene.step(), Some(MigrationStep::Switched));
    }

    #[test]
    fn a_move_that_is_called_off_is_stopped_after_a_doubt_and_the_instance_goes_on() {
        let mut scene = sending();
        scene.hear(&[(ClaimState::Active, 5)]);
        assert_eq!(scene.stage.lock().unwrap().courses["m"], CommandState::Running(None));
        scene.pass(3);
        scene.hear(&[(ClaimState::Active, 5)]);
        scene.pass(0);
        assert!(scene.stage.lock().unwrap().courses.is_empty());
        assert_eq!((scene.state(), scene.step()), (Some(RunState::Running), None));
    }

    #[test]
    fn what_waits_for_an_instance_is_not_said_to_run_before_it_arrived() {
        let mut scene = Fixture::new(RestartPolicy::Never, Vec::new());
        for _ in 0..3 {
            scene.hear_moves(&[], vec![task(MigrationAction::Receive)]);
            scene.pass(3);
        }
        assert_eq!(scene.stage.lock().unwrap().starts, [(ONE, 9)]);
        assert!(scene.up() && scene.told().is_empty());
        assert_eq!((scene.state(), scene.step()), (None, None));
        scene.hear(&[(ClaimState::Active, 11)]);
        assert_eq!(scene.said(), Some((RunState::Running, 11, None)));
        assert_eq!(scene.starts(), 1, "it is what waited");
    }

    #[test]
    fn an_agent_that_is_restarted_while_it_waits_says_nothing_either() {
        let survivors = vec![RecoveredInstance { instance: ONE, fence: 9, arriving: true }];
        let mut scene = Fixture::new(RestartPolicy::Never, survivors);
        scene.pass(1);
        assert_eq!(scene.state(), None);
        scene.hear_moves(&[], vec![task(MigrationAction::Receive)]);
        assert_eq!((scene.state(), scene.starts()), (None, 0));
        scene.hear(&[(ClaimState::Active, 9)]);
        assert_eq!(scene.said(), Some((RunState::Running, 9, None)));
    }

    #[test]
    fn what_cannot_wait_fails_the_move_and_what_made_things_ready_does_not() {
        for (exit, step) in [(Exit::Code(1), Some(MigrationStep::Failed)), (Exit::Code(0), None)] {
            let mut scene = Fixture::new(RestartPolicy::Never, Vec::new());
            scene.hear_moves(&[], vec![task(MigrationAction::Receive)]);
            scene.die(exit);
            scene.pass(0);
            assert_eq!((scene.step(), scene.state()), (step, None));
            assert_eq!(scene.starts(), 1);
        }
    }

    #[test]
    fn what_a_migration_brought_is_taken_up_and_not_started_again() {
        let mut scene = Fixture::new(RestartPolicy::OnFailure, Vec::new());
        scene.manager.migrations.commands.receive = None;
        scene.hear_moves(&[], vec![task(MigrationAction::Receive)]);
        scene.stage.lock().unwrap().brought.insert(ONE, 9);
        // The switch may give it a higher fence than its task had.
        scene.hear(&[(ClaimState::Active, 11)]);
        assert_eq!(scene.said(), Some((RunState::Running, 11, None)));
        assert_eq!(scene.starts(), 0);
    }

    #[test]
    fn what_was_received_in_vain_is_stopped_before_it_is_said_to_be_dropped() {
        let mut scene = Fixture::new(RestartPolicy::Never, Vec::new());
        scene.hear_moves(&[], vec![task(MigrationAction::Receive)]);
        scene.hear_moves(&[], vec![task(MigrationAction::Drop)]);
        assert_eq!((scene.told(), scene.step()), (vec![StopMode::Graceful], None));
        scene.die(Exit::Signal(15));
        scene.pass(0);
        assert_eq!(scene.step(), Some(MigrationStep::Dropped));
        assert_eq!(scene.state(), None);
    }
}
