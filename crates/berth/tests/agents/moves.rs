//! Instances that move between two real agents while they run, on one machine. What moves them is a
//! shell script, as it would be `virsh migrate` or a snapshot elsewhere.

use std::time::Duration;

use berth_api::engine::{InstanceId, NodeId};
use berth_api::{Migration, MigrationState, StartMigration};

use crate::fixture::{AgentPlan, Fixture, RunningAgent, is_alive, processes_in, until};

const RUNS: &str = "exec sleep 300";

/// Two hosts, of which the first runs an instance.
struct Pair {
    fixture: Fixture,
    source: Option<RunningAgent>,
    source_plan: AgentPlan,
    _target: RunningAgent,
    instance: InstanceId,
    /// Its process on the source.
    pid: i32,
}

impl Pair {
    async fn new(on_source: &[&str], on_target: &[&str]) -> Self {
        let fixture = Fixture::new().await;
        let source_plan = fixture.agent(&fixture.url(), RUNS).with(on_source);
        let source = Some(source_plan.start());
        fixture.node_is_there("n1").await;
        let (instance, fence) = fixture.place(None).await;
        fixture.is_active(instance, fence).await;
        let pid = fixture.pid(instance).unwrap();
        let target = fixture.agent_of("n2", RUNS).with(on_target).start();
        fixture.node_is_there("n2").await;
        Self { fixture, source, source_plan, _target: target, instance, pid }
    }

    async fn start(&self) -> Migration {
        let to = Some(NodeId::new("n2"));
        let how = StartMigration { to, ..StartMigration::default() };
        self.fixture.client.migrate(self.instance, &how).await.unwrap()
    }

    /// Waits until it is over, and says how it ended. All the while, the instance has a claim.
    async fn ended(&self, id: &str) -> Migration {
        until("the migration is over", async || {
            assert!(self.fixture.client.claim(self.instance).await.is_ok(), "it has a claim");
            self.fixture.client.migration(id).await.unwrap().state.is_over()
        })
        .await;
        self.fixture.client.migration(id).await.unwrap()
    }

    async fn is_in(&self, id: &str, state: MigrationState) {
        until("the migration goes on", async || {
            self.fixture.client.migration(id).await.unwrap().state == state
        })
        .await;
    }

    fn on_target(&self) -> Option<i32> {
        self.fixture.pid_in("agent-n2", self.instance)
    }

    /// It runs on the target under a fence of its own, and only there.
    async fn is_on_target(&self) {
        let claim = self.fixture.client.claim(self.instance).await.unwrap();
        assert_eq!(claim.node, Some(NodeId::new("n2")));
        self.fixture.is_active(self.instance, claim.fence).await;
        assert!(!is_alive(self.pid));
        let pid = self.on_target().unwrap();
        assert!(is_alive(pid));
        // It stays: nobody takes it for something that does not belong there.
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert!(is_alive(pid));
        assert_eq!(self.fixture.client.claim(self.instance).await.unwrap().fence, claim.fence);
        assert_eq!(processes_in(self.fixture.folder.path()), [pid]);
    }

    /// It runs on the source as before, and nothing is left on the target.
    async fn is_on_source(&self) {
        let claim = self.fixture.client.claim(self.instance).await.unwrap();
        assert_eq!(claim.node, Some(NodeId::new("n1")));
        until("nothing is left on the target", async || {
            processes_in(self.fixture.folder.path()) == [self.pid]
        })
        .await;
        let path = "/v1/claims?node=n2";
        until("its place on the target is free", async || {
            let text = self.fixture.client.get_text(path).await.unwrap();
            !text.contains(&self.instance.to_string())
        })
        .await;
    }
}

/// In the folder of the test: says that it is ready, waits for a word of the source, and becomes the instance.
const WAIT: &str = r#"way="../../../$BERTH_MIGRATION"; touch "$way.ready"
    while ! test -e "$way.go"; do sleep 0.05; done; rm "$way.go" "$way.ready"; exec sleep 300"#;

/// Waits until somebody is ready, ends the instance here and gives the word. The target hears of the
/// migration when it next speaks; an agent that does not wait for it sends into the void.
const HAND_OVER: &str = r#"way="../../../$BERTH_MIGRATION"
    while ! test -e "$way.ready"; do sleep 0.05; done
    kill -KILL "-$BERTH_PID"; touch "$way.go""#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_moves_to_what_waits_for_it() {
    let send = format!("sleep 1; {HAND_OVER}");
    let pair = Pair::new(&["--migrate-command", &send], &["--receive-command", WAIT]).await;
    let id = pair.start().await.id;
    pair.is_in(&id, MigrationState::Copying).await;
    let ended = pair.ended(&id).await;
    assert_eq!(ended.state, MigrationState::Done, "{}", ended.message);
    pair.is_on_target().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_without_a_command_takes_up_what_was_started_there_under_the_fence() {
    // On one machine, the other host is a new session.
    let send = r#"kill -KILL "-$BERTH_PID"
        cd ../../../agent-n2 && setsid sleep 300 </dev/null >/dev/null 2>&1 &
        sleep 0.5"#;
    // It knows of moves: one that does not would take what arrives for gone, and says so.
    let pair = Pair::new(&["--migrate-command", send], &["--migrate-command", send]).await;
    let id = pair.start().await.id;
    let ended = pair.ended(&id).await;
    assert_eq!(ended.state, MigrationState::Done, "{}", ended.message);
    until("it is taken up", async || pair.on_target().is_some()).await;
    pair.is_on_target().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_agent_that_is_killed_in_the_middle_goes_on_when_it_is_back() {
    let send = format!("echo begun >> ../begun; sleep 4; {HAND_OVER}");
    let mut pair = Pair::new(&["--migrate-command", &send], &["--receive-command", WAIT]).await;
    let id = pair.start().await.id;
    pair.is_in(&id, MigrationState::Copying).await;
    pair.source.take().unwrap().kill();
    // Its command goes on without it, and the move happens with nobody to tell of it.
    until("the instance left the source", async || !is_alive(pair.pid)).await;
    assert_eq!(pair.fixture.client.migration(&id).await.unwrap().state, MigrationState::Copying);
    assert!(is_alive(pair.on_target().unwrap()));
    pair.source = Some(pair.source_plan.start());
    let ended = pair.ended(&id).await;
    assert_eq!(ended.state, MigrationState::Done, "{}", ended.message);
    pair.is_on_target().await;
    let begun = pair.fixture.folder.path().join("agent/migrations/begun");
    assert_eq!(std::fs::read_to_string(begun).unwrap(), "begun\n", "it was sent once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_is_killed_with_its_agent_is_run_again() {
    let send = format!("test -e ../again || {{ touch ../again; sleep 300; }}; {HAND_OVER}");
    let mut pair = Pair::new(&["--migrate-command", &send], &["--receive-command", WAIT]).await;
    let id = pair.start().await.id;
    pair.is_in(&id, MigrationState::Copying).await;
    pair.source.take().unwrap().kill();
    let runs = pair.fixture.folder.path().join("agent/migrations");
    for pid in processes_in(&runs) {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    assert!(is_alive(pair.pid), "it runs on the source all the while");
    pair.source = Some(pair.source_plan.start());
    let ended = pair.ended(&id).await;
    assert_eq!(ended.state, MigrationState::Done, "{}", ended.message);
    pair.is_on_target().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_agent_that_is_killed_while_it_waits_does_not_switch_too_early() {
    let send = format!("while ! test -e ../go; do sleep 0.05; done; {HAND_OVER}");
    let pair = Pair::new(&["--migrate-command", &send], &["--receive-command", WAIT]).await;
    let id = pair.start().await.id;
    pair.is_in(&id, MigrationState::Copying).await;
    until("it is awaited", async || pair.on_target().is_some_and(is_alive)).await;
    let Pair { fixture, source, source_plan, _target, instance, pid } = pair;
    _target.kill();
    let _target = fixture.agent_of("n2", RUNS).with(&["--receive-command", WAIT]).start();
    let log = fixture.folder.path().join("agent-n2.log");
    until("the second agent spoke", async || {
        std::fs::read_to_string(&log).unwrap().matches("node registered").count() == 2
    })
    .await;
    let pair = Pair { fixture, source, source_plan, _target, instance, pid };
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(pair.fixture.client.migration(&id).await.unwrap().state, MigrationState::Copying);
    assert!(is_alive(pair.pid), "it runs on the source");
    std::fs::write(pair.fixture.folder.path().join("agent/migrations/go"), "").unwrap();
    let ended = pair.ended(&id).await;
    assert_eq!(ended.state, MigrationState::Done, "{}", ended.message);
    pair.is_on_target().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_knows_nothing_of_moves_is_sent_nothing() {
    let pair = Pair::new(&["--migrate-command", "sleep 300"], &[]).await;
    let id = pair.start().await.id;
    let ended = pair.ended(&id).await;
    assert_eq!(ended.state, MigrationState::Failed);
    assert!(ended.message.contains("--receive-command"), "{}", ended.message);
    pair.is_on_source().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_fails_leaves_the_instance_where_it_is() {
    let send = "echo trying; echo 'no route to n2'; exit 3";
    let dropping = r#"echo "$BERTH_ACTION $BERTH_TARGET" >> ../dropped"#;
    let on_target = ["--receive-command", WAIT, "--drop-command", dropping];
    let pair = Pair::new(&["--migrate-command", send], &on_target).await;
    let id = pair.start().await.id;
    let ended = pair.ended(&id).await;
    assert_eq!(ended.state, MigrationState::Failed);
    assert!(ended.message.contains("ended with code 3: no route to n2"), "{}", ended.message);
    pair.is_on_source().await;
    let dropped = pair.fixture.folder.path().join("agent-n2/migrations/dropped");
    assert_eq!(std::fs::read_to_string(dropped).unwrap(), "drop n2\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_that_is_called_off_stops_the_command_and_what_waits() {
    let pair = Pair::new(&["--migrate-command", "sleep 300"], &["--receive-command", WAIT]).await;
    let id = pair.start().await.id;
    pair.is_in(&id, MigrationState::Copying).await;
    pair.fixture.client.cancel_migration(&id).await.unwrap();
    let ended = pair.ended(&id).await;
    assert_eq!(ended.state, MigrationState::Cancelled, "{}", ended.message);
    pair.is_on_source().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_cannot_move_instances_says_what_it_needs() {
    let pair = Pair::new(&[], &["--receive-command", WAIT]).await;
    let id = pair.start().await.id;
    let ended = pair.ended(&id).await;
    assert_eq!(ended.state, MigrationState::Failed);
    assert!(ended.message.contains("start it with --migrate-command"), "{}", ended.message);
    pair.is_on_source().await;
}
