//! Explanations of random refusals, checked by an independent model: the counts are what a plain
//! oracle counts, and every proposed fix, done to the letter, lets in the whole request as it was
//! asked.
//!
//! A short run by default; `BERTH_EXPLANATIONS` sets the number of random fleets of a long one.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

#[path = "../oracle/mod.rs"]
mod oracle;

mod apply;
mod fleets;
mod tally;
mod waiting;

use apply::RequestUnderTest;
use berth_engine::policy::Policy;
use berth_engine::{Batch, InstanceRequest, PlaceError, Refusal, Timestamp};
use fleets::Scene;
use oracle::decide::{Answer, decide, fits};
use oracle::model::World;
use tally::Tally;

/// Fleets of the short run.
const FLEETS: u64 = 120;

#[allow(clippy::disallowed_methods, reason = "the caller says how many fleets are tried")]
fn fleets() -> u64 {
    let asked = std::env::var("BERTH_EXPLANATIONS").ok();
    asked.and_then(|count| count.parse().ok()).unwrap_or(FLEETS)
}

/// Places one instance; if it is refused, checks the refusal.
fn ask_one(scene: &mut Scene, request: &InstanceRequest, tally: &mut Tally) {
    let now = scene.twin.now;
    let found = scene.twin.engine.place(request, now);
    if let (Ok(placed), true) = (&found, scene.is_large()) {
        // Its score is compared in smaller fleets.
        scene.twin.claim(request, &placed.node);
        return;
    }
    let expected = decide(&scene.twin.world, scene.twin.engine.policy(), request, now);
    match (found, expected) {
        (Ok(placed), Answer::Placed { node, .. }) => {
            assert_eq!(placed.node, node);
            scene.twin.claim(request, &node);
        }
        (Err(PlaceError::Refused(refusal)), Answer::Refused(why)) => {
            tally::check_counts(&refusal, &why);
            tally.refusal(&refusal, false);
            tally.waiting(scene, &refusal, waiting::one(scene, request));
            let asked = RequestUnderTest::one(request);
            judge(scene, &asked, &refusal, tally);
        }
        (found, expected) => panic!("{found:?} and {expected:?} for {request:?}"),
    }
}

/// Places a batch; if some or all of it is refused, checks every refusal.
fn ask_batch(scene: &mut Scene, batch: &Batch, tally: &mut Tally) {
    let now = scene.twin.now;
    let before = scene.twin.engine.fleet().fingerprint();
    let outcome = scene.twin.engine.place_batch(batch, now).expect("a valid batch");
    assert_eq!(before, scene.twin.engine.fleet().fingerprint(), "a batch has no side effects");
    let placed: Vec<_> = outcome.placements.iter().map(|at| at.instance).collect();
    for placement in &outcome.placements {
        let member = batch.requests.iter().find(|member| member.id == placement.instance);
        scene.twin.claim(member.expect("a member"), &placement.node);
    }
    assert_eq!(outcome.refused.is_empty(), placed.len() == batch.requests.len());
    for (id, refusal) in &outcome.refused {
        let member = batch.requests.iter().find(|member| member.id == *id).expect("a member");
        if !placed.is_empty() {
            let Answer::Refused(why) =
                decide(&scene.twin.world, scene.twin.engine.policy(), member, now)
            else {
                panic!("{id} was refused and fits");
            };
            tally::check_counts(refusal, &why);
        }
        let removed: usize = refusal.counts.iter().map(|count| count.removed).sum();
        assert_eq!((removed, refusal.nodes), (scene.twin.world.nodes.len(), removed));
        let left_out =
            |other: &&InstanceRequest| !placed.contains(&other.id) && other.same_class(member);
        let rest = batch.requests.iter().filter(left_out).cloned();
        let asked = match placed.is_empty() {
            true => RequestUnderTest::all(batch),
            false => RequestUnderTest::rest(rest.collect()),
        };
        for fix in &refusal.fixes {
            if let berth_engine::Fix::Free { instances, .. } = fix {
                let own = instances.iter().any(|id| placed.contains(id));
                assert!(!own, "{fix} releases what was just placed");
            }
        }
        tally.refusal(refusal, true);
        let staying = outcome.placements.iter().map(|at| {
            let member = batch.requests.iter().find(|member| member.id == at.instance);
            (member.expect("a member").clone(), at.node.clone())
        });
        let staying: Vec<_> = staying.collect();
        let wanted =
            waiting::Wanted { members: &asked.requests, quorum: asked.quorum(), staying: &staying };
        tally.waiting(scene, refusal, waiting::batch(scene, member, &wanted));
        judge(scene, &asked, refusal, tally);
    }
}

/// Does every fix to a copy, asks again, and lets the oracle check the result.
fn judge(scene: &Scene, asked: &RequestUnderTest, refusal: &Refusal, tally: &mut Tally) {
    for fix in &refusal.fixes {
        let worked = apply::try_fix(scene, asked, refusal, fix);
        if let Err(problem) = &worked {
            tally.failed(scene, fix, problem);
        }
        tally.fix(fix, worked.is_ok(), asked.is_batch());
        // One unit less of anything, or one node less, is not enough; nor is one instance more placed.
        let calls = apply::closer_calls(fix, asked);
        // Of a batch one of them: each that fails is explained at length.
        let (first, most) = match asked.is_batch() {
            true => (tally.next() % calls.len().max(1), 1),
            false => (0, calls.len()),
        };
        for other in calls.into_iter().skip(first).take(most) {
            let is_best = apply::try_fix(scene, asked, refusal, &other).is_err();
            if !is_best {
                tally.failed(scene, fix, &format!("{other} is enough"));
            }
            assert!(is_best || asked.is_batch(), "{other} is enough, and {fix} is proposed");
            tally.best(fix, is_best, asked.is_batch());
        }
    }
}

/// Whether the placements can be made one after the other without breaking a rule on the way.
fn is_legal(
    world: &World,
    scene: &Scene,
    placements: &[(InstanceRequest, berth_engine::NodeId)],
) -> bool {
    is_legal_in(world, scene.twin.engine.policy(), scene.twin.now, placements)
}

fn is_legal_in(
    world: &World,
    policy: &Policy,
    now: Timestamp,
    placements: &[(InstanceRequest, berth_engine::NodeId)],
) -> bool {
    if placements.is_empty() {
        return true;
    }
    for (place, (request, id)) in placements.iter().enumerate() {
        let node = world.node(id).expect("a node of the fleet");
        if !fits(world, policy, request, node, now) {
            continue;
        }
        let mut with = world.clone();
        with.claim(request, id);
        let mut others = placements.to_vec();
        others.remove(place);
        if is_legal_in(&with, policy, now, &others) {
            return true;
        }
        // Deep searches are for small batches alone.
        if placements.len() > 6 {
            return false;
        }
    }
    false
}

#[test]
fn every_fix_works_and_nearly_every_refusal_has_one() {
    let mut tally = Tally::default();
    for seed in 0..fleets() {
        let mut scene = Scene::draw(seed);
        for number in 0..scene.questions() {
            let request = scene.request(number);
            ask_one(&mut scene, &request, &mut tally);
            let batch = scene.batch(number);
            ask_batch(&mut scene, &batch, &mut tally);
        }
    }
    println!("{tally}");
    tally.assert_goals();
}
