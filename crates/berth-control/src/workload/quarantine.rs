//! Stored workloads that exceed a limit: an earlier version accepted them, or they came in by an
//! import. They must never reach the planner, and must never keep a server from starting.

use berth_api::limits::{Excess, LimitExceeded, Limited, Meter, check_regexes, check_size, table};
use berth_ledger::Workload;
use serde_json::Value;

use super::definition::Body;

/// Reads what is stored of a workload, or returns why it is quarantined.
///
/// # Errors
/// When it cannot be read for another reason.
pub(super) fn read_body(row: &Workload) -> serde_json::Result<Result<Body, String>> {
    // The length alone shows that it is not worth reading.
    if let Err(error) = check_size(row.body.len(), table::STORED_WORKLOAD_BYTES) {
        return Ok(Err(error.inside("workload").to_string()));
    }
    let read = serde_json::from_str(&row.body).or_else(|error| {
        // The first servers stored the template alone.
        let template = serde_json::from_str(&row.body).map_err(|_| error)?;
        Ok(Body::first(template, row.revision))
    });
    let mut body: Body = match read {
        Ok(body) => body,
        Err(error) => {
            let value: Value = serde_json::from_str(&row.body)?;
            return check_rules(&value)
                .map_or_else(|excess| Ok(Err(excess.to_string())), |()| Err(error));
        }
    };
    // Of a workload that is being removed nothing more is placed.
    if let Err(excess) = check(&body)
        && !body.deleting
    {
        return Ok(Err(excess.to_string()));
    }
    body.history.retain(|past| past.template.check_stored().is_ok());
    Ok(Ok(body))
}

fn check(body: &Body) -> Result<(), LimitExceeded> {
    let meter = &mut Meter { bytes: 0, ignores_control: true };
    body.template.check_stored().map_err(|error| error.inside("template"))?;
    body.pools.check(table::POOLS, meter).map_err(|error| error.inside("pools"))?;
    body.process.check(table::NAME, meter).map_err(|error| error.inside("process"))?;
    body.release.check(table::NAME, meter).map_err(|error| error.inside("release"))
}

/// Affinity rules are counted while they are read, so too many cannot be read at all.
fn check_rules(body: &Value) -> Result<(), LimitExceeded> {
    let template = body.get("template").unwrap_or(body);
    let Some(rules) = template.get("affinity").and_then(Value::as_array) else { return Ok(()) };
    let inside = |error: LimitExceeded| error.inside("affinity").inside("template");
    let (found, most) = (rules.len(), table::RULES.most());
    if found > most {
        return Err(inside(LimitExceeded::new(Excess::Items { found, most })));
    }
    let is_regex = |rule: &&Value| {
        rule.as_str().is_some_and(|rule| rule.contains("=/") || rule.contains("~/"))
    };
    check_regexes(rules.iter().filter(is_regex).count(), table::REGEXES).map_err(inside)
}
