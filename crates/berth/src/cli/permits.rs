//! `berth instances permit` and `bounds`: how large an elastic instance may be.

use berth_api::engine::Amounts;
use berth_api::engine::elastic::{Limit, Size};
use berth_api::{AskPermit, Permit, SetBounds};
use clap::Args;

use super::resource::{InstanceArg, Resource};
use crate::cmdutil::{CmdResult, RawJson, Session, amounts, args};

/// Request a size, or show the last permit.
#[derive(Args, Debug)]
pub(crate) struct PermitArgs {
    #[command(flatten)]
    arg: InstanceArg,
    /// Total CPU to request; unchanged by default.
    #[arg(long, value_parser = args::cpu, value_name = "CORES")]
    cpu: Option<u32>,
    /// Total memory to request; unchanged by default.
    #[arg(long, value_parser = args::size, value_name = "SIZE")]
    memory: Option<u32>,
    /// Sequence number of the request; the next one by default. A repeated number gets the stored
    /// answer.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seq: Option<u64>,
    /// Headroom by which it may grow without a permit while no server answers: 1,4GiB. It is charged.
    #[arg(long, value_parser = args::cpu_and_memory, value_name = "CPU,MEMORY")]
    headroom: Option<Size>,
    /// Largest size that it was permitted, if the last answer may have been lost: 2,8GiB.
    #[arg(long, value_parser = args::cpu_and_memory, value_name = "CPU,MEMORY")]
    last_permit: Option<Size>,
    /// Sequence number of the last answer that its agent received; headroom of earlier ones ends.
    #[arg(long, value_name = "N")]
    heard: Option<u64>,
    /// Fence of its claim; any by default.
    #[arg(long, value_name = "FENCE")]
    fence: Option<i64>,
}

/// Set the bounds.
#[derive(Args, Debug)]
pub(crate) struct BoundsArgs {
    #[command(flatten)]
    arg: InstanceArg,
    /// Smallest size: 0.5,1GiB.
    #[arg(long, value_parser = args::cpu_and_memory, value_name = "CPU,MEMORY")]
    min: Size,
    /// Largest size: 4,16GiB.
    #[arg(long, value_parser = args::cpu_and_memory, value_name = "CPU,MEMORY")]
    max: Size,
}

impl Resource for Permit {
    const KIND: &'static str = "permit";

    fn fields(&self) -> Vec<(&'static str, String)> {
        let mut all = vec![("instance", self.instance.to_string())];
        all.extend(self.node.iter().map(|node| ("node", node.to_string())));
        all.extend(fields(self));
        all.push(("charged", cpu_and_memory(self.charged)));
        all
    }
}

impl PermitArgs {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        let id = session.instance(&self.arg.instance).await?;
        let path = format!("/v1/instances/{id}/permit");
        let is_request = self.cpu.is_some()
            || self.memory.is_some()
            || self.seq.is_some()
            || self.headroom.is_some()
            || self.last_permit.is_some();
        if !is_request {
            return session.print::<Permit>(&session.get(&path, &[]).await?);
        }
        let resources = match (self.cpu, self.memory) {
            (Some(cpu), Some(memory)) => Size::new(cpu, memory),
            (cpu, memory) => {
                let current = session.client.permit(id).await?.permit;
                Size::new(cpu.unwrap_or(current.cpu_milli), memory.unwrap_or(current.memory_mib))
            }
        };
        let body = AskPermit {
            seq: self.seq,
            fence: self.fence,
            last_permit: self.last_permit,
            heard: self.heard,
            headroom: self.headroom,
            ..AskPermit::new(resources)
        };
        session.post::<Permit>(&path, &body).await
    }
}

impl BoundsArgs {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        let id = session.instance(&self.arg.instance).await?;
        let bounds = SetBounds { min: self.min, max: self.max };
        let raw: RawJson =
            session.client.put(&format!("/v1/instances/{id}/bounds"), &bounds).await?;
        session.print::<Permit>(&raw)
    }
}

/// What an instance shows of its permit; what does not apply is empty.
pub(crate) fn fields(permit: &Permit) -> Vec<(&'static str, String)> {
    let unless_zero =
        |size: Size| if size.is_zero() { String::new() } else { cpu_and_memory(size) };
    let headroom = permit.headroom.as_ref();
    let headroom = headroom.map(|room| format!("up to {} unasked", cpu_and_memory(room.up_to)));
    vec![
        ("permit", sentence(permit)),
        ("bounds", bounds(permit.min, permit.max)),
        ("compute unit", permit.compute_unit.map(cpu_and_memory).unwrap_or_default()),
        ("denied", unless_zero(permit.capacity_pressure)),
        ("buffer", unless_zero(permit.buffer)),
        ("headroom", headroom.unwrap_or_default()),
        ("request", if permit.seq == 0 { String::new() } else { permit.seq.to_string() }),
    ]
}

/// What it may use, and what limited it.
fn sentence(permit: &Permit) -> String {
    let mut text = cpu_and_memory(permit.permit);
    if permit.repeated {
        text.push_str(" (answered before)");
    }
    if permit.wanted != permit.permit {
        text.push_str(&format!(" of {} wanted", cpu_and_memory(permit.wanted)));
        text.push_str(match permit.limited_by {
            Some(Limit::Node) => ": its node has no more",
            Some(Limit::Host) => ": its host has no more cores",
            Some(Limit::Quota) => ": its tenant may have no more",
            Some(Limit::Migration) => ": it is being moved",
            None => "",
        });
    }
    if permit.frozen && permit.limited_by != Some(Limit::Migration) {
        text.push_str("; it is being moved and must not change its size");
    }
    text
}

/// CPU and memory for people.
pub(crate) fn cpu_and_memory(size: Size) -> String {
    amounts(&size.within(Amounts::default()))
}

/// Bounds for people.
pub(crate) fn bounds(min: Size, max: Size) -> String {
    format!("{} to {}", cpu_and_memory(min), cpu_and_memory(max))
}

#[cfg(test)]
mod tests {
    use berth_api::engine::InstanceId;

    use super::*;

    fn permit() -> Permit {
        let size = Size::new(2000, 8192);
        Permit {
            instance: InstanceId::from_u128(1),
            node: None,
            fence: 7,
            seq: 3,
            permit: size,
            wanted: size,
            capacity_pressure: Size::ZERO,
            limited_by: None,
            buffer: Size::ZERO,
            compute_unit: None,
            min: Size::new(500, 1024),
            max: Size::new(4000, 16384),
            charged: size,
            repeated: false,
            found_larger: false,
            uncertain: false,
            frozen: false,
            headroom: None,
        }
    }

    #[test]
    fn a_permit_says_what_held_it_back() {
        assert_eq!(sentence(&permit()), "2 CPU, 8 GiB");
        let wanted = Size::new(4000, 16384);
        let held_back = Permit { wanted, limited_by: Some(Limit::Node), ..permit() };
        let text = "2 CPU, 8 GiB of 4 CPU, 16 GiB wanted: its node has no more";
        assert_eq!(sentence(&held_back), text);
        let moving = Permit { frozen: true, ..permit() };
        assert!(sentence(&moving).contains("being moved"));
        assert_eq!(bounds(permit().min, permit().max), "0.5 CPU, 1 GiB to 4 CPU, 16 GiB");
    }
}
