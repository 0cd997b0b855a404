//! Amounts, times and states as text for people.

use berth_api::engine::{Amounts, NodeState, TraitValue};
use berth_api::{ClaimState, Node, TicketState, WorkloadState, units};
use jiff::Timestamp;
use serde::Serialize;

use super::table::{Cell, Tone};

/// The current time.
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

/// How long ago, or in how long.
pub(crate) fn age(at: Timestamp) -> String {
    let seconds = now().as_second() - at.as_second();
    match seconds {
        0 => "now".to_owned(),
        1.. => format!("{} ago", units::duration(seconds)),
        _ => format!("in {}", units::duration(-seconds)),
    }
}

/// A point in time, to the second.
pub(crate) fn timestamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Amounts on one line, without those that are zero.
pub(crate) fn amounts(amounts: &Amounts) -> String {
    amounts.to_string()
}

/// `1 node`, `2 nodes`.
pub(crate) fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// The used share of a total: `62% of 128 GiB`.
pub(crate) fn usage(used: u32, total: u32, text: fn(i64) -> String) -> Cell {
    let Some(percent) = (u64::from(used) * 100).checked_div(u64::from(total)) else {
        return dash();
    };
    let tone = match percent {
        0..90 => Tone::Plain,
        90..100 => Tone::Warn,
        _ => Tone::Bad,
    };
    Cell::with_tone(format!("{percent:>3}% of {}", text(i64::from(total))), tone)
}

/// The CPU promised on a node, in cores and by its ratio: `96 of 63 cores, ×4`; more than the ratio
/// allows is marked.
pub(crate) fn cpu_usage(node: &Node) -> Cell {
    let (used, limit) = (i64::from(node.used.cpu_milli), i64::from(node.limits.cpu_milli));
    if limit == 0 {
        return dash();
    }
    let cores = units::cores_of_limit(limit, node.facts.ratios.cpu_permille);
    let tone = match used * 100 / limit {
        0..90 => Tone::Plain,
        90..=100 => Tone::Warn,
        _ => Tone::Bad,
    };
    let mark = if used > limit { ", over-promised" } else { "" };
    Cell::with_tone(format!("{}{mark}", units::promised_cores(used, cores, limit)), tone)
}

/// The name of a value in the API.
pub(crate) fn api_name<T: Serialize>(value: &T) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

pub(crate) fn node_state(state: NodeState) -> Cell {
    let tone = match state {
        NodeState::Active => Tone::Good,
        NodeState::Joining => Tone::Dim,
        NodeState::Cordoned | NodeState::Draining | NodeState::Degraded => Tone::Warn,
        NodeState::Lost => Tone::Bad,
    };
    Cell::with_tone(state.name(), tone)
}

pub(crate) fn claim_state(state: ClaimState) -> Cell {
    let tone = match state {
        ClaimState::Held | ClaimState::Binding => Tone::Warn,
        ClaimState::Active => Tone::Good,
        ClaimState::Releasing => Tone::Dim,
    };
    Cell::with_tone(api_name(&state), tone)
}

pub(crate) fn ticket_state(state: TicketState) -> Cell {
    let tone = match state {
        TicketState::Waiting => Tone::Warn,
        TicketState::Granted => Tone::Good,
        TicketState::Expired | TicketState::Refused => Tone::Bad,
        TicketState::Cancelled => Tone::Dim,
    };
    Cell::with_tone(api_name(&state), tone)
}

pub(crate) fn workload_state(state: WorkloadState) -> Cell {
    let tone = match state {
        WorkloadState::Ready => Tone::Good,
        WorkloadState::Progressing | WorkloadState::Paused => Tone::Warn,
        WorkloadState::Degraded => Tone::Bad,
        WorkloadState::Deleting => Tone::Dim,
    };
    Cell::with_tone(api_name(&state), tone)
}

/// A dash, for what is not there.
pub(crate) fn dash() -> Cell {
    Cell::with_tone("-", Tone::Dim)
}

/// A text or a dash.
pub(crate) fn or_dash(text: Option<&str>) -> Cell {
    match text {
        Some(text) if !text.is_empty() => text.into(),
        _ => dash(),
    }
}

/// Names and values as `a=1 b=2`.
pub(crate) fn key_values<V: std::fmt::Display>(
    map: &std::collections::BTreeMap<String, V>,
) -> String {
    map.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// A trait as a user types it.
pub(crate) fn trait_flag(name: &str, value: &TraitValue) -> String {
    if *value == TraitValue::Bool(true) { name.to_owned() } else { format!("{name}={value}") }
}
