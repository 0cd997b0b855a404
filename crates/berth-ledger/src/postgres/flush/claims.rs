//! Writing claims, and the answers that a retry gets again.

use crate::unit_of_work::{only_size, only_steps};

use super::{Batch, Call, Claim, ClaimKey, Column, Fault, Rows, cells};

/// What a step of a claim's life may change, and what it must have been before.
const STEP: &[Column] = &[
    Column::Bytes("instance"),
    Column::Int("role"),
    Column::Int("state"),
    Column::Int("lease_until"),
    Column::Int("fence"),
    Column::Text("ties"),
    Column::Int("before_fence"),
    Column::Int("before_state"),
];

/// What another size of a claim changes, and the fence it must have.
const SIZE: &[Column] = &[
    Column::Bytes("instance"),
    Column::Int("role"),
    Column::Int("cpu"),
    Column::Int("memory"),
    Column::Text("permit"),
    Column::Int("before_fence"),
];

const GONE: &[Column] = &[
    Column::Bytes("instance"),
    Column::Int("role"),
    Column::Int("before_fence"),
    Column::Int("before_state"),
];

pub(super) fn write(rows: &Rows, calls: &mut Vec<Call>) -> Result<(), Fault> {
    let (mut added, mut stepped) = (Batch::of("claim"), Batch::new(STEP));
    let (mut gone, mut sized) = (Batch::new(GONE), Batch::new(SIZE));
    for change in rows.claims.changes() {
        match (change.before, change.now) {
            (None, Some(claim)) => insert(claim, &mut added)?,
            (Some(before), Some(claim)) if only_steps(before, claim) => {
                step(before, claim, &mut stepped)?;
            }
            (Some(before), Some(claim)) if only_size(before, claim) => {
                size(before, claim, &mut sized)?;
            }
            (Some(before), Some(claim)) => {
                remove(change.key, before, &mut gone)?;
                insert(claim, &mut added)?;
            }
            (Some(before), None) => remove(change.key, before, &mut gone)?,
            (None, None) => {}
        }
    }
    let sql = "DELETE FROM claim AS t USING {u} WHERE t.instance = u.instance AND t.role = u.role \
         AND t.fence = u.before_fence AND t.state = u.before_state";
    calls.extend(gone.guarded("claim", sql));
    let sql = "UPDATE claim AS t SET state = u.state, lease_until = u.lease_until, \
         fence = u.fence, ties = u.ties FROM {u} \
         WHERE t.instance = u.instance AND t.role = u.role \
         AND t.fence = u.before_fence AND t.state = u.before_state";
    calls.extend(stepped.guarded("claim", sql));
    let sql = "UPDATE claim AS t SET cpu = u.cpu, memory = u.memory, permit = u.permit FROM {u} \
         WHERE t.instance = u.instance AND t.role = u.role AND t.fence = u.before_fence";
    calls.extend(sized.guarded("claim", sql));
    calls.extend(added.insert("claim", ""));
    Ok(())
}

fn size(before: &Claim, now: &Claim, batch: &mut Batch) -> Result<(), Fault> {
    let (instance, role) = (*now.key.instance.0.as_bytes(), now.key.role.number());
    let (cpu, memory) = (now.amounts.cpu_milli, now.amounts.memory_mib);
    batch.push(cells![instance, role, cpu, memory, permit(now)?, before.fence])
}

fn permit(claim: &Claim) -> Result<Option<String>, Fault> {
    Ok(claim.permit.as_ref().map(serde_json::to_string).transpose()?)
}

fn holdings(claim: &Claim) -> Result<Option<String>, Fault> {
    Ok(claim.holdings.as_ref().map(serde_json::to_string).transpose()?)
}

fn step(before: &Claim, now: &Claim, batch: &mut Batch) -> Result<(), Fault> {
    batch.push(cells![
        *now.key.instance.0.as_bytes(),
        now.key.role.number(),
        now.state.number(),
        now.lease_until.map(|until| until.0),
        now.fence,
        holdings(now)?,
        before.fence,
        before.state.number(),
    ])
}

fn remove(key: &ClaimKey, before: &Claim, batch: &mut Batch) -> Result<(), Fault> {
    let (instance, role) = (*key.instance.0.as_bytes(), key.role.number());
    batch.push(cells![instance, role, before.fence, before.state.number()])
}

fn insert(claim: &Claim, batch: &mut Batch) -> Result<(), Fault> {
    let amounts = &claim.amounts;
    batch.push(cells![
        *claim.key.instance.0.as_bytes(),
        claim.key.role.number(),
        claim.node.as_str(),
        &*claim.tenant,
        claim.workload.as_deref(),
        claim.state.number(),
        amounts.cpu_milli,
        amounts.memory_mib,
        amounts.disk_mib,
        amounts.bandwidth_mbps,
        claim.capped,
        claim.lease_until.map(|until| until.0),
        claim.fence,
        &*claim.request_id,
        claim.batch.map(uuid::Uuid::into_bytes),
        claim.name.as_deref(),
        claim.spec.as_str(),
        holdings(claim)?,
        claim.release_id.as_deref(),
        claim.secrets_version.as_deref(),
        claim.created_at.0,
        permit(claim)?,
    ])
}

pub(super) fn requests(rows: &Rows, calls: &mut Vec<Call>) -> Result<(), Fault> {
    let (mut added, mut changed) = (Batch::of("request"), Batch::of("request"));
    for change in rows.requests.changes() {
        let Some(row) = change.now else { continue };
        let answer = row.answer.text()?;
        let (id, tenant) = (&*change.key.0, &*change.key.1);
        // Only a ticket gives way to another answer.
        let batch = if change.before.is_none() { &mut added } else { &mut changed };
        batch.push(cells![id, tenant, row.body_hash, answer, row.at.0])?;
    }
    let sql = "UPDATE request AS t SET body_hash = u.body_hash, answer = u.answer, at = u.at \
         FROM {u} WHERE t.request_id = u.request_id AND t.owner = u.owner";
    calls.extend(changed.guarded("request", sql));
    calls.extend(added.insert("request", ""));
    Ok(())
}
