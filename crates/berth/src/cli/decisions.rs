//! `berth decisions`: the record of each choice, and its replay.

use berth_api::engine::InstanceId;
use berth_api::{Decision, DecisionExplanation, DecisionOutcome, PlacedAt, Replay, ReplayOutcome};
use clap::{Args, Subcommand};

use super::explanation::{self, points};
use super::refusal::{Advice, draw_limit_fixes, draw_refusals};
use super::resource::{LatestOptions, NameArg, Resource, path_of};
use crate::cmdutil::style::{BAD, BOLD, DIM, GOOD, WARN, paint};
use crate::cmdutil::{
    Cell, CmdResult, Column, Exit, Failure, Output, Session, Table, Tone, age, columns, decode,
    plural, query_params, timestamp,
};

/// Show what was decided and why, and replay it.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "Examples:\n  berth decisions list --outcome refused --limit 20\n  berth decisions replay ID"
)]
pub(crate) enum Decisions {
    /// List decisions, newest first.
    #[command(
        visible_alias = "ls",
        after_help = "Example:\n  berth decisions list --tenant acme --outcome refused"
    )]
    List(ListArgs),
    /// Show a decision, and why it came out so.
    #[command(after_help = "Example:\n  berth decisions show ID")]
    Show(NameArg<Decision>),
    /// Derive a decision again from the log, and compare.
    #[command(after_help = "Example:\n  berth decisions replay ID")]
    Replay(NameArg<Decision>),
}

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Show only decisions of this tenant.
    #[arg(long, alias = "owner")]
    tenant: Option<String>,
    /// Show only decisions with this outcome.
    #[arg(long, value_parser = ["granted", "refused"])]
    outcome: Option<String>,
    /// Show only refusals with this code, such as no_capacity_memory.
    #[arg(long)]
    code: Option<String>,
    #[command(flatten)]
    options: LatestOptions,
}

impl Resource for Decision {
    const KIND: &'static str = "decision";
    const KEY: &'static str = "id";
    const PATH: &'static str = "/v1/decisions";
    const EMPTY: &'static str = "No decisions match.";
    const COLUMNS: &'static [Column<Self>] = columns![decision;
        "DECISION" => decision.id.as_str(),
        "WHEN" => age(decision.at),
        "TENANT" => decision.tenant.as_str(),
        "OUTCOME" => outcome(decision),
        ">ASKED" => decision.asked,
        ">PLACED" => decision.placed.len(),
        "WHERE OR WHY NOT" => result(decision),
    ];

    fn print(&self, out: &Output) {
        print(out, self, None);
    }
}

impl Decisions {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        match self {
            Self::List(list) => {
                let query = query_params(&[
                    ("tenant", &list.tenant),
                    ("outcome", &list.outcome),
                    ("code", &list.code),
                ]);
                session.list::<Decision>(&query, list.options).await
            }
            Self::Show(arg) => show(session, &arg.name, 0).await,
            Self::Replay(arg) => replay(session, &arg.name).await,
        }
    }
}

/// Shows a decision; for people also why it came out so, with up to `limit` nodes in a wide table.
pub(crate) async fn show(session: &Session, id: &str, limit: usize) -> CmdResult {
    let out = &session.out;
    let raw = session.get(&path_of::<Decision>(id), &[]).await?;
    let mut is_granted = false;
    out.response(&raw, |decision: Decision| {
        is_granted = decision.outcome == DecisionOutcome::Granted;
        print(out, &decision, None);
    })?;
    // A refusal is explained in its record; its nodes are shown on request.
    let nodes = if out.is_wide() { limit.min(1000) } else { 0 };
    if out.is_data() || !(is_granted || nodes > 0) {
        return Ok(());
    }
    let path = format!("{}/explain", path_of::<Decision>(id));
    let explained = session.get(&path, &[("limit", &nodes.to_string())]).await?;
    let explained: DecisionExplanation = decode(&explained)?;
    out.line(format!("\n{}", explanation::of_decision(&explained, out.is_wide(), limit)));
    Ok(())
}

async fn replay(session: &Session, id: &str) -> CmdResult {
    let raw = session.get(&format!("{}/replay", path_of::<Decision>(id)), &[]).await?;
    session.out.response(&raw, |replay: Replay| print_replay(&session.out, &replay))?;
    match decode::<Replay>(&raw)?.outcome {
        ReplayOutcome::Different => {
            Err(Failure::new(Exit::Failed, "the replayed decision differs from the recorded one"))
        }
        ReplayOutcome::Identical | ReplayOutcome::OutOfReach => Ok(()),
    }
}

fn outcome(decision: &Decision) -> Cell {
    match decision.outcome {
        DecisionOutcome::Granted => Cell::with_tone("granted", Tone::Good),
        DecisionOutcome::Refused => Cell::with_tone("refused", Tone::Bad),
    }
}

/// Where instances went, or why they did not, on one line.
pub(crate) fn result(decision: &Decision) -> String {
    if let Some(code) = &decision.code {
        return code.clone();
    }
    let mut nodes: Vec<&str> =
        decision.placed.iter().filter_map(|placed| Some(placed.node.as_ref()?.as_str())).collect();
    nodes.sort_unstable();
    nodes.dedup();
    match nodes[..] {
        [] => plural(decision.placed.len(), "instance"),
        [a] => a.to_owned(),
        [a, b] => format!("{a}, {b}"),
        [a, ..] => format!("{a} and {} more nodes", nodes.len() - 1),
    }
}

/// Prints a decision: where all of its instances went, or one of them.
pub(crate) fn print(out: &Output, decision: &Decision, only: Option<InstanceId>) {
    out.pairs(&[
        ("decision", paint(BOLD, &decision.id)),
        ("when", format!("{} ({})", timestamp(decision.at), age(decision.at))),
        ("tenant", decision.tenant.clone()),
        ("outcome", outcome(decision).to_string()),
        ("asked", plural(usize::try_from(decision.asked).unwrap_or(0), "instance")),
        ("placed", decision.placed.len().to_string()),
        ("code", decision.code.clone().unwrap_or_default()),
        ("reason", decision.reason.clone().unwrap_or_default()),
        ("request", decision.request_id.clone()),
        ("policy", decision.policy.clone()),
        ("fleet as of event", decision.fleet_version.to_string()),
    ]);
    if !decision.placed.is_empty() {
        let placed = decision.placed.iter();
        let placed: Vec<&PlacedAt> =
            placed.filter(|placed| only.is_none_or(|only| placed.instance == only)).collect();
        let table = Table::of(
            placed.iter().copied(),
            false,
            columns![placed;
                "INSTANCE" => placed.instance.to_string(),
                "?NAME" => placed.name.as_deref(),
                "NODE" => placed.node.as_ref().map_or("(hidden)", |node| node.as_str()),
                ">SCORE" => points(placed.score),
            ],
        );
        out.line(format!("\n{}", out.text_of(&table)));
    }
    if !decision.fixes.is_empty() {
        out.line(format!("\n{}", draw_limit_fixes(&decision.fixes)));
    }
    if !decision.refusals.is_empty() {
        out.line(format!("\n{}", draw_refusals(&decision.refusals, &Advice::none())));
    }
}

fn print_replay(out: &Output, replay: &Replay) {
    let outcome = match replay.outcome {
        ReplayOutcome::Identical => paint(GOOD, "identical"),
        ReplayOutcome::Different => paint(BAD, "different"),
        ReplayOutcome::OutOfReach => paint(WARN, "out of reach"),
    };
    out.line(format!("{outcome}: {}", replay.note));
    if let Some(version) = replay.fleet_version {
        out.line(paint(DIM, &format!("the fleet was rebuilt up to event {version}")));
    }
    if replay.outcome == ReplayOutcome::Different {
        out.line(format!("recorded: {}", replay.recorded));
        let derived = replay.derived.as_ref().map(ToString::to_string).unwrap_or_default();
        out.line(format!("derived:  {derived}"));
    }
}
