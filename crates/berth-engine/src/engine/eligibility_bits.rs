//! The set of nodes that pass every filter except capacity, as a bit set.
//!
//! Rules about other instances concern few domains, so they are applied domain by domain with
//! [`DomainRule::admits_count`], the same test as for a single node.

use crate::affinity::Topology;
use crate::fleet::{Lanes, NO_DOMAIN, NodeIndex};
use crate::prepared_request::{DomainRule, PreparedRequest};

/// Fills `words` with the nodes that pass every filter except those of capacity.
pub(crate) fn fill_eligible(
    prepared: &PreparedRequest<'_>,
    eligible: &[u64],
    mask: &[u64],
    words: &mut Vec<u64>,
) {
    let columns = prepared.fleet.columns();
    let mixing_ok = prepared.policy.is_off(crate::filter::CPU_CAP_MIXING);
    let capped = match (mixing_ok, prepared.request.cpu_capped) {
        (true, _) => &columns.present,
        (false, true) => &columns.takes_capped,
        (false, false) => &columns.takes_uncapped,
    };
    let tests = eligible.iter().zip(mask).zip(columns.open.words()).zip(capped.words());
    words.clear();
    words.extend(tests.map(|(((eligible, mask), open), capped)| eligible & mask & open & capped));
    if !prepared.request.volumes.is_empty() {
        keep_volume_home(prepared, words);
    }
    for &index in &prepared.excluded {
        set(words, index, false);
    }
    for rule in &prepared.hard_rules {
        apply(prepared, rule, words);
    }
}

fn set(words: &mut [u64], index: NodeIndex, on: bool) {
    let bit = 1u64 << index.lane();
    if on {
        words[index.block()] |= bit;
    } else {
        words[index.block()] &= !bit;
    }
}

fn keep_volume_home(prepared: &PreparedRequest<'_>, words: &mut [u64]) {
    let mut only = vec![0; words.len()];
    let volumes = prepared.request.volumes.iter().filter_map(|id| prepared.fleet.volume(id));
    let homes: Vec<_> = volumes.map(|volume| prepared.fleet.index_of(&volume.home)).collect();
    if let Some(&Some(first)) = homes.first()
        && homes.iter().all(|home| *home == Some(first))
    {
        set(&mut only, first, true);
    } else if homes.is_empty() {
        // Unknown volumes restrict nothing; such a request was refused as invalid before this.
        only.fill(u64::MAX);
    }
    words.iter_mut().zip(only).for_each(|(word, only)| *word &= only);
}

fn apply(prepared: &PreparedRequest<'_>, rule: &DomainRule<'_>, words: &mut [u64]) {
    let elsewhere = rule.admits_count(0, true);
    let nowhere = rule.topology == Topology::Node || rule.admits_count(0, false);
    if elsewhere {
        rule.counts.for_each(|domain, members| {
            if is_domain(rule, domain) && !rule.admits_count(members, true) {
                mark(prepared, rule.topology, domain, words, false);
            }
        });
        if !nowhere {
            mark(prepared, rule.topology, NO_DOMAIN, words, false);
        }
        return;
    }
    let mut allowed = vec![0; words.len()];
    rule.counts.for_each(|domain, members| {
        if is_domain(rule, domain) && rule.admits_count(members, true) {
            mark(prepared, rule.topology, domain, &mut allowed, true);
        }
    });
    words.iter_mut().zip(allowed).for_each(|(word, allowed)| *word &= allowed);
}

fn is_domain(rule: &DomainRule<'_>, domain: u32) -> bool {
    rule.topology == Topology::Node || domain != NO_DOMAIN
}

fn mark(
    prepared: &PreparedRequest<'_>,
    topology: Topology,
    domain: u32,
    words: &mut [u64],
    on: bool,
) {
    match topology {
        Topology::Node => set(words, NodeIndex(domain), on),
        Topology::Rack => mark_lanes(prepared.fleet.domains().rack(domain), words, on),
        Topology::Zone => mark_lanes(prepared.fleet.domains().zone(domain), words, on),
    }
}

fn mark_lanes(nodes: &[Lanes], words: &mut [u64], on: bool) {
    for lanes in nodes {
        let word = &mut words[lanes.block as usize];
        *word = if on { *word | lanes.mask } else { *word & !lanes.mask };
    }
}
