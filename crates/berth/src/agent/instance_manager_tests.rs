//! The instance manager with a fake driver and fake commands.

use std::sync::{Arc, Mutex};

use super::*;
use crate::agent::driver::RecoveredInstance;
use crate::agent::migration_tasks::{CommandRunner, CommandState, Commands};
use berth_api::engine::NodeId;
use berth_api::{MigrationAction, MigrationStep};

#[derive(Default)]
struct FakeHost {
    up: BTreeMap<InstanceId, Observation>,
    stops: Vec<(InstanceId, StopMode)>,
    starts: Vec<(InstanceId, i64)>,
    recovered: Vec<RecoveredInstance>,
    broken: bool,
    /// Instances that a migration migrated, with the fence of their task.
    migrated: BTreeMap<InstanceId, i64>,
    /// The command of each task, and tasks that an earlier agent started.
    commands: BTreeMap<String, CommandState>,
    recovered_tasks: Vec<MigrationTask>,
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
        Ok(self.0.lock().unwrap().recovered.clone())
    }

    fn start(&mut self, launch: &Launch) -> io::Result<()> {
        let mut host = self.0.lock().unwrap();
        if host.broken {
            return Err(io::Error::other("out of processes"));
        }
        host.starts.push((launch.instance, launch.fence));
        host.up.insert(launch.instance, Observation::Running);
        Ok(())
    }

    fn adopt(&mut self, instance: InstanceId, under: i64, _fence: i64) -> io::Result<bool> {
        let mut host = self.0.lock().unwrap();
        if host.migrated.get(&instance) == Some(&under) {
            host.up.insert(instance, Observation::Running);
        }
        Ok(host.up.contains_key(&instance))
    }

    fn migration_environment(&self, _instance: InstanceId) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    fn observe(&mut self, instance: InstanceId) -> Observation {
        let host = self.0.lock().unwrap();
        host.up.get(&instance).copied().unwrap_or(Observation::Gone(Exit::Unwatched))
    }

    fn stop(&mut self, instance: InstanceId, mode: StopMode) {
        self.0.lock().unwrap().stops.push((instance, mode));
    }

    fn forget(&mut self, instance: InstanceId) {
        self.0.lock().unwrap().up.remove(&instance);
    }
}

impl CommandRunner for FakeDriver {
    fn recover(&mut self) -> io::Result<Vec<MigrationTask>> {
        Ok(self.0.lock().unwrap().recovered_tasks.clone())
    }

    fn start(
        &mut self,
        task: &MigrationTask,
        command: &str,
        _more: BTreeMap<String, String>,
    ) -> io::Result<()> {
        let mut host = self.0.lock().unwrap();
        host.runner.push(command.to_owned());
        host.commands.insert(task.id.clone(), CommandState::Running(None));
        Ok(())
    }

    fn state(&mut self, task: &MigrationTask) -> CommandState {
        self.0.lock().unwrap().commands.get(&task.id).cloned().unwrap_or(CommandState::NotStarted)
    }

    fn stop(&mut self, task: &MigrationTask, _mode: StopMode) {
        self.0.lock().unwrap().commands.insert(task.id.clone(), CommandState::Lost);
    }

    fn forget(&mut self, task: &MigrationTask) {
        self.0.lock().unwrap().commands.remove(&task.id);
    }
}

const ONE: InstanceId = InstanceId::from_u128(1);

struct Fixture {
    host: Arc<Mutex<FakeHost>>,
    manager: InstanceManager,
    now: Instant,
}

impl Fixture {
    fn new(restart: RestartPolicy, recovered: Vec<RecoveredInstance>) -> Self {
        let up = recovered.iter().map(|one| (one.instance, Observation::Running)).collect();
        Self::on(FakeHost { recovered, up, ..FakeHost::default() }, restart)
    }

    fn on(host: FakeHost, restart: RestartPolicy) -> Self {
        let host = Arc::new(Mutex::new(host));
        let options = ManagerOptions { stop_grace: Duration::from_secs(10), restart };
        let now = Instant::now();
        let fake = || Box::new(FakeDriver(Arc::clone(&host)));
        let command = |name: &str| Some(name.to_owned());
        let commands = Commands { migrate: command("send"), receive: command("wait"), drop: None };
        let moves = MigrationTasks::new(fake(), commands).unwrap();
        let manager = InstanceManager::new(fake(), moves, options, now).unwrap();
        Self { host, manager, now }
    }

    fn answer(&mut self, assignments: &[(ClaimState, i64)]) {
        self.answer_with_moves(assignments, Vec::new());
    }

    fn answer_with_moves(
        &mut self,
        assignments: &[(ClaimState, i64)],
        migrations: Vec<MigrationTask>,
    ) {
        let assignments = assignments.iter().map(|(state, fence)| assigned(ONE, *state, *fence));
        self.answer_assigned(assignments.collect(), migrations);
    }

    fn answer_assigned(&mut self, assignments: Vec<Assignment>, migrations: Vec<MigrationTask>) {
        let desired = DesiredState { assignments, migrations, ..DesiredState::default() };
        self.manager.set_desired(desired, self.now);
        // Once to act, once to observe the result.
        self.pass(0);
        self.pass(0);
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.manager.tick(self.now);
    }

    fn end(&mut self, exit: Exit) {
        self.host.lock().unwrap().up.insert(ONE, Observation::Gone(exit));
        self.pass(1);
    }

    fn reported(&self) -> Option<(RunState, i64, Option<String>)> {
        let report = self.manager.report().instances.into_iter().next()?;
        Some((report.running.state, report.running.fence?, report.release))
    }

    fn state(&self) -> Option<RunState> {
        self.reported().map(|(state, _, _)| state)
    }

    fn starts(&self) -> usize {
        self.host.lock().unwrap().starts.len()
    }

    fn stops(&self) -> Vec<StopMode> {
        self.host.lock().unwrap().stops.iter().map(|(_, mode)| *mode).collect()
    }
}

fn assigned(instance: InstanceId, state: ClaimState, fence: i64) -> Assignment {
    Assignment {
        instance,
        state,
        fence,
        tenant: "acme".to_owned(),
        name: None,
        workload: None,
        slot: None,
        image: None,
        resources: Amounts::new(1000, 512),
        tags: BTreeMap::new(),
        volumes: Vec::new(),
        values: Vec::new(),
        elastic: None,
    }
}

#[test]
fn nothing_is_started_in_the_room_of_a_preempted_instance_until_it_has_stopped() {
    let two = InstanceId::from_u128(2);
    for (resources, starts_at_once) in
        [(Amounts::default(), false), (Amounts::new(1000, 512), true)]
    {
        let mut fixture = Fixture::new(RestartPolicy::Never, Vec::new());
        fixture.answer(&[(ClaimState::Binding, 5)]);
        let released = Assignment { resources, ..assigned(ONE, ClaimState::Releasing, 5) };
        let listed = vec![released, assigned(two, ClaimState::Binding, 6)];
        fixture.answer_assigned(listed.clone(), Vec::new());
        fixture.pass(1);
        assert_eq!(fixture.stops(), [StopMode::Graceful]);
        assert_eq!(fixture.starts() == 2, starts_at_once, "{resources:?}");
        fixture.end(Exit::Unwatched);
        fixture.answer_assigned(listed, Vec::new());
        assert_eq!(fixture.starts(), 2, "{resources:?}");
    }
}

#[test]
fn a_bound_instance_is_started_once_however_often_it_is_listed() {
    let mut fixture = Fixture::new(RestartPolicy::Never, Vec::new());
    fixture.answer(&[(ClaimState::Held, 5)]);
    assert_eq!(fixture.starts(), 0, "what is held is bound first");
    fixture.answer(&[(ClaimState::Binding, 5)]);
    fixture.answer(&[(ClaimState::Binding, 5)]);
    fixture.answer(&[(ClaimState::Active, 5)]);
    assert_eq!(fixture.starts(), 1);
    assert_eq!(fixture.reported(), Some((RunState::Running, 5, None)));
}

#[test]
fn a_released_instance_is_asked_then_killed_and_reported_until_it_is_unlisted() {
    let mut fixture = Fixture::new(RestartPolicy::Never, Vec::new());
    fixture.answer(&[(ClaimState::Binding, 5)]);
    fixture.answer(&[(ClaimState::Releasing, 5)]);
    assert_eq!(fixture.state(), Some(RunState::Stopping));
    fixture.pass(9);
    assert_eq!(fixture.stops(), [StopMode::Graceful]);
    fixture.pass(1);
    assert_eq!(fixture.stops(), [StopMode::Graceful, StopMode::Forced]);
    fixture.end(Exit::Signal(9));
    assert_eq!(fixture.reported(), Some((RunState::Stopped, 5, None)));
    fixture.answer(&[]);
    assert_eq!(fixture.reported(), None);
}

#[test]
fn an_instance_is_kept_until_answers_leave_it_out_for_a_while() {
    let mut fixture = Fixture::new(RestartPolicy::Never, Vec::new());
    fixture.answer(&[(ClaimState::Binding, 5)]);
    fixture.answer(&[]);
    fixture.answer(&[(ClaimState::Active, 5)]);
    fixture.answer(&[]);
    // Silence says nothing, however long.
    fixture.pass(3600);
    assert_eq!(fixture.state(), Some(RunState::Running));
    assert!(fixture.manager.report().in_doubt);
    fixture.answer(&[]);
    assert_eq!(fixture.state(), Some(RunState::Stopping));
}

#[test]
fn nothing_is_stopped_before_a_server_answered() {
    let mut fixture = Fixture::new(
        RestartPolicy::Never,
        vec![RecoveredInstance { instance: ONE, fence: 5, arriving: false }],
    );
    fixture.pass(3600);
    assert_eq!(fixture.state(), Some(RunState::Running));
    fixture.answer(&[(ClaimState::Active, 5)]);
    assert_eq!((fixture.state(), fixture.starts()), (Some(RunState::Running), 0));
}

#[test]
fn a_higher_fence_replaces_what_runs_and_a_lower_one_is_void() {
    let mut fixture = Fixture::new(RestartPolicy::Never, Vec::new());
    fixture.answer(&[(ClaimState::Binding, 5)]);
    fixture.answer(&[(ClaimState::Releasing, 4)]);
    assert_eq!(fixture.state(), Some(RunState::Running));
    fixture.answer(&[(ClaimState::Binding, 9)]);
    assert_eq!(fixture.reported(), Some((RunState::Stopping, 5, None)));
    fixture.end(Exit::Signal(15));
    fixture.pass(1);
    assert_eq!(fixture.host.lock().unwrap().starts, [(ONE, 5), (ONE, 9)]);
}

#[test]
fn a_refused_report_stops_what_runs_under_that_fence_only() {
    let mut fixture = Fixture::new(RestartPolicy::Never, Vec::new());
    fixture.answer(&[(ClaimState::Binding, 5)]);
    let refused = |fence| DesiredState { refused: vec![(ONE, fence)], ..DesiredState::default() };
    fixture.manager.set_desired(refused(4), fixture.now);
    assert_eq!(fixture.state(), Some(RunState::Running));
    fixture.manager.set_desired(refused(5), fixture.now);
    assert_eq!(fixture.state(), Some(RunState::Stopping));
}

#[test]
fn what_dies_is_given_up_with_a_reason() {
    let mut fixture = Fixture::new(RestartPolicy::Never, Vec::new());
    fixture.answer(&[(ClaimState::Binding, 5)]);
    fixture.end(Exit::Code(3));
    let why = Some("ended with exit code 3".to_owned());
    assert_eq!(fixture.reported(), Some((RunState::Failed, 5, why)));
    fixture.pass(3600);
    assert_eq!(fixture.starts(), 1);
}

#[test]
fn what_dies_is_started_again_after_longer_and_longer_rests_if_that_is_wanted() {
    let mut fixture = Fixture::new(RestartPolicy::OnFailure, Vec::new());
    fixture.answer(&[(ClaimState::Binding, 5)]);
    for (number, rest) in [(1, 1), (2, 2), (3, 4)] {
        fixture.end(Exit::Code(3));
        assert_eq!((fixture.state(), fixture.starts()), (Some(RunState::Starting), number));
        fixture.pass(rest - 1);
        assert_eq!(fixture.starts(), number);
        fixture.pass(1);
        assert_eq!(fixture.starts(), number + 1);
    }
    fixture.end(Exit::Code(0));
    let why = Some("ended with exit code 0".to_owned());
    assert_eq!(fixture.reported(), Some((RunState::Stopped, 5, why)));
}

#[test]
fn an_active_instance_that_is_not_here_is_given_up_or_started_as_the_policy_says() {
    let mut fixture = Fixture::new(RestartPolicy::Never, Vec::new());
    fixture.answer(&[(ClaimState::Active, 5)]);
    assert_eq!((fixture.state(), fixture.starts()), (Some(RunState::Failed), 0));
    let mut fixture = Fixture::new(RestartPolicy::OnFailure, Vec::new());
    fixture.answer(&[(ClaimState::Active, 5)]);
    assert_eq!((fixture.state(), fixture.starts()), (Some(RunState::Running), 1));
}

#[test]
fn what_cannot_be_started_has_failed_and_what_is_released_and_gone_is_said_to_be_stopped() {
    let mut fixture = Fixture::new(RestartPolicy::Never, Vec::new());
    fixture.host.lock().unwrap().broken = true;
    fixture.answer(&[(ClaimState::Binding, 5)]);
    assert_eq!(fixture.reported(), Some((RunState::Failed, 5, None)));
    assert_eq!(fixture.manager.report().instances[0].running.cause, Some(FailureCause::Node));
    let mut fixture = Fixture::new(RestartPolicy::Never, Vec::new());
    fixture.answer(&[(ClaimState::Releasing, 5)]);
    assert_eq!(fixture.reported(), Some((RunState::Stopped, 5, None)));
}

#[test]
fn leaving_stops_everything_and_gives_it_up() {
    let mut fixture = Fixture::new(RestartPolicy::OnFailure, Vec::new());
    fixture.answer(&[(ClaimState::Binding, 5)]);
    fixture.manager.stop_all(fixture.now);
    assert!(!fixture.manager.is_empty());
    fixture.end(Exit::Signal(15));
    assert!(fixture.manager.is_empty());
    assert!(matches!(fixture.reported(), Some((RunState::Stopped, 5, Some(_)))));
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
            self.host.lock().unwrap().commands.insert("m".to_owned(), course);
            self.pass(0);
        }

        fn up(&self) -> bool {
            self.host.lock().unwrap().up.contains_key(&ONE)
        }
    }

    /// An instance that runs here under fence 5 and is to be sent.
    fn sending() -> Fixture {
        let mut fixture = Fixture::new(RestartPolicy::Never, Vec::new());
        fixture.answer(&[(ClaimState::Binding, 5)]);
        fixture.answer_with_moves(&[(ClaimState::Active, 5)], vec![task(MigrationAction::Send)]);
        assert_eq!(fixture.step(), Some(MigrationStep::Copying));
        fixture
    }

    #[test]
    fn an_instance_that_is_sent_may_end_here_and_is_not_given_up() {
        let mut fixture = sending();
        fixture.end(Exit::Code(0));
        assert_eq!(fixture.reported(), Some((RunState::Running, 5, None)));
        fixture.course(CommandState::Done);
        assert_eq!(fixture.step(), Some(MigrationStep::Switched));
        assert_eq!(fixture.reported(), Some((RunState::Running, 5, None)));
        // The server took it in.
        fixture
            .answer_with_moves(&[(ClaimState::Releasing, 5)], vec![task(MigrationAction::CleanUp)]);
        assert_eq!(fixture.step(), Some(MigrationStep::CleanedUp));
        assert_eq!(fixture.reported(), Some((RunState::Stopped, 5, None)));
        assert_eq!(fixture.host.lock().unwrap().runner, ["send"], "it is sent once");
    }

    #[test]
    fn a_send_that_failed_is_said_and_an_instance_that_died_with_it_is_given_up() {
        let mut fixture = sending();
        fixture.course(CommandState::Failed("no route".to_owned()));
        assert_eq!(fixture.step(), Some(MigrationStep::Failed));
        assert_eq!(fixture.state(), Some(RunState::Running));
        let mut fixture = sending();
        fixture.end(Exit::Signal(9));
        fixture.course(CommandState::Failed("no route".to_owned()));
        fixture.pass(0);
        assert_eq!(fixture.state(), Some(RunState::Failed));
    }

    #[test]
    fn after_a_restart_an_end_means_nothing_until_it_is_known_how_the_move_ended() {
        let recovered = vec![RecoveredInstance { instance: ONE, fence: 5, arriving: false }];
        let up = BTreeMap::from([(ONE, Observation::Gone(Exit::Unwatched))]);
        let recovered_tasks = vec![task(MigrationAction::Send)];
        let host = FakeHost { recovered, up, recovered_tasks, ..FakeHost::default() };
        let mut fixture = Fixture::on(host, RestartPolicy::Never);
        fixture.course(CommandState::Lost);
        assert_eq!((fixture.state(), fixture.step()), (Some(RunState::Running), None));
        assert_eq!(fixture.host.lock().unwrap().runner.len(), 0, "no server asked for it yet");
        // It is still wanted: the command is run again, and finds that all is done.
        fixture.answer_with_moves(&[(ClaimState::Active, 5)], vec![task(MigrationAction::Send)]);
        assert_eq!(fixture.host.lock().unwrap().runner, ["send"]);
        fixture.course(CommandState::Done);
        assert_eq!(fixture.step(), Some(MigrationStep::Switched));
    }

    #[test]
    fn a_move_that_is_called_off_is_stopped_after_a_doubt_and_the_instance_goes_on() {
        let mut fixture = sending();
        fixture.answer(&[(ClaimState::Active, 5)]);
        assert_eq!(fixture.host.lock().unwrap().commands["m"], CommandState::Running(None));
        fixture.pass(3);
        fixture.answer(&[(ClaimState::Active, 5)]);
        fixture.pass(0);
        assert!(fixture.host.lock().unwrap().commands.is_empty());
        assert_eq!((fixture.state(), fixture.step()), (Some(RunState::Running), None));
    }

    #[test]
    fn what_waits_for_an_instance_is_not_said_to_run_before_it_arrived() {
        let mut fixture = Fixture::new(RestartPolicy::Never, Vec::new());
        for _ in 0..3 {
            fixture.answer_with_moves(&[], vec![task(MigrationAction::Receive)]);
            fixture.pass(3);
        }
        assert_eq!(fixture.host.lock().unwrap().starts, [(ONE, 9)]);
        assert!(fixture.up() && fixture.stops().is_empty());
        assert_eq!((fixture.state(), fixture.step()), (None, None));
        fixture.answer(&[(ClaimState::Active, 11)]);
        assert_eq!(fixture.reported(), Some((RunState::Running, 11, None)));
        assert_eq!(fixture.starts(), 1, "it is what waited");
    }

    #[test]
    fn an_agent_that_is_restarted_while_it_waits_says_nothing_either() {
        let recovered = vec![RecoveredInstance { instance: ONE, fence: 9, arriving: true }];
        let mut fixture = Fixture::new(RestartPolicy::Never, recovered);
        fixture.pass(1);
        assert_eq!(fixture.state(), None);
        fixture.answer_with_moves(&[], vec![task(MigrationAction::Receive)]);
        assert_eq!((fixture.state(), fixture.starts()), (None, 0));
        fixture.answer(&[(ClaimState::Active, 9)]);
        assert_eq!(fixture.reported(), Some((RunState::Running, 9, None)));
    }

    #[test]
    fn what_cannot_wait_fails_the_move_and_what_made_things_ready_does_not() {
        for (exit, step) in [(Exit::Code(1), Some(MigrationStep::Failed)), (Exit::Code(0), None)] {
            let mut fixture = Fixture::new(RestartPolicy::Never, Vec::new());
            fixture.answer_with_moves(&[], vec![task(MigrationAction::Receive)]);
            fixture.end(exit);
            fixture.pass(0);
            assert_eq!((fixture.step(), fixture.state()), (step, None));
            assert_eq!(fixture.starts(), 1);
        }
    }

    #[test]
    fn what_a_migration_brought_is_taken_up_and_not_started_again() {
        let mut fixture = Fixture::new(RestartPolicy::OnFailure, Vec::new());
        fixture.manager.migrations.commands.receive = None;
        fixture.answer_with_moves(&[], vec![task(MigrationAction::Receive)]);
        fixture.host.lock().unwrap().migrated.insert(ONE, 9);
        // The switch may give it a higher fence than its task had.
        fixture.answer(&[(ClaimState::Active, 11)]);
        assert_eq!(fixture.reported(), Some((RunState::Running, 11, None)));
        assert_eq!(fixture.starts(), 0);
    }

    #[test]
    fn what_was_received_in_vain_is_stopped_before_it_is_said_to_be_dropped() {
        let mut fixture = Fixture::new(RestartPolicy::Never, Vec::new());
        fixture.answer_with_moves(&[], vec![task(MigrationAction::Receive)]);
        fixture.answer_with_moves(&[], vec![task(MigrationAction::Drop)]);
        assert_eq!((fixture.stops(), fixture.step()), (vec![StopMode::Graceful], None));
        fixture.end(Exit::Signal(15));
        fixture.pass(0);
        assert_eq!(fixture.step(), Some(MigrationStep::Dropped));
        assert_eq!(fixture.state(), None);
    }
}

#[test]
fn an_environment_that_no_host_could_pass_on_is_the_fault_of_the_instance() {
    let cause = |code: i32| cause_of(&io::Error::from_raw_os_error(code));
    assert_eq!(cause(7), FailureCause::Instance, "E2BIG");
    assert_eq!(cause(11), FailureCause::Node, "EAGAIN");
    assert_eq!(cause(28), FailureCause::Node, "ENOSPC");
}
