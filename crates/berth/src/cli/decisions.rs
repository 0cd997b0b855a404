//! `berth decisions`: the record of each choice, and its replay.

use berth_api::engine::InstanceId;
use berth_api::{Decision, DecisionOutcome, PlacedAt, Replay, ReplayOutcome};
use berth_client::escape;
use clap::{Args, Subcommand};

use super::failure::{Done, Exit, Failure};
use super::output::Output;
use super::output::style::{BAD, BOLD, DIM, GOOD, WARN, paint};
use super::picture::{self, Advice};
use super::session::{Raw, Session, given, read_as};
use super::table::{Cell, Table, Tone, pairs};
use super::why::points;
use super::words::{age, many, moment};

/// See what was decided and why, and derive it again.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "Examples:\n  berth decisions list --outcome refused --limit 20\n  berth decisions replay ID"
)]
pub(crate) enum Decisions {
    /// List decisions, the newest first.
    #[command(
        visible_alias = "ls",
        after_help = "Example:\n  berth decisions list --owner acme --outcome refused"
    )]
    List(List),
    /// Show one decision.
    #[command(after_help = "Example:\n  berth decisions show ID")]
    Show(One),
    /// Derive a decision again from the log and compare.
    #[command(after_help = "Example:\n  berth decisions replay ID")]
    Replay(One),
}

/// Which decisions.
#[derive(Args, Debug)]
pub(crate) struct List {
    /// Of this tenant.
    #[arg(long)]
    owner: Option<String>,
    /// Those that ended so: granted or refused.
    #[arg(long, value_parser = ["granted", "refused"])]
    outcome: Option<String>,
    /// Refusals with this code: no_capacity_memory.
    #[arg(long)]
    code: Option<String>,
    /// How many at most.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

/// One decision.
#[derive(Args, Debug)]
pub(crate) struct One {
    /// Its id.
    id: String,
}

impl Decisions {
    pub(crate) async fn run(self, session: &Session) -> Done {
        let out = &session.out;
        match self {
            Self::List(list) => {
                let query = given(&[
                    ("owner", &list.owner),
                    ("outcome", &list.outcome),
                    ("code", &list.code),
                ]);
                let limit = usize::try_from(list.limit).ok();
                let human = |decisions: Vec<Decision>| {
                    out.table(&table(&decisions), "Nothing was decided yet.");
                };
                session.show_list("/v1/decisions", &query, limit, human).await
            }
            Self::Show(one) => {
                let path = format!("/v1/decisions/{}", escape(&one.id));
                show(session, &session.get(&path, &[]).await?)
            }
            Self::Replay(one) => {
                let path = format!("/v1/decisions/{}/replay", escape(&one.id));
                let raw = session.get(&path, &[]).await?;
                let replay: Replay = read_as(&raw)?;
                out.answer(&raw, |_: serde::de::IgnoredAny| {
                    print_replay(out, &replay);
                    Ok(())
                })?;
                match replay.outcome {
                    ReplayOutcome::Different => {
                        Err(Failure::new(Exit::Failed, "the decision came out differently"))
                    }
                    ReplayOutcome::Identical | ReplayOutcome::OutOfReach => Ok(()),
                }
            }
        }
    }
}

fn outcome(decision: &Decision) -> Cell {
    match decision.outcome {
        DecisionOutcome::Granted => Cell::toned("granted", Tone::Good),
        DecisionOutcome::Refused => Cell::toned("refused", Tone::Bad),
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
        [] => many(decision.placed.len(), "instance"),
        [a] => a.to_owned(),
        [a, b] => format!("{a}, {b}"),
        [a, ..] => format!("{a} and {} more nodes", nodes.len() - 1),
    }
}

fn table(decisions: &[Decision]) -> Table {
    let columns = ["DECISION", "WHEN", "OWNER", "OUTCOME", ">ASKED", ">PLACED", "WHERE OR WHY NOT"];
    let mut table = Table::new(&columns);
    for decision in decisions {
        table.row([
            decision.id.as_str().into(),
            age(decision.at).into(),
            decision.owner.as_str().into(),
            outcome(decision),
            decision.asked.to_string().into(),
            decision.placed.len().to_string().into(),
            result(decision).into(),
        ]);
    }
    table
}

/// Prints a decision as it came, or for people.
pub(crate) fn show(session: &Session, raw: &Raw) -> Done {
    session.out.answer(raw, |decision: Decision| {
        print(&session.out, &decision, None);
        Ok(())
    })
}

/// Prints a decision for people: where all of its instances went, or one of them.
pub(crate) fn print(out: &Output, decision: &Decision, only: Option<InstanceId>) {
    let outcome = match decision.outcome {
        DecisionOutcome::Granted => paint(GOOD, "granted"),
        DecisionOutcome::Refused => paint(BAD, "refused"),
    };
    out.line(pairs(&[
        ("decision", paint(BOLD, &decision.id)),
        ("when", format!("{} ({})", moment(decision.at), age(decision.at))),
        ("owner", decision.owner.clone()),
        ("outcome", outcome),
        ("asked", many(usize::try_from(decision.asked).unwrap_or(0), "instance")),
        ("placed", decision.placed.len().to_string()),
        ("code", decision.code.clone().unwrap_or_default()),
        ("request", decision.request_id.clone()),
        ("policy", decision.policy.clone()),
        ("fleet as of event", decision.fleet_version.to_string()),
    ]));
    if !decision.placed.is_empty() {
        let mut table = Table::new(&["INSTANCE", "NODE", ">SCORE"]);
        let wanted = |placed: &&PlacedAt| only.is_none_or(|only| placed.instance == only);
        for placed in decision.placed.iter().filter(wanted) {
            let node = placed.node.as_ref().map_or("(hidden)", |node| node.as_str());
            let score = points(placed.score);
            table.row([placed.instance.to_string().into(), node.into(), score.into()]);
        }
        out.line(format!("\n{}", table.text()));
    }
    if !decision.refusals.is_empty() {
        out.line(format!("\n{}", picture::picture(&decision.refusals, &Advice::none())));
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
