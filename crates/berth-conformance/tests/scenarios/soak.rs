//! A random life of several processes against a model: scenario 15.
//!
//! About ten seconds; `BERTH_SOAK_SECONDS` asks for more.

use std::collections::BTreeMap;

use berth_conformance::{Held, Report, SoakAsk, Stage, Task, seconds_from_environment};
use berth_engine::affinity::{Strength, Topology};
use berth_engine::{Group, GroupKind};
use berth_ledger::{Op, Pool, Quota, Text};

use crate::setting::{CREW, assert_clean, assert_mirrors, assert_none, crew, round};

/// How long one round is, after which everything is compared.
const ROUND_MS: u64 = 4000;

/// How long the soak is unless told otherwise.
const SECONDS: u64 = 8;

fn furnish(stage: &Stage) -> (Vec<String>, Vec<String>, Vec<String>) {
    let nodes: Vec<String> = (0..6).map(|number| format!("n{number}")).collect();
    for (number, node) in nodes.iter().enumerate() {
        // So tight that moves, growth and claims are in each other's way.
        let mut facts = Stage::facts(node, 16_000, 16_384, &format!("r{}", number / 2));
        facts.extra.insert("gpu".to_owned(), 4);
        stage.put_node(facts).unwrap();
    }
    let mut groups = Vec::new();
    for (id, kind, topology, max_per_domain) in [
        ("apart", GroupKind::Apart, Topology::Node, Some(3)),
        ("racks", GroupKind::Apart, Topology::Rack, Some(4)),
        ("together", GroupKind::Together, Topology::Rack, None),
    ] {
        let (id, strength) = (id.to_owned(), Strength::Hard);
        groups.push(id.clone());
        let group = Group { id, owner: None, kind, strength, topology, max_per_domain };
        stage.put_group(group).unwrap();
    }
    let mut ports = Pool::parse("ports", "1000-1063").unwrap();
    ports.quarantine_s = 0;
    stage.administer(Op::PutPool(ports)).unwrap();
    let addresses = Pool::parse("addresses", "fd00:7::/64").unwrap();
    stage.administer(Op::PutPool(addresses)).unwrap();
    let quota = Quota { instances: Some(200), ..Quota::default() };
    stage.administer(Op::PutQuota { owner: Text::from("soak"), quota }).unwrap();
    (nodes, groups, vec!["ports".to_owned(), "addresses".to_owned()])
}

pub(crate) fn a_random_life_agrees_with_its_model(stage: &Stage) {
    let (nodes, groups, pools) = furnish(stage);
    let seconds = seconds_from_environment("BERTH_SOAK_SECONDS").unwrap_or(SECONDS);
    let rounds = (seconds * 1000).div_ceil(ROUND_MS);
    let mut crew = crew(stage);
    let (mut steps, mut grants) = (0, 0);
    for number in 0..rounds {
        let ask = |worker: usize| SoakAsk {
            seed: number * 100 + worker as u64,
            millis: ROUND_MS,
            space: number * 100 + worker as u64 + 1,
            nodes: nodes.clone(),
            groups: groups.clone(),
            pools: pools.clone(),
        };
        let tasks = (0..CREW).map(|worker| Task::Soak(ask(worker))).collect();
        let mut model = BTreeMap::new();
        for report in round(stage, &mut crew, tasks) {
            let Report::Soaked(done) = report else { panic!("{stage}: {report:?}") };
            assert!(done.wrong.is_empty(), "{stage}: round {number}: {:#?}", done.wrong);
            steps += done.steps;
            grants += done.grants;
            for held in done.held {
                model.insert(format!("{:032x}", held.instance.0.as_u128()), held);
            }
        }
        assert_none(stage, &stage.faults().unwrap());
        assert_like_model(stage, &model);
        assert_mirrors(stage, &mut crew);
        stage.clear().unwrap();
        assert_none(stage, &stage.faults().unwrap());
    }
    assert!(grants > 50, "{stage}: only {grants} grants in {steps} steps");
    println!("{stage}: {steps} steps, {grants} grants, {rounds} rounds");
    assert_clean(stage);
}

/// Every claim stands as its worker believes, and none is missing but by its lease.
fn assert_like_model(stage: &Stage, model: &BTreeMap<String, Held>) {
    let books = stage.books().unwrap();
    for claim in &books.claims {
        let held = model.get(&claim.instance);
        let held = held.unwrap_or_else(|| panic!("{stage}: nobody knows of {claim:?}"));
        let [cpu, memory, disk, _, _, _] = claim.charged;
        let found = (claim.node.as_str(), claim.state, claim.fence, [cpu, memory, disk]);
        let amounts = [held.amounts.cpu_milli, held.amounts.memory_mib, held.amounts.disk_mib];
        let wanted = (held.node.as_str(), held.state.number(), held.fence, amounts.map(i64::from));
        assert_eq!(found, wanted, "{stage}: {}", claim.instance);
    }
    let stored: Vec<&str> = books.claims.iter().map(|claim| claim.instance.as_str()).collect();
    for (instance, held) in model {
        let there = stored.contains(&instance.as_str());
        assert!(there || held.may_expire, "{stage}: {held:?} is lost");
    }
}
