//! What one tenant sends does not hold up another: tenants take turns in front of the planner, and
//! refusals are explained on another thread.
//!
//! Order is asserted by counting answers while planner or explainer stand still, never by time.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use berth_control::metrics::Metrics;
use berth_control::{
    Actor, OverloadCause, PlaceAnswer, PlaceJob, PlaceRequest, Placer, PlacerOptions,
};
use berth_engine::affinity::Rule;
use berth_engine::{
    Amounts, BatchMode, Engine, InstanceId, InstanceRequest, NodeFacts, PlaceError, Policy,
    Refusal, Timestamp,
};
use berth_ledger::{Backend, Op, Quota, Text};

/// Long enough for any machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// What a tenant may be served before the next one's turn, and what goes to the ledger at once.
const TURN: usize = 32;

/// A placer on a ledger of its own, whose answers are collected in the order in which they come.
struct Setup {
    placer: Arc<Placer>,
    metrics: Arc<Metrics>,
    answers: Receiver<(String, InstanceId, PlaceAnswer)>,
    reply: Sender<(String, InstanceId, PlaceAnswer)>,
    next: u128,
    _folder: tempfile::TempDir,
}

/// What stands still until it is dropped.
struct Pause(#[allow(dead_code, reason = "dropping it ends the pause")] Sender<()>);

fn node(name: &str, memory_mib: u32) -> NodeFacts {
    let mut facts = NodeFacts::new(name, Amounts::new(1_000_000, memory_mib).with_disk(1 << 30));
    facts.vmm_overhead_mib = 0;
    facts.instance_limit = 1_000_000;
    facts
}

impl Setup {
    fn new(nodes: &[NodeFacts], change: impl FnOnce(&mut PlacerOptions)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let metrics = Arc::new(Metrics::new());
        let mut options = PlacerOptions::new(Policy::builtin("pack").unwrap());
        options.clock = Arc::new(|| Timestamp(0));
        options.metrics = Some(Arc::clone(&metrics));
        change(&mut options);
        let backend = Backend::Sqlite(folder.path().join("ledger.db"));
        let placer = Placer::start(backend, &options).unwrap();
        for facts in nodes {
            placer.ledger().administer(Op::put_node(facts.clone())).unwrap();
        }
        let (reply, answers) = channel();
        Self { placer: Arc::new(placer), metrics, answers, reply, next: 1, _folder: folder }
    }

    fn request(&mut self, tenant: &str, memory_mib: &[u32]) -> PlaceRequest {
        let instances = memory_mib.iter().map(|&memory| {
            self.next += 1;
            let amounts = Amounts::new(1, memory);
            Arc::new(InstanceRequest::new(InstanceId::from_u128(self.next), tenant, amounts))
        });
        let instances: Vec<_> = instances.collect();
        PlaceRequest {
            request_id: Text::from(format!("r{}", instances[0].id)),
            tenant: Text::from(tenant),
            instances,
            lease_s: 600,
            by: Some(Actor {
                name: Text::from(tenant),
                origin: Text::from("test"),
                is_tenant: true,
            }),
            ..PlaceRequest::default()
        }
    }

    fn submit(&mut self, request: PlaceRequest) {
        let (tenant, id) = (request.tenant.to_string(), request.instances[0].id);
        let reply = self.reply.clone();
        let reply = Box::new(move |answer| drop(reply.send((tenant, id, answer))));
        self.placer.submit(PlaceJob { request, reply });
    }

    fn ask(&mut self, tenant: &str, memory_mib: u32) {
        let request = self.request(tenant, &[memory_mib]);
        self.submit(request);
    }

    fn answer(&self) -> (String, InstanceId, PlaceAnswer) {
        let answer = self.answers.recv_timeout(TIMEOUT);
        answer.unwrap_or_else(|error| panic!("no answer: {error}"))
    }

    /// How many answers others get before a tenant gets its first.
    fn answers_before(&self, tenant: &str) -> usize {
        (0..).find(|_| self.answer().0 == tenant).unwrap()
    }

    /// Makes the planner stand still.
    fn pause_planner(&self) -> Pause {
        let ((entered, is_entered), (pause, paused)) = (channel(), channel::<()>());
        self.placer.update_replica(move |_| {
            entered.send(()).unwrap();
            // Ends when the other side is dropped.
            let _ = paused.recv();
        });
        is_entered.recv_timeout(TIMEOUT).unwrap();
        Pause(pause)
    }

    /// Makes the explainer stand still.
    fn pause_explainer(&self) -> Pause {
        let ((entered, is_entered), (pause, paused)) = (channel(), channel::<()>());
        let placer = Arc::clone(&self.placer);
        tokio::spawn(async move {
            let waits = move |_: &mut Engine| {
                entered.send(()).unwrap();
                // Ends when the other side is dropped.
                let _ = paused.recv();
            };
            placer.query_explainer(waits).await
        });
        is_entered.recv_timeout(TIMEOUT).unwrap();
        Pause(pause)
    }

    /// How often something was explained.
    fn explained(&self) -> u64 {
        self.counter("berth_decision_seconds_count{stage=\"explained\"} ")
    }

    fn counter(&self, line: &str) -> u64 {
        let text = self.metrics.text();
        let count = text.lines().find_map(|found| found.strip_prefix(line));
        count.map_or(0, |count| count.trim().parse().unwrap())
    }
}

fn refusals(answer: PlaceAnswer) -> Vec<Refusal> {
    match answer {
        PlaceAnswer::NoRoom(refusals) => refusals,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_waits_for_one_turn_of_another_however_much_that_one_sends() {
    let mut setup = Setup::new(&[node("n", 1 << 30)], |_| {});
    let pause = setup.pause_planner();
    for _ in 0..2000 {
        setup.ask("loud", 1);
    }
    setup.ask("quiet", 1);
    drop(pause);
    let before = setup.answers_before("quiet");
    assert!(before <= TURN, "{before} of the other tenant were served first");
    for _ in before..2000 {
        assert!(matches!(setup.answer(), (_, _, PlaceAnswer::Granted(_))));
    }
}

/// The negative control of the test above: without lines of their own, the last one waits for all.
#[tokio::test(flavor = "multi_thread")]
async fn requests_of_one_tenant_are_served_in_their_order() {
    let mut setup = Setup::new(&[node("n", 1 << 30)], |_| {});
    let pause = setup.pause_planner();
    for _ in 0..2000 {
        setup.ask("loud", 1);
    }
    let last = setup.request("loud", &[1]);
    let last_id = last.instances[0].id;
    setup.submit(last);
    drop(pause);
    let before = (0..).find(|_| setup.answer().1 == last_id).unwrap();
    assert_eq!(before, 2000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_is_placed_while_refusals_of_another_are_not_explained_yet() {
    let mut setup = Setup::new(&[node("a", 1000), node("b", 2000)], |_| {});
    let pause = setup.pause_explainer();
    for number in 0..300 {
        setup.ask("loud", 3000 + number);
    }
    // Neither does a batch that needs a search, nor a choice that is to be explained.
    let batch = setup.request("loud", &[900, 900, 900, 900]);
    setup.submit(batch);
    let mut explained = setup.request("loud", &[1]);
    explained.explain = Some(100);
    setup.submit(explained);
    for _ in 0..50 {
        setup.ask("quiet", 1);
    }
    for _ in 0..50 {
        let (tenant, _, answer) = setup.answer();
        assert_eq!(tenant, "quiet");
        assert!(matches!(answer, PlaceAnswer::Granted(_)), "{answer:?}");
    }
    let nothing = setup.answers.recv_timeout(Duration::from_millis(1));
    assert!(matches!(nothing, Err(RecvTimeoutError::Timeout)), "{nothing:?}");
    drop(pause);
    let (mut refused, mut granted) = (0, 0);
    for _ in 0..302 {
        match setup.answer().2 {
            PlaceAnswer::NoRoom(refusals) => {
                refused += 1;
                assert_eq!(refusals[0].nodes, 2);
            }
            PlaceAnswer::Granted(granted_one) => {
                granted += 1;
                assert!(granted_one.explanation.is_some_and(|it| it.table.len() == 2));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((refused, granted), (301, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_take_turns_in_front_of_the_explainer_too() {
    let mut setup = Setup::new(&[node("a", 1000)], |_| {});
    let pause = setup.pause_explainer();
    for number in 0..500 {
        setup.ask("loud", 2000 + number);
    }
    setup.ask("quiet", 5000);
    // All have been planned, and found no room, when this one is granted.
    for _ in 0..2 {
        setup.ask("late", 1);
        assert_eq!(setup.answer().0, "late");
    }
    drop(pause);
    let before = setup.answers_before("quiet");
    assert!(before <= TURN, "{before} of the other tenant were explained first");
}

/// Nodes of one rack each.
fn racks(count: usize) -> Vec<NodeFacts> {
    let rack = |number: usize| {
        let mut facts = node(&format!("n{number:02}"), 1000);
        (facts.zone, facts.rack) = (Some("z".to_owned()), Some(format!("r{number}")));
        facts
    };
    (0..count).map(rack).collect()
}

/// Instances that must all be in different racks.
fn submit_apart(setup: &mut Setup, count: usize, memory_mib: u32) {
    let mut batch = setup.request("loud", &vec![memory_mib; count]);
    for instance in &mut batch.instances {
        let instance = Arc::make_mut(instance);
        instance.tags.insert("role".to_owned(), "wide".to_owned());
        instance.affinity.push(Rule::parse("role!=wide@rack").unwrap());
    }
    setup.submit(batch);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_waits_for_one_batch_of_another_tenant_however_many_it_sends() {
    let mut setup = Setup::new(&racks(20), |_| {});
    let pause = setup.pause_explainer();
    for number in 0..30 {
        // No two are alike, so that none is answered by the explanation of another.
        submit_apart(&mut setup, 21, 1 + number);
    }
    setup.ask("quiet", 5000);
    // All have been planned, and found no room, when this one is granted.
    for _ in 0..2 {
        setup.ask("late", 1);
        assert_eq!(setup.answer().0, "late");
    }
    drop(pause);
    let before = setup.answers_before("quiet");
    assert!(before <= 1, "{before} batches of the other tenant were explained first");
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_refusals_are_explained_once_and_each_names_its_own_instance() {
    let mut setup = Setup::new(&[node("a", 1000), node("b", 2000)], |_| {});
    let pause = setup.pause_explainer();
    let name = |id: InstanceId| Some(format!("web-{id}"));
    for _ in 0..200 {
        let mut request = setup.request("loud", &[9000]);
        let instance = Arc::make_mut(&mut request.instances[0]);
        instance.name = name(instance.id);
        setup.submit(request);
    }
    let mut engine = Engine::new(Policy::builtin("pack").unwrap());
    for facts in [node("a", 1000), node("b", 2000)] {
        engine.fleet_mut().add_node(&facts).unwrap();
    }
    // All have been planned, and found no room, when these are granted.
    for _ in 0..2 {
        setup.ask("late", 1);
        let (tenant, id, _) = setup.answer();
        assert_eq!(tenant, "late");
        let late = InstanceRequest::new(id, "late", Amounts::new(1, 1));
        let at = engine.place(&late, Timestamp(0)).unwrap().node;
        engine.fleet_mut().claim(&late, &at).unwrap();
    }
    let before = setup.explained();
    drop(pause);
    for _ in 0..200 {
        let (_, id, answer) = setup.answer();
        let mut alone = InstanceRequest::new(id, "loud", Amounts::new(1, 9000));
        alone.name = name(id);
        let Err(PlaceError::Refused(expected)) = engine.place(&alone, Timestamp(0)) else {
            panic!("it fits");
        };
        assert_eq!(refusals(answer), [*expected]);
    }
    // The pause itself counts, and those that arrived while the first was being explained.
    let explained = setup.explained() - before;
    assert!(explained <= 20, "{explained} explanations of 200 equal refusals");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_with_too_many_requests_in_line_is_turned_away_and_no_other() {
    let mut setup = Setup::new(&[node("n", 1 << 30)], |options| options.tenant_queue = 10);
    let pause = setup.pause_planner();
    for _ in 0..50 {
        setup.ask("loud", 1);
    }
    setup.ask("quiet", 1);
    for _ in 0..50 {
        let request = setup.request("own", &[1]);
        setup.submit(PlaceRequest { by: None, ..request });
    }
    drop(pause);
    let (mut busy, mut granted) = (0, 0);
    for _ in 0..101 {
        match setup.answer() {
            (tenant, _, PlaceAnswer::Busy(_)) => {
                assert_eq!(tenant, "loud");
                busy += 1;
            }
            (_, _, PlaceAnswer::Granted(_)) => granted += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((busy, granted), (40, 61));
    let limited = "berth_limited_requests_total{limit=\"planner\"} 40";
    assert!(setup.metrics.text().contains(limited), "{}", setup.metrics.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_with_too_many_refusals_in_line_is_turned_away_and_no_other() {
    let mut setup = Setup::new(&[node("n", 1000)], |options| options.tenant_queue = 10);
    let pause = setup.pause_explainer();
    // One after the other, so that none waits for the planner.
    for number in 0..30 {
        setup.ask("loud", 2000 + number);
        setup.ask("late", 1);
        while setup.answer().0 != "late" {}
    }
    setup.ask("quiet", 5000);
    drop(pause);
    assert_eq!(
        refusals(loop {
            let (tenant, _, answer) = setup.answer();
            if tenant == "quiet" {
                break answer;
            }
        })[0]
            .code,
        "no_capacity_memory"
    );
    let limited = setup.counter("berth_limited_requests_total{limit=\"explainer\"} ");
    assert!((18..=20).contains(&limited), "{limited} of 30 with room for 10");
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_that_need_a_search_are_placed_by_the_explainer_and_claimed_by_the_planner() {
    let mut setup = Setup::new(&[node("a", 10), node("b", 10)], |_| {});
    // In the given order the two small ones fill one node half, and the last has no place.
    let batch = setup.request("acme", &[4, 4, 6, 6]);
    setup.submit(batch);
    match setup.answer().2 {
        PlaceAnswer::Granted(granted) => assert_eq!(granted.grant.claims.len(), 4),
        other => panic!("{other:?}"),
    }
    let more = setup.request("acme", &[1]);
    setup.submit(more);
    assert_eq!(refusals(setup.answer().2)[0].code, "no_capacity_memory");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_batch_with_rules_never_holds_the_planner() {
    let mut setup = Setup::new(&racks(20), |_| {});
    let pause = setup.pause_explainer();
    submit_apart(&mut setup, 21, 1);
    submit_apart(&mut setup, 20, 1);
    setup.ask("quiet", 1);
    assert_eq!(setup.answer().0, "quiet");
    drop(pause);
    let (mut refused, mut granted) = (0, 0);
    for _ in 0..2 {
        match setup.answer().2 {
            PlaceAnswer::NoRoom(refusals) => refused += refusals.len(),
            PlaceAnswer::Granted(batch) => granted += batch.grant.claims.len(),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((refused, granted), (1, 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_which_some_fit_names_those_that_do_not() {
    let mut setup = Setup::new(&[node("a", 10)], |_| {});
    let mut batch = setup.request("acme", &[4, 4, 4]);
    batch.mode = BatchMode::BestEffort;
    setup.submit(batch);
    match setup.answer().2 {
        PlaceAnswer::Granted(granted) => {
            assert_eq!(granted.grant.claims.len(), 2);
            assert_eq!(granted.left_out.len(), 1);
            assert_eq!(granted.left_out[0].code, "no_capacity_memory");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_batch_of_many_classes_never_holds_the_planner() {
    let mut setup = Setup::new(&[node("n", 1 << 20)], |_| {});
    let pause = setup.pause_explainer();
    let sizes: Vec<u32> = (1..=40).collect();
    let batch = setup.request("loud", &sizes);
    setup.submit(batch);
    // One of a single class is placed at once.
    let alike = setup.request("alike", &[7; 40]);
    setup.submit(alike);
    assert_eq!(setup.answer().0, "alike");
    drop(pause);
    match setup.answer() {
        (_, _, PlaceAnswer::Granted(granted)) => assert_eq!(granted.grant.claims.len(), 40),
        other => panic!("{other:?}"),
    }
}

/// A setup whose planner takes a moment for each request, so that many of them wait for too long.
fn slow_planner(queue_delay: Duration) -> Setup {
    Setup::new(&[node("n", 1 << 30)], |options| {
        options.queue_delay = queue_delay;
        options.clock = Arc::new(|| {
            if std::thread::current().name() == Some("planner") {
                std::thread::sleep(Duration::from_millis(2));
            }
            Timestamp(0)
        });
    })
}

/// Sends many requests of one tenant, has some of them served, and then sends one more. Returns whether it
/// is turned away, and what others get then.
fn overload(setup: &mut Setup) -> bool {
    for _ in 0..900 {
        setup.ask("heavy", 1);
    }
    for _ in 0..100 {
        assert!(matches!(setup.answer(), (_, _, PlaceAnswer::Granted(_))));
    }
    let more = setup.request("heavy", &[1]);
    let more_id = more.instances[0].id;
    setup.submit(more);
    setup.ask("light", 1);
    let own = setup.request("own", &[1]);
    setup.submit(PlaceRequest { by: None, ..own });
    let mut is_shed = false;
    for _ in 0..803 {
        match setup.answer() {
            (_, id, PlaceAnswer::Busy(overload)) => {
                assert_eq!((id, overload.cause), (more_id, OverloadCause::TenantShare));
                assert!((1..=30).contains(&overload.retry_after_s), "{overload:?}");
                is_shed = true;
            }
            (_, _, PlaceAnswer::Granted(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    is_shed
}

#[tokio::test(flavor = "multi_thread")]
async fn once_requests_wait_for_too_long_their_tenant_is_turned_away_and_no_other() {
    let mut setup = slow_planner(Duration::from_millis(20));
    assert!(overload(&mut setup));
    let limited = "berth_limited_requests_total{limit=\"queue_delay\"} 1\n";
    assert!(setup.metrics.text().contains(limited), "{}", setup.metrics.text());
}

/// The negative control of the test above.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_limit_on_waits_nobody_is_turned_away() {
    let mut setup = slow_planner(Duration::ZERO);
    assert!(!overload(&mut setup));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_own_work_goes_on_while_tenants_fill_the_queue() {
    let mut setup = Setup::new(&[node("n", 1 << 30)], |options| options.in_flight = 5);
    let pause = setup.pause_planner();
    for number in 0..5 {
        setup.ask(&format!("t{number}"), 1);
    }
    // As reconcilers send them, and more than tenants may have under way.
    for _ in 0..20 {
        let own = setup.request("own", &[1]);
        setup.submit(PlaceRequest { by: None, ..own });
    }
    setup.ask("late", 1);
    let (tenant, _, answer) = setup.answer();
    assert_eq!(tenant, "late");
    let expected = OverloadCause::AllTenants;
    assert!(matches!(answer, PlaceAnswer::Busy(it) if it.cause == expected), "{answer:?}");
    drop(pause);
    for _ in 0..25 {
        assert!(matches!(setup.answer(), (_, _, PlaceAnswer::Granted(_))));
    }
    setup.ask("late", 1);
    assert!(matches!(setup.answer(), (_, _, PlaceAnswer::Granted(_))));
}

/// An instance with as many rules as it may have, which costs a planner many times what one without costs.
fn with_rules(request: &mut PlaceRequest) {
    let regexes = (0..16).map(|number| format!("role!=~/^x{number}/"));
    let plain = (0..48).map(|number| format!("role!=~y{number}"));
    let rules = regexes.chain(plain).map(|rule| Rule::parse(&rule).unwrap());
    for instance in &mut request.instances {
        Arc::make_mut(instance).affinity = rules.clone().collect();
    }
}

/// How many of one tenant's single instances are served before 100 of another's, which has none with rules.
fn served_before_another(change: fn(&mut PlaceRequest)) -> usize {
    let mut setup = Setup::new(&[node("n", 1 << 30)], |_| {});
    let pause = setup.pause_planner();
    for _ in 0..200 {
        let mut request = setup.request("loud", &[1]);
        change(&mut request);
        setup.submit(request);
    }
    for _ in 0..100 {
        setup.ask("quiet", 1);
    }
    drop(pause);
    let mut served = [0, 0];
    while served[1] < 100 {
        let (tenant, _, answer) = setup.answer();
        assert!(matches!(answer, PlaceAnswer::Granted(_)), "{answer:?}");
        served[usize::from(tenant == "quiet")] += 1;
    }
    served[0]
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_with_many_rules_cost_their_tenant_more_turns() {
    // Each costs 1 + 48 / 4 + 16 × 4 = 77, and seven turns of 16 serve the other tenant.
    let served = served_before_another(with_rules);
    assert!(served <= TURN, "{served} requests of 64 rules were served before 100 without any");
    // The negative control: without rules they are served turn by turn.
    let served = served_before_another(|_| {});
    assert!(served >= 64, "{served} requests were served before 100 of another tenant");
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_requests_beyond_a_quota_are_explained_once() {
    let mut setup = Setup::new(&[node("n", 1 << 30)], |_| {});
    let quota = Quota { instances: Some(1), ..Quota::default() };
    setup.placer.ledger().administer(Op::PutQuota { tenant: Text::from("loud"), quota }).unwrap();
    let pause = setup.pause_explainer();
    for _ in 0..100 {
        let request = setup.request("loud", &[7, 7]);
        setup.submit(request);
    }
    for _ in 0..3 {
        setup.ask("late", 1);
        while setup.answer().0 != "late" {}
    }
    drop(pause);
    for _ in 0..100 {
        match setup.answer().2 {
            PlaceAnswer::Refused(_, fixes) => assert_eq!(fixes.len(), 2, "{fixes:?}"),
            other => panic!("{other:?}"),
        }
    }
    // Fewer instances, and a higher quota: two for each search.
    let trials = setup.counter("berth_limit_trials_total ");
    assert!(trials <= 20, "{trials} dry runs for 100 equal refusals");
}
