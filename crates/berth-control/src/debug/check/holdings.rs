//! Rules about what only one claim may have: slots of workloads, values of pools.

use std::collections::{BTreeMap, BTreeSet};

use berth_ledger::{ClaimKey, SlotKey};

use super::{CheckReport, Invariant};
use crate::debug::dump::{ClaimDump, Dump};

pub(super) fn check(dump: &Dump, report: &mut CheckReport) {
    slots(dump, report);
    pool_values(dump, report);
}

fn slots(dump: &Dump, report: &mut CheckReport) {
    let Some(rows) = &dump.slots else { return };
    let mut by_slot: BTreeMap<&SlotKey, Vec<&ClaimDump>> = BTreeMap::new();
    for claim in &dump.claims {
        if let Some(slot) = claim.ties.as_ref().and_then(|ties| ties.slot.as_ref()) {
            by_slot.entry(slot).or_default().push(claim);
        }
    }
    let rows: BTreeMap<&SlotKey, ClaimKey> = rows.iter().map(|it| (&it.slot, it.holder)).collect();
    for (slot, holder) in &rows {
        let claims = by_slot.get(slot).map_or(&[][..], Vec::as_slice);
        let Some(claim) = claims.iter().find(|claim| claim.key() == *holder) else {
            let expected = "a claim that has it";
            report.must(Invariant::SlotHolder, &subject(slot), "its holder", holder, expected);
            continue;
        };
        handover(slot, claim, claims, report);
    }
    for (slot, claims) in by_slot.iter().filter(|(slot, _)| !rows.contains_key(*slot)) {
        let expected = format!("one, since claim {} has it", claims[0].key());
        report.must(Invariant::SlotTaken, &subject(slot), "its row", "not there", expected);
    }
}

/// Whoever else has a slot handed it over to the one that its row names.
fn handover(slot: &SlotKey, holder: &ClaimDump, claims: &[&ClaimDump], report: &mut CheckReport) {
    let predecessors = holder.ties.iter().flat_map(|ties| &ties.slot_predecessors);
    let predecessors: BTreeSet<&ClaimKey> = predecessors.collect();
    for other in claims.iter().map(|claim| claim.key()).filter(|other| *other != holder.key()) {
        if !predecessors.contains(&other) {
            let found = format!("claim {other}");
            let expected = format!("claim {} alone, or one that it replaces", holder.key());
            report.must(Invariant::SlotHandover, &subject(slot), "what has it", found, expected);
        }
    }
}

fn subject(slot: &SlotKey) -> String {
    let SlotKey { tenant, workload, revision, slot } = slot;
    format!("slot {slot} of revision {revision} of workload {tenant}/{workload}")
}

/// Claims that have a value of a pool: by its row, and by what the claims say.
#[derive(Default)]
struct Holders {
    by_row: BTreeSet<ClaimKey>,
    by_claim: BTreeSet<ClaimKey>,
}

fn pool_values(dump: &Dump, report: &mut CheckReport) {
    let Some(rows) = &dump.pool_values else { return };
    let mut holders: BTreeMap<(&str, String), Holders> = BTreeMap::new();
    for row in rows {
        let value = (row.pool.as_str(), row.value.clone());
        holders.entry(value).or_default().by_row.insert(row.holder);
    }
    for claim in &dump.claims {
        for held in claim.ties.iter().flat_map(|ties| &ties.values) {
            let number =
                held.number().map_or_else(|| held.value.clone(), |it| format!("{it:032x}"));
            holders.entry((&held.pool, number)).or_default().by_claim.insert(claim.key());
        }
    }
    for ((pool, value), holders) in holders {
        let subject = format!("value {value} of pool {pool}");
        let (found, expected) = (named(&holders.by_row), named(&holders.by_claim));
        report.must(Invariant::PoolValues, &subject, "what has it", found, expected);
    }
}

fn named(claims: &BTreeSet<ClaimKey>) -> String {
    let names: Vec<String> = claims.iter().map(|key| format!("claim {key}")).collect();
    if names.is_empty() { "nothing".to_owned() } else { names.join(" and ") }
}
