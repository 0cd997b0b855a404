//! Limits of what is stored, no matter who stores it. The API has refused such a request already: this
//! keeps any other way in from storing what a later start would have to read.

use berth_engine::limits::{LimitExceeded, Limited, Meter, check_size, table};

use crate::model::Op;

/// What an operation would store beyond a limit.
pub(super) fn excess(op: &Op) -> Option<LimitExceeded> {
    let name = |field: &str, text: &str| {
        let checked = text.check(table::NAME, &mut Meter::default());
        checked.map_err(|error| error.inside(field))
    };
    let body = |body: &str, most: usize| {
        check_size(body.len(), most).map_err(|error| error.inside("body"))
    };
    let checked = match op {
        Op::PutNode { facts, .. } => facts.check_limits(),
        Op::PutGroup(group) => group.check_limits(),
        Op::PutVolume(volume) => volume.check_limits(),
        Op::PutPool(pool) => name("id", &pool.id),
        Op::PutQuota { tenant, .. } => name("tenant", tenant),
        Op::PutSecrets { tenant, env, version } => name("tenant", tenant.as_deref().unwrap_or(""))
            .and_then(|()| name("env", env))
            .and_then(|()| name("version", version.as_deref().unwrap_or(""))),
        Op::PutWorkload { workload, .. } => body(&workload.body, table::STORED_WORKLOAD_BYTES),
        Op::PutPolicy { body: text, .. } | Op::ActivatePolicy { body: text, .. } => {
            body(text, table::STORED_POLICY_BYTES)
        }
        Op::PutDocument { body: text, .. } => body(text, table::STORED_DOCUMENT_BYTES),
        _ => Ok(()),
    };
    checked.err()
}
