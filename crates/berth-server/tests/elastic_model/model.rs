//! Random steps, and the picture that must hold after each.

use std::collections::BTreeMap;

use berth_engine::{Amounts, NodeFacts, OtherUsage, Timestamp};
use berth_ledger::Op;
use serde_json::{Value, json};

use crate::auditor::{Answered, Auditor, Excuse};
use crate::common::TENANT;
use crate::guests::{Dice, Guest};
use crate::picture::Pair;
use crate::stage::{Stage, Store};

/// The fleet. `n1` is of one tier; the others are of another.
pub(crate) const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// Most instances at once: enough to fill the fleet.
const MOST: usize = 9;

/// How instances of the class `dense` are charged.
const DENSE: i64 = 1500;

/// What the policy says.
#[derive(Clone, Debug)]
struct Rules {
    grants: &'static str,
    unit: Pair,
    watermark: i64,
    /// Of the tier that `n1` is of.
    system: Pair,
    tier_unit: Option<Pair>,
}

impl Rules {
    fn toml(&self) -> String {
        let Pair { cpu, memory } = self.unit;
        let tier_unit = self.tier_unit.map_or(String::new(), |unit| {
            let Pair { cpu, memory } = unit;
            format!("compute_unit = {{ cpu_milli = {cpu}, memory_mib = {memory} }}\n")
        });
        format!(
            "name = \"model\"\n[filters]\ncpu = \"hard\"\n[scores]\nmemory-pack = 1\n\
             [elastic]\ngrants = \"{}\"\npressure_half_life_s = 86400\n\
             compute_unit = {{ cpu_milli = {cpu}, memory_mib = {memory} }}\n\
             watermark = {{ cpu_permille = {mark}, memory_permille = {mark} }}\n\
             [elastic.migration]\nenabled = false\n\
             [elastic.classes.dense]\novercommit_permille = {DENSE}\n\
             [[elastic.nodes]]\nlabels = {{ tier = \"a\" }}\n{tier_unit}\
             system = {{ cpu_milli = {}, memory_mib = {} }}\n",
            self.grants,
            self.system.cpu,
            self.system.memory,
            mark = self.watermark,
        )
    }
}

pub(crate) struct Model {
    pub(crate) stage: Stage,
    pub(crate) dice: Dice,
    pub(crate) guests: BTreeMap<String, Guest>,
    pub(crate) excuse: Excuse,
    pub(crate) answers: Vec<Answered>,
    auditor: Auditor,
    rules: Rules,
    done: Vec<String>,
    made: u64,
    seed: u64,
}

fn facts(number: usize, id: &str) -> NodeFacts {
    let mut facts = NodeFacts::new(id, Amounts::new(10_000, 40_960).with_disk(1 << 20));
    facts.ratios.cpu_permille = 1000;
    let tier = if number == 0 { "a" } else { "b" };
    facts.labels.insert("tier".to_owned(), tier.to_owned());
    if number == 2 {
        facts.vmm_overhead_mib = 96;
        facts.other = OtherUsage { cpu_milli: 700, memory_kib: 900 << 10, ..facts.other };
    }
    facts
}

impl Model {
    pub(crate) async fn start(store: Store, servers: usize, seed: u64) -> Self {
        let stage = Stage::new(store, servers).await;
        for (number, id) in NODES.into_iter().enumerate() {
            let control = &stage.servers[0].control;
            let mut facts = facts(number, id);
            facts.heartbeat_at = Timestamp(control.now().as_second());
            control.submit(Op::put_node(facts)).await.unwrap();
            control.wait_for_read_your_writes().await;
        }
        let rules = Rules {
            grants: "joint",
            unit: Pair::new(250, 1024),
            watermark: 900,
            system: Pair::default(),
            tier_unit: None,
        };
        let mut model = Self {
            stage,
            dice: Dice(seed),
            guests: BTreeMap::new(),
            excuse: Excuse::default(),
            answers: Vec::new(),
            auditor: Auditor::default(),
            rules,
            done: Vec::new(),
            made: 0,
            seed,
        };
        model.activate().await;
        model.audit().await;
        model
    }

    /// One step, and a look at everything.
    pub(crate) async fn step(&mut self, number: u64) {
        self.start_overdue_moves().await;
        let elastic: Vec<String> = self.ids(|guest| guest.elastic);
        let all = self.ids(|_| true);
        let what = match self.dice.roll(100) {
            _ if elastic.len() < 3 => self.arrive().await,
            0..32 => self.ask_any(&elastic).await,
            32..39 => self.with(&elastic, Self::lose_reply).await,
            39..44 => self.with(&elastic, Self::repeat).await,
            44..47 => self.with(&elastic, Self::ask_nonsense).await,
            47..54 => self.with(&elastic, Self::outage).await,
            54..59 => self.with(&elastic, Self::set_bounds).await,
            59..68 => self.arrive().await,
            68..73 => self.with(&all, Self::release).await,
            73..86 => self.with(&all, Self::go_on).await,
            86..90 => self.with(&all, Self::end_move).await,
            90..97 => self.configure().await,
            _ => {
                self.elsewhere().await;
                "a server was stopped and started, or another is asked".to_owned()
            }
        };
        self.done.push(format!("{number}: {what}"));
        self.audit().await;
    }

    pub(crate) fn ids(&self, which: impl Fn(&Guest) -> bool) -> Vec<String> {
        self.guests.iter().filter(|(_, guest)| which(guest)).map(|(id, _)| id.clone()).collect()
    }

    async fn ask_any(&mut self, ids: &[String]) -> String {
        self.with(ids, Self::ask_anything).await
    }

    async fn with(
        &mut self,
        ids: &[String],
        step: impl AsyncFnOnce(&mut Self, &str) -> String,
    ) -> String {
        let id = self.dice.pick(ids);
        step(self, &id).await
    }

    /// Has everything judged.
    pub(crate) async fn audit(&mut self) {
        let truth = self.guests.iter().map(|(id, guest)| (id.clone(), guest.truth())).collect();
        let answers = std::mem::take(&mut self.answers);
        let excuse = std::mem::take(&mut self.excuse);
        let (stage, auditor) = (&self.stage, &mut self.auditor);
        let wrong = auditor.audit(async || stage.look().await, &truth, &excuse, &answers).await;
        assert!(
            wrong.is_empty(),
            "seed {}\n{}\nwrong:\n{}\nseen: {:#?}",
            self.seed,
            self.lately(),
            wrong.join("\n"),
            self.auditor.last,
        );
    }

    /// The last steps, for the person who looks for what went wrong.
    pub(crate) fn lately(&self) -> String {
        self.done[self.done.len().saturating_sub(20)..].join("\n")
    }

    /// The unit that was told last, whether it was heard or not.
    pub(crate) fn told(&self, id: &str) -> Option<Pair> {
        self.auditor.last.permits.get(id)?.unit
    }

    /// An instance is placed, or found.
    async fn arrive(&mut self) -> String {
        if self.guests.len() >= MOST {
            let ids = self.ids(|_| true);
            return self.with(&ids, Self::release).await;
        }
        let units = |dice: &mut Dice, least, most| {
            let units = dice.between(least, most);
            Pair::new(250 * units, 1024 * units)
        };
        let odd = if self.dice.percent(30) { Pair::new(50, 76) } else { Pair::default() };
        let min = units(&mut self.dice, 1, 2) + odd;
        let uses = min + units(&mut self.dice, 0, 6);
        let max = uses + units(&mut self.dice, 0, 20);
        let permille = if self.dice.percent(25) { DENSE } else { 1000 };
        let mut elastic = json!({ "min": min.json(), "max": max.json() });
        if permille != 1000 {
            elastic["class"] = json!("dense");
        }
        let guest = Guest {
            node: String::new(),
            fence: 0,
            elastic: true,
            permille,
            uses,
            holds: uses,
            headroom: None,
            sent: 0,
            unit: None,
            min,
            max,
            answer: None,
            moving: None,
        };
        match self.dice.roll(10) {
            0..3 => self.find(guest, Some(elastic)).await,
            3 => self.find(Guest { elastic: false, permille: 1000, ..guest }, None).await,
            _ => self.place(guest, elastic).await,
        }
    }

    async fn place(&mut self, mut guest: Guest, elastic: Value) -> String {
        let instance = json!({ "resources": guest.uses.json(), "elastic": elastic });
        let body = json!({ "tenant": TENANT, "instances": [instance] });
        let reply = self.stage.post("/v1/placements", &body).await;
        if reply.status != 201 {
            assert!(!reply.code().is_empty() && reply.text.contains("refus"), "{}", reply.text);
            return format!("no room for {:?}", guest.uses);
        }
        let placed = reply.json()["instances"][0].clone();
        let id = placed["instance"].as_str().unwrap().to_owned();
        guest.node = placed["node"].as_str().unwrap().to_owned();
        guest.fence = placed["fence"].as_i64().unwrap();
        let running = json!([{ "instance": id, "fence": guest.fence, "state": "running" }]);
        let path = format!("/v1/nodes/{}/heartbeat", guest.node);
        let heard = self.stage.post(&path, &json!({ "running": running })).await.expect(200);
        assert_eq!(heard.json()["reported"][0]["state"], "active", "{}", heard.text);
        let what = format!("{id} placed on {} with {:?}", guest.node, guest.uses);
        self.guests.insert(id, guest);
        what
    }

    async fn find(&mut self, mut guest: Guest, elastic: Option<Value>) -> String {
        self.made += 1;
        let id = format!("00000000-0000-7000-8000-{:012x}", self.made);
        guest.node = self.dice.pick(&NODES).to_owned();
        let mut found = json!({ "tenant": TENANT, "resources": guest.uses.json() });
        if let Some(elastic) = elastic {
            found["elastic"] = elastic;
        }
        let running = json!([{ "instance": id, "state": "running", "found": found }]);
        let path = format!("/v1/nodes/{}/heartbeat", guest.node);
        let heard = self.stage.post(&path, &json!({ "running": running })).await.expect(200).json();
        assert_eq!(heard["reported"][0]["state"], "active", "{heard}");
        let mut here = heard["assignments"].as_array().unwrap().iter();
        let assignment = here.find(|it| it["instance"] == *id).unwrap();
        guest.fence = assignment["fence"].as_i64().unwrap();
        self.excuse.found_on = Some(guest.node.clone());
        let what = format!("{id} found on {} with {:?}", guest.node, guest.uses);
        self.guests.insert(id, guest);
        what
    }

    /// Another policy, on the running server.
    async fn configure(&mut self) -> String {
        let rules = &mut self.rules;
        match self.dice.roll(5) {
            0 => {
                rules.grants = if rules.grants == "joint" { "per-resource" } else { "joint" };
            }
            1 => {
                let units = self.dice.pick(&[1, 2, 4]);
                rules.unit = Pair::new(250 * units, 1024 * units);
            }
            2 => rules.watermark = self.dice.pick(&[500, 700, 900, 1000]),
            3 => {
                let systems = [(0, 0), (500, 1024), (4000, 20_480), (9000, 40_000), (1300, 0)];
                let (cpu, memory) = self.dice.pick(&systems);
                rules.system = Pair::new(cpu, memory);
            }
            _ => {
                rules.tier_unit = self.dice.pick(&[None, Some(Pair::new(300, 700))]);
            }
        }
        self.activate().await;
        format!("{:?}", self.rules)
    }

    async fn activate(&mut self) {
        let stored = self.stage.post("/v1/policies", &json!({ "toml": self.rules.toml() })).await;
        assert!(stored.status.is_success(), "{}", stored.text);
        let hash = stored.json()["hash"].as_str().unwrap().to_owned();
        let path = format!("/v1/policies/{hash}/activate");
        self.stage.post(&path, &json!({})).await.expect(200);
        let (stage, system) = (&self.stage, self.rules.system);
        let what = format!("n1 keeps what the policy says: {:?}", self.rules);
        stage.until(&what, async || stage.look().await.nodes["n1"].system == system).await;
        self.excuse.configured = true;
    }

    /// The server is stopped and started again; or another one is asked from now on.
    async fn elsewhere(&mut self) {
        if self.stage.servers.len() == 1 || self.dice.percent(50) {
            self.stage.restart().await;
            return;
        }
        self.stage.at = 1 - self.stage.at;
        let (stage, last) = (&self.stage, &self.auditor.last);
        // What another server did is known here within a moment.
        stage
            .until("the other server knows", async || {
                let seen = stage.look().await;
                (seen.claims == last.claims && seen.nodes == last.nodes)
                    && seen.migrations == last.migrations
            })
            .await;
    }

    /// Everything ends, and nothing is left.
    pub(crate) async fn end(mut self) {
        for id in self.ids(|_| true) {
            let what = self.release(&id).await;
            self.done.push(what);
            self.audit().await;
        }
        for (id, node) in &self.auditor.last.nodes {
            assert_eq!(node.reserved, node.other, "{id}");
        }
        let (over, judged) = self.auditor.counted;
        let seed = self.seed;
        let moved =
            self.done.iter().filter(|step| step.contains("was Copying and went on")).count();
        println!("seed {seed}: {judged} answers, {moved} moves, {over} looks at an over-full node");
        assert!(judged > 0, "nothing was judged");
        for server in self.stage.servers {
            server.stop().await;
        }
    }
}
