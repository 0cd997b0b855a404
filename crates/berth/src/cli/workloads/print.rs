//! Workloads for people: in one line, in full, and seat by seat.

use berth_api::engine::workload::slot_class;
use berth_api::{
    CapacityMode, CapacityRule, ClaimState, Degraded, Member, OnChange, Rolling, Strategy,
    Workload, units,
};

use super::Key;
use crate::cli::output::Output;
use crate::cli::output::style::{BOLD, paint};
use crate::cli::picture;
use crate::cli::table::{Cell, Table, Tone, pairs};
use crate::cli::words::{self, age, amounts, claim_state, map, or_dash, workload_state};

/// Most empty seats that are shown.
const EMPTY: usize = 20;

/// How many run of how many that should.
pub(crate) fn active(active: u32, replicas: Option<u32>) -> Cell {
    match replicas {
        Some(replicas) => {
            let tone = if active >= replicas { Tone::Good } else { Tone::Warn };
            Cell::toned(format!("{active} of {replicas}"), tone)
        }
        // The caller creates them: there is no number that they should be.
        None => active.to_string().into(),
    }
}

/// Workloads, one line each.
pub(crate) fn table(workloads: &[Workload], wide: bool) -> Table {
    let columns = ["WORKLOAD", "STATE", "ACTIVE", "ON-DEMAND/SPOT", ">REVISION", "EACH", "REASON"];
    let mut table = Table::new(&columns);
    if wide {
        for name in ["ENV", "RELEASE", "IMAGE", ">LEAVING", "MESSAGE"] {
            table.column(name);
        }
    }
    for workload in workloads {
        let (spec, status) = (&workload.spec, &workload.status);
        let reason = status.reason.as_ref().map(|reason| reason.code.as_str());
        let reason = reason.or(status.backs_off_until.map(|_| "crash loop"));
        let mut row = vec![
            Key::of(workload).to_string().into(),
            workload_state(status.state),
            active(status.active, spec.replicas),
            format!("{}/{}", status.on_demand, status.spot).into(),
            workload.revision.to_string().into(),
            amounts(&spec.template.resources.amounts()).into(),
            reason.map_or_else(|| "".into(), |code| Cell::toned(code, Tone::Bad)),
        ];
        if wide {
            row.extend([
                or_dash(workload.env.as_deref()),
                or_dash(spec.release.as_deref()),
                or_dash(spec.template.image.as_deref()),
                status.leaving.to_string().into(),
                status.message.as_str().into(),
            ]);
        }
        table.row(row);
    }
    table
}

fn capacity(rule: &CapacityRule) -> String {
    if !rule.enabled {
        return "the rule is off".to_owned();
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
        CapacityMode::Prefer => text.push_str("; the other kind when its own is short"),
        CapacityMode::FallbackAfter(seconds) => {
            let after = units::duration(i64::from(seconds));
            text.push_str(&format!("; the other kind when its own is short for {after}"));
        }
    }
    if rule.on_change == OnChange::Lazy {
        text.push_str("; a new limit moves nobody");
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

fn placed(workload: &Workload) -> String {
    let status = &workload.status;
    let (on_demand, spot) = (status.on_demand, status.spot);
    format!("{} ({on_demand} on-demand, {spot} spot)", status.placed)
}

/// A workload with everything that is asked for.
pub(crate) fn workload(out: &Output, workload: &Workload) {
    let (spec, status) = (&workload.spec, &workload.status);
    let template = &spec.template;
    let rules: Vec<&str> = template.affinity.iter().map(|rule| rule.as_str()).collect();
    let by_caller = || "as many as the caller places".to_owned();
    let traits = template.traits.iter().map(|(name, is)| words::trait_typed(name, is));
    let networks = template.networks.iter().map(|any| any.join("|"));
    out.line(pairs(&[
        ("workload", Key::of(workload).to_string()),
        ("state", words::workload_state_name(status.state).to_owned()),
        ("", status.message.clone()),
        ("should run", spec.replicas.map_or_else(by_caller, |count| count.to_string())),
        ("active", status.active.to_string()),
        ("placed", placed(workload)),
        ("revision", workload.revision.to_string()),
        ("version", workload.version.to_string()),
        ("environment", workload.env.clone().unwrap_or_default()),
        ("process", spec.process.clone().unwrap_or_default()),
        ("release", spec.release.clone().unwrap_or_default()),
        ("each", amounts(&template.resources.amounts())),
        ("image", template.image.clone().unwrap_or_default()),
        ("tags", map(&template.tags)),
        ("traits", traits.collect::<Vec<_>>().join(" ")),
        ("networks", networks.collect::<Vec<_>>().join(" ")),
        ("groups", template.groups.join(" ")),
        ("volumes", [&template.volumes[..], &template.attachments].concat().join(" ")),
        ("pools", spec.pools.join(" ")),
        ("rules", rules.join("\n")),
        ("capacity", spec.capacity.as_ref().map(capacity).unwrap_or_default()),
        ("roll-outs", rolling(&spec.rolling)),
        ("paused", if spec.paused { "yes".to_owned() } else { String::new() }),
    ]));
}

/// How far a workload is: its state, its roll-out, its seats, and why it is degraded.
pub(crate) fn status(out: &Output, workload: &Workload, members: &[Member]) {
    let (spec, status) = (&workload.spec, &workload.status);
    let which = Key::of(workload);
    let state = words::workload_state_name(status.state);
    let (tone, active) = (words::workload_state_style(status.state), status.active);
    let running =
        spec.replicas.map_or_else(|| active.to_string(), |of| format!("{active} of {of}"));
    let rollout = &status.rollout.message;
    let rollout = if *rollout == status.message { String::new() } else { rollout.clone() };
    let leaving = if status.leaving > 0 { status.leaving.to_string() } else { String::new() };
    out.line(pairs(&[
        ("workload", paint(BOLD, &which.to_string())),
        ("state", paint(tone, state)),
        ("message", status.message.clone()),
        ("roll-out", rollout),
        ("active", running),
        ("placed", placed(workload)),
        ("leaving", leaving),
        ("next try", status.backs_off_until.map(age).unwrap_or_default()),
    ]));
    let table = seats(workload, members, out.is_wide());
    if !table.is_empty() {
        out.line("");
        out.line(table.text());
    }
    let Some(reason) = &status.reason else { return };
    out.line("");
    out.line(pairs(&[
        ("degraded", reason.code.clone()),
        ("why", why(reason).to_owned()),
        ("since", age(reason.since)),
        ("members", reason.members.to_string()),
    ]));
    if let Some(picture) = refusal(reason) {
        out.line("");
        out.line(picture);
    }
}

/// Why a workload is degraded, without the code where that stands before it.
pub(crate) fn why(reason: &Degraded) -> &str {
    let text = reason.message.strip_prefix(&reason.code);
    text.and_then(|text| text.strip_prefix(": ")).unwrap_or(&reason.message)
}

/// Why a placement was refused, drawn.
pub(crate) fn refusal(reason: &Degraded) -> Option<String> {
    let refusal = reason.refusal.as_deref()?;
    Some(picture::picture(std::slice::from_ref(refusal), &picture::Advice::none()))
}

/// Who sits where, and which seats are empty.
fn seats(workload: &Workload, members: &[Member], wide: bool) -> Table {
    let columns = [">SLOT", ">REVISION", "CLASS", ">COST", "STATE", "NODE", "AGE"];
    let mut table = Table::new(&columns);
    if wide {
        table.column("INSTANCE");
    }
    let taken = members.iter().map(|member| ((member.revision, member.slot), seat(member, wide)));
    let empty = empty_seats(workload, members);
    let empty = empty.map(|slot| ((workload.revision, slot), empty_seat(workload, slot, wide)));
    let mut rows: Vec<_> = taken.chain(empty).collect();
    rows.sort_by_key(|(place, _)| *place);
    for (_, row) in rows {
        table.row(row);
    }
    table
}

/// Seats of the current revision that somebody should have, and nobody has.
fn empty_seats(workload: &Workload, members: &[Member]) -> impl Iterator<Item = u32> {
    let wanted = if workload.deleting { 0 } else { workload.spec.replicas.unwrap_or(0) };
    let is_taken = |slot: u32| {
        members.iter().any(|member| {
            let stays = member.state != ClaimState::Releasing;
            stays && member.slot == slot && member.revision == workload.revision
        })
    };
    (0..wanted).filter(move |slot| !is_taken(*slot)).take(EMPTY)
}

fn empty_seat(workload: &Workload, slot: u32, wide: bool) -> Vec<Cell> {
    let spec = &workload.spec;
    let dash = || Cell::toned("-", Tone::Dim);
    // A template that asks for a kind itself leaves the rule nothing to choose.
    let rule = spec.capacity.filter(|_| spec.template.capacity_type.is_none());
    let class = rule.and_then(|rule| slot_class(&rule, spec.replicas, slot));
    let mut row = vec![
        slot.to_string().into(),
        workload.revision.to_string().into(),
        class.map_or_else(dash, |class| class.name().into()),
        dash(),
        Cell::toned("empty", Tone::Warn),
        dash(),
        dash(),
    ];
    row.extend(wide.then(dash));
    row
}

/// What a member's seat asks for, and what it is on where that differs.
fn class(member: &Member) -> Cell {
    match member.wants {
        Some(wants) if wants != member.on => {
            Cell::toned(format!("{} on {}", wants.name(), member.on.name()), Tone::Warn)
        }
        Some(wants) => wants.name().into(),
        None => Cell::toned(member.on.name(), Tone::Dim),
    }
}

fn state(member: &Member) -> Cell {
    if member.handed_over && member.state != ClaimState::Releasing {
        return Cell::toned("being replaced", Tone::Dim);
    }
    claim_state(member.state)
}

fn seat(member: &Member, wide: bool) -> Vec<Cell> {
    let mut row = vec![
        member.slot.to_string().into(),
        member.revision.to_string().into(),
        class(member),
        member.deletion_cost.to_string().into(),
        state(member),
        or_dash(member.node.as_ref().map(|node| node.as_str())),
        age(member.since).into(),
    ];
    if wide {
        row.push(member.instance.to_string().into());
    }
    row
}

/// Members, one line each, by instance.
pub(crate) fn members(members: &[Member]) -> Table {
    let columns = ["INSTANCE", ">SLOT", ">REVISION", "CLASS", ">COST", "STATE", "NODE", "AGE"];
    let mut table = Table::new(&columns);
    for member in members {
        let instance = Cell::from(member.instance.to_string());
        table.row(std::iter::once(instance).chain(seat(member, false)));
    }
    table
}
