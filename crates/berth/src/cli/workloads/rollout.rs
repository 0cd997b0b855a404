//! `berth workloads rollout`: show and control roll-outs.

use berth_api::{
    ChangeRollout, NewWorkload, Page, PastRevision, RolloutAction, Workload, WorkloadState,
};
use clap::{Args, Subcommand};

use super::wait::{self, Wait};
use super::{WorkloadArg, diff, print_change, print_result};
use crate::cmdutil::{
    Cell, CmdResult, RawJson, Session, Table, Tone, amounts, dash, decode, decode_all, or_dash,
};

/// Show and control roll-outs.
#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Rollout {
    /// Show the progress of a roll-out.
    #[command(
        after_help = "Examples:\n  berth workloads rollout status acme/web\n  berth workloads rollout status acme/web --wait=2m"
    )]
    Status(StatusArgs),
    /// Return to an earlier revision, as a new one.
    #[command(
        after_help = "Examples:\n  berth workloads rollout undo acme/web\n  berth workloads rollout undo acme/web --to-revision 3 --wait"
    )]
    Undo(UndoArgs),
    /// Pause a roll-out.
    #[command(after_help = "Example:\n  berth workloads rollout pause acme/web")]
    Pause(WorkloadArg),
    /// Resume a roll-out.
    #[command(after_help = "Example:\n  berth workloads rollout resume acme/web")]
    Resume(RolloutArgs),
    /// Replace all members by new ones with the same specification.
    #[command(after_help = "Example:\n  berth workloads rollout restart acme/web --wait")]
    Restart(RolloutArgs),
    /// List the revisions of a workload and their changes.
    #[command(after_help = "Example:\n  berth workloads rollout history acme/web")]
    History(WorkloadArg),
}

const EXAMPLES: &str = "\
Examples:
  berth workloads rollout status acme/web --watch
  berth workloads rollout undo acme/web --to-revision 3
  berth workloads rollout history acme/web";

#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    arg: WorkloadArg,
    /// Print every step until it is complete, without a time limit.
    #[arg(long, conflicts_with = "wait")]
    watch: bool,
    #[command(flatten)]
    wait: Wait,
}

#[derive(Args, Debug)]
pub(crate) struct UndoArgs {
    #[command(flatten)]
    arg: WorkloadArg,
    /// Revision to return to; the previous one by default.
    #[arg(long, value_name = "N")]
    to_revision: Option<i64>,
    #[command(flatten)]
    wait: Wait,
}

#[derive(Args, Debug)]
pub(crate) struct RolloutArgs {
    #[command(flatten)]
    arg: WorkloadArg,
    #[command(flatten)]
    wait: Wait,
}

impl Rollout {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        match self {
            Self::Status(status) => status.run(session).await,
            Self::Undo(undo) => {
                let to_revision = undo.to_revision;
                let body = ChangeRollout { action: RolloutAction::Undo, to_revision };
                let raw = undo.arg.workload.post(session, "rollout", &body).await?;
                let revision = decode::<Workload>(&raw)?.revision;
                let from = to_revision.map_or_else(
                    || "the previous revision".to_owned(),
                    |number| format!("revision {number}"),
                );
                let line = format!("returns to {from}, as revision {revision}");
                print_change(session, raw, &line, undo.wait).await
            }
            Self::Pause(arg) => {
                let raw = control(session, &arg, RolloutAction::Pause).await?;
                print_change(session, raw, "is paused", Wait::default()).await
            }
            Self::Resume(args) => {
                let raw = control(session, &args.arg, RolloutAction::Resume).await?;
                print_change(session, raw, "resumed", args.wait).await
            }
            Self::Restart(args) => {
                let raw = control(session, &args.arg, RolloutAction::Restart).await?;
                let revision = decode::<Workload>(&raw)?.revision;
                let line = format!("restarts, as revision {revision}");
                print_change(session, raw, &line, args.wait).await
            }
            Self::History(arg) => history(session, &arg).await,
        }
    }
}

async fn control(
    session: &Session,
    arg: &WorkloadArg,
    action: RolloutAction,
) -> CmdResult<RawJson> {
    arg.workload.post(session, "rollout", &ChangeRollout { action, to_revision: None }).await
}

impl StatusArgs {
    async fn run(self, session: &Session) -> CmdResult {
        let key = &self.arg.workload;
        let raw = key.get(session).await?;
        if self.watch || self.wait.wait.is_some() {
            let version = decode::<Workload>(&raw)?.version;
            let result = wait::until_complete(session, key, version, self.wait.wait).await?;
            return print_result(session, result);
        }
        session.out.response(&raw, |workload: Workload| {
            let status = &workload.status;
            session.out.line(format!("{key} {}", status.rollout.message));
            if status.state == WorkloadState::Degraded {
                session.out.line(format!("degraded: {}", status.message));
                session.out.note(format!("Show details with: berth workloads status {key}"));
            }
        })
    }
}

async fn history(session: &Session, arg: &WorkloadArg) -> CmdResult {
    let key = &arg.workload;
    let raw = key.get(session).await?;
    let page: Page<RawJson> = session.client.get(&format!("{}/revisions", key.path()), &[]).await?;
    if session.out.is_data() {
        return session.out.data(&page);
    }
    let now: Workload = decode(&raw)?;
    let NewWorkload { template, pools, release, .. } = now.spec;
    let now = PastRevision { revision: now.revision, template, pools, release };
    let mut revisions = vec![now];
    revisions.extend(decode_all::<PastRevision>(&page.items)?);
    let mut table = Table::new(&[">REVISION", "", "RELEASE", "IMAGE", "EACH", "CHANGED"]);
    for (place, one) in revisions.iter().enumerate() {
        let is_now = if place == 0 { Cell::with_tone("current", Tone::Good) } else { "".into() };
        table.row([
            one.revision.to_string().into(),
            is_now,
            or_dash(one.release.as_deref()),
            or_dash(one.template.image.as_deref()),
            amounts(&one.template.resources.amounts()).into(),
            changed_fields(one, revisions.get(place + 1)),
        ]);
    }
    session.out.table(&table, "");
    Ok(())
}

/// The fields that a revision changed.
fn changed_fields(one: &PastRevision, before: Option<&PastRevision>) -> Cell {
    let Some(before) = before else { return dash() };
    let fields = diff::fields(before, one).into_iter().filter(|field| field.field != "revision");
    let names: Vec<String> = fields.map(|field| field.field.replacen("template.", "", 1)).collect();
    if names.is_empty() { Cell::with_tone("restart", Tone::Dim) } else { names.join(", ").into() }
}
