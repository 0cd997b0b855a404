//! `berth instances permit` and `bounds`: how large an elastic instance may be.

use berth_api::engine::Amounts;
use berth_api::engine::elastic::{Limit, Size};
use berth_api::{AskPermit, Permit, SetBounds};
use clap::Args;

use super::args;
use super::failure::Done;
use super::output::Output;
use super::session::{Raw, Session};
use super::table::pairs;
use super::words::amounts;

/// Asks for a size, or shows the last answer.
#[derive(Args, Debug)]
pub(crate) struct Ask {
    /// Its id, the beginning of it, or its name.
    instance: String,
    /// The CPU it wants in all; what it has when not given.
    #[arg(long, value_parser = args::cpu, value_name = "CORES")]
    cpu: Option<u32>,
    /// The memory it wants in all; what it has when not given.
    #[arg(long, value_parser = args::size, value_name = "SIZE")]
    memory: Option<u32>,
    /// The number of this request, rising; the next when not given. One that was answered before
    /// gets the stored answer.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seq: Option<u64>,
    /// How much it wants to be able to grow unasked while no server answers: 1,4GiB. It is charged.
    #[arg(long, value_parser = args::both, value_name = "CPU,MEMORY")]
    headroom: Option<Size>,
    /// The largest size it was permitted, where the last answer may not have been heard: 2,8GiB.
    #[arg(long, value_parser = args::both, value_name = "CPU,MEMORY")]
    last_permit: Option<Size>,
    /// The number of the last answer that its agent has: headroom of earlier ones ends with it.
    #[arg(long, value_name = "N")]
    heard: Option<u64>,
    /// The fence of its claim; whatever it is when not given.
    #[arg(long, value_name = "FENCE")]
    fence: Option<i64>,
}

/// Changes the bounds.
#[derive(Args, Debug)]
pub(crate) struct Bounds {
    /// Its id, the beginning of it, or its name.
    instance: String,
    /// The least it runs with: 0.5,1GiB.
    #[arg(long, value_parser = args::both, value_name = "CPU,MEMORY")]
    min: Size,
    /// The most it may grow to: 4,16GiB.
    #[arg(long, value_parser = args::both, value_name = "CPU,MEMORY")]
    max: Size,
}

impl Ask {
    pub(crate) async fn run(self, session: &Session) -> Done {
        let id = session.instance(&self.instance).await?;
        let path = format!("/v1/instances/{id}/permit");
        let asks = self.cpu.is_some()
            || self.memory.is_some()
            || self.seq.is_some()
            || self.headroom.is_some()
            || self.last_permit.is_some();
        if !asks {
            return print(&session.out, &session.get(&path, &[]).await?);
        }
        let resources = match (self.cpu, self.memory) {
            (Some(cpu), Some(memory)) => Size::new(cpu, memory),
            (cpu, memory) => {
                let has = session.client.permit(id).await?.permit;
                Size::new(cpu.unwrap_or(has.cpu_milli), memory.unwrap_or(has.memory_mib))
            }
        };
        let asked = AskPermit {
            resources,
            seq: self.seq,
            fence: self.fence,
            last_permit: self.last_permit,
            heard: self.heard,
            headroom: self.headroom,
            load: None,
        };
        let raw: Raw = session.client.post(&path, &asked).await?;
        print(&session.out, &raw)
    }
}

impl Bounds {
    pub(crate) async fn run(self, session: &Session) -> Done {
        let id = session.instance(&self.instance).await?;
        let bounds = SetBounds { min: self.min, max: self.max };
        let path = format!("/v1/instances/{id}/bounds");
        let raw: Raw = session.client.put(&path, &bounds).await?;
        print(&session.out, &raw)
    }
}

fn print(out: &Output, raw: &Raw) -> Done {
    out.answer(raw, |permit: Permit| {
        let mut all = vec![("instance", permit.instance.to_string())];
        all.extend(permit.node.iter().map(|node| ("node", node.to_string())));
        all.extend(lines(&permit));
        all.push(("charged", both(permit.charged)));
        out.line(pairs(&all));
        Ok(())
    })
}

/// A permit, line by line; what does not matter is left empty.
pub(crate) fn lines(permit: &Permit) -> Vec<(&'static str, String)> {
    let unless_none = |size: Size| if size.is_zero() { String::new() } else { both(size) };
    let headroom = permit.headroom.as_ref();
    let headroom = headroom.map(|room| format!("up to {} unasked", both(room.up_to)));
    vec![
        ("permit", in_words(permit)),
        ("bounds", between(permit.min, permit.max)),
        ("compute unit", permit.compute_unit.map(both).unwrap_or_default()),
        ("denied", unless_none(permit.capacity_pressure)),
        ("set aside", unless_none(permit.buffer)),
        ("headroom", headroom.unwrap_or_default()),
        ("request", if permit.seq == 0 { String::new() } else { permit.seq.to_string() }),
    ]
}

/// What it may use, and what held it back.
fn in_words(permit: &Permit) -> String {
    let mut text = both(permit.permit);
    if permit.repeated {
        text.push_str(" (answered before)");
    }
    if permit.wanted != permit.permit {
        text.push_str(&format!(" of {} wanted", both(permit.wanted)));
        text.push_str(match permit.limited_by {
            Some(Limit::Node) => ": its node has no more",
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
pub(crate) fn both(size: Size) -> String {
    amounts(&size.within(Amounts::default()))
}

/// Bounds for people.
pub(crate) fn between(min: Size, max: Size) -> String {
    format!("{} to {}", both(min), both(max))
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
        assert_eq!(in_words(&permit()), "2 CPU, 8 GiB");
        let wanted = Size::new(4000, 16384);
        let held_back = Permit { wanted, limited_by: Some(Limit::Node), ..permit() };
        let text = "2 CPU, 8 GiB of 4 CPU, 16 GiB wanted: its node has no more";
        assert_eq!(in_words(&held_back), text);
        let moving = Permit { frozen: true, ..permit() };
        assert!(in_words(&moving).contains("being moved"));
        assert_eq!(between(permit().min, permit().max), "500m CPU, 1 GiB to 4 CPU, 16 GiB");
    }
}
