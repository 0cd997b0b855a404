//! Permits: how large an instance may be. The arithmetic of one permit request.
//!
//! A request for a smaller size always succeeds, one for the same size clears earlier demand, and one
//! for a larger size is granted as far as there is room: in whole compute units across CPU and memory
//! together, or each resource by itself. A grant stands until the next request, so nothing has to be
//! guessed after a restart. Nothing here depends on where permits are stored.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::model::size::{Free, Overcommit, Size};

/// How a request that does not fit as a whole is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Grants {
    /// Whole compute units of CPU and memory together: four CPUs with memory for three are of no
    /// use to a virtual machine.
    #[default]
    Joint,
    /// Each resource by itself, as far as there is room.
    PerResource,
}

/// What is recorded of an instance's permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Permit {
    /// The number of the request that was answered last; 0 before the first.
    pub seq: u64,
    /// What it may use.
    pub granted: Size,
    /// What it asked for.
    pub wanted: Size,
    /// What is set aside beyond that: because its use is not known, or because it may grow into it
    /// without asking.
    #[serde(default, skip_serializing_if = "Size::is_nothing")]
    pub buffer: Size,
    /// What it may grow into without asking, by the last answer.
    #[serde(default, skip_serializing_if = "Size::is_nothing")]
    pub headroom: Size,
    /// Whether its earlier permit is not known: it was adopted, and has not sent a request since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uncertain: bool,
    /// What it was denied for lack of room on the node.
    #[serde(default, skip_serializing_if = "Size::is_nothing")]
    pub pressure: Size,
    /// When it was denied, in whole seconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pressure_at: i64,
    /// The compute unit that was last sent to its agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Size>,
    /// How it is charged.
    #[serde(default, skip_serializing_if = "Overcommit::is_none")]
    pub overcommit: Overcommit,
    /// Its load as last reported by its agent, in thousandths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_milli: Option<u32>,
    /// What limited its last request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limited_by: Option<Limit>,
}

impl Size {
    /// As [`Size::is_zero`], for what is left out of stored text.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
    pub(super) const fn is_nothing(&self) -> bool {
        self.is_zero()
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_zero(at: &i64) -> bool {
    *at == 0
}

/// What limits a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The node has no more.
    Node,
    /// The tenant may have no more.
    Quota,
    /// Its host has no more cores: one instance never has more CPU than its host.
    Host,
    /// It is being moved, and stays as it is meanwhile.
    Migration,
}

impl Permit {
    /// The permit of an instance that was placed with this size.
    #[must_use]
    pub const fn placed(size: Size, overcommit: Overcommit) -> Self {
        Self {
            seq: 0,
            granted: size,
            wanted: size,
            buffer: Size::ZERO,
            headroom: Size::ZERO,
            uncertain: false,
            pressure: Size::ZERO,
            pressure_at: 0,
            unit: None,
            overcommit,
            load_milli: None,
            limited_by: None,
        }
    }

    /// The permit of an instance that was adopted with this use: it may have been promised its
    /// maximum, so that counts until its first request.
    #[must_use]
    pub fn found(using: Size, max: Size, overcommit: Overcommit) -> Self {
        let buffer = max.less(using);
        Self { buffer, uncertain: true, ..Self::placed(using, overcommit) }
    }

    /// All that it may have come to use.
    #[must_use]
    pub fn reserved(&self) -> Size {
        self.granted.plus(self.buffer)
    }

    /// What its node is charged.
    #[must_use]
    pub fn charge(&self) -> Size {
        self.overcommit.charge(self.reserved())
    }

    /// The part of the charge that is set aside and probably not used.
    #[must_use]
    pub fn charged_buffer(&self) -> Size {
        self.charge().less(self.overcommit.charge(self.granted))
    }

    /// What it would be charged more if it had what it was denied, decaying over time.
    #[must_use]
    pub fn charged_pressure(&self, now: i64, half_life_s: u32) -> Size {
        let fading =
            |amount: u32, _| faded(amount, now.saturating_sub(self.pressure_at), half_life_s);
        let pressure = self.pressure.each(Size::ZERO, fading);
        let reserved = self.reserved();
        self.overcommit.charge(reserved.plus(pressure)).less(self.charge())
    }

    /// The permit after its bounds changed: if its use is not known, it may be anything up to the new
    /// maximum until its first request; otherwise the grant stands.
    #[must_use]
    pub fn rebound(&self, max: Size) -> Self {
        // Headroom stays reserved: its agent may have grown into it already without a report.
        let buffer = if self.uncertain { max.less(self.granted) } else { self.buffer };
        Self { buffer, ..*self }
    }
}

/// An amount that halves with each half-life, linear in between; zero after sixteen.
fn faded(amount: u32, age_s: i64, half_life_s: u32) -> u32 {
    let age = u64::try_from(age_s).unwrap_or(0);
    let half_life = u64::from(half_life_s.max(1));
    let halvings = age.checked_div(half_life).and_then(|times| u32::try_from(times).ok());
    let halvings = halvings.unwrap_or(u32::MAX);
    if halvings >= 16 {
        return 0;
    }
    let now = u64::from(amount >> halvings);
    let into = age.checked_rem(half_life).unwrap_or(0);
    let fallen = (now / 2).saturating_mul(into).checked_div(half_life).unwrap_or(0);
    u32::try_from(now.saturating_sub(fallen)).unwrap_or(0)
}

/// One request for a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitRequest {
    /// Its number among those of the instance; absent: the next.
    pub seq: Option<u64>,
    /// How large the instance wants to be.
    pub size: Size,
    /// The largest size that its agent was permitted, if it says so.
    pub last_permit: Option<Size>,
    /// The number of the last answer that its agent received. Headroom of earlier answers ends there.
    pub heard: Option<u64>,
    /// How much it wants to be able to grow without asking.
    pub headroom: Size,
    /// Its load, in thousandths.
    pub load_milli: Option<u32>,
}

impl PermitRequest {
    /// A request for a size, with defaults for the rest.
    #[must_use]
    pub const fn new(size: Size) -> Self {
        Self {
            seq: None,
            size,
            last_permit: None,
            heard: None,
            headroom: Size::ZERO,
            load_milli: None,
        }
    }
}

/// The limits that apply to an instance at the time of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitContext {
    /// What grants are multiples of; nothing of it is zero.
    pub unit: Size,
    /// How requests that do not fit are granted.
    pub grants: Grants,
    /// The least it runs with.
    pub min: Size,
    /// The most it may grow to.
    pub max: Size,
    /// It is being moved, and must not grow.
    pub frozen: bool,
    /// Whether sizes must be multiples of the unit that was last sent to its agent.
    pub whole_units: bool,
    /// CPU of its host, above which it does not grow whatever is free; absent: not limited.
    pub host_cpu_milli: Option<u32>,
    /// What its node has left.
    pub node: Free,
    /// What its tenant has left.
    pub quota: Free,
    /// What its node has left below its watermark; headroom is not granted beyond it.
    pub below_watermark: Free,
    /// The time, in whole seconds.
    pub now: i64,
}

/// A permit request that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidPermitRequest {
    /// Smaller or larger than it may ever be.
    #[error("resources.{field} is {value}; accepted is {min} to {max}, the instance's bounds")]
    OutsideBounds {
        /// The field.
        field: &'static str,
        /// What was given.
        value: u32,
        /// The least.
        min: u32,
        /// The most.
        max: u32,
    },
    /// Not a multiple of the unit that was last sent to its agent.
    #[error(
        "resources.{field} is {value}; accepted are its bounds, what it has ({has}) and multiples of \
         {unit}, the compute unit that was last told"
    )]
    NotWholeUnits {
        /// The field.
        field: &'static str,
        /// What was given.
        value: u32,
        /// What it has.
        has: u32,
        /// The unit.
        unit: u32,
    },
    /// Nothing can be a multiple of nothing.
    #[error("compute_unit.{field} is 0; accepted is 1 or more")]
    ZeroUnit {
        /// The field.
        field: &'static str,
    },
}

/// The decision on a permit request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitDecision {
    /// The permit from now on.
    pub permit: Permit,
    /// The request was answered before, or a later one was: nothing has changed.
    pub repeated: bool,
    /// Its agent holds more than was recorded. That is accepted, whether there is room or not.
    pub found_larger: bool,
}

/// Decides one permit request.
///
/// # Errors
/// When the request is not valid; nothing has changed then.
pub fn decide_permit(
    permit: &Permit,
    request: &PermitRequest,
    context: &PermitContext,
) -> Result<PermitDecision, InvalidPermitRequest> {
    let seq = request.seq.unwrap_or_else(|| permit.seq.saturating_add(1));
    if seq <= permit.seq {
        return Ok(PermitDecision { permit: *permit, repeated: true, found_larger: false });
    }
    check(permit, request, context)?;
    let start = start(permit, request, context);
    let found_larger = !permit.reserved().covers(start);
    // What it was charged so far is replaced by what it starts from.
    let (before, charged) = (permit.charge(), permit.overcommit.charge(start));
    let recharged = |free: Free| free.recharged(before, charged);
    let (node, quota) = (recharged(context.node), recharged(context.quota));
    let shrunk = start.least(request.size);
    let more = request.size.less(start);
    let growth = |free: Free| match context.frozen {
        true => Size::ZERO,
        false => grown(start, more, context, permit.overcommit, free),
    };
    let (by_node, by_both) = (growth(node), growth(node.least(quota)));
    // What it could have if nothing else were on the node.
    let by_host = match context.frozen {
        true => more,
        false => grown(start, more, context, permit.overcommit, Free::UNLIMITED),
    };
    let granted = shrunk.plus(by_both);
    let limited_by = match () {
        () if granted == request.size => None,
        () if context.frozen => Some(Limit::Migration),
        () if by_both == by_host => Some(Limit::Host),
        () if by_node == by_both => Some(Limit::Node),
        () => Some(Limit::Quota),
    };
    // More room would not help where the tenant's quota or the host's cores are the limit.
    let pressure = by_host.less(by_node);
    let headroom = match limited_by {
        None => headroom(granted, request, context, permit, &recharged),
        Some(_) => Size::ZERO,
    };
    let permit = Permit {
        seq,
        granted,
        wanted: request.size,
        buffer: headroom.most(outstanding(permit, request).less(granted)),
        headroom,
        uncertain: false,
        pressure,
        pressure_at: if pressure.is_zero() { 0 } else { context.now },
        unit: Some(context.unit),
        overcommit: permit.overcommit,
        load_milli: request.load_milli.or(permit.load_milli),
        limited_by,
    };
    Ok(PermitDecision { permit, repeated: false, found_larger })
}

/// What its agent may still grow to without asking, by an answer that it may have received: the answer
/// to this request may be lost. It counts until the agent acknowledges a later one.
fn outstanding(permit: &Permit, request: &PermitRequest) -> Size {
    let heard = request.heard.is_some_and(|heard| heard >= permit.seq);
    match () {
        () if permit.uncertain || permit.buffer.is_zero() => Size::ZERO,
        () if heard && permit.headroom.is_zero() => Size::ZERO,
        () if heard => permit.granted.plus(permit.headroom),
        () => permit.reserved(),
    }
}

/// The size that a request grows or shrinks from.
fn start(permit: &Permit, request: &PermitRequest, context: &PermitContext) -> Size {
    let Some(held) = request.last_permit else { return permit.reserved() };
    // Never above its maximum or what was set aside for it before that was lowered, and never below
    // its grant while that is certain: an answer may have been lost.
    let held = held.least(context.max.most(permit.reserved()));
    if permit.uncertain {
        return held.most(context.min);
    }
    // What is set aside for it stays reserved, even if it reports less.
    held.most(permit.granted).most(request.size.least(permit.reserved()))
}

fn check(
    permit: &Permit,
    request: &PermitRequest,
    context: &PermitContext,
) -> Result<(), InvalidPermitRequest> {
    for (field, unit) in context.unit.named() {
        if unit == 0 {
            return Err(InvalidPermitRequest::ZeroUnit { field });
        }
    }
    let (granted, held) = (permit.granted.named(), start(permit, request, context).named());
    let has = granted.into_iter().zip(held);
    let bounds = context.min.named().into_iter().zip(context.max.named());
    let told = permit.unit.filter(|_| context.whole_units).map(Size::named);
    for (place, (((field, value), ((_, min), (_, max))), ((_, has), (_, held)))) in
        request.size.named().into_iter().zip(bounds).zip(has).enumerate()
    {
        // What was granted before its bounds changed is not taken away, nor what it grew into; and
        // a smaller size is always accepted.
        if value == has || value == held || (value < has && value >= min) {
            continue;
        }
        if !(min..=max).contains(&value) {
            return Err(InvalidPermitRequest::OutsideBounds { field, value, min, max });
        }
        let Some((_, unit)) = told.and_then(|told| told.get(place).copied()) else { continue };
        let is_whole = value.checked_rem(unit) == Some(0);
        if !is_whole && value != min && value != max {
            return Err(InvalidPermitRequest::NotWholeUnits { field, value, has, unit });
        }
    }
    Ok(())
}

/// How much of `more` can be granted on top of `start`.
fn grown(
    start: Size,
    more: Size,
    context: &PermitContext,
    overcommit: Overcommit,
    free: Free,
) -> Size {
    let charged = overcommit.charge(start);
    let most = |start: u32, charged: u32, free: i64| {
        // An over-full node lets nothing grow, not even what costs nothing by rounding.
        let Ok(free) = u64::try_from(free) else { return 0 };
        overcommit.most_for(u64::from(charged).saturating_add(free)).saturating_sub(start)
    };
    let most = Size::new(
        most(start.cpu_milli, charged.cpu_milli, free.cpu),
        most(start.memory_mib, charged.memory_mib, free.memory),
    );
    let cores_left =
        context.host_cpu_milli.map_or(u32::MAX, |cpu| cpu.saturating_sub(start.cpu_milli));
    let most = Size { cpu_milli: most.cpu_milli.min(cores_left), ..most };
    let unit = context.unit;
    match context.grants {
        Grants::PerResource => {
            let whole = most
                .each(unit, |most, unit| most.checked_div(unit).unwrap_or(0).saturating_mul(unit));
            more.least(whole)
        }
        Grants::Joint => {
            // What fits as a whole holds nothing else back.
            let units = |more: u32, most: u32, unit: u32| {
                let units = most.checked_div(unit).unwrap_or(0);
                (more > unit.saturating_mul(units)).then_some(units)
            };
            let cpu = units(more.cpu_milli, most.cpu_milli, unit.cpu_milli);
            let memory = units(more.memory_mib, most.memory_mib, unit.memory_mib);
            let Some(units) = cpu.into_iter().chain(memory).min() else { return more };
            more.least(Size::new(
                unit.cpu_milli.saturating_mul(units),
                unit.memory_mib.saturating_mul(units),
            ))
        }
    }
}

/// What is set aside for it to grow into unasked: never what would put its node under pressure.
fn headroom(
    granted: Size,
    request: &PermitRequest,
    context: &PermitContext,
    permit: &Permit,
    recharged: &dyn Fn(Free) -> Free,
) -> Size {
    let wanted = request.headroom.least(context.max.less(granted));
    if wanted.is_zero() || context.frozen {
        return Size::ZERO;
    }
    let start = start(permit, request, context);
    let (from, to) = (permit.overcommit.charge(start), permit.overcommit.charge(granted));
    let free = context.below_watermark.least(context.node).least(context.quota);
    grown(granted, wanted, context, permit.overcommit, recharged(free).recharged(from, to))
}
