//! A random life of several processes against a model: scenario 15.
//!
//! About ten seconds; `BERTH_SOAK_SECONDS` asks for more.

use std::collections::BTreeMap;

use berth_conformance::{Fixture, ModelClaim, Report, SoakTask, Task, seconds_from_environment};
use berth_engine::affinity::{Strength, Topology};
use berth_engine::{Group, GroupKind};
use berth_ledger::{Op, Pool, Quota, Text};

use crate::common::{WORKERS, assert_clean, assert_mirrors, assert_none, pool, round};

/// How long one round is, after which everything is compared.
const ROUND_MS: u64 = 4000;

/// How long the soak is unless told otherwise.
const SECONDS: u64 = 8;

fn furnish(fixture: &Fixture) -> (Vec<String>, Vec<String>, Vec<String>) {
    let nodes: Vec<String> = (0..6).map(|number| format!("n{number}")).collect();
    for (number, node) in nodes.iter().enumerate() {
        // So tight that moves, growth and claims are in each other's way.
        let mut facts = Fixture::facts(node, 16_000, 16_384, &format!("r{}", number / 2));
        facts.extra.insert("gpu".to_owned(), 4);
        fixture.put_node(facts).unwrap();
    }
    let mut groups = Vec::new();
    for (id, kind, topology, max_per_domain) in [
        ("apart", GroupKind::Apart, Topology::Node, Some(3)),
        ("racks", GroupKind::Apart, Topology::Rack, Some(4)),
        ("together", GroupKind::Together, Topology::Rack, None),
    ] {
        let (id, strength) = (id.to_owned(), Strength::Hard);
        groups.push(id.clone());
        let group = Group { id, tenant: None, kind, strength, topology, max_per_domain };
        fixture.put_group(group).unwrap();
    }
    let mut ports = Pool::parse("ports", "1000-1063").unwrap();
    ports.quarantine_s = 0;
    fixture.administer(Op::PutPool(ports)).unwrap();
    let addresses = Pool::parse("addresses", "fd00:7::/64").unwrap();
    fixture.administer(Op::PutPool(addresses)).unwrap();
    let quota = Quota { instances: Some(200), ..Quota::default() };
    fixture.administer(Op::PutQuota { tenant: Text::from("soak"), quota }).unwrap();
    (nodes, groups, vec!["ports".to_owned(), "addresses".to_owned()])
}

pub(crate) fn a_random_life_agrees_with_its_model(fixture: &Fixture) {
    let (nodes, groups, pools) = furnish(fixture);
    let seconds = seconds_from_environment("BERTH_SOAK_SECONDS").unwrap_or(SECONDS);
    let rounds = (seconds * 1000).div_ceil(ROUND_MS);
    let mut pool = pool(fixture);
    let (mut steps, mut grants) = (0, 0);
    for number in 0..rounds {
        let ask = |worker: usize| SoakTask {
            seed: number * 100 + worker as u64,
            millis: ROUND_MS,
            space: number * 100 + worker as u64 + 1,
            nodes: nodes.clone(),
            groups: groups.clone(),
            pools: pools.clone(),
        };
        let tasks = (0..WORKERS).map(|worker| Task::Soak(ask(worker))).collect();
        let mut model = BTreeMap::new();
        for report in round(fixture, &mut pool, tasks) {
            let Report::Soaked(done) = report else { panic!("{fixture}: {report:?}") };
            assert!(done.wrong.is_empty(), "{fixture}: round {number}: {:#?}", done.wrong);
            steps += done.steps;
            grants += done.grants;
            for held in done.held {
                model.insert(format!("{:032x}", held.instance.0.as_u128()), held);
            }
        }
        assert_none(fixture, &fixture.violations().unwrap());
        assert_like_model(fixture, &model);
        assert_mirrors(fixture, &mut pool);
        fixture.clear().unwrap();
        assert_none(fixture, &fixture.violations().unwrap());
    }
    assert!(grants > 50, "{fixture}: only {grants} grants in {steps} steps");
    println!("{fixture}: {steps} steps, {grants} grants, {rounds} rounds");
    assert_clean(fixture);
}

/// Every claim stands as its worker believes, and none is missing but by its lease.
fn assert_like_model(fixture: &Fixture, model: &BTreeMap<String, ModelClaim>) {
    let state = fixture.state().unwrap();
    for claim in &state.claims {
        let held = model.get(&claim.instance);
        let held = held.unwrap_or_else(|| panic!("{fixture}: nobody knows of {claim:?}"));
        let [cpu, memory, disk, _, _, _] = claim.charged;
        let found = (claim.node.as_str(), claim.state, claim.fence, [cpu, memory, disk]);
        let amounts = [held.amounts.cpu_milli, held.amounts.memory_mib, held.amounts.disk_mib];
        let wanted = (held.node.as_str(), held.state.number(), held.fence, amounts.map(i64::from));
        assert_eq!(found, wanted, "{fixture}: {}", claim.instance);
    }
    let stored: Vec<&str> = state.claims.iter().map(|claim| claim.instance.as_str()).collect();
    for (instance, held) in model {
        let there = stored.contains(&instance.as_str());
        assert!(there || held.may_expire, "{fixture}: {held:?} is lost");
    }
}
