//! Worked examples of Triton's designation API, D21 to D30 of `research/dapi-spot.md`: locality
//! hints, tenant spread, affinity expressions and networks. The rest is in `triton_examples.rs`.
//!
//! Soft rules are scores here, not filters: what Triton removes or ignores we rank, with the same
//! winner. Where our design decides otherwise than Triton, the test says so.

mod common;

use berth_engine::affinity::{Part, Rule};
use berth_engine::{
    Engine, Hint, InstanceId, InstanceRequest, LinkState, Locality, Network, NodeFacts, Notice,
    Platform, PlatformVersion, Timestamp,
};
use common::{
    NOW, builtin, claim, engine, explain, node, node_with, place, refusal, removal, request,
    request_of, scores, survivors, totals, values,
};

const A: u128 = 100;
const B: u128 = 101;

/// Nodes s, t and so on, with a on s and b on t.
fn hosts(ids: &[&str]) -> Engine {
    let nodes: Vec<NodeFacts> = ids.iter().map(|id| node(id, 1000, 4096)).collect();
    let mut engine = engine(scores("locality = 1"), &nodes);
    claim(&mut engine, &request(A, 0, 1), "s");
    claim(&mut engine, &request(B, 0, 1), "t");
    engine
}

fn hints(numbers: &[u128]) -> Vec<Hint> {
    let each = numbers.iter().map(|number| InstanceId::from_u128(*number));
    each.map(Hint::Instance).collect()
}

fn hinted(far: &[u128], near: &[u128], strict: bool) -> InstanceRequest {
    let mut wanted = request(1, 0, 1);
    wanted.locality = Locality { far: hints(far), near: hints(near), strict };
    wanted
}

fn ruled(expressions: &[&str]) -> InstanceRequest {
    let mut wanted = request(1, 0, 1);
    wanted.affinity = expressions
        .iter()
        .map(|expression| Rule::parse(expression).unwrap_or_else(|error| panic!("{error}")))
        .collect();
    wanted
}

fn named(number: u128, name: &str) -> InstanceRequest {
    let mut resident = request(number, 0, 1);
    resident.name = Some(name.to_owned());
    resident
}

#[test]
fn d21_far_wins_over_near() {
    // Triton keeps t and u and ignores near. Ours ranks s last, since far outweighs near.
    let mut engine = hosts(&["s", "t", "u"]);
    let wanted = hinted(&[A], &[A], false);
    assert_eq!(values(&mut engine, &wanted, "locality"), [333_333, 666_666, 666_666]);
    assert_eq!(place(&mut engine, &wanted), "t");
}

#[test]
fn d22_far_that_no_node_satisfies_is_ignored_and_near_decides() {
    let mut engine = hosts(&["s", "t"]);
    let wanted = hinted(&[A, B], &[B], false);
    assert_eq!(values(&mut engine, &wanted, "locality"), [0, 333_333]);
    assert_eq!(place(&mut engine, &wanted), "t");
}

#[test]
fn d23_strictly_near_two_on_different_nodes_is_refused() {
    let mut engine = hosts(&["s", "t", "u"]);
    let wanted = hinted(&[], &[A, B], true);
    let refused = refusal(&mut engine, &wanted);
    assert_eq!(refused.code, "locality_no_node");
    assert_eq!(refused.counts.len(), 1);
    assert_eq!((&*refused.counts[0].filter, refused.counts[0].removed), ("strict-locality", 3));
    // Near one of them is possible, and far from both leaves the third.
    assert_eq!(place(&mut engine, &hinted(&[], &[B], true)), "t");
    assert_eq!(place(&mut engine, &hinted(&[A, B], &[], true)), "u");
}

#[test]
fn d24_strictly_far_from_a_strangers_instance_has_no_effect_and_is_told() {
    let mut engine = hosts(&["s", "t"]);
    let stranger = request_of("globex", 200, 0, 1);
    claim(&mut engine, &stranger, "s");
    let wanted = hinted(&[200], &[], true);
    assert_eq!(survivors(&mut engine, &wanted), ["s", "t"]);
    let placed = engine.place(&wanted, NOW).unwrap();
    assert_eq!(placed.node.as_str(), "s");
    let hint = InstanceId::from_u128(200).to_string();
    assert_eq!(placed.notices, [Notice::UnknownHint { hint }]);
}

#[test]
fn d25_an_owner_on_every_node_is_refused_nowhere() {
    let nodes = [node("a", 1000, 1024), node("b", 1000, 2048)];
    let mut engine = engine(builtin("triton"), &nodes);
    claim(&mut engine, &request(A, 0, 1), "a");
    claim(&mut engine, &request(B, 0, 1), "b");
    let wanted = request(1, 0, 512);
    assert_eq!(survivors(&mut engine, &wanted), ["a", "b"]);
    let owner_spread = values(&mut engine, &wanted, "locality");
    assert_eq!(owner_spread, [333_333, 333_333], "equal, so it decides nothing");
    assert_eq!(place(&mut engine, &wanted), "a", "packing decides");
}

#[test]
fn d26_the_one_node_without_the_owner_wins_whatever_the_other_scores() {
    // A filter in Triton, a dominating score in our policy `triton`. cn1 loses everything else:
    // in the reservoir, most free memory, oldest platform, soonest reboot. Eight nodes instead of
    // five, so that the largest is spared as well.
    let others = ["cn2", "cn3", "cn4", "cn5", "cn6", "cn7", "cn8"];
    let platform =
        |built_at| Platform { version: PlatformVersion::new(7, 0), built_at: Timestamp(built_at) };
    let mut nodes: Vec<NodeFacts> = others
        .iter()
        .map(|id| node_with(id, 1000, 1024, |facts| facts.platform = Some(platform(9))))
        .collect();
    nodes.push(node_with("cn1", 1000, 65_536, |facts| {
        facts.platform = Some(platform(1));
        facts.reservoir = true;
        facts.next_reboot = Some(NOW.plus(60));
    }));
    let mut engine = engine(builtin("triton"), &nodes);
    for (number, id) in (A..).zip(others) {
        claim(&mut engine, &request(number, 0, 1), id);
    }
    let winner = explain(&mut engine, &request(1, 0, 512)).winner.unwrap();
    assert_eq!(winner.node.as_str(), "cn1");
    for term in &winner.terms {
        let lost = ["memory-pack-rank", "newest-platform", "next-reboot", "reservoir"];
        if lost.contains(&&*term.scorer) || term.scorer == "spare-largest" {
            assert_eq!(term.value, 0, "{}", term.scorer);
        }
    }
    assert_eq!(place(&mut engine, &request(1, 0, 512)), "cn1");
    // Somebody else's request packs, and leaves the reservoir alone.
    assert_eq!(values(&mut engine, &request_of("globex", 2, 0, 512), "locality"), [1_000_000; 8]);
    assert_ne!(place(&mut engine, &request_of("globex", 2, 0, 512)), "cn1");
}

#[test]
fn d27_a_hard_rule_holds_and_a_soft_rule_beside_it_still_counts() {
    let in_rack =
        |id, rack: &str| node_with(id, 1000, 4096, |facts| facts.rack = Some(rack.to_owned()));
    let nodes = [in_rack("a", "r1"), in_rack("b", "r1"), in_rack("c", "r2")];
    let mut engine = engine(scores("affinity = 1"), &nodes);
    claim(&mut engine, &named(A, "webhead0"), "a");
    claim(&mut engine, &named(B, "webhead1"), "a");
    let strict = ruled(&["instance==webhead0", "instance!=~webhead1"]);
    assert_eq!(survivors(&mut engine, &strict), ["a"]);
    assert_eq!(place(&mut engine, &strict), "a");
    // Triton drops a soft rule if there is a hard one. Ours keeps it: with a choice left by the hard
    // rule, the soft one makes it.
    let mixed = ruled(&["instance==webhead0@rack", "instance!=~webhead1"]);
    assert_eq!(survivors(&mut engine, &mixed), ["a", "b"]);
    assert_eq!(totals(&mut engine, &mixed), [250_000, 500_000]);
    assert_eq!(place(&mut engine, &mixed), "b");
}

#[test]
fn d28_a_hard_rule_that_matches_nothing_is_refused_or_reported() {
    let nodes = [node("a", 1000, 1024), node("b", 1000, 2048)];
    let mut engine = engine(builtin("triton"), &nodes);
    claim(&mut engine, &request(A, 0, 1), "a");

    let rule = "instance==nope".to_owned();
    let refused = refusal(&mut engine, &ruled(&["instance==nope"]));
    assert_eq!(refused.code, "affinity_no_node");
    assert_eq!(refused.notices, [Notice::MatchesNothing { rule }]);

    // Triton drops a `!=` that matches nothing in silence; ours says so. Tenant spread applies.
    let placed = engine.place(&ruled(&["instance!=nope"]), NOW).unwrap();
    assert_eq!(placed.node.as_str(), "b");
    let rule = "instance!=nope".to_owned();
    assert_eq!(placed.notices, [Notice::MatchesNothing { rule }]);
    let said = placed.notices[0].to_string();
    assert!(said.contains("matches none of your instances"), "{said}");

    // The first of instances that keep apart from each other has nothing misspelled.
    let mut first = ruled(&["role!=web"]);
    first.tags.insert("role".to_owned(), "web".to_owned());
    assert_eq!(engine.place(&first, NOW).unwrap().notices, []);

    // A soft rule that matches nothing is no news.
    let soft = engine.place(&ruled(&["instance==~nope"]), NOW).unwrap();
    assert_eq!(soft.notices, []);
}

#[test]
fn d29_a_bad_expression_is_told_which_part_is_wrong() {
    let table = [
        ("container=~foo", Part::Operator),
        ("container==", Part::Value),
        ("==foo", Part::Key),
        ("container==/a!/", Part::Value),
        ("instance===x", Part::Value),
    ];
    for (expression, part) in table {
        let error = Rule::parse(expression).unwrap_err();
        assert_eq!(error.part(), part, "{expression}");
        assert!(error.to_string().contains(expression), "{error}");
    }
}

#[test]
fn d29_a_tag_of_one_letter_is_accepted() {
    // Triton's grammar asks for two.
    let mut engine =
        engine(scores("affinity = 1"), &[node("s", 1000, 1024), node("t", 1000, 1024)]);
    let mut resident = request(A, 0, 1);
    resident.tags.insert("a".to_owned(), "x".to_owned());
    claim(&mut engine, &resident, "t");
    assert_eq!(place(&mut engine, &ruled(&["a==x"])), "t");
    assert_eq!(place(&mut engine, &ruled(&["a!=x"])), "s");
}

#[test]
fn d30_a_network_that_is_down_removes_the_node_and_is_named() {
    let network = |tag: &str, link| Network { tag: tag.to_owned(), link };
    let plugged = |id, overlay| {
        node_with(id, 1000, 1024, |facts| {
            facts.networks = vec![network("r2", LinkState::Up), network("overlay", overlay)];
        })
    };
    let nodes = [
        plugged("down", LinkState::Down),
        plugged("unsaid", LinkState::Unknown),
        plugged("up", LinkState::Up),
        node("unplugged", 1000, 1024),
    ];
    let mut engine = engine(builtin("triton"), &nodes);
    let mut wanted = request(1, 0, 1);
    let tags = |tags: &[&str]| tags.iter().map(|tag| (*tag).to_owned()).collect();
    wanted.networks = vec![tags(&["overlay"]), tags(&["r1", "r2"])];
    assert_eq!(survivors(&mut engine, &wanted), ["up"]);
    let reasons = ["down", "unsaid", "unplugged"].map(|id| removal(&mut engine, &wanted, id));
    let expected = [
        "has network overlay, but its link is down",
        "has not reported whether the link of overlay is up",
        "has no network overlay",
    ];
    for ((filter, reason), said) in reasons.into_iter().zip(expected) {
        assert_eq!((filter.as_str(), reason.as_str()), ("networks", said));
    }
}
