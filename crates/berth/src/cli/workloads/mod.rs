//! `berth workloads`: what should run, how far it is, and how to change it.

mod apply;
mod diff;
mod file;
mod print;
mod rollout;
mod set;
mod wait;

use std::fmt;

use berth_api::{Member, Page, ScaleWorkload, Workload};
use berth_client::escape;
use clap::{Args, Subcommand};

use self::diff::Change;
use self::wait::Wait;
use super::args;
use super::failure::{Done, Failure};
use super::names;
use super::session::{Raw, Session, given, read_as, typed};

pub(crate) use print::active;

/// See and change what should run.
#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Workloads {
    /// Store the workloads of files: all of them, or none if one is wrong.
    Apply(apply::Apply),
    /// List workloads.
    #[command(visible_alias = "ls", after_help = LIST_EXAMPLES)]
    List(List),
    /// Show what a workload asks for.
    #[command(after_help = SHOW_EXAMPLES)]
    Show(One),
    /// Say how far a workload is, seat by seat, and why it is degraded.
    #[command(after_help = "Example:\n  berth workloads status acme/web")]
    Status(One),
    /// List the members of a workload.
    #[command(after_help = "Example:\n  berth workloads members acme/web")]
    Members(One),
    /// Store a workload by flags, or change what they name and leave the rest.
    Set(Box<set::Set>),
    /// Change how many should run.
    #[command(
        after_help = "Examples:\n  berth workloads scale acme/web 5\n  berth workloads scale acme/web 5 --wait=2m"
    )]
    Scale(Scale),
    /// See and steer roll-outs.
    #[command(subcommand)]
    Rollout(rollout::Rollout),
    /// Remove workloads: their members go, then they do.
    #[command(
        visible_alias = "rm",
        after_help = "Examples:\n  berth workloads remove acme/web\n  berth workloads remove acme/web --wait"
    )]
    Remove(Remove),
}

const EXAMPLES: &str = "\
Examples:
  berth workloads apply -f web.toml --wait
  berth workloads set acme/web --replicas 3 --cpu 1 --memory 2GiB --tag role=web
  berth workloads scale acme/web 5
  berth workloads status acme/web
  berth workloads rollout undo acme/web";

const LIST_EXAMPLES: &str = "\
Examples:
  berth workloads list --owner acme
  berth workloads list --env production -o wide";

const SHOW_EXAMPLES: &str = "\
Examples:
  berth workloads show acme/web
  berth workloads show acme/web -o yaml > web.yaml   to be changed and applied";

/// Which workloads.
#[derive(Args, Debug)]
pub(crate) struct List {
    /// Of this tenant.
    #[arg(long)]
    owner: Option<String>,
    /// Of this environment.
    #[arg(long)]
    env: Option<String>,
    /// How many at most.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
}

/// One workload.
#[derive(Args, Debug)]
pub(crate) struct One {
    /// Its owner and name: acme/web.
    #[arg(value_name = "OWNER/NAME")]
    workload: Key,
}

/// How many should run.
#[derive(Args, Debug)]
pub(crate) struct Scale {
    #[command(flatten)]
    one: One,
    /// How many should run.
    replicas: u32,
    #[command(flatten)]
    wait: Wait,
}

/// Workloads that should go.
#[derive(Args, Debug)]
pub(crate) struct Remove {
    /// Their owners and names.
    #[arg(value_name = "OWNER/NAME", required = true)]
    workloads: Vec<Key>,
    /// Wait until they are gone; 5m when no duration is given.
    #[arg(long, value_name = "DURATION", value_parser = args::duration, num_args = 0..=1, require_equals = true, default_missing_value = "5m")]
    wait: Option<u32>,
}

/// A tenant and one of its workloads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    owner: String,
    name: String,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

impl std::str::FromStr for Key {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((owner, name)) if !owner.is_empty() && !name.is_empty() => {
                Ok(Self { owner: owner.to_owned(), name: name.to_owned() })
            }
            _ => Err("accepted is an owner and a name, such as acme/web".to_owned()),
        }
    }
}

impl Key {
    fn of(workload: &Workload) -> Self {
        Self { owner: workload.owner.clone(), name: workload.name.clone() }
    }

    fn path(&self) -> String {
        format!("/v1/workloads/{}/{}", escape(&self.owner), escape(&self.name))
    }

    /// The workload as it is stored.
    async fn get(&self, session: &Session) -> Done<Raw> {
        match session.get(&self.path(), &[]).await {
            Ok(raw) => Ok(raw),
            Err(failure) => Err(self.did_you_mean(session, failure).await),
        }
    }

    /// Sends something about the workload and reads the answer.
    async fn post<B: serde::Serialize + Sync>(
        &self,
        session: &Session,
        below: &str,
        body: &B,
    ) -> Done<Raw> {
        let path = format!("{}/{below}", self.path());
        match session.client.post(&path, body).await {
            Ok(raw) => Ok(raw),
            Err(error) => Err(self.did_you_mean(session, error.into()).await),
        }
    }

    /// Adds the name that was likely meant to a failure about a workload that does not exist.
    async fn did_you_mean(&self, session: &Session, failure: Failure) -> Failure {
        if !failure.is_not_found() {
            return failure;
        }
        let Ok(page) = session.list("/v1/workloads", &[], None).await else { return failure };
        let known: Vec<Workload> = page.items.iter().filter_map(|raw| read_as(raw).ok()).collect();
        let known: Vec<String> = known.iter().map(|one| Self::of(one).to_string()).collect();
        match names::closest(&self.to_string(), known.iter().map(String::as_str)) {
            Some(near) => failure.remedy(format!("did you mean {near}?")),
            None => failure.remedy("berth workloads list shows all of them"),
        }
    }
}

impl Workloads {
    pub(crate) async fn run(self, session: &Session) -> Done {
        match self {
            Self::Apply(apply) => apply.run(session).await,
            Self::List(list) => list.run(session).await,
            Self::Show(one) => show(session, &one.workload.get(session).await?),
            Self::Status(one) => one.status(session).await,
            Self::Members(one) => one.members(session).await,
            Self::Set(set) => set.run(session).await,
            Self::Scale(scale) => scale.run(session).await,
            Self::Rollout(rollout) => rollout.run(session).await,
            Self::Remove(remove) => remove.run(session).await,
        }
    }
}

fn show(session: &Session, raw: &Raw) -> Done {
    session.out.answer(raw, |workload: Workload| {
        print::workload(&session.out, &workload);
        Ok(())
    })
}

/// Says what became of a workload, and waits for it where that was asked for.
async fn changed(session: &Session, raw: Raw, line: &str, wait: Wait) -> Done {
    let out = &session.out;
    let workload: Workload = read_as(&raw)?;
    let which = Key::of(&workload);
    if !out.is_data() {
        out.line(if out.quiet { which.to_string() } else { format!("{which} {line}") });
    }
    let Some(limit) = wait.wait else {
        return if out.is_data() { out.data(&raw) } else { Ok(()) };
    };
    let ended = wait::until_complete(session, &which, workload.version, Some(limit)).await?;
    finished(session, ended)
}

/// Prints how a wait ended.
fn finished(session: &Session, ended: wait::Ended) -> Done {
    let out = &session.out;
    let workload: Workload = read_as(&ended.raw)?;
    if out.is_data() {
        out.data(&ended.raw)?;
    } else if ended.failure.is_none() && !out.quiet {
        out.line(format!("{} {}", Key::of(&workload), workload.status.rollout.message));
    }
    ended.failure.map_or(Ok(()), Err)
}

impl List {
    async fn run(self, session: &Session) -> Done {
        let query = given(&[("owner", &self.owner), ("env", &self.env)]);
        let limit = self.limit.and_then(|limit| usize::try_from(limit).ok());
        let human = |workloads: Vec<Workload>| {
            let table = print::table(&workloads, session.out.is_wide());
            let empty = "There are no workloads. Store one with: berth workloads apply -f FILE";
            session.out.table(&table, empty);
        };
        session.show_list("/v1/workloads", &query, limit, human).await
    }
}

impl One {
    async fn page(&self, session: &Session) -> Done<Page<Raw>> {
        let path = format!("{}/members", self.workload.path());
        match session.client.get(&path, &[]).await {
            Ok(page) => Ok(page),
            Err(error) => Err(self.workload.did_you_mean(session, error.into()).await),
        }
    }

    async fn status(&self, session: &Session) -> Done {
        let raw = self.workload.get(session).await?;
        if session.out.is_data() {
            return session.out.data(&raw);
        }
        let members: Vec<Member> = typed(&self.page(session).await?.items)?;
        print::status(&session.out, &read_as(&raw)?, &members);
        Ok(())
    }

    async fn members(&self, session: &Session) -> Done {
        let page = self.page(session).await?;
        if session.out.is_data() {
            return session.out.data(&page);
        }
        let members: Vec<Member> = typed(&page.items)?;
        session.out.table(&print::members(&members), "It has no members.");
        Ok(())
    }
}

impl Scale {
    async fn run(self, session: &Session) -> Done {
        let which = &self.one.workload;
        let before: Workload = read_as(&which.get(session).await?)?;
        let body = ScaleWorkload { replicas: self.replicas };
        let raw = which.post(session, "scale", &body).await?;
        let after: Workload = read_as(&raw)?;
        let change = Change::of(Some(&before), &after.spec);
        changed(session, raw, &change.to_string(), self.wait).await
    }
}

impl Remove {
    async fn run(self, session: &Session) -> Done {
        let out = &session.out;
        for which in &self.workloads {
            let left = match session.client.delete_as::<Option<Workload>>(&which.path()).await {
                Ok(left) => left,
                Err(error) => return Err(which.did_you_mean(session, error.into()).await),
            };
            match (left, self.wait) {
                (None, _) => out.note(format!("removed workload {which}")),
                (Some(left), None) => {
                    let members = left.status.placed + left.status.leaving;
                    let members = usize::try_from(members).unwrap_or(usize::MAX);
                    let members = super::words::many(members, "member");
                    out.note(format!("{which} is being removed, {members} left"));
                }
                (Some(_), Some(limit)) => {
                    wait::until_gone(session, which, limit).await?;
                    out.note(format!("removed workload {which}"));
                }
            }
        }
        Ok(())
    }
}
