//! Amounts, times and states in words and tones.

use berth_api::engine::{Amounts, CapacityType, NodeState, TraitValue, Unit};
use berth_api::{ClaimState, TicketState, WorkloadState, units};
use jiff::Timestamp;

use super::output::style;
use super::table::{Cell, Tone};

/// The time.
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

/// A moment, to the second.
pub(crate) fn moment(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Amounts on one line; what is zero is left out.
pub(crate) fn amounts(amounts: &Amounts) -> String {
    let parts = [
        (amounts.cpu_milli, cpu as fn(i64) -> String, ""),
        (amounts.memory_mib, units::size, ""),
        (amounts.disk_mib, units::size, " disk"),
        (amounts.bandwidth_mbps, units::bandwidth, ""),
    ];
    let parts = parts.iter().filter(|(amount, ..)| *amount > 0);
    let texts: Vec<String> =
        parts.map(|(amount, text, after)| format!("{}{after}", text(i64::from(*amount)))).collect();
    if texts.is_empty() { "nothing".to_owned() } else { texts.join(", ") }
}

/// CPU, and never only `500m`, which reads like a length.
fn cpu(milli: i64) -> String {
    let text = units::cpu(milli);
    if text.ends_with('m') { format!("{text} CPU") } else { text }
}

/// A number with its unit.
pub(crate) fn counted(amount: i64, unit: Unit) -> String {
    match unit {
        Unit::MilliCpu => cpu(amount),
        Unit::Mib => units::size(amount),
        Unit::Mbps => units::bandwidth(amount),
        Unit::Seconds => units::duration(amount),
        Unit::Count => amount.to_string(),
    }
}

/// `1 node`, `2 nodes`.
pub(crate) fn many(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// How much of a whole is used, in hundredths; nothing where there is no whole.
pub(crate) fn percent(used: u64, whole: u64) -> Option<u64> {
    (whole > 0).then(|| used.saturating_mul(100) / whole)
}

/// Used and whole, `62% of 128 GiB`, in a tone.
pub(crate) fn share(used: u32, whole: u32, text: fn(i64) -> String) -> Cell {
    let Some(percent) = percent(u64::from(used), u64::from(whole)) else {
        return Cell::toned("-", Tone::Dim);
    };
    let tone = match percent {
        0..90 => Tone::Plain,
        90..100 => Tone::Warn,
        _ => Tone::Bad,
    };
    Cell::toned(format!("{percent:>3}% of {}", text(i64::from(whole))), tone)
}

/// A node's state in its tone.
pub(crate) fn node_state(state: NodeState) -> Cell {
    let tone = match state {
        NodeState::Active => Tone::Good,
        NodeState::Joining => Tone::Dim,
        NodeState::Cordoned | NodeState::Draining | NodeState::Degraded => Tone::Warn,
        NodeState::Lost => Tone::Bad,
    };
    Cell::toned(state.name(), tone)
}

/// A claim's state in its tone.
pub(crate) fn claim_state(state: ClaimState) -> Cell {
    match state {
        ClaimState::Held => Cell::toned("held", Tone::Warn),
        ClaimState::Binding => Cell::toned("binding", Tone::Warn),
        ClaimState::Active => Cell::toned("active", Tone::Good),
        ClaimState::Releasing => Cell::toned("releasing", Tone::Dim),
    }
}

/// Where a waiting request stands, in its tone.
pub(crate) fn ticket_state(state: TicketState) -> Cell {
    match state {
        TicketState::Waiting => Cell::toned("waiting", Tone::Warn),
        TicketState::Granted => Cell::toned("granted", Tone::Good),
        TicketState::Expired => Cell::toned("expired", Tone::Bad),
        TicketState::Cancelled => Cell::toned("cancelled", Tone::Dim),
        TicketState::Refused => Cell::toned("refused", Tone::Bad),
    }
}

/// A workload's state in a word.
pub(crate) const fn workload_state_name(state: WorkloadState) -> &'static str {
    match state {
        WorkloadState::Ready => "ready",
        WorkloadState::Progressing => "progressing",
        WorkloadState::Paused => "paused",
        WorkloadState::Degraded => "degraded",
        WorkloadState::Deleting => "deleting",
    }
}

/// The style of a workload's state.
pub(crate) const fn workload_state_style(state: WorkloadState) -> anstyle::Style {
    match state {
        WorkloadState::Ready => style::GOOD,
        WorkloadState::Progressing | WorkloadState::Paused => style::WARN,
        WorkloadState::Degraded => style::BAD,
        WorkloadState::Deleting => style::DIM,
    }
}

/// A workload's state in its tone.
pub(crate) fn workload_state(state: WorkloadState) -> Cell {
    let tone = match state {
        WorkloadState::Ready => Tone::Good,
        WorkloadState::Progressing | WorkloadState::Paused => Tone::Warn,
        WorkloadState::Degraded => Tone::Bad,
        WorkloadState::Deleting => Tone::Dim,
    };
    Cell::toned(workload_state_name(state), tone)
}

/// A text or a dash.
pub(crate) fn or_dash(text: Option<&str>) -> Cell {
    match text {
        Some(text) if !text.is_empty() => text.into(),
        _ => Cell::toned("-", Tone::Dim),
    }
}

/// Names and values as `a=1 b=2`.
pub(crate) fn map<V: std::fmt::Display>(map: &std::collections::BTreeMap<String, V>) -> String {
    map.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// A trait as it is typed.
pub(crate) fn trait_typed(name: &str, value: &TraitValue) -> String {
    if *value == TraitValue::Bool(true) { name.to_owned() } else { format!("{name}={value}") }
}

/// On-demand or spot, from its name.
pub(crate) fn capacity_type(text: &str) -> Result<CapacityType, String> {
    match text {
        "spot" => Ok(CapacityType::Spot),
        "on-demand" => Ok(CapacityType::OnDemand),
        _ => Err("accepted is spot or on-demand".to_owned()),
    }
}
