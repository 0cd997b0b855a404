//! `berth workloads`: what should run, its progress, and how to change it.

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
use super::resource::{ListOptions, Resource};
use crate::cmdutil::{
    CmdResult, Failure, RawJson, Session, args, decode, decode_all, plural, query_params,
};

pub(crate) use print::active;

/// Show and change workloads.
#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Workloads {
    /// Create or update the workloads in files: all of them, or none if one is invalid.
    Apply(apply::Apply),
    /// List workloads.
    #[command(visible_alias = "ls", after_help = LIST_EXAMPLES)]
    List(ListArgs),
    /// Show the specification of a workload.
    #[command(after_help = SHOW_EXAMPLES)]
    Show(WorkloadArg),
    /// Show the progress of a workload, slot by slot, and why it is degraded.
    #[command(after_help = "Example:\n  berth workloads status acme/web")]
    Status(WorkloadArg),
    /// List the members of a workload.
    #[command(after_help = "Example:\n  berth workloads members acme/web")]
    Members(WorkloadArg),
    /// Create a workload from flags, or change only what the flags name.
    Set(Box<set::SetArgs>),
    /// Change the number of replicas.
    #[command(
        after_help = "Examples:\n  berth workloads scale acme/web 5\n  berth workloads scale acme/web 5 --wait=2m"
    )]
    Scale(ScaleArgs),
    /// Show and control roll-outs.
    #[command(subcommand)]
    Rollout(rollout::Rollout),
    /// Delete workloads and their instances.
    #[command(
        visible_alias = "rm",
        after_help = "Examples:\n  berth workloads remove acme/web\n  berth workloads remove acme/web --wait"
    )]
    Remove(RemoveArgs),
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
  berth workloads list --tenant acme
  berth workloads list --env production -o wide";

const SHOW_EXAMPLES: &str = "\
Examples:
  berth workloads show acme/web
  berth workloads show acme/web -o yaml > web.yaml   to edit and apply";

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Show only workloads of this tenant.
    #[arg(long, alias = "owner")]
    tenant: Option<String>,
    /// Show only workloads of this environment.
    #[arg(long)]
    env: Option<String>,
    #[command(flatten)]
    options: ListOptions,
}

#[derive(Args, Debug)]
pub(crate) struct WorkloadArg {
    /// Tenant and name of the workload: acme/web.
    #[arg(value_name = "TENANT/NAME")]
    workload: Key,
}

#[derive(Args, Debug)]
pub(crate) struct ScaleArgs {
    #[command(flatten)]
    arg: WorkloadArg,
    /// Number of replicas.
    replicas: u32,
    #[command(flatten)]
    wait: Wait,
}

#[derive(Args, Debug)]
pub(crate) struct RemoveArgs {
    /// Tenants and names of the workloads.
    #[arg(value_name = "TENANT/NAME", required = true)]
    workloads: Vec<Key>,
    /// Wait until they are gone; 5m if no duration is given.
    #[arg(long, value_name = "DURATION", value_parser = args::duration, num_args = 0..=1, require_equals = true, default_missing_value = "5m")]
    wait: Option<u32>,
}

/// The tenant and the name of a workload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    tenant: String,
    name: String,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tenant, self.name)
    }
}

impl std::str::FromStr for Key {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((tenant, name)) if !tenant.is_empty() && !name.is_empty() => {
                Ok(Self { tenant: tenant.to_owned(), name: name.to_owned() })
            }
            _ => Err("accepted is a tenant and a name, such as acme/web".to_owned()),
        }
    }
}

impl Key {
    fn of(workload: &Workload) -> Self {
        Self { tenant: workload.tenant.clone(), name: workload.name.clone() }
    }

    fn path(&self) -> String {
        format!("/v1/workloads/{}/{}", escape(&self.tenant), escape(&self.name))
    }

    /// Reads the workload.
    async fn get(&self, session: &Session) -> CmdResult<RawJson> {
        self.suggest(session, session.get(&self.path(), &[]).await).await
    }

    /// Posts a request about the workload.
    async fn post<B: serde::Serialize + Sync>(
        &self,
        session: &Session,
        action: &str,
        body: &B,
    ) -> CmdResult<RawJson> {
        let path = format!("{}/{action}", self.path());
        let result = session.client.post(&path, body).await;
        self.suggest(session, result.map_err(Failure::from)).await
    }

    /// Adds the closest existing name to a failure about a workload that does not exist.
    async fn suggest<T>(&self, session: &Session, result: CmdResult<T>) -> CmdResult<T> {
        let failure = match result {
            Ok(value) => return Ok(value),
            Err(failure) => failure,
        };
        let Some(known) = session.existing::<Workload>(&failure, Workload::PATH).await else {
            return Err(failure);
        };
        let known: Vec<String> = known.iter().map(|one| Self::of(one).to_string()).collect();
        let names = known.iter().map(String::as_str);
        let otherwise = "list workloads with: berth workloads list";
        Err(failure.did_you_mean(&self.to_string(), names, otherwise))
    }
}

impl Workloads {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        match self {
            Self::Apply(apply) => apply.run(session).await,
            Self::List(list) => {
                let query = query_params(&[("tenant", &list.tenant), ("env", &list.env)]);
                session.list::<Workload>(&query, list.options).await
            }
            Self::Show(arg) => session.print::<Workload>(&arg.workload.get(session).await?),
            Self::Status(arg) => arg.status(session).await,
            Self::Members(arg) => arg.members(session).await,
            Self::Set(set) => set.run(session).await,
            Self::Scale(scale) => scale.run(session).await,
            Self::Rollout(rollout) => rollout.run(session).await,
            Self::Remove(remove) => remove.run(session).await,
        }
    }
}

/// Prints a change, and waits for its roll-out if requested.
async fn print_change(session: &Session, raw: RawJson, change: &str, wait: Wait) -> CmdResult {
    let out = &session.out;
    let workload: Workload = decode(&raw)?;
    let key = Key::of(&workload);
    if !out.is_data() {
        out.line(if out.quiet { key.to_string() } else { format!("{key} {change}") });
    }
    let Some(limit) = wait.wait else {
        return if out.is_data() { out.data(&raw) } else { Ok(()) };
    };
    let result = wait::until_complete(session, &key, workload.version, Some(limit)).await?;
    print_result(session, result)
}

/// Prints how a wait ended.
fn print_result(session: &Session, result: wait::WaitResult) -> CmdResult {
    let out = &session.out;
    let workload: Workload = decode(&result.raw)?;
    if out.is_data() {
        out.data(&result.raw)?;
    } else if result.failure.is_none() && !out.quiet {
        out.line(format!("{} {}", Key::of(&workload), workload.status.rollout.message));
    }
    result.failure.map_or(Ok(()), Err)
}

impl WorkloadArg {
    async fn get_members(&self, session: &Session) -> CmdResult<Page<RawJson>> {
        let result = session.client.get(&format!("{}/members", self.workload.path()), &[]).await;
        self.workload.suggest(session, result.map_err(Failure::from)).await
    }

    async fn status(&self, session: &Session) -> CmdResult {
        let raw = self.workload.get(session).await?;
        if session.out.is_data() {
            return session.out.data(&raw);
        }
        let members: Vec<Member> = decode_all(&self.get_members(session).await?.items)?;
        print::status(&session.out, &decode(&raw)?, &members);
        Ok(())
    }

    async fn members(&self, session: &Session) -> CmdResult {
        let page = self.get_members(session).await?;
        if session.out.is_data() {
            return session.out.data(&page);
        }
        session.print_list::<Member>(&decode_all(&page.items)?, "It has no members.");
        Ok(())
    }
}

impl ScaleArgs {
    async fn run(self, session: &Session) -> CmdResult {
        let key = &self.arg.workload;
        let before: Workload = decode(&key.get(session).await?)?;
        let body = ScaleWorkload { replicas: self.replicas };
        let raw = key.post(session, "scale", &body).await?;
        let after: Workload = decode(&raw)?;
        let change = Change::between(Some(&before), &after.spec);
        print_change(session, raw, &change.to_string(), self.wait).await
    }
}

impl RemoveArgs {
    async fn run(self, session: &Session) -> CmdResult {
        let out = &session.out;
        for key in &self.workloads {
            let result = session.client.delete_as::<Option<Workload>>(&key.path()).await;
            match (key.suggest(session, result.map_err(Failure::from)).await?, self.wait) {
                (None, _) => out.note(format!("removed workload {key}")),
                (Some(left), None) => {
                    let members = left.status.placed + left.status.leaving;
                    let members = usize::try_from(members).unwrap_or(usize::MAX);
                    let members = plural(members, "member");
                    out.note(format!("{key} is being removed, {members} left"));
                }
                (Some(_), Some(limit)) => {
                    wait::until_gone(session, key, limit).await?;
                    out.note(format!("removed workload {key}"));
                }
            }
        }
        Ok(())
    }
}
