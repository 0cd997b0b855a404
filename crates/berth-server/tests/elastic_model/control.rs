//! The auditor itself: shown a broken picture, it must complain.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::auditor::{Answered, Auditor, Excuse, Truth};
use crate::picture::{ClaimPicture, NodePicture, Pair, PermitPicture, Picture};

const fn pair(amount: i64) -> Pair {
    Pair::new(amount, amount)
}

/// A node of 10 on which `a` has 4, and `b` has 3 and 2 of headroom.
fn picture() -> (Picture, BTreeMap<String, Truth>) {
    let permit = |granted: i64, buffer: i64| PermitPicture {
        node: "n1".to_owned(),
        fence: 1,
        seq: 3,
        granted: pair(granted),
        pressure: Pair::default(),
        buffer: pair(buffer),
        uncertain: false,
        min: pair(1),
        max: pair(8),
        charged: pair(granted + buffer),
        unit: Some(pair(1)),
        frozen: false,
    };
    let claim = |instance: &str, charged: i64| ClaimPicture {
        instance: instance.to_owned(),
        role: "primary".to_owned(),
        node: "n1".to_owned(),
        charged: pair(charged),
        fence: 1,
    };
    let node = NodePicture {
        total: pair(10),
        reserved: pair(9),
        buffer: pair(2),
        instances: 2,
        ..NodePicture::default()
    };
    let seen = Picture {
        nodes: [("n1".to_owned(), node)].into(),
        claims: vec![claim("a", 4), claim("b", 5)],
        permits: [("a".to_owned(), permit(4, 0)), ("b".to_owned(), permit(3, 2))].into(),
        leaving: BTreeMap::new(),
        migrations: BTreeMap::new(),
    };
    let truth = |uses: i64| Truth {
        node: "n1".to_owned(),
        uses: pair(uses),
        permille: 1000,
        elastic: true,
        bounds: (pair(1), pair(8)),
        seq: 3,
        second_claim: None,
    };
    (seen, [("a".to_owned(), truth(4)), ("b".to_owned(), truth(5))].into())
}

/// What the auditor says of a picture after a sound one.
fn complaints(
    change: impl FnOnce(&mut Picture, &mut BTreeMap<String, Truth>),
    answer: Option<Answered>,
) -> String {
    let (mut seen, mut truth) = picture();
    let mut auditor = Auditor::default();
    let sound = auditor.look(seen.clone(), &truth, &Excuse::default(), &[]);
    assert!(sound.is_empty(), "{sound:?}");
    change(&mut seen, &mut truth);
    let answers: Vec<Answered> = answer.into_iter().collect();
    auditor.look(seen, &truth, &Excuse::default(), &answers).join("\n")
}

/// Grants an instance more, everywhere where that shows.
fn grow(seen: &mut Picture, id: &str, more: i64) {
    let permit = seen.permits.get_mut(id).unwrap();
    permit.granted = permit.granted + pair(more);
    permit.charged = permit.charged + pair(more);
    let claim = seen.claims.iter_mut().find(|claim| claim.instance == id).unwrap();
    claim.charged = claim.charged + pair(more);
    let node = seen.nodes.get_mut("n1").unwrap();
    node.reserved = node.reserved + pair(more);
}

fn answered(wanted: i64, permit: i64, limited_by: Option<&str>) -> Option<Answered> {
    Some(Answered {
        instance: "a".to_owned(),
        wanted: pair(wanted),
        permit: pair(permit),
        limited_by: limited_by.map(str::to_owned),
        unit: pair(1),
    })
}

#[test]
fn a_sound_growth_is_no_complaint() {
    let sound = complaints(|seen, _| grow(seen, "a", 1), answered(6, 5, Some("node")));
    assert_eq!(sound, "");
}

#[test]
fn an_oversold_node_is_noticed() {
    let said = complaints(|seen, _| grow(seen, "a", 2), None);
    assert!(said.contains("n1 is over its cpu: 11 of 10"), "{said}");
}

#[test]
fn growth_on_an_over_full_node_is_noticed() {
    let (mut seen, truth) = picture();
    let mut auditor = Auditor::default();
    seen.nodes.get_mut("n1").unwrap().system = pair(5);
    auditor.look(seen.clone(), &truth, &Excuse::default(), &[]);
    let quiet = auditor.look(seen.clone(), &truth, &Excuse::default(), &[]);
    assert!(quiet.is_empty(), "to be over is no fault of a step: {quiet:?}");
    grow(&mut seen, "a", 1);
    let said = auditor.look(seen, &truth, &Excuse::default(), &[]).join("\n");
    assert!(said.contains("n1 is over its memory: 10 of 5, and had 9 before"), "{said}");
}

#[test]
fn a_sum_that_is_off_by_one_is_noticed() {
    for (what, change) in [
        ("reserved", (|node| node.reserved.cpu -= 1) as fn(&mut NodePicture)),
        ("buffer", |node| node.buffer.memory += 1),
        ("instances", |node| node.instances += 1),
        ("capacity pressure", |node| node.pressure.cpu += 1),
        ("pressure accounted for", |node| node.accounted_for.cpu += 1),
    ] {
        let said = complaints(|seen, _| change(seen.nodes.get_mut("n1").unwrap()), None);
        assert!(said.contains(what), "{what}: {said}");
    }
}

#[test]
fn two_primary_claims_or_none_are_noticed() {
    let said = complaints(|seen, _| seen.claims.push(seen.claims[0].clone()), None);
    assert!(said.contains("a has 2 primary claims"), "{said}");
    let said = complaints(|seen, _| drop(seen.claims.remove(0)), None);
    assert!(said.contains("a has 0 primary claims"), "{said}");
    let both = |seen: &mut Picture, _: &mut BTreeMap<String, Truth>| {
        for role in ["migration_target", "migration_source"] {
            let mut claim = seen.claims[0].clone();
            (claim.role, claim.node) = (role.to_owned(), "n2".to_owned());
            seen.claims.push(claim);
        }
    };
    let said = complaints(both, None);
    assert!(said.contains("1 places to go to and 1 that it came from"), "{said}");
}

#[test]
fn use_beyond_what_is_charged_is_noticed() {
    let said = complaints(|_, truth| truth.get_mut("a").unwrap().uses = pair(5), None);
    assert!(said.contains("a uses"), "{said}");
    let said = complaints(|_, truth| truth.get_mut("a").unwrap().node = "n2".to_owned(), None);
    assert!(said.contains("a runs on n2"), "{said}");
}

#[test]
fn a_number_that_goes_back_and_one_that_nobody_sent_are_noticed() {
    let said = complaints(|seen, _| seen.permits.get_mut("a").unwrap().seq = 2, None);
    assert!(said.contains("its number went back to 2"), "{said}");
    let said = complaints(|seen, _| seen.permits.get_mut("a").unwrap().seq = 4, None);
    assert!(said.contains("request 4 was never made"), "{said}");
}

#[test]
fn a_size_out_of_bounds_is_noticed_unless_it_was_so_before() {
    let bounded = |seen: &mut Picture, truth: &mut BTreeMap<String, Truth>| {
        let permit = seen.permits.get_mut("a").unwrap();
        (permit.min, permit.max) = (pair(1), pair(2));
        truth.get_mut("a").unwrap().bounds = (pair(1), pair(2));
    };
    assert_eq!(complaints(bounded, None), "");
    let grown = |seen: &mut Picture, truth: &mut BTreeMap<String, Truth>| {
        bounded(seen, truth);
        grow(seen, "a", 1);
    };
    let said = complaints(grown, None);
    assert!(said.contains("a has 5 cpu, above its maximum 2"), "{said}");
    let said = complaints(|_, truth| truth.get_mut("a").unwrap().bounds.1 = pair(9), None);
    assert!(said.contains("a has bounds"), "{said}");
}

#[test]
fn an_answer_that_cannot_be_is_noticed() {
    let same = |_: &mut Picture, _: &mut BTreeMap<String, Truth>| {};
    let said = complaints(same, answered(5, 3, None));
    assert!(said.contains("a had 4 cpu, wants 5, and got 3"), "{said}");
    let said = complaints(same, answered(5, 6, None));
    assert!(said.contains("a had 4 cpu, wants 5, and got 6"), "{said}");
    let said = complaints(same, answered(5, 4, Some("node")));
    assert!(said.contains("was denied"), "{said}");
}

#[test]
fn what_is_left_of_an_instance_that_is_gone_is_noticed() {
    let said = complaints(|_, truth| drop(truth.remove("a")), None);
    assert!(said.contains("a has a primary claim and is gone"), "{said}");
}

#[test]
fn a_move_without_its_place_and_a_place_without_a_move_are_noticed() {
    let held = |truth: &mut BTreeMap<String, Truth>| {
        truth.get_mut("a").unwrap().second_claim = Some(("migration_target", "n2".to_owned()));
    };
    let claim = |seen: &mut Picture| {
        let mut claim = seen.claims[0].clone();
        (claim.role, claim.node) = ("migration_target".to_owned(), "n2".to_owned());
        seen.claims.push(claim);
    };
    let said = complaints(|_, truth| held(truth), None);
    assert!(said.contains("a has no second claim"), "{said}");
    let said = complaints(|seen, _| claim(seen), None);
    assert!(said.contains("a does not move, and has a second claim"), "{said}");
    let both = |seen: &mut Picture, truth: &mut BTreeMap<String, Truth>| {
        claim(seen);
        held(truth);
    };
    assert_eq!(complaints(both, None), "");
}

/// Has the auditor read these pictures one after another, the last one forever.
async fn audit_pictures(pictures: Vec<Picture>) -> Vec<String> {
    let (_, truth) = picture();
    let number = AtomicUsize::new(0);
    let read = async || {
        let at = number.fetch_add(1, Ordering::Relaxed).min(pictures.len() - 1);
        pictures[at].clone()
    };
    Auditor::default().audit(read, &truth, &Excuse::default(), &[]).await
}

#[tokio::test]
async fn a_picture_of_two_moments_is_read_again_and_a_wrong_one_is_still_wrong() {
    let (sound, _) = picture();
    let mut torn = sound.clone();
    torn.nodes.get_mut("n1").unwrap().reserved = pair(8);
    assert_eq!(audit_pictures(vec![torn.clone(), sound.clone()]).await, Vec::<String>::new());
    let said = audit_pictures(vec![torn.clone()]).await.join("\n");
    assert!(said.contains("reserved"), "{said}");
    // Wrong in another way each time, and then for good.
    let mut other = sound;
    other.nodes.get_mut("n1").unwrap().buffer = pair(1);
    let said = audit_pictures(vec![torn, other]).await.join("\n");
    assert!(said.contains("buffer") && !said.contains("reserved"), "{said}");
}
