//! Scores that rank the nodes which passed the filters against each other, as Triton does.
//!
//! Equal values get equal scores. These need all survivors at once and so take the slower path.

use super::scale::linear;
use super::{Scorer, ScorerKind};
use crate::fleet::{NodeIndex, NodeRow};
use crate::model::PPM;
use crate::prepared_request::PreparedRequest;

pub(super) static MEMORY_PACK_RANK: Scorer = Scorer {
    name: "memory-pack-rank",
    about: "fills nodes by memory, by their order and not by how much",
    notes: "compares the survivors with each other, which takes the slower path",
    settings: &[],
    example: |setup| {
        setup.node("c", |_| {});
        setup.place("a", |request| request.resources.memory_mib = 4096);
        setup.place("b", |request| request.resources.memory_mib = 1024);
    },
    formula: "rank by free memory among the nodes left: least free 1, most free 0",
    kind: ScorerKind::Relative(|prepared, nodes| {
        ranks(&free(prepared, nodes, |row| row.limits.memory - row.memory_used()))
    }),
};

pub(super) static DISK_PACK_RANK: Scorer = Scorer {
    name: "disk-pack-rank",
    about: "fills nodes by disk, by their order and not by how much",
    notes: "compares the survivors with each other, which takes the slower path",
    settings: &[],
    example: |setup| {
        setup.node("c", |_| {});
        setup.place("a", |request| request.resources.disk_mib = 4096);
        setup.place("b", |request| request.resources.disk_mib = 1024);
    },
    formula: "rank by free disk among the nodes left: least free 1, most free 0",
    kind: ScorerKind::Relative(|prepared, nodes| {
        ranks(&free(prepared, nodes, |row| row.limits.disk - row.used.disk))
    }),
};

fn free(prepared: &PreparedRequest<'_>, nodes: &[NodeIndex], of: fn(&NodeRow) -> i64) -> Vec<i64> {
    nodes.iter().map(|&index| prepared.fleet.row(index).map_or(0, of)).collect()
}

/// The value of each number's place among the distinct numbers: the least gets all.
fn ranks(numbers: &[i64]) -> Vec<u32> {
    let mut distinct = numbers.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let place = |number: &i64| distinct.binary_search(number).unwrap_or(0);
    numbers.iter().map(|number| linear(place(number), distinct.len())).collect()
}

pub(super) static SPARE_LARGEST: Scorer = Scorer {
    name: "spare-largest",
    about: "keeps the emptiest nodes for large instances",
    notes: "compares the survivors with each other, which takes the slower path",
    settings: &[],
    example: |setup| {
        for node in ["a", "b", "c", "d", "e", "f", "g"] {
            setup.node(node, |_| {});
        }
        for node in ["a", "b", "c", "e", "f", "g"] {
            setup.place(node, |request| request.resources.memory_mib = 1024);
        }
    },
    formula: "0 on the 15 % of the nodes left with most free memory, from 7 nodes on, else 1",
    kind: ScorerKind::Relative(spare_largest),
};

fn spare_largest(prepared: &PreparedRequest<'_>, nodes: &[NodeIndex]) -> Vec<u32> {
    let spared = nodes.len() * 15 / 100;
    let memory = free(prepared, nodes, |row| row.limits.memory - row.memory_used());
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    // Of equals, the one with the larger id is spared, so that the smaller wins as elsewhere.
    let rank = |place: usize| prepared.fleet.columns().rank.get(nodes[place]);
    order.sort_by_key(|&place| (memory[place], rank(place)));
    let mut values = vec![PPM; nodes.len()];
    order.iter().rev().take(spared).for_each(|&place| values[place] = 0);
    values
}

pub(super) static RANDOM: Scorer = Scorer {
    name: "random",
    about: "spreads by chance, the same for the same request and node",
    notes: "compares the survivors with each other, which takes the slower path",
    settings: &[],
    example: |_| {},
    formula: "a number drawn from the request id and the node id",
    kind: ScorerKind::Relative(random),
};

fn random(prepared: &PreparedRequest<'_>, nodes: &[NodeIndex]) -> Vec<u32> {
    let draw = |index: &NodeIndex| {
        let node = prepared.fleet.row(*index).map_or("", |row| row.id.as_str());
        let mut hasher = blake3::Hasher::new();
        hasher.update(prepared.request.id.0.as_bytes()).update(node.as_bytes());
        let bytes = hasher.finalize();
        let head = bytes.as_bytes().first_chunk().map_or(0, |head| u64::from_le_bytes(*head));
        u32::try_from(head % (u64::from(PPM) + 1)).unwrap_or(PPM)
    };
    nodes.iter().map(draw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_share_a_rank() {
        assert_eq!(ranks(&[256, 768, 512]), [PPM, 0, PPM / 2]);
        assert_eq!(ranks(&[5, 5, 5]), [PPM; 3]);
        assert_eq!(ranks(&[5, 5, 9]), [PPM, PPM, 0]);
        assert_eq!(ranks(&[1]), [PPM]);
    }
}
