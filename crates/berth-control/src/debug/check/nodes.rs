//! Rules about nodes: counters, limits, accounts.

use std::collections::BTreeMap;

use berth_engine::elastic::{Account, Holding, ResourceAccount, Size, Sums};
use berth_engine::{Amounts, Limits, NodeFacts, OtherUsage, Room, Used};
use berth_ledger::Role;

use super::{CheckContext, CheckReport, Invariant};
use crate::adoption::is_adoption;
use crate::debug::dump::{ClaimDump, NodeDump};

pub(super) fn check(context: &CheckContext<'_>, node: &NodeDump, report: &mut CheckReport) {
    let claims = context.by_node.get(&node.facts.id).map_or(&[][..], Vec::as_slice);
    let mut sum = Used::default();
    for claim in claims {
        sum.charge(&claim.charged, claim.capped, 1);
    }
    let subject = format!("node {}", node.facts.id);
    same_use(report, Invariant::NodeUsed, &subject, "in its row", &node.room.used, &sum);
    classes(node, claims, &subject, report);
    limits(node, &subject, report);
    if node.copies.steady {
        copies(node, &sum, &subject, report);
    } else {
        report.unsteady += 1;
    }
    let Some(account) = &node.account else { return };
    marks(context, node, &subject, report);
    frame(node, account, &subject, report);
    if node.copies.steady {
        sums(context, node, claims, account, &subject, report);
        within(node, claims, account, &subject, report);
    }
}

fn same_use(
    report: &mut CheckReport,
    invariant: Invariant,
    subject: &str,
    place: &str,
    found: &Used,
    sum: &Used,
) {
    for (name, found, sum) in [
        ("cpu", found.cpu, sum.cpu),
        ("memory", found.memory, sum.memory),
        ("disk", found.disk, sum.disk),
        ("bandwidth", found.bandwidth, sum.bandwidth),
        ("instances", found.instances.into(), sum.instances.into()),
        ("capped", found.capped.into(), sum.capped.into()),
    ] {
        let expected = format!("{sum}, the sum of its claims");
        let found = if found == sum { expected.clone() } else { found.to_string() };
        report.must(invariant, &subject, format!("used {name} {place}"), found, expected);
    }
}

fn copies(node: &NodeDump, sum: &Used, subject: &str, report: &mut CheckReport) {
    if let Some(copy) = &node.copies.catalogue {
        let place = "in the readers' copy";
        same_use(report, Invariant::CatalogueUsed, subject, place, &copy.used, sum);
        let place = "by the claims of the readers' copy";
        same_use(report, Invariant::CatalogueUsed, subject, place, &copy.claims, sum);
    }
    if let Some(used) = &node.copies.replica {
        same_use(report, Invariant::ReplicaUsed, subject, "in the planner's copy", used, sum);
    }
}

fn classes(node: &NodeDump, claims: &[&ClaimDump], subject: &str, report: &mut CheckReport) {
    let mut sums: BTreeMap<&str, i64> =
        node.classes.keys().map(|class| (class.as_str(), 0)).collect();
    for (class, amount) in claims.iter().flat_map(|claim| &claim.ties).flat_map(|it| &it.classes) {
        let sum = sums.entry(class).or_default();
        *sum = sum.saturating_add(i64::from(*amount));
    }
    for (class, sum) in sums {
        let found = node.classes.get(class).map_or(0, |counter| counter.used);
        let what = format!("used {class}");
        report.must(Invariant::NodeClasses, &subject, what, found, sum);
    }
}

fn limits(node: &NodeDump, subject: &str, report: &mut CheckReport) {
    let (found, by_facts) = (&node.room, Room::of(&node.facts));
    for (name, found, expected) in [
        ("cpu", found.limits.cpu, by_facts.limits.cpu),
        ("memory", found.limits.memory, by_facts.limits.memory),
        ("disk", found.limits.disk, by_facts.limits.disk),
        ("bandwidth", found.limits.bandwidth, by_facts.limits.bandwidth),
        ("instances", found.instance_limit.into(), by_facts.instance_limit.into()),
        ("overhead", found.overhead_mib.into(), by_facts.overhead_mib.into()),
    ] {
        let what = format!("its limit of {name}");
        report.must(Invariant::NodeLimits, &subject, what, found, expected);
    }
}

/// What one resource's account must be, by facts and counters alone.
struct ExpectedAccount {
    name: &'static str,
    total: i64,
    system: i64,
    reserved: i64,
    watermark: i64,
}

/// Written out, not asked of the code that made the account.
fn expected_accounts(node: &NodeDump, facts: &NodeFacts, used: &Used) -> [ExpectedAccount; 2] {
    let capacity = facts.capacity.unwrap_or_default();
    let none = OtherUsage { cpu_milli: 0, memory_kib: 0, ..facts.other };
    let total = Limits::of(capacity, Amounts::default(), facts.ratios, none);
    let without = Limits::of(capacity, facts.kept_by_host(), facts.ratios, none);
    let limits = Limits::of(capacity, facts.kept_by_host(), facts.ratios, facts.other);
    let overheads = i64::from(used.instances) * i64::from(facts.vmm_overhead_mib);
    let mark = |reservable: i64, permille: u16, unit: u32| {
        let unit = i64::from(unit.max(1));
        (reservable.max(0) / unit).saturating_mul(permille.into()) / 1000 * unit
    };
    let marks = node.watermark;
    [
        ExpectedAccount {
            name: "cpu",
            total: total.cpu,
            system: total.cpu.saturating_sub(without.cpu),
            reserved: used.cpu.saturating_add(without.cpu.saturating_sub(limits.cpu)),
            watermark: mark(without.cpu, marks.cpu_permille, facts.other.cpu_unit_milli),
        },
        ExpectedAccount {
            name: "memory",
            total: total.memory,
            system: total.memory.saturating_sub(without.memory),
            reserved: used
                .memory
                .saturating_add(overheads)
                .saturating_add(without.memory.saturating_sub(limits.memory)),
            watermark: mark(without.memory, marks.memory_permille, facts.other.memory_unit_mib),
        },
    ]
}

/// Where pressure begins is what the policy says.
fn marks(context: &CheckContext<'_>, node: &NodeDump, subject: &str, report: &mut CheckReport) {
    let (found, by_policy) = (node.watermark, context.settings.on(&node.facts).watermark);
    for (name, found, expected) in [
        ("cpu", found.cpu_permille, by_policy.cpu_permille),
        ("memory", found.memory_permille, by_policy.memory_permille),
    ] {
        let what = format!("its watermark of {name} in thousandths");
        report.must(Invariant::Watermark, &subject, what, found, expected);
    }
}

/// An account is made from the readers' copy, so it is compared with what that says.
fn frame(node: &NodeDump, account: &Account, subject: &str, report: &mut CheckReport) {
    let Some(copy) = &node.copies.catalogue else { return };
    if copy.generation != node.generation {
        return;
    }
    let expected_accounts = expected_accounts(node, &node.facts, &copy.used);
    for (expected_accounts, found) in expected_accounts.iter().zip([&account.cpu, &account.memory])
    {
        let what = |part: &str| format!("its account's {part} of {}", expected_accounts.name);
        for (part, found, expected) in [
            ("total", found.total, expected_accounts.total),
            ("system", found.system, expected_accounts.system),
            ("reserved", found.reserved, expected_accounts.reserved),
        ] {
            report.must(Invariant::AccountFrame, &subject, what(part), found, expected);
        }
        let (found, expected) = (found.watermark, expected_accounts.watermark);
        report.must(Invariant::Watermark, &subject, what("watermark"), found, expected);
    }
}

fn sums(
    context: &CheckContext<'_>,
    node: &NodeDump,
    claims: &[&ClaimDump],
    account: &Account,
    subject: &str,
    report: &mut CheckReport,
) {
    let leaves = |claim: &ClaimDump| match claim.role {
        Role::Primary => context.leaving.contains(&(claim.instance, &claim.node)),
        Role::MigrationTarget => false,
        Role::MigrationSource => true,
    };
    let holdings = claims.iter().map(|claim| Holding {
        charge: Size::of(&claim.charged),
        permit: claim.permit,
        leaving: leaves(claim),
    });
    let half_life_s = context.settings.pressure_half_life_s;
    let sums = Sums::of(holdings, context.dump.at.as_second(), half_life_s);
    let expected = Account::of(&node.facts, &node.room.used, node.watermark, &sums);
    let parts = |account: &ResourceAccount| {
        [
            ("buffer", account.buffer),
            ("capacity pressure", account.capacity_pressure),
            ("pressure accounted for", account.pressure_accounted_for),
        ]
    };
    let both = [("cpu", account.cpu, expected.cpu), ("memory", account.memory, expected.memory)];
    for (name, found, expected) in both {
        for ((part, found), (_, expected)) in parts(&found).into_iter().zip(parts(&expected)) {
            let what = format!("its account's {part} of {name}");
            report.must(Invariant::AccountSums, &subject, what, found, expected);
        }
    }
}

/// More may be reserved than there is to give only where somebody changed what there is to give, or
/// where reality was recorded.
fn within(
    node: &NodeDump,
    claims: &[&ClaimDump],
    account: &Account,
    subject: &str,
    report: &mut CheckReport,
) {
    if node.facts.capacity.is_none() {
        return;
    }
    for (name, of) in [("cpu", &account.cpu), ("memory", &account.memory)] {
        if of.reserved <= of.reservable() {
            continue;
        }
        let what = format!("reserved {name}");
        match reason(node, claims, of) {
            Some(why) => report.notes.push(format!(
                "{subject}: {what} is {}, above {}: {why}; nothing grows there until it holds",
                of.reserved,
                of.reservable()
            )),
            None => {
                let expected = format!("at most {}", of.reservable());
                report.must(Invariant::ReservedWithin, &subject, what, of.reserved, expected);
            }
        }
    }
}

fn reason(node: &NodeDump, claims: &[&ClaimDump], of: &ResourceAccount) -> Option<String> {
    let is_adopted = |claim: &&&ClaimDump| is_adoption(claim.instance, &claim.request_id);
    let adopted = claims.iter().filter(is_adopted).count();
    if adopted > 0 {
        return Some(format!("{adopted} of its instances were found there, and count as they are"));
    }
    if node.facts.policy_reserve.is_some() {
        return Some("the policy says what its host keeps".to_owned());
    }
    if of.other > 0 {
        return Some(format!("{} of it is used by others", of.other));
    }
    let generation = node.generation;
    (generation > 1).then(|| format!("its facts changed since it came (generation {generation})"))
}
