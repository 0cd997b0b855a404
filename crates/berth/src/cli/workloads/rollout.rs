//! `berth workloads rollout`: how far a change is, and how to steer it.

use berth_api::{
    ChangeRollout, NewWorkload, Page, PastRevision, RolloutAction, Workload, WorkloadState,
};
use clap::{Args, Subcommand};

use super::wait::{self, Wait};
use super::{One, changed, diff, finished};
use crate::cli::failure::Done;
use crate::cli::session::{Raw, Session, read_as, typed};
use crate::cli::table::{Cell, Table, Tone};
use crate::cli::words::{amounts, or_dash};

/// See and steer roll-outs.
#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Rollout {
    /// Say how far a roll-out is.
    #[command(
        after_help = "Examples:\n  berth workloads rollout status acme/web\n  berth workloads rollout status acme/web --wait=2m"
    )]
    Status(Status),
    /// Go back to an earlier revision, as a new one.
    #[command(
        after_help = "Examples:\n  berth workloads rollout undo acme/web\n  berth workloads rollout undo acme/web --to-revision 3 --wait"
    )]
    Undo(Undo),
    /// Let a roll-out stand still.
    #[command(after_help = "Example:\n  berth workloads rollout pause acme/web")]
    Pause(One),
    /// Let a roll-out go on.
    #[command(after_help = "Example:\n  berth workloads rollout resume acme/web")]
    Resume(Steered),
    /// Replace all members by new ones of the same kind.
    #[command(after_help = "Example:\n  berth workloads rollout restart acme/web --wait")]
    Restart(Steered),
    /// List the revisions of a workload, and what each changed.
    #[command(after_help = "Example:\n  berth workloads rollout history acme/web")]
    History(One),
}

const EXAMPLES: &str = "\
Examples:
  berth workloads rollout status acme/web --watch
  berth workloads rollout undo acme/web --to-revision 3
  berth workloads rollout history acme/web";

/// How far a roll-out is.
#[derive(Args, Debug)]
pub(crate) struct Status {
    #[command(flatten)]
    one: One,
    /// Say every step until it is complete, however long that takes.
    #[arg(long, conflicts_with = "wait")]
    watch: bool,
    #[command(flatten)]
    wait: Wait,
}

/// Back to an earlier revision.
#[derive(Args, Debug)]
pub(crate) struct Undo {
    #[command(flatten)]
    one: One,
    /// Which revision; the one before when not given.
    #[arg(long, value_name = "N")]
    to_revision: Option<i64>,
    #[command(flatten)]
    wait: Wait,
}

/// A roll-out that goes on.
#[derive(Args, Debug)]
pub(crate) struct Steered {
    #[command(flatten)]
    one: One,
    #[command(flatten)]
    wait: Wait,
}

impl Rollout {
    pub(crate) async fn run(self, session: &Session) -> Done {
        match self {
            Self::Status(status) => status.run(session).await,
            Self::Undo(undo) => {
                let to_revision = undo.to_revision;
                let asked = ChangeRollout { action: RolloutAction::Undo, to_revision };
                let raw = undo.one.workload.post(session, "rollout", &asked).await?;
                let revision = read_as::<Workload>(&raw)?.revision;
                let from = to_revision.map_or_else(
                    || "the revision before".to_owned(),
                    |number| format!("revision {number}"),
                );
                let line = format!("goes back to {from}, as revision {revision}");
                changed(session, raw, &line, undo.wait).await
            }
            Self::Pause(one) => {
                let raw = steer(session, &one, RolloutAction::Pause).await?;
                changed(session, raw, "is paused", Wait::default()).await
            }
            Self::Resume(steered) => {
                let raw = steer(session, &steered.one, RolloutAction::Resume).await?;
                changed(session, raw, "goes on", steered.wait).await
            }
            Self::Restart(steered) => {
                let raw = steer(session, &steered.one, RolloutAction::Restart).await?;
                let revision = read_as::<Workload>(&raw)?.revision;
                let line = format!("restarts, as revision {revision}");
                changed(session, raw, &line, steered.wait).await
            }
            Self::History(one) => history(session, &one).await,
        }
    }
}

async fn steer(session: &Session, one: &One, action: RolloutAction) -> Done<Raw> {
    one.workload.post(session, "rollout", &ChangeRollout { action, to_revision: None }).await
}

impl Status {
    async fn run(self, session: &Session) -> Done {
        let which = &self.one.workload;
        let raw = which.get(session).await?;
        if self.watch || self.wait.wait.is_some() {
            let version = read_as::<Workload>(&raw)?.version;
            let ended = wait::until_complete(session, which, version, self.wait.wait).await?;
            return finished(session, ended);
        }
        session.out.answer(&raw, |workload: Workload| {
            let status = &workload.status;
            session.out.line(format!("{which} {}", status.rollout.message));
            if status.state == WorkloadState::Degraded {
                session.out.line(format!("degraded: {}", status.message));
                session.out.note(format!("Why in full: berth workloads status {which}"));
            }
            Ok(())
        })
    }
}

async fn history(session: &Session, one: &One) -> Done {
    let which = &one.workload;
    let raw = which.get(session).await?;
    let page: Page<Raw> = session.client.get(&format!("{}/revisions", which.path()), &[]).await?;
    if session.out.is_data() {
        return session.out.data(&page);
    }
    let now: Workload = read_as(&raw)?;
    let NewWorkload { template, pools, release, .. } = now.spec;
    let now = PastRevision { revision: now.revision, template, pools, release };
    let mut revisions = vec![now];
    revisions.extend(typed::<PastRevision>(&page.items)?);
    let mut table = Table::new(&[">REVISION", "", "RELEASE", "IMAGE", "EACH", "CHANGED"]);
    for (place, one) in revisions.iter().enumerate() {
        let is_now = if place == 0 { Cell::toned("now", Tone::Good) } else { "".into() };
        table.row([
            one.revision.to_string().into(),
            is_now,
            or_dash(one.release.as_deref()),
            or_dash(one.template.image.as_deref()),
            amounts(&one.template.resources.amounts()).into(),
            differs(one, revisions.get(place + 1)),
        ]);
    }
    session.out.table(&table, "");
    Ok(())
}

/// The fields in which a revision differs from the one before.
fn differs(one: &PastRevision, before: Option<&PastRevision>) -> Cell {
    let Some(before) = before else { return Cell::toned("-", Tone::Dim) };
    let fields = diff::fields(before, one).into_iter().filter(|field| field.field != "revision");
    let names: Vec<String> = fields.map(|field| field.field.replacen("template.", "", 1)).collect();
    if names.is_empty() { Cell::toned("restart", Tone::Dim) } else { names.join(", ").into() }
}
