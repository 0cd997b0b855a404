//! What must hold after any fault: nothing acknowledged is lost, no plan is half placed, counters
//! are the sums of claims, the log is dense and matches the tables, receipts are complete.

use std::collections::BTreeMap;

use anyhow::Context;
use berth_engine::InstanceId;
use berth_ledger::{Allocation, EventBody, Ledger, Options, Role};

use crate::fixture::Fixture;
use crate::fleet::{in_group, set_up, takes_value};
use crate::history::{ExpectedClaim, History};
use crate::operation::Reply;

/// Events read at once.
const PAGE: usize = 5000;

/// A claim as the table has it.
struct Row {
    node: String,
    tenant: String,
    state: i64,
    /// CPU, memory, disk, bandwidth.
    amounts: [i64; 4],
    capped: i64,
    fence: i64,
}

/// Compares tables, log and receipts with the history and with each other. Returns the violations.
///
/// # Errors
/// When the database cannot be read.
pub fn check(fixture: &Fixture, history: &mut History) -> anyhow::Result<Vec<String>> {
    let claims = claims(fixture)?;
    let mut violations = Vec::new();
    let expected_claim = claims.iter().map(|(id, row)| (*id, row.expected_claim())).collect();
    violations.extend(history.compare(&expected_claim));
    nodes(fixture, &claims, &mut violations)?;
    tenants(fixture, &claims, &mut violations)?;
    group(fixture, &claims, &mut violations)?;
    values(fixture, &claims, &mut violations)?;
    let ledger = Ledger::open(fixture.backend(), Options::default())?;
    feed(&ledger, &claims, &mut violations)?;
    numbers(fixture, &mut violations)?;
    let verification = ledger.verify()?;
    violations.extend(verification.faults.iter().map(|fault| format!("receipts: {fault}")));
    if verification.decisions != history.plans {
        let (kept, granted) = (verification.decisions, history.plans);
        violations.push(format!("receipts: {kept} decisions for {granted} granted plans"));
    }
    let drifts = ledger.reconcile()?;
    violations.extend(drifts.iter().map(|drift| format!("reconciled: {drift:?}")));
    Ok(violations)
}

/// The same, and then sends again what was never answered: it must be granted, once.
///
/// # Errors
/// When the database cannot be read.
pub fn finish(fixture: &Fixture, history: &mut History) -> anyhow::Result<Vec<String>> {
    let open = history.open();
    let mut violations = check(fixture, history)?;
    if !open.is_empty() {
        let ledger = Ledger::open(fixture.backend(), Options::default())?;
        let nodes = set_up(&ledger)?;
        for operation in &open {
            match operation.perform(&ledger, &nodes) {
                Reply::Done(_) => history.apply(operation),
                Reply::Refused(why) => violations.push(format!("sent again and refused: {why}")),
                Reply::Failed { why, .. } => violations.push(format!("sent again: {why}")),
            }
        }
        drop(ledger);
        let again = check(fixture, history)?;
        violations.extend(again.iter().map(|text| format!("after sending again: {text}")));
    }
    violations.extend(history.refused.iter().take(3).map(|why| format!("refused: {why}")));
    Ok(violations)
}

impl Row {
    fn expected_claim(&self) -> ExpectedClaim {
        let [cpu_milli, memory_mib, ..] = self.amounts;
        ExpectedClaim { node: self.node.clone(), cpu_milli, memory_mib, state: self.state }
    }
}

fn integer(cell: &str) -> anyhow::Result<i64> {
    cell.parse().with_context(|| format!("{cell:?} is not a number"))
}

fn integers(cells: &[String]) -> anyhow::Result<Vec<i64>> {
    cells.iter().map(|cell| integer(cell)).collect()
}

fn instance(hex: &str) -> anyhow::Result<InstanceId> {
    Ok(InstanceId::from_u128(u128::from_str_radix(hex, 16)?))
}

fn claims(fixture: &Fixture) -> anyhow::Result<BTreeMap<InstanceId, Row>> {
    let sql = format!(
        "SELECT {}, node, owner, state, cpu, memory, disk, bandwidth, capped, fence FROM claim \
         WHERE role = 0",
        fixture.hex("instance")
    );
    let mut claims = BTreeMap::new();
    for cells in fixture.rows(&sql)? {
        let numbers = integers(&cells[3..])?;
        let row = Row {
            node: cells[1].clone(),
            tenant: cells[2].clone(),
            state: numbers[0],
            amounts: [numbers[1], numbers[2], numbers[3], numbers[4]],
            capped: numbers[5],
            fence: numbers[6],
        };
        claims.insert(instance(&cells[0])?, row);
    }
    Ok(claims)
}

/// Compares counters by name with sums by name; a counter of zero need not be there.
fn compare(
    what: &str,
    mut counters: BTreeMap<String, Vec<i64>>,
    mut sums: BTreeMap<String, Vec<i64>>,
    violations: &mut Vec<String>,
) {
    let some = |numbers: &Vec<i64>| numbers.iter().any(|number| *number != 0);
    counters.retain(|_, numbers| some(numbers));
    sums.retain(|_, numbers| some(numbers));
    if counters == sums {
        return;
    }
    let wrong = counters.iter().find(|(name, numbers)| sums.get(*name) != Some(numbers));
    let wrong = wrong.or_else(|| sums.iter().find(|(name, _)| !counters.contains_key(*name)));
    let name = wrong.map(|(name, _)| name.clone()).unwrap_or_default();
    let (counted, summed) = (counters.get(&name), sums.get(&name));
    violations.push(format!("{what} {name}: counters {counted:?}, claims {summed:?}"));
}

fn counters(fixture: &Fixture, sql: &str) -> anyhow::Result<BTreeMap<String, Vec<i64>>> {
    let rows = fixture.rows(sql)?.into_iter();
    rows.map(|cells| Ok((cells[0].clone(), integers(&cells[1..])?))).collect()
}

fn sums<'a>(
    claims: &'a BTreeMap<InstanceId, Row>,
    name: impl Fn(&'a Row) -> String,
    numbers: impl Fn(&'a Row) -> Vec<i64>,
) -> BTreeMap<String, Vec<i64>> {
    let mut sums: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for row in claims.values() {
        let amounts = numbers(row);
        let sum = sums.entry(name(row)).or_insert_with(|| vec![0; amounts.len()]);
        sum.iter_mut().zip(amounts).for_each(|(sum, amount)| *sum += amount);
    }
    sums
}

type Claims = BTreeMap<InstanceId, Row>;

fn nodes(fixture: &Fixture, claims: &Claims, violations: &mut Vec<String>) -> anyhow::Result<()> {
    let sql = "SELECT node, used_cpu, used_memory, used_disk, used_bandwidth, used_instances, \
         used_capped FROM node_room";
    let numbers = |row: &Row| {
        let mut numbers = row.amounts.to_vec();
        numbers.extend([1, row.capped]);
        numbers
    };
    let summed = sums(claims, |row| row.node.clone(), numbers);
    compare("node", counters(fixture, sql)?, summed, violations);
    Ok(())
}

fn tenants(fixture: &Fixture, claims: &Claims, violations: &mut Vec<String>) -> anyhow::Result<()> {
    let sql = "SELECT owner, used_cpu, used_memory, used_disk, used_instances FROM tenant";
    let numbers = |row: &Row| {
        let [cpu, memory, disk, _] = row.amounts;
        vec![cpu, memory, disk, 1]
    };
    let summed = sums(claims, |row| row.tenant.clone(), numbers);
    compare("tenant", counters(fixture, sql)?, summed, violations);
    Ok(())
}

fn group(fixture: &Fixture, claims: &Claims, violations: &mut Vec<String>) -> anyhow::Result<()> {
    let mut members: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for (_, row) in claims.iter().filter(|(id, _)| in_group(**id)) {
        members.entry(row.node.clone()).or_insert_with(|| vec![0])[0] += 1;
    }
    let total = members.values().map(|count| count[0]).sum::<i64>();
    let counted = counters(fixture, "SELECT domain, members FROM placement_group_domain")?;
    compare("group in", counted, members, violations);
    let listed = fixture.rows("SELECT count(*) FROM placement_group_member")?;
    if listed != [[total.to_string()]] {
        violations.push(format!("group: {listed:?} members listed, {total} claims"));
    }
    Ok(())
}

fn values(fixture: &Fixture, claims: &Claims, violations: &mut Vec<String>) -> anyhow::Result<()> {
    let sql = format!(
        "SELECT {}, count(*) FROM pool_value WHERE instance IS NOT NULL GROUP BY instance",
        fixture.hex("instance")
    );
    let held = counters(fixture, &sql)?;
    let taking = claims.keys().filter(|id| takes_value(**id));
    let expected = taking.map(|id| (format!("{:032x}", id.0.as_u128()), vec![1])).collect();
    compare("values of", held, expected, violations);
    Ok(())
}

/// Segments as stored: each begins where the one before it ended.
fn numbers(fixture: &Fixture, violations: &mut Vec<String>) -> anyhow::Result<()> {
    let segments = fixture.rows("SELECT first, count FROM event_segment ORDER BY first")?;
    let mut next = 1;
    for cells in &segments {
        let numbers = integers(cells)?;
        if numbers[0] != next {
            violations.push(format!("log: a segment begins at {}, not at {next}", numbers[0]));
        }
        next = numbers[0] + numbers[1];
    }
    let from_events = fixture.rows("SELECT next_event FROM ledger")?;
    if from_events != [[next.to_string()]] {
        violations.push(format!(
            "log: the next event is {from_events:?}, the last segment ends at {next}"
        ));
    }
    Ok(())
}

/// A claim according to the log.
#[derive(Debug, PartialEq, Eq)]
struct EventClaim {
    node: String,
    state: i64,
    amounts: [i64; 4],
    fence: i64,
}

/// Reads the whole log, which must give exactly the stored claims.
fn feed(ledger: &Ledger, claims: &Claims, violations: &mut Vec<String>) -> anyhow::Result<()> {
    let mut from_events = BTreeMap::new();
    let mut cursor = 0;
    loop {
        let page = ledger.events_after(cursor, PAGE)?;
        if page.events.is_empty() {
            break;
        }
        for event in page.events {
            if event.seq != cursor + 1 {
                violations.push(format!("feed: event {} after {cursor}", event.seq));
            }
            cursor = event.seq;
            if let Err(why) = apply_event(&mut from_events, &event.body) {
                violations.push(format!("feed: event {cursor}: {why}"));
            }
        }
    }
    let there: BTreeMap<InstanceId, EventClaim> = claims
        .iter()
        .map(|(id, row)| {
            let (node, amounts) = (row.node.clone(), row.amounts);
            (*id, EventClaim { node, state: row.state, amounts, fence: row.fence })
        })
        .collect();
    if from_events != there {
        let differs = |id: &&InstanceId| from_events.get(*id) != there.get(*id);
        let id = from_events.keys().chain(there.keys()).find(differs);
        let both = id.map(|id| (from_events.get(id), there.get(id)));
        violations.push(format!("feed: {id:?} differs between log and table: {both:?}"));
    }
    Ok(())
}

fn apply_event(
    from_events: &mut BTreeMap<InstanceId, EventClaim>,
    body: &EventBody,
) -> Result<(), String> {
    match body {
        EventBody::Allocated(allocated) => {
            let before = from_events.insert(allocated.instance_id, of_allocated(allocated));
            if before.is_some() || allocated.role != Role::Primary {
                return Err(format!("allocated twice: {allocated:?}"));
            }
        }
        EventBody::Released { instance_id, .. } => {
            from_events
                .remove(instance_id)
                .ok_or_else(|| format!("{instance_id} released, not there"))?;
        }
        EventBody::Resized { instance_id, resources, .. } => {
            let claim = from_events.get_mut(instance_id).ok_or("resized, not there")?;
            claim.amounts = resources.named().map(|(_, amount, _)| i64::from(amount));
        }
        EventBody::State { instance_id, state, .. } => {
            from_events.get_mut(instance_id).ok_or("stepped, not there")?.state = state.number();
        }
        _ => {}
    }
    Ok(())
}

fn of_allocated(allocated: &Allocation) -> EventClaim {
    EventClaim {
        node: allocated.node_id.to_string(),
        state: allocated.state.number(),
        amounts: allocated.resources.named().map(|(_, amount, _)| i64::from(amount)),
        fence: allocated.fence,
    }
}
