//! How values are written in both databases: names of states and modes, bytes of ids.

use berth_engine::affinity::{Strength, Topology};
use berth_engine::{CpuCapMode, GroupKind, InstanceId, NodeState};
use uuid::Uuid;

use crate::error::Fault;
use crate::model::ClaimState;

pub(crate) fn parse_state(name: &str) -> Result<NodeState, Fault> {
    use NodeState::{Active, Cordoned, Degraded, Draining, Joining, Lost};
    let states = [Joining, Active, Cordoned, Draining, Degraded, Lost];
    named("node state", name, states.map(|state| (state.name(), state)))
}

pub(crate) const fn cap_mode_name(mode: CpuCapMode) -> &'static str {
    match mode {
        CpuCapMode::Uniform => "uniform",
        CpuCapMode::Capped => "capped",
        CpuCapMode::Uncapped => "uncapped",
        CpuCapMode::Mixed => "mixed",
    }
}

pub(crate) fn parse_cap_mode(name: &str) -> Result<CpuCapMode, Fault> {
    use CpuCapMode::{Capped, Mixed, Uncapped, Uniform};
    let modes = [Uniform, Capped, Uncapped, Mixed];
    named("CPU cap mode", name, modes.map(|mode| (cap_mode_name(mode), mode)))
}

pub(crate) const fn kind_name(kind: GroupKind) -> &'static str {
    match kind {
        GroupKind::Together => "together",
        GroupKind::Apart => "apart",
    }
}

pub(crate) fn parse_group_kind(name: &str) -> Result<GroupKind, Fault> {
    let kinds = [GroupKind::Together, GroupKind::Apart];
    named("group kind", name, kinds.map(|kind| (kind_name(kind), kind)))
}

pub(crate) const fn strength_name(strength: Strength) -> &'static str {
    match strength {
        Strength::Hard => "hard",
        Strength::Soft => "soft",
    }
}

pub(crate) fn parse_strength(name: &str) -> Result<Strength, Fault> {
    let strengths = [Strength::Hard, Strength::Soft];
    named("group strength", name, strengths.map(|strength| (strength_name(strength), strength)))
}

pub(crate) fn parse_topology(name: &str) -> Result<Topology, Fault> {
    let levels = [Topology::Node, Topology::Rack, Topology::Zone];
    named("topology", name, levels.map(|level| (level.name(), level)))
}

fn named<T: Copy, const N: usize>(
    what: &str,
    name: &str,
    known: [(&str, T); N],
) -> Result<T, Fault> {
    let found = known.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| *value).ok_or_else(|| Fault::corrupt(format!("{what} {name:?}")))
}

pub(crate) fn parse_uuid(bytes: &[u8]) -> Result<Uuid, Fault> {
    Uuid::from_slice(bytes).map_err(|_| Fault::corrupt(format!("an id of {} bytes", bytes.len())))
}

pub(crate) fn parse_instance(bytes: &[u8]) -> Result<InstanceId, Fault> {
    parse_uuid(bytes).map(InstanceId)
}

pub(crate) fn parse_half_hash(bytes: &[u8]) -> Result<[u8; 16], Fault> {
    <[u8; 16]>::try_from(bytes).map_err(|_| Fault::corrupt("a hash of the wrong length"))
}

pub(crate) fn parse_value(bytes: &[u8]) -> Result<u128, Fault> {
    let bytes = <[u8; 16]>::try_from(bytes);
    bytes.map(u128::from_be_bytes).map_err(|_| Fault::corrupt("a value of the wrong length"))
}

/// A count that is never negative and never beyond 32 bits.
pub(crate) fn to_u32(count: i64) -> Result<u32, Fault> {
    u32::try_from(count).map_err(|_| Fault::corrupt(format!("the amount {count}")))
}

/// The state of a claim by its number.
pub(crate) fn claim_state(number: i64) -> Result<ClaimState, Fault> {
    ClaimState::from_number(number).ok_or_else(|| Fault::corrupt(format!("state {number}")))
}

/// Whether texts can be stored at all. A key that cannot be stored does not exist, and must not reach a
/// database that would reject the query.
pub(crate) fn is_storable<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> bool {
    !texts.into_iter().any(|text| text.as_ref().contains('\0'))
}

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
