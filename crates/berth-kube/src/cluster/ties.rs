//! Which of several nodes with one score is chosen: one that depends on the pod, so that ties do not always go to
//! the same node, and on nothing else, so that a choice can be repeated.

use berth_engine::InstanceId;

/// The hash of a node's name (FNV-1a).
pub(super) fn name_hash(name: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The order of nodes for one pod among those of one score.
#[derive(Clone, Copy, Debug)]
pub(super) struct TieBreaker(u64);

impl TieBreaker {
    /// For a pod, by its uid.
    pub(super) fn new(pod: InstanceId) -> Self {
        let bytes = pod.0.as_u128();
        let half = |shift: u32| u64::try_from((bytes >> shift) & u128::from(u64::MAX)).unwrap_or(0);
        Self(mix(half(64)) ^ half(0))
    }

    /// The rank of a node, by the hash of its name; the highest is chosen.
    pub(super) const fn rank(self, name_hash: u64) -> u64 {
        mix(name_hash ^ self.0)
    }
}

/// Spreads every bit over all others (the finalizer of splitmix64).
const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_are_spread_over_all_nodes_and_can_be_repeated() {
        let nodes: Vec<u64> = (0..10).map(|it| name_hash(&format!("node-{it}"))).collect();
        let choose = |pod: u128| {
            let by = TieBreaker::new(InstanceId::from_u128(pod));
            (0..10).max_by_key(|at: &usize| by.rank(nodes[*at])).unwrap_or(0)
        };
        let mut counts = [0; 10];
        for pod in 0..1_000 {
            counts[choose(pod)] += 1;
            assert_eq!(choose(pod), choose(pod));
        }
        // Near 100 each; the hash is fixed, so this cannot fail by chance.
        assert!(counts.iter().all(|count| (60..150).contains(count)), "{counts:?}");
    }
}
