//! The set of nodes a request may go to before capacity is looked at, as words of bits.
//!
//! Rules about neighbours concern few domains, so they are applied domain by domain: the verdict
//! on a domain is [`DomainRule::admits_count`], the same as on a single node.

use crate::affinity::Topology;
use crate::fleet::{Lanes, NO_DOMAIN, Slot};
use crate::prepared_request::{Ask, DomainRule};

/// Fills `words` with the nodes that pass every filter but those of capacity.
pub(crate) fn allowed(ask: &Ask<'_>, eligible: &[u64], mask: &[u64], words: &mut Vec<u64>) {
    let columns = ask.fleet.columns();
    let mixing_ok = ask.policy.is_off(crate::filter::CPU_CAP_MIXING);
    let capped = match (mixing_ok, ask.request.cpu_capped) {
        (true, _) => &columns.present,
        (false, true) => &columns.takes_capped,
        (false, false) => &columns.takes_uncapped,
    };
    let tests = eligible.iter().zip(mask).zip(columns.open.words()).zip(capped.words());
    words.clear();
    words.extend(tests.map(|(((eligible, mask), open), capped)| eligible & mask & open & capped));
    if !ask.request.volumes.is_empty() {
        keep_only_home(ask, words);
    }
    for &slot in &ask.excluded {
        set(words, slot, false);
    }
    for rule in &ask.hard {
        apply(ask, rule, words);
    }
}

fn set(words: &mut [u64], slot: Slot, on: bool) {
    let bit = 1u64 << slot.lane();
    if on {
        words[slot.block()] |= bit;
    } else {
        words[slot.block()] &= !bit;
    }
}

fn keep_only_home(ask: &Ask<'_>, words: &mut [u64]) {
    let mut only = vec![0; words.len()];
    let volumes = ask.request.volumes.iter().filter_map(|id| ask.fleet.volume(id));
    let homes: Vec<_> = volumes.map(|volume| ask.fleet.slot_of(&volume.home)).collect();
    if let Some(&Some(first)) = homes.first()
        && homes.iter().all(|home| *home == Some(first))
    {
        set(&mut only, first, true);
    } else if homes.is_empty() {
        // Volumes nobody knows pin nothing; the request was refused as invalid before this.
        only.fill(u64::MAX);
    }
    words.iter_mut().zip(only).for_each(|(word, only)| *word &= only);
}

fn apply(ask: &Ask<'_>, rule: &DomainRule<'_>, words: &mut [u64]) {
    let elsewhere = rule.admits_count(0, true);
    let nowhere = rule.topology == Topology::Node || rule.admits_count(0, false);
    if elsewhere {
        rule.counts.for_each(|domain, members| {
            if is_domain(rule, domain) && !rule.admits_count(members, true) {
                mark(ask, rule.topology, domain, words, false);
            }
        });
        if !nowhere {
            mark(ask, rule.topology, NO_DOMAIN, words, false);
        }
        return;
    }
    let mut allowed = vec![0; words.len()];
    rule.counts.for_each(|domain, members| {
        if is_domain(rule, domain) && rule.admits_count(members, true) {
            mark(ask, rule.topology, domain, &mut allowed, true);
        }
    });
    words.iter_mut().zip(allowed).for_each(|(word, allowed)| *word &= allowed);
}

fn is_domain(rule: &DomainRule<'_>, domain: u32) -> bool {
    rule.topology == Topology::Node || domain != NO_DOMAIN
}

fn mark(ask: &Ask<'_>, topology: Topology, domain: u32, words: &mut [u64], on: bool) {
    match topology {
        Topology::Node => set(words, Slot(domain), on),
        Topology::Rack => mark_lanes(ask.fleet.domains().rack(domain), words, on),
        Topology::Zone => mark_lanes(ask.fleet.domains().zone(domain), words, on),
    }
}

fn mark_lanes(nodes: &[Lanes], words: &mut [u64], on: bool) {
    for lanes in nodes {
        let word = &mut words[lanes.block as usize];
        *word = if on { *word | lanes.mask } else { *word & !lanes.mask };
    }
}
