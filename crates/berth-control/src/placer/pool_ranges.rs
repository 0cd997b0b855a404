//! Ranges of pools as people write them, and wider ones.
//!
//! A range is never widened into another pool's addresses. Nothing here changes a pool.

use berth_ledger::{Pool, PoolKind};

/// Bits by which a network is widened at most.
const WIDER_BITS: u32 = 8;

/// A pool with another range.
fn ranged(pool: &Pool, range: &str) -> Option<Pool> {
    let parsed = Pool::parse(&pool.id, range).ok()?;
    let Pool { quarantine_s, tenant, .. } = pool.clone();
    Some(Pool { quarantine_s, tenant, ..parsed })
}

const fn bits_of(kind: PoolKind) -> u32 {
    match kind {
        PoolKind::Ipv6 => 128,
        PoolKind::Ipv4 | PoolKind::Number => 32,
    }
}

fn network(pool: &Pool, bits: u32) -> Option<(String, Pool)> {
    let whole = bits_of(pool.kind);
    let host = if bits == 0 { u128::MAX } else { (1_u128 << (whole - bits)) - 1 };
    let range = format!("{}/{bits}", pool.kind.write(pool.first & !host));
    let network = ranged(pool, &range)?;
    Some((range, network))
}

/// The bits of a network that has exactly this range.
fn network_bits(pool: &Pool) -> Option<u32> {
    let is_same = |(_, other): (String, Pool)| (other.first, other.last) == (pool.first, pool.last);
    (1..=bits_of(pool.kind)).rev().find(|bits| network(pool, *bits).is_some_and(is_same))
}

/// The range of a pool as people write it.
pub(super) fn range_of(pool: &Pool) -> Option<String> {
    match pool.kind {
        PoolKind::Number => Some(format!("{}-{}", pool.first, pool.last)),
        PoolKind::Ipv4 | PoolKind::Ipv6 => {
            network(pool, network_bits(pool)?).map(|(range, _)| range)
        }
    }
}

/// Wider ranges of a pool, the smallest first. No address of another pool is taken in.
pub(super) fn wider_ranges(
    pool: &Pool,
    wanted: u128,
    used: u128,
    others: &[&Pool],
) -> Vec<(String, Pool)> {
    if pool.kind == PoolKind::Number {
        // Values at rest are neither in use nor free.
        let unused = pool.size().saturating_sub(used).min(wanted - 1);
        let wider = [wanted - unused, wanted].into_iter().filter_map(|more| {
            let range = format!("{}-{}", pool.first, pool.last.checked_add(more)?);
            let wider = ranged(pool, &range)?;
            Some((range, wider))
        });
        return wider.collect();
    }
    let Some(bits) = network_bits(pool) else { return Vec::new() };
    let is_apart = |wider: &Pool| {
        let meets = |other: &&Pool| {
            other.kind == wider.kind && other.first <= wider.last && wider.first <= other.last
        };
        !others.iter().any(meets)
    };
    let wider =
        (1..=WIDER_BITS).map_while(|fewer| bits.checked_sub(fewer).filter(|bits| *bits > 0));
    let wider = wider.filter_map(|bits| network(pool, bits));
    let has_room = |(_, wider): &(String, Pool)| wider.size() >= used.saturating_add(wanted);
    wider.take_while(|(_, wider)| is_apart(wider)).filter(has_room).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

    use super::*;

    fn widened(range: &str, wanted: u128, used: u128, others: &[&str]) -> Vec<String> {
        let pool = Pool::parse("p", range).unwrap();
        assert_eq!(range_of(&pool).as_deref(), Some(range), "written as it was read");
        let others: Vec<Pool> = others.iter().map(|it| Pool::parse("o", it).unwrap()).collect();
        let others: Vec<&Pool> = others.iter().collect();
        let wider = wider_ranges(&pool, wanted, used, &others);
        assert!(wider.iter().all(|(_, it)| it.first <= pool.first && pool.last <= it.last));
        wider.into_iter().map(|(range, _)| range).collect()
    }

    #[test]
    fn a_range_is_widened_as_little_as_may_be_enough_and_into_no_other_network() {
        assert_eq!(widened("10-19", 3, 9, &[]), ["10-21", "10-22"]);
        assert_eq!(widened("10-19", 3, 10, &["20-30"]), ["10-22", "10-22"]);
        let ipv4 = widened("10.0.1.0/24", 1, 254, &["10.0.4.0/24"]);
        assert_eq!(ipv4, ["10.0.0.0/23", "10.0.0.0/22"]);
        assert_eq!(widened("10.0.0.0/32", 1, 1, &["10.0.0.2/31"])[..1], ["10.0.0.0/31"]);
        // Eight would be too few for twelve.
        assert_eq!(widened("fd00:7::/126", 9, 3, &[])[..2], ["fd00:7::/124", "fd00:7::/123"]);
        assert!(widened("10.0.0.0/24", 1, 254, &["10.0.1.0/24"]).is_empty());
    }
}
