//! Workloads as tables, in detail, and slot by slot.

use berth_api::engine::workload::slot_class;
use berth_api::{
    CapacityMode, CapacityRule, ClaimState, Degraded, Member, OnChange, PlaceRequest, Rolling,
    Strategy, Workload, units,
};

use super::Key;
use crate::cli::refusal::{Advice, draw_refusals};
use crate::cli::resource::Resource;
use crate::cmdutil::style::{BOLD, paint};
use crate::cmdutil::{
    Cell, Column, Output, Table, Tone, age, amounts, api_name, claim_state, columns, dash,
    key_values, or_dash, trait_flag, workload_state,
};

/// Most empty slots that are shown.
const MAX_EMPTY: usize = 20;

/// How many members are active, of how many.
pub(crate) fn active(active: u32, replicas: Option<u32>) -> Cell {
    match replicas {
        Some(replicas) => {
            let tone = if active >= replicas { Tone::Good } else { Tone::Warn };
            Cell::with_tone(format!("{active} of {replicas}"), tone)
        }
        // The caller creates the members, so there is no target.
        None => active.to_string().into(),
    }
}

impl Resource for Workload {
    const KIND: &'static str = "workload";
    const PATH: &'static str = "/v1/workloads";
    const EMPTY: &'static str =
        "There are no workloads. Create one with: berth workloads apply -f FILE";
    const COLUMNS: &'static [Column<Self>] = columns![workload;
        "WORKLOAD" => Key::of(workload).to_string(),
        "STATE" => workload_state(workload.status.state),
        "ACTIVE" => active(workload.status.active, workload.spec.replicas),
        "ON-DEMAND/SPOT" => format!("{}/{}", workload.status.on_demand, workload.status.spot),
        ">REVISION" => workload.revision,
        "EACH" => amounts(&workload.spec.template.resources.amounts()),
        "REASON" => {
            let status = &workload.status;
            let code = status.reason.as_ref().map(|reason| reason.code.as_str());
            let code = code.or(status.backs_off_until.map(|_| "crash loop"));
            code.map_or_else(|| "".into(), |code| Cell::with_tone(code, Tone::Bad))
        },
        "+ENV" => workload.env.as_deref(),
        "+RELEASE" => workload.spec.release.as_deref(),
        "+IMAGE" => workload.spec.template.image.as_deref(),
        "+>LEAVING" => workload.status.leaving,
        "+MESSAGE" => workload.status.message.as_str(),
    ];

    fn fields(&self) -> Vec<(&'static str, String)> {
        let (spec, status) = (&self.spec, &self.status);
        let template = &spec.template;
        let rules: Vec<&str> = template.affinity.iter().map(|rule| rule.as_str()).collect();
        let by_caller = || "managed by the caller".to_owned();
        let traits = template.traits.iter().map(|(name, is)| trait_flag(name, is));
        let networks = template.networks.iter().map(|any| any.join("|"));
        vec![
            ("workload", Key::of(self).to_string()),
            ("state", api_name(&status.state)),
            ("", status.message.clone()),
            ("replicas", spec.replicas.map_or_else(by_caller, |count| count.to_string())),
            ("active", status.active.to_string()),
            ("placed", placed_summary(self)),
            ("revision", self.revision.to_string()),
            ("version", self.version.to_string()),
            ("environment", self.env.clone().unwrap_or_default()),
            ("process", spec.process.clone().unwrap_or_default()),
            ("release", spec.release.clone().unwrap_or_default()),
            ("each", amounts(&template.resources.amounts())),
            ("image", template.image.clone().unwrap_or_default()),
            ("tags", key_values(&template.tags)),
            ("traits", traits.collect::<Vec<_>>().join(" ")),
            ("networks", networks.collect::<Vec<_>>().join(" ")),
            ("groups", template.groups.join(" ")),
            ("volumes", [&template.volumes[..], &template.attachments].concat().join(" ")),
            ("pools", spec.pools.join(" ")),
            ("rules", rules.join("\n")),
            ("capacity", spec.capacity.as_ref().map(capacity).unwrap_or_default()),
            ("roll-outs", rolling(&spec.rolling)),
            ("paused", if spec.paused { "yes".to_owned() } else { String::new() }),
        ]
    }
}

fn capacity(rule: &CapacityRule) -> String {
    if !rule.enabled {
        return "disabled".to_owned();
    }
    let mut text = match rule.max_on_demand {
        Some(most) => format!("at most {most} on-demand, the others spot"),
        None => "all on-demand".to_owned(),
    };
    if rule.at_least_one_of_each {
        text.push_str(", at least one of each");
    }
    match rule.mode {
        CapacityMode::Strict => text.push_str("; strict"),
        CapacityMode::Prefer => {
            text.push_str("; falls back to the other type when its own is short")
        }
        CapacityMode::FallbackAfter(seconds) => {
            let after = units::duration(i64::from(seconds));
            text.push_str(&format!("; falls back to the other type after {after}"));
        }
    }
    if rule.on_change == OnChange::Lazy {
        text.push_str("; a new limit moves no member");
    }
    text
}

fn rolling(rolling: &Rolling) -> String {
    match rolling.strategy {
        Strategy::BlueGreen => "blue-green".to_owned(),
        Strategy::Rolling => {
            let (surge, unavailable) = (rolling.max_surge, rolling.max_unavailable);
            format!("rolling, at most {surge} more and {unavailable} unavailable")
        }
        Strategy::Recreate => "recreate".to_owned(),
    }
}

fn placed_summary(workload: &Workload) -> String {
    let status = &workload.status;
    let (on_demand, spot) = (status.on_demand, status.spot);
    format!("{} ({on_demand} on-demand, {spot} spot)", status.placed)
}

/// Prints the progress of a workload: state, roll-out, slots, and why it is degraded.
pub(crate) fn status(out: &Output, workload: &Workload, members: &[Member]) {
    let (spec, status) = (&workload.spec, &workload.status);
    let active = status.active;
    let running =
        spec.replicas.map_or_else(|| active.to_string(), |of| format!("{active} of {of}"));
    let rollout = &status.rollout.message;
    let rollout = if *rollout == status.message { String::new() } else { rollout.clone() };
    let leaving = if status.leaving > 0 { status.leaving.to_string() } else { String::new() };
    out.pairs(&[
        ("workload", paint(BOLD, &Key::of(workload).to_string())),
        ("state", workload_state(status.state).to_string()),
        ("message", status.message.clone()),
        ("roll-out", rollout),
        ("active", running),
        ("placed", placed_summary(workload)),
        ("leaving", leaving),
        ("next attempt", status.backs_off_until.map(age).unwrap_or_default()),
    ]);
    let table = slots(workload, members, out.is_wide());
    if !table.is_empty() {
        out.line("");
        out.line(out.text_of(&table));
    }
    let Some(reason) = &status.reason else { return };
    out.line("");
    out.pairs(&[
        ("degraded", reason.code.clone()),
        ("why", why(reason).to_owned()),
        ("since", age(reason.since)),
        ("members", reason.members.to_string()),
    ]);
    if let Some(drawing) = refusal(workload, reason) {
        out.line("");
        out.line(drawing);
    }
}

/// Why a workload is degraded, without a leading code.
pub(crate) fn why(reason: &Degraded) -> &str {
    let text = reason.message.strip_prefix(&reason.code);
    text.and_then(|text| text.strip_prefix(": ")).unwrap_or(&reason.message)
}

/// The refusal of a member's placement, drawn.
pub(crate) fn refusal(workload: &Workload, reason: &Degraded) -> Option<String> {
    let refusal = reason.refusal.as_deref()?;
    let pools = workload.spec.pools.clone();
    let tenant = Some(workload.tenant.clone());
    let request =
        PlaceRequest { tenant, pools, ..PlaceRequest::new(vec![workload.spec.template.clone()]) };
    let advice = Advice::of_workload(workload, &request);
    Some(draw_refusals(std::slice::from_ref(refusal), &advice))
}

/// A slot of a workload.
enum SlotRow<'a> {
    Taken(&'a Member),
    Empty(&'a Workload, u32),
}

impl SlotRow<'_> {
    fn key(&self) -> (i64, u32) {
        match self {
            Self::Taken(member) => (member.revision, member.slot),
            Self::Empty(workload, slot) => (workload.revision, *slot),
        }
    }

    fn member(&self) -> Option<&Member> {
        match self {
            Self::Taken(member) => Some(member),
            Self::Empty(..) => None,
        }
    }

    fn class(&self) -> Cell {
        match self {
            Self::Taken(member) => class(member),
            Self::Empty(workload, slot) => empty_class(workload, *slot),
        }
    }
}

/// Members by slot, and empty slots.
fn slots(workload: &Workload, members: &[Member], wide: bool) -> Table {
    let taken = members.iter().map(SlotRow::Taken);
    let empty = empty_slots(workload, members).map(|slot| SlotRow::Empty(workload, slot));
    let mut rows: Vec<SlotRow<'_>> = taken.chain(empty).collect();
    rows.sort_by_key(SlotRow::key);
    let columns = columns![row: SlotRow<'_>;
        ">SLOT" => row.key().1,
        ">REVISION" => row.key().0,
        "CLASS" => row.class(),
        ">COST" => row.member().map(|member| member.deletion_cost),
        "STATE" => row.member().map_or_else(|| Cell::with_tone("empty", Tone::Warn), state),
        "NODE" => or_dash(row.member().and_then(|member| Some(member.node.as_ref()?.as_str()))),
        "AGE" => row.member().map(|member| age(member.since)),
        "+INSTANCE" => row.member().map(|member| member.instance.to_string()),
    ];
    Table::of(&rows, wide, columns)
}

/// Slots of the current revision without a member.
fn empty_slots(workload: &Workload, members: &[Member]) -> impl Iterator<Item = u32> {
    let replicas = if workload.deleting { 0 } else { workload.spec.replicas.unwrap_or(0) };
    let is_taken = |slot: u32| {
        members.iter().any(|member| {
            let stays = member.state != ClaimState::Releasing;
            stays && member.slot == slot && member.revision == workload.revision
        })
    };
    (0..replicas).filter(move |slot| !is_taken(*slot)).take(MAX_EMPTY)
}

/// The capacity type of an empty slot.
fn empty_class(workload: &Workload, slot: u32) -> Cell {
    let spec = &workload.spec;
    // The rule does not apply to a template that has a capacity type of its own.
    let rule = spec.capacity.filter(|_| spec.template.capacity_type.is_none());
    let class = rule.and_then(|rule| slot_class(&rule, spec.replicas, slot));
    class.map_or_else(dash, |class| class.name().into())
}

/// The capacity type of a member's slot, and of its node where that differs.
fn class(member: &Member) -> Cell {
    match member.wants {
        Some(wants) if wants != member.on => {
            Cell::with_tone(format!("{} on {}", wants.name(), member.on.name()), Tone::Warn)
        }
        Some(wants) => wants.name().into(),
        None => Cell::with_tone(member.on.name(), Tone::Dim),
    }
}

fn state(member: &Member) -> Cell {
    if member.handed_over && member.state != ClaimState::Releasing {
        return Cell::with_tone("being replaced", Tone::Dim);
    }
    claim_state(member.state)
}

impl Resource for Member {
    const KIND: &'static str = "member";
    const COLUMNS: &'static [Column<Self>] = columns![member;
        "INSTANCE" => member.instance.to_string(),
        ">SLOT" => member.slot,
        "+SLOT ID" => member.slot_id.map(|id| id.to_string()),
        ">REVISION" => member.revision,
        "CLASS" => class(member),
        ">COST" => member.deletion_cost,
        "STATE" => state(member),
        "NODE" => or_dash(member.node.as_ref().map(|node| node.as_str())),
        "AGE" => age(member.since),
    ];
}
