//! What may happen next, and what must be true of it.

use berth_kube::cluster::outcome::{GangOutcome, Outcome, Preemption, Reservation};
use serde_json::{Value, json};

use crate::checker::{World, check_placement};
use crate::model::{Model, NOW, is_ended, is_going, uid};
use crate::random::{NAMESPACES, Rng, any_labels, any_node, any_pod};

/// One step, drawn from its seed.
pub(crate) fn step(model: &mut Model, seed: u64) {
    let mut rng = Rng(seed);
    match rng.below(100) {
        0..34 => place(model, &mut rng),
        34..57 => new_pod(model, &mut rng),
        57..74 => settle(model, &mut rng),
        74..86 => change_pod(model, &mut rng),
        86..94 => change_node(model, &mut rng),
        94..96 => {
            let name = rng.pick(&NAMESPACES);
            model.relabel_namespace(name, &mut rng);
        }
        96..99 => gang(model, &mut rng),
        _ => restart(model, &mut rng),
    }
    if rng.chance(40) {
        model.compare_with_rebuilt(&mut rng);
    }
}

fn any_key(model: &Model, rng: &mut Rng, which: impl Fn(&str) -> bool) -> Option<String> {
    let keys: Vec<&String> = model.pods.keys().filter(|it| which(it)).collect();
    // By weight, so that the choice stays the same when others are left out of a failing case.
    let salt = rng.next();
    let weight = |key: &str| key.bytes().fold(salt, |sum, byte| Rng(sum ^ u64::from(byte)).next());
    keys.into_iter().min_by_key(|it| weight(it)).cloned()
}

fn new_pod(model: &mut Model, rng: &mut Rng) {
    let number = rng.next() % 1_000_000;
    let mut pod = any_pod(number, model.wild, rng);
    if rng.chance(10) {
        pod["spec"]["schedulerName"] = "default-scheduler".into();
    }
    // Bound by others, wherever that may be, and of no importance.
    if rng.chance(30) {
        pod["spec"]["priority"] = rng.pick(&[-10, -5, 10]).into();
        pod["spec"]["nodeName"] = format!("n{}", rng.below(8)).into();
        pod["status"]["phase"] = "Running".into();
    }
    let namespace = pod["metadata"]["namespace"].as_str().expect("one");
    let key = format!("{namespace}/p{number:06}");
    model.put_pod(&key, pod);
}

/// Places a pod, and asks the checker about the answer.
fn place(model: &mut Model, rng: &mut Rng) {
    let any = rng.chance(8);
    let Some(key) = any_key(model, rng, |it| any || model.is_pending(it)) else { return };
    let pod = model.pods[&key].clone();
    model.hear_news();
    let known = model.refused.contains(&key);
    let outcome = model.core.schedule_pod(uid(&pod), NOW);
    model.log.push(format!("{key} is to be placed: {outcome:?}"));
    let pending = model.is_pending(&key);
    assert_eq!(outcome != Outcome::NotPending, pending, "pending?\n{}", model.story());
    match outcome {
        Outcome::NotPending => {}
        Outcome::Reserved(reservation) => {
            let wrong = model.violations(&key, &reservation.node);
            assert!(wrong.is_empty(), "an illegal place: {wrong:#?}\n{}", model.story());
            assert!(!known, "it fits now, and nobody said that anything is new\n{}", model.story());
            model.hold(&reservation);
        }
        Outcome::Refused(refusal) => {
            let legal = model.legal_nodes(&pod);
            assert!(legal.is_empty(), "{key} fits on {legal:?}: {refusal:?}\n{}", model.story());
            no_victims(model, &pod);
            model.refused.insert(key);
        }
        Outcome::Preempt(preemption, refusal) => {
            let legal = model.legal_nodes(&pod);
            assert!(legal.is_empty(), "{key} fits on {legal:?}: {refusal:?}\n{}", model.story());
            preempt(model, &key, &preemption, rng);
        }
    }
}

/// Whether a pod may have to go for another.
fn is_lesser(model: &Model, other: &str, than: &Value, node: &str) -> bool {
    let pod = &model.pods[other];
    let is_lower = |it: &String| {
        model.pods[it]["spec"]["priority"].as_i64() < than["spec"]["priority"].as_i64()
            && !model.reserved.contains_key(it)
    };
    pod["spec"]["nodeName"] == node
        && !is_ended(pod)
        && !model.same_gang(pod, than)
        && model.unit(other).iter().all(is_lower)
}

/// The world without some pods.
fn without<'a>(model: &Model, keys: impl IntoIterator<Item = &'a String>) -> World {
    let mut world = model.world.clone();
    keys.into_iter().for_each(|it| world.remove_pod(it));
    world
}

fn lesser_on(model: &Model, pod: &Value, node: &str) -> Vec<String> {
    model.pods.keys().filter(|it| is_lesser(model, it, pod, node)).cloned().collect()
}

/// A pod that was refused could not have had a place by letting others go, unless it waits for some
/// who are going already.
fn no_victims(model: &Model, pod: &Value) {
    if pod["spec"]["preemptionPolicy"] == "Never" {
        return;
    }
    let (mut helps, mut waits) = (Vec::new(), false);
    for node in model.nodes.keys() {
        let lesser = lesser_on(model, pod, node);
        let going: Vec<&String> = lesser.iter().filter(|it| is_going(&model.pods[*it])).collect();
        waits |= pod["status"]["nominatedNodeName"] == **node && !going.is_empty();
        waits |= check_placement(&without(model, going), pod, node).is_empty();
        // With those of its gang that are elsewhere, other rules may change.
        let here = lesser.iter().flat_map(|it| model.unit(it)).all(|it| lesser.contains(&it));
        if here
            && !lesser.is_empty()
            && check_placement(&without(model, &lesser), pod, node).is_empty()
        {
            helps.push(node);
        }
    }
    assert!(waits || helps.is_empty(), "others could go on {helps:?}\n{}", model.story());
}

/// Who has to go is of lower priority, there, not going anyway; together they are enough, and none
/// of them goes in vain.
fn preempt(model: &mut Model, key: &str, preemption: &Preemption, rng: &mut Rng) {
    let (pod, node) = (model.pods[key].clone(), preemption.node.to_string());
    assert_ne!(pod["spec"]["preemptionPolicy"], "Never", "{}", model.story());
    let lesser = lesser_on(model, &pod, &node);
    let victims: Vec<String> = preemption.victims.iter().map(|it| it.pod.to_string()).collect();
    assert!(!victims.is_empty(), "{}", model.story());
    for victim in &victims {
        let unit = model.unit(victim);
        let fair = unit.iter().any(|it| lesser.contains(it)) && !is_going(&model.pods[victim]);
        assert!(fair, "{victim} should not have to go\n{}", model.story());
        let whole = unit.iter().all(|it| victims.contains(it));
        assert!(whole, "only a part of the gang of {victim} has to go\n{}", model.story());
    }
    let going: Vec<String> =
        lesser.iter().filter(|it| is_going(&model.pods[*it])).cloned().collect();
    let gone = || victims.iter().chain(&going);
    let wrong = check_placement(&without(model, gone()), &pod, &node);
    assert!(wrong.is_empty(), "not enough go: {wrong:#?}\n{}", model.story());
    if pod.pointer("/spec/affinity/podAffinity").is_none() {
        let here = || gone().filter(|it| lesser.contains(it));
        for spared in &victims {
            let unit = model.unit(spared);
            let world = without(model, here().filter(|it| !unit.contains(it)));
            let wrong = check_placement(&world, &pod, &node);
            assert!(!wrong.is_empty(), "{spared} would go in vain\n{}", model.story());
        }
    }
    // As Kubernetes does: those of lower priority that were promised the same node look again.
    let nominated = |it: &&String| {
        let other = &model.pods[*it];
        other["status"]["nominatedNodeName"] == *node
            && other["spec"]["priority"].as_i64() < pod["spec"]["priority"].as_i64()
    };
    let lost: Vec<String> = model.pods.keys().filter(nominated).cloned().collect();
    for other in lost {
        model.patch_pod(&other, &json!({"status": {"nominatedNodeName": null}}));
    }
    if rng.chance(20) {
        model.log.push(format!("the victims of {key} do not go"));
        model.core.clear_nomination(uid(&pod));
        return model.patch_pod(key, &json!({"status": {"nominatedNodeName": null}}));
    }
    model.patch_pod(key, &json!({"status": {"nominatedNodeName": node}}));
    victims.iter().for_each(|it| model.begin_deletion(it));
}

/// What became of a place that was held.
fn settle(model: &mut Model, rng: &mut Rng) {
    let Some(key) = any_key(model, rng, |it| model.reserved.contains_key(it)) else { return };
    match rng.below(10) {
        0..8 => {
            let node = model.reserved[&key].clone();
            let bound = json!({"spec": {"nodeName": node}, "status": {"nominatedNodeName": null}});
            model.patch_pod(&key, &bound);
        }
        8 => {
            let elsewhere = format!("n{}", rng.below(8));
            model.patch_pod(&key, &json!({"spec": {"nodeName": elsewhere}}));
        }
        _ => model.unreserve(&key),
    }
}

fn change_pod(model: &mut Model, rng: &mut Rng) {
    let Some(key) = any_key(model, rng, |_| true) else { return };
    let bound = !model.pods[&key]["spec"]["nodeName"].is_null();
    match rng.below(10) {
        0..2 => model.remove_pod(&key),
        2..4 => model.begin_deletion(&key),
        4 if bound => {
            let phase = rng.pick(&["Succeeded", "Failed"]);
            model.patch_pod(&key, &json!({"status": {"phase": phase}}));
        }
        5 if bound => model.patch_pod(&key, &json!({"status": {"phase": "Running"}})),
        6 => {
            let mut pod = model.pods[&key].clone();
            pod["metadata"]["labels"] = any_labels(rng);
            model.put_pod(&key, pod);
        }
        7 => model.patch_pod(&key, &json!({"spec": {"schedulingGates": null}})),
        8 if !bound => {
            let node = format!("n{}", rng.below(8));
            let reserved = model.reserved.contains_key(&key);
            if !reserved {
                model.patch_pod(&key, &json!({"spec": {"nodeName": node}}));
            }
        }
        9 if !bound => {
            let node =
                if rng.chance(60) { json!(format!("n{}", rng.below(8))) } else { Value::Null };
            model.patch_pod(&key, &json!({"status": {"nominatedNodeName": node}}));
        }
        // Another of the same name, though nobody said that the first is gone.
        _ => {
            let mut pod = model.pods[&key].clone();
            let number = rng.next() % 1_000_000;
            pod["metadata"]["uid"] = format!("00000000-0000-4000-9000-{number:012}").into();
            model.reserved.remove(&key);
            model.put_pod(&key, pod);
        }
    }
}

fn change_node(model: &mut Model, rng: &mut Rng) {
    let name = format!("n{}", rng.below(8));
    let Some(node) = model.nodes.get(&name).cloned() else {
        return model.put_node(any_node(&name, model.plain, rng));
    };
    let fresh = any_node(&name, model.plain, rng);
    let mut changed = node;
    match rng.below(6) {
        0 => return model.remove_node(&name),
        1 => changed["metadata"]["labels"] = fresh["metadata"]["labels"].clone(),
        2 => changed["spec"] = fresh["spec"].clone(),
        3 => changed["status"] = fresh["status"].clone(),
        4 => changed["spec"]["unschedulable"] = rng.chance(50).into(),
        _ => changed = fresh,
    }
    model.put_node(changed);
}

/// Pods that are placed all together or not at all.
fn gang(model: &mut Model, rng: &mut Rng) {
    let (first, size) = (rng.next() % 1_000_000, 1 + rng.below(4));
    let name = format!("g{first}");
    let namespace = rng.pick(&NAMESPACES);
    // Of some, a PodGroup says how many have to fit; 0: each on its own.
    let minimum = rng.chance(50).then(|| rng.below(size + 1));
    if let Some(minimum) = minimum {
        let policy = match minimum {
            0 => json!({"basic": {}}),
            minimum => json!({"gang": {"minCount": minimum}}),
        };
        model.put_group(namespace, &name, &policy);
    }
    let mut keys = Vec::new();
    for number in (first..).take(size) {
        let mut pod = any_pod(number, model.wild / 2, rng);
        pod["metadata"]["namespace"] = namespace.into();
        if minimum.is_some() {
            pod["spec"]["schedulingGroup"] = json!({ "podGroupName": name });
        } else {
            pod["metadata"]["labels"]["berth.dev/gang"] = name.as_str().into();
            pod["metadata"]["annotations"] = json!({"berth.dev/gang-size": size.to_string()});
        }
        pod["spec"]["schedulingGates"] = Value::Null;
        let key = format!("{namespace}/p{number:06}");
        model.put_pod(&key, pod);
        keys.push(key);
    }
    model.hear_news();
    let gang = if minimum.is_some() { format!("podgroup/{name}") } else { name.clone() };
    let outcome = model.core.schedule_gang(namespace, &gang, NOW);
    model.log.push(format!("gang {name} is to be placed: {outcome:?}"));
    match outcome {
        GangOutcome::Reserved(all) => {
            assert_eq!(all.len(), size, "{}", model.story());
            hold_all(model, &all);
        }
        GangOutcome::Group(plan) => {
            let enough = Some(plan.members.len()) >= minimum;
            assert!(enough, "too few are placed\n{}", model.story());
            assert_eq!(plan.refusal.is_none(), plan.members.len() == size, "{}", model.story());
            hold_all(model, &plan.members);
        }
        GangOutcome::Refused(_) => {
            assert!(!model.core.take_changed(), "what was tried is no news\n{}", model.story());
        }
        GangOutcome::Incomplete { .. } => panic!("it is complete\n{}", model.story()),
    }
}

fn hold_all(model: &mut Model, all: &[Reservation]) {
    for reservation in all {
        let wrong = model.violations(&reservation.pod.to_string(), &reservation.node);
        assert!(wrong.is_empty(), "an illegal place: {wrong:#?}\n{}", model.story());
        model.hold(reservation);
    }
}

/// The scheduler starts again: what was held and not bound is not held any more.
fn restart(model: &mut Model, rng: &mut Rng) {
    let held: Vec<String> = model.reserved.keys().cloned().collect();
    held.iter().for_each(|it| model.unreserve(it));
    model.log.push("the scheduler starts again".to_owned());
    model.core = model.rebuilt(rng);
    model.refused.clear();
}
