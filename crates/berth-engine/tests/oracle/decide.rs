//! The whole answer: a node and its total, or why there is none.

use std::borrow::Cow;
use std::collections::BTreeMap;

use berth_engine::policy::Policy;
use berth_engine::{InstanceRequest, NodeFacts, NodeId, Timestamp};

use super::filters::{NAMES, Question, failures};
use super::model::World;
use super::scores::{Contest, totals};

/// What the oracle says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Placed { node: NodeId, score: i64 },
    Refused(Why),
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Why {
    /// The last rule that removed a node.
    pub filter: Option<Cow<'static, str>>,
    /// Nodes removed first by each rule, in the order of rules.
    pub counts: Vec<(Cow<'static, str>, usize)>,
    /// The closest node of each of those rules, and how far it was.
    pub nearest: Vec<(Cow<'static, str>, NodeId, Option<i128>)>,
    /// The rule that alone keeps most nodes out, and how many.
    pub best_relaxation: Option<(Cow<'static, str>, usize)>,
}

/// Nodes that pass every rule, in order of id.
pub fn fitting<'a>(
    world: &'a World,
    policy: &Policy,
    request: &InstanceRequest,
    now: Timestamp,
) -> Vec<&'a NodeFacts> {
    let fits = |node: &&NodeFacts| fits(world, policy, request, node, now);
    world.nodes.iter().filter(fits).collect()
}

/// Whether one node passes every rule.
pub fn fits(
    world: &World,
    policy: &Policy,
    request: &InstanceRequest,
    node: &NodeFacts,
    now: Timestamp,
) -> bool {
    failures(&Question { world, policy, request, node, now }).is_empty()
}

/// The node with the highest total; of equals, the one with the smallest id.
pub fn decide(world: &World, policy: &Policy, request: &InstanceRequest, now: Timestamp) -> Answer {
    let contest =
        Contest { world, policy, request, now, left: fitting(world, policy, request, now) };
    let mut best: Option<(i64, &NodeFacts)> = None;
    for (total, node) in totals(&contest).into_iter().zip(&contest.left) {
        if best.is_none_or(|(most, _)| total > most) {
            best = Some((total, node));
        }
    }
    match best {
        Some((score, node)) => Answer::Placed { node: node.id.clone(), score },
        None => Answer::Refused(why(world, policy, request, now)),
    }
}

fn why(world: &World, policy: &Policy, request: &InstanceRequest, now: Timestamp) -> Why {
    let mut removed: BTreeMap<usize, Vec<(Option<i128>, NodeId)>> = BTreeMap::new();
    let mut alone: BTreeMap<usize, usize> = BTreeMap::new();
    for node in &world.nodes {
        let failed = failures(&Question { world, policy, request, node, now });
        let (first, short) = failed[0];
        let so_far = removed.entry(first).or_default();
        so_far.push((short, node.id.clone()));
        if failed.len() == 1 {
            *alone.entry(first).or_default() += 1;
        }
    }
    let nearest = removed.iter().map(|(&place, nodes)| {
        let closest = nodes.iter().min_by_key(|(short, id)| (short.unwrap_or(0), id));
        let (short, id) = closest.expect("a rule that removed a node");
        (NAMES[place].into(), id.clone(), *short)
    });
    let most = alone.iter().max_by_key(|(place, count)| (**count, std::cmp::Reverse(**place)));
    Why {
        filter: removed.keys().max().map(|place| NAMES[*place].into()),
        counts: removed.iter().map(|(place, nodes)| (NAMES[*place].into(), nodes.len())).collect(),
        nearest: nearest.collect(),
        best_relaxation: most.map(|(place, count)| (NAMES[*place].into(), *count)),
    }
}
