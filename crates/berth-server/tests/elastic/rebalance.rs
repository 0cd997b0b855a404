//! Rebalances through the real server: planned, begun, driven to their end by agents' reports, and
//! planned again.

use std::time::Duration;

use berth_api::{Rebalance, RebalanceApplied, Role};
use berth_engine::elastic::Size;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::common::{Reply, TIMEOUT};
use crate::scene::{NODE, Scene, Setup, Way, resources, whole};

/// Nodes with instances of one unit each; a node has ten.
struct Fleet {
    scene: Scene,
}

/// What an instance is like.
#[derive(Clone, Copy)]
enum Kind {
    Elastic,
    OptedOut,
    Rigid,
}

use Kind::{Elastic, OptedOut, Rigid};

impl Fleet {
    /// `limits` goes on with the policy's migration part.
    async fn new(limits: &str, nodes: &[(&str, &[Kind])]) -> Self {
        let setup = Setup::new(Way::Native("joint"), whole(1)).more(limits);
        let scene = Scene::new(setup, whole(10)).await;
        let fleet = Self { scene };
        // One node after the other is the only one that takes anything.
        fleet.cordon(NODE, "cordon").await;
        for (node, kinds) in nodes {
            if *node == NODE {
                fleet.cordon(NODE, "uncordon").await;
            } else {
                fleet.scene.node(node, whole(10), json!({})).await;
            }
            for (number, kind) in kinds.iter().enumerate() {
                fleet.place(&format!("{node}-{number}"), *kind).await;
            }
            fleet.cordon(node, "cordon").await;
        }
        for (node, _) in nodes {
            fleet.cordon(node, "uncordon").await;
        }
        fleet
    }

    async fn cordon(&self, node: &str, verb: &str) {
        self.scene.post(&format!("/v1/nodes/{node}/{verb}"), &json!({})).await.expect(200);
    }

    async fn place(&self, name: &str, kind: Kind) {
        let mut spec = json!({"name": name, "resources": resources(whole(1))});
        if !matches!(kind, Rigid) {
            let min = json!({"cpu_milli": 1, "memory_mib": 1});
            let max = json!({"cpu_milli": 100_000, "memory_mib": 100_000});
            spec["elastic"] = json!({"min": min, "max": max, "stays": matches!(kind, OptedOut)});
        }
        self.scene.run(&spec).await;
    }

    async fn plan(&self, asked: Value) -> Rebalance {
        let reply = self.scene.post("/v1/rebalance/plan", &asked).await.expect(200);
        serde_json::from_value(reply.json()).unwrap()
    }

    async fn apply(&self, asked: Value) -> RebalanceApplied {
        let reply = self.scene.post("/v1/rebalance/apply", &asked).await.expect(200);
        serde_json::from_value(reply.json()).unwrap()
    }

    /// Agents do what they were told, until nothing is left on the source.
    async fn drive(&self, applied: &RebalanceApplied) {
        for begun in &applied.begun {
            self.finish(&begun.id, begun.source.as_str()).await;
        }
    }

    async fn finish(&self, id: &str, source: &str) {
        for step in ["copying", "switched", "cleaned_up"] {
            let path = format!("/v1/nodes/{source}/migrations");
            self.scene.post(&path, &json!({"id": id, "step": step})).await.expect(200);
        }
        let began = Instant::now();
        let path = format!("/v1/migrations/{id}");
        while self.scene.get(&path).await["state"] != "done" {
            assert!(began.elapsed() < TIMEOUT, "{}", self.scene.get(&path).await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Begins moves in as many rounds as the limits need; says how many moves each round began.
    async fn apply_all(&self, asked: &Value) -> Vec<usize> {
        let mut applied = self.apply(asked.clone()).await;
        let mut rounds = Vec::new();
        loop {
            rounds.push(applied.begun.len());
            self.drive(&applied).await;
            if applied.not_begun.is_empty() || applied.begun.is_empty() {
                return rounds;
            }
            let left: Vec<_> = applied.not_begun.into_iter().map(|left| left.step).collect();
            applied = self.apply(json!({"goal": applied.goal, "moves": left})).await;
        }
    }

    /// Where everybody is, by name.
    async fn places(&self) -> Vec<(String, String)> {
        let page = self.scene.get("/v1/instances").await;
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let mut places: Vec<(String, String)> = page["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| (text(&item["name"]), text(&item["node"])))
            .collect();
        places.sort();
        places
    }

    async fn id(&self, name: &str) -> String {
        let page = self.scene.get("/v1/instances").await;
        let mut items = page["items"].as_array().unwrap().iter();
        items.find(|item| item["name"] == name).unwrap()["instance"].as_str().unwrap().to_owned()
    }

    async fn count_on(&self, node: &str) -> usize {
        self.places().await.iter().filter(|(_, at)| at == node).count()
    }

    async fn migrations(&self) -> usize {
        self.scene.get("/v1/migrations").await["items"].as_array().unwrap().len()
    }
}

fn is_field(reply: &Reply, field: &str, words: &[&str]) {
    let problem = reply.json();
    assert_eq!(reply.status.as_u16(), 400, "{problem}");
    assert_eq!(problem["fields"][0]["field"], field, "{problem}");
    let detail = problem["detail"].as_str().unwrap();
    assert!(words.iter().all(|word| detail.contains(word)), "{detail}");
}

const MANY: &str = "per_node = 100\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_to_spread_is_a_dry_run_with_gains_that_add_up() {
    let fleet = Fleet::new(MANY, &[("n1", &[Elastic; 8]), ("n2", &[Elastic; 1])]).await;
    let (before, accounts) = (fleet.places().await, fleet.scene.account().await);
    let plan = fleet.plan(json!({"goal": "spread"})).await;
    assert_eq!(plan.moves.len(), 3, "{plan:?}");
    for step in &plan.moves {
        assert_eq!(
            (step.from.as_str(), step.to.as_str(), step.tenant.as_str()),
            ("n1", "n2", "acme")
        );
        assert!(step.name.as_deref().unwrap().starts_with("n1-"), "{step:?}");
        assert!(step.gain >= 5000 && step.cost >= 1024 && !step.why.is_empty(), "{step:?}");
    }
    let gains: u64 = plan.moves.iter().map(|step| step.gain).sum();
    assert_eq!(gains, plan.before.value_ppm - plan.after.value_ppm);
    assert_eq!((plan.before.fullest_ppm, plan.after.fullest_ppm), (800_000, 500_000));
    assert_eq!(plan.gain_unit, "ppm");
    assert!(
        plan.measure.contains("squared use") && plan.message.contains("80 % to 50 %"),
        "{plan:?}"
    );
    assert_eq!(fleet.plan(json!({"goal": "spread"})).await, plan);
    assert_eq!((fleet.places().await, fleet.migrations().await), (before, 0));
    assert_eq!(fleet.scene.account().await, accounts);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spreading_goes_in_rounds_under_the_limit_of_a_node_and_ends_for_good() {
    // Two at once is what the policy allows by itself.
    let fleet = Fleet::new("", &[("n1", &[Elastic; 8]), ("n2", &[Elastic; 1])]).await;
    let first = fleet.apply(json!({"goal": "spread"})).await;
    assert_eq!((first.begun.len(), first.not_begun.len(), first.waiting), (2, 1, 1), "{first:?}");
    let why = &first.not_begun[0].why;
    assert!(why.contains("n1") && why.contains("elastic.migration.per_node"), "{why}");
    assert!(first.message.starts_with("2 of 3 moves begun; 1 for later"), "{}", first.message);
    assert_eq!(fleet.migrations().await, 2);
    // Who is on its way is no move of another plan, and the limit holds for that one too.
    let again = fleet.apply(json!({"goal": "spread"})).await;
    assert!(again.begun.is_empty(), "{again:?}");
    assert_eq!(fleet.migrations().await, 2);
    fleet.drive(&first).await;
    let left = json!({"goal": "spread", "moves": [first.not_begun[0].step]});
    assert_eq!(fleet.apply_all(&left).await, [1]);
    assert_eq!((fleet.count_on("n1").await, fleet.count_on("n2").await), (5, 4));
    for goal in ["spread", "consolidate"] {
        let plan = fleet.plan(json!({"goal": goal, "min_gain_ppm": 1, "onto_empty": true})).await;
        assert!(plan.moves.is_empty(), "{plan:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limit_of_the_fleet_holds() {
    let limits = "per_node = 100\nfleet = 1\n";
    let fleet = Fleet::new(limits, &[("n1", &[Elastic; 8]), ("n2", &[Elastic; 1])]).await;
    let asked = json!({"goal": "spread"});
    let first = fleet.apply(asked.clone()).await;
    assert_eq!((first.begun.len(), first.waiting), (1, 2), "{first:?}");
    assert!(first.not_begun[0].why.contains("elastic.migration.fleet"), "{first:?}");
    fleet.drive(&first).await;
    let left: Vec<_> = first.not_begun.iter().map(|left| &left.step).collect();
    assert_eq!(fleet.apply_all(&json!({"goal": "spread", "moves": left})).await, [1, 1]);
    assert_eq!((fleet.count_on("n1").await, fleet.count_on("n2").await), (5, 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consolidating_empties_whole_nodes_and_they_stay_empty() {
    let limits = "per_node = 100\ncooldown_s = 0\n";
    let nodes: [(&str, &[Kind]); 3] =
        [("n1", &[Elastic; 2]), ("n2", &[Elastic; 1]), ("n3", &[Elastic; 4])];
    let fleet = Fleet::new(limits, &nodes).await;
    let plan = fleet.plan(json!({"goal": "consolidate"})).await;
    let emptied: Vec<&str> = plan.emptied.iter().map(|node| node.as_str()).collect();
    assert_eq!((plan.moves.len(), &emptied[..]), (3, &["n1", "n2"][..]), "{plan:?}");
    assert_eq!((plan.before.in_use, plan.after.in_use), (3, 1));
    let freed: u64 = plan.moves.iter().map(|step| step.gain).sum();
    assert_eq!((freed, plan.gain_unit.as_str()), (2 * 10 * 1024, "MiB"));
    assert_eq!(fleet.apply_all(&json!({"goal": "consolidate"})).await, [3]);
    assert_eq!(fleet.count_on("n3").await, 7);
    // Nobody rests here, so only the rules of the goals keep nodes empty.
    for goal in ["spread", "consolidate"] {
        let plan = fleet.plan(json!({"goal": goal})).await;
        assert!(plan.moves.is_empty(), "{plan:?}");
    }
    let asked = json!({"goal": "spread", "onto_empty": true});
    let plan = fleet.plan(asked.clone()).await;
    assert!(!plan.moves.is_empty());
    for step in &plan.moves {
        let came_from = &step.name.as_deref().unwrap()[..2];
        assert_ne!(step.to.as_str(), came_from, "{step:?}");
    }
    fleet.apply_all(&asked).await;
    assert!(fleet.plan(asked).await.moves.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_goes_back_to_a_node_that_it_left_even_if_that_is_all_that_could_be_gained() {
    let limits = "per_node = 100\ncooldown_s = 0\n";
    let fleet = Fleet::new(limits, &[("n1", &[Elastic]), ("n2", &[OptedOut; 3])]).await;
    assert_eq!(fleet.apply_all(&json!({"goal": "consolidate"})).await, [1]);
    assert_eq!(fleet.count_on("n2").await, 4);
    let asked = json!({"goal": "spread", "onto_empty": true, "min_gain_ppm": 1});
    let plan = fleet.plan(asked).await;
    assert!(plan.moves.is_empty(), "{plan:?}");
    let moved = fleet.id("n1-0").await;
    let step = json!({"instance": moved, "from": "n2", "to": "n1"});
    let back = fleet.apply(json!({"goal": "spread", "moves": [step]})).await;
    assert!(back.begun.is_empty() && back.waiting == 0, "{back:?}");
    assert!(back.not_begun[0].why.contains("left n1 within a day"), "{back:?}");
    assert_eq!(fleet.migrations().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_was_moved_rests() {
    let fleet = Fleet::new(MANY, &[("n1", &[Elastic]), ("n2", &[OptedOut; 3]), ("n3", &[])]).await;
    assert_eq!(fleet.apply_all(&json!({"goal": "consolidate"})).await, [1]);
    let asked = json!({"goal": "spread", "onto_empty": true, "min_gain_ppm": 1});
    assert!(fleet.plan(asked).await.moves.is_empty());
    let moved = fleet.id("n1-0").await;
    let step = json!({"instance": moved, "from": "n2", "to": "n3"});
    let on = fleet.apply(json!({"goal": "spread", "moves": [step]})).await;
    assert!(on.begun.is_empty() && on.not_begun[0].why.contains("left alone for"), "{on:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_goes_to_a_node_that_others_are_just_leaving() {
    let nodes: [(&str, &[Kind]); 3] =
        [("n1", &[Elastic]), ("n2", &[Elastic; 6]), ("n3", &[OptedOut; 5])];
    let fleet = Fleet::new(MANY, &nodes).await;
    let asked = json!({"goal": "spread", "budget": 1});
    let before = fleet.plan(asked.clone()).await;
    assert_eq!(before.moves[0].to.as_str(), "n1", "{before:?}");
    let path = format!("/v1/instances/{}/migrate", fleet.id("n1-0").await);
    fleet.scene.post(&path, &json!({"to": "n3"})).await.expect(200);
    assert!(fleet.plan(asked).await.moves.is_empty());
    let applied = fleet.apply(json!({"goal": "spread", "moves": before.moves})).await;
    assert!(applied.begun.is_empty() && applied.waiting == 1, "{applied:?}");
    assert!(applied.not_begun[0].why.contains("others are leaving n1"), "{applied:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_is_never_passed_and_half_a_node_is_not_emptied() {
    let nodes: [(&str, &[Kind]); 2] = [("n1", &[Elastic; 7]), ("n2", &[Elastic; 2])];
    let fleet = Fleet::new(MANY, &nodes).await;
    let spread = fleet.plan(json!({"goal": "spread", "budget": 1})).await;
    assert_eq!(spread.moves.len(), 1);
    assert_eq!(json!(spread.stopped_by), "budget");
    assert!(spread.message.contains("larger budget"), "{}", spread.message);
    let some = fleet.plan(json!({"goal": "consolidate", "budget": 1})).await;
    assert!(some.moves.is_empty() && some.emptied.is_empty(), "{some:?}");
    assert_eq!(json!(some.stopped_by), "budget");
    let both = [&spread.moves[0], &spread.moves[0]];
    let asked = json!({"goal": "spread", "budget": 1, "moves": both});
    let reply = fleet.scene.post("/v1/rebalance/apply", &asked).await;
    is_field(&reply, "moves", &["2 moves", "at most 1"]);
    assert_eq!(fleet.apply(json!({"goal": "spread", "budget": 1})).await.begun.len(), 1);
    assert_eq!(fleet.migrations().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_that_grew_old_moves_only_those_who_are_where_it_says() {
    let nodes: [(&str, &[Kind]); 3] = [("n1", &[Elastic; 8]), ("n2", &[Elastic]), ("n3", &[])];
    let fleet = Fleet::new(MANY, &nodes).await;
    let plan = fleet.plan(json!({"goal": "spread"})).await;
    let (gone, elsewhere) = (&plan.moves[0], &plan.moves[1]);
    fleet.scene.stopped(&gone.instance.to_string()).await;
    let path = format!("/v1/instances/{}/migrate", elsewhere.instance);
    let moved = fleet.scene.post(&path, &json!({"to": "n3"})).await.expect(200).json();
    fleet.finish(moved["id"].as_str().unwrap(), "n1").await;
    let applied = fleet.apply(json!({"goal": "spread", "moves": plan.moves})).await;
    let whys: Vec<&str> = applied.not_begun.iter().map(|left| left.why.as_str()).collect();
    assert_eq!(whys, ["there is no such instance any more", "it runs on n3 now, not on n1"]);
    assert_eq!((applied.begun.len(), applied.waiting), (1, 0));
    assert_eq!(applied.begun[0].instance, plan.moves[2].instance);
    assert_eq!(json!(applied.begun[0].reason), "rebalance");
    assert!(applied.plan.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_that_would_take_a_node_above_its_watermark_waits() {
    let fleet = Fleet::new(MANY, &[("n1", &[Elastic; 8]), ("n2", &[Elastic])]).await;
    let plan = fleet.plan(json!({"goal": "spread", "budget": 1})).await;
    let there = fleet.id("n2-0").await;
    let grown = fleet.scene.ask(&there, Size::new(9000, 9 * 1024)).await;
    assert_eq!(grown, whole(9));
    let applied = fleet.apply(json!({"goal": "spread", "moves": plan.moves})).await;
    assert!(applied.begun.is_empty() && applied.waiting == 1, "{applied:?}");
    assert!(applied.not_begun[0].why.contains("n2 would pass its watermark"), "{applied:?}");
    assert_eq!(fleet.migrations().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_elastic_instances_that_did_not_opt_out_move_unless_all_are_asked_for() {
    let nodes: [(&str, &[Kind]); 2] =
        [("n1", &[Rigid, Rigid, Rigid, OptedOut, OptedOut]), ("n2", &[Elastic])];
    let fleet = Fleet::new(MANY, &nodes).await;
    assert!(fleet.plan(json!({"goal": "spread"})).await.moves.is_empty());
    let plan = fleet.plan(json!({"goal": "spread", "all": true})).await;
    assert_eq!(plan.moves.len(), 2, "{plan:?}");
    let rigid = ["n1-0", "n1-1", "n1-2"];
    assert!(plan.moves.iter().all(|step| rigid.contains(&step.name.as_deref().unwrap())));
    let applied = fleet.apply(json!({"goal": "spread", "moves": plan.moves})).await;
    assert!(applied.begun.is_empty(), "{applied:?}");
    assert!(applied.not_begun[0].why.contains("not elastic"), "{applied:?}");
    let asked = json!({"goal": "spread", "moves": plan.moves, "all": true});
    assert_eq!(fleet.apply(asked).await.begun.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn viewers_may_plan_and_only_operators_begin() {
    let fleet = Fleet::new(MANY, &[("n1", &[Elastic; 3]), ("n2", &[Elastic])]).await;
    let server = &fleet.scene.server;
    let asked = json!({"goal": "spread"});
    let viewer = server.token(Role::Viewer).await;
    server.post(&viewer, "/v1/rebalance/plan", &asked).await.expect(200);
    for role in [Role::Viewer, Role::Tenant, Role::Agent] {
        let token = server.token(role).await;
        server.post(&token, "/v1/rebalance/apply", &asked).await.expect(403);
    }
    for role in [Role::Tenant, Role::Agent] {
        let token = server.token(role).await;
        server.post(&token, "/v1/rebalance/plan", &asked).await.expect(403);
    }
    assert_eq!(fleet.migrations().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_asked_wrongly_is_named_with_what_is_accepted() {
    let fleet = Fleet::new(MANY, &[("n1", &[])]).await;
    for path in ["/v1/rebalance/plan", "/v1/rebalance/apply"] {
        let asked = async |body: Value| fleet.scene.post(path, &body).await;
        let goal = asked(json!({"goal": "sideways"})).await;
        is_field(&goal, "goal", &["sideways", "consolidate", "spread"]);
        for budget in [0, 1001] {
            let reply = asked(json!({"goal": "spread", "budget": budget})).await;
            is_field(&reply, "budget", &[&budget.to_string(), "1 to 1000"]);
        }
        let less = asked(json!({"goal": "spread", "budget": -1})).await;
        is_field(&less, "budget", &["-1"]);
        let misspelt = asked(json!({"goal": "spread", "onto_emtpy": true})).await;
        assert_eq!(misspelt.status.as_u16(), 400);
        assert!(misspelt.text.contains("onto_emtpy"), "{}", misspelt.text);
    }
}
