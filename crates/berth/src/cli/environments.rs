//! `berth environments`: how the workloads that share secrets stand.

use berth_api::{Env, EnvWorkload};
use berth_client::escape;
use clap::{Args, Subcommand};

use super::failure::{Done, Exit, Failure};
use super::names;
use super::output::style::paint;
use super::session::{Raw, Session, given, typed};
use super::table::{Cell, Table, Tone, pairs};
use super::words::{age, many, or_dash, workload_state, workload_state_name, workload_state_style};
use super::workloads::active;

/// See how environments stand.
#[derive(Subcommand, Debug)]
#[command(
    visible_alias = "envs",
    after_help = "Examples:\n  berth environments list\n  berth environments show production --owner acme"
)]
pub(crate) enum Environments {
    /// List the environments that workloads name.
    #[command(
        visible_alias = "ls",
        after_help = "Example:\n  berth environments list --owner acme"
    )]
    List(List),
    /// Show an environment and its workloads.
    #[command(after_help = "Example:\n  berth environments show production --owner acme")]
    Show(Show),
}

/// Which environments.
#[derive(Args, Debug)]
pub(crate) struct List {
    /// Of this tenant.
    #[arg(long)]
    owner: Option<String>,
}

/// One environment.
#[derive(Args, Debug)]
pub(crate) struct Show {
    /// The environment.
    env: String,
    /// Its tenant; needed when several have one of that name.
    #[arg(long)]
    owner: Option<String>,
}

impl Environments {
    pub(crate) async fn run(self, session: &Session) -> Done {
        match self {
            Self::List(list) => {
                let query = given(&[("owner", &list.owner)]);
                let human = |envs: Vec<Env>| {
                    session.out.table(&table(&envs), "No workload names an environment.");
                };
                session.show_list("/v1/environments", &query, None, human).await
            }
            Self::Show(show) => {
                let raw = show.find(session).await?;
                session.out.answer(&raw, |env: Env| {
                    session.out.line(text(&env));
                    Ok(())
                })
            }
        }
    }
}

impl Show {
    async fn find(&self, session: &Session) -> Done<Raw> {
        if let Some(owner) = &self.owner {
            let path = format!("/v1/environments/{}", escape(&self.env));
            return session.get(&path, &[("owner", owner)]).await;
        }
        let page = session.list("/v1/environments", &[], None).await?;
        let envs: Vec<Env> = typed(&page.items)?;
        let mut found: Vec<(&Env, Raw)> =
            envs.iter().zip(page.items).filter(|(env, _)| env.name == self.env).collect();
        match found.len() {
            1 => Ok(found.swap_remove(0).1),
            0 => {
                let line = format!("no workload names the environment {:?}", self.env);
                let failure = Failure::new(Exit::NotFound, line);
                let known = envs.iter().map(|env| env.name.as_str());
                Err(match names::closest(&self.env, known) {
                    Some(near) => failure.remedy(format!("did you mean {near}?")),
                    None => failure.remedy("berth environments list shows all of them"),
                })
            }
            several => {
                let owners: Vec<&str> = found.iter().map(|(env, _)| env.owner.as_str()).collect();
                let whose = many(several, "tenant");
                Err(Failure::usage(format!("{whose} have an environment {:?}", self.env))
                    .accepted(format!("--owner with one of {}", owners.join(", "))))
            }
        }
    }
}

fn table(envs: &[Env]) -> Table {
    let mut table =
        Table::new(&["ENVIRONMENT", "OWNER", "STATE", ">WORKLOADS", "SECRETS", "MESSAGE"]);
    for env in envs {
        table.row([
            env.name.as_str().into(),
            env.owner.as_str().into(),
            workload_state(env.state),
            env.workloads.len().to_string().into(),
            or_dash(env.secrets_version.as_deref()),
            env.message.as_str().into(),
        ]);
    }
    table
}

fn text(env: &Env) -> String {
    let state = paint(workload_state_style(env.state), workload_state_name(env.state));
    let secrets = env.secrets_version.clone().unwrap_or_else(|| "none".to_owned());
    let head = pairs(&[
        ("environment", env.name.clone()),
        ("owner", env.owner.clone()),
        ("state", state),
        ("message", env.message.clone()),
        ("secrets", secrets),
    ]);
    let mut table =
        Table::new(&["WORKLOAD", "PROCESS", "STATE", "ACTIVE", "REASON", "SINCE", "MESSAGE"]);
    for workload in &env.workloads {
        table.row(row(workload));
    }
    format!("{head}\n\n{}", table.text())
}

fn row(workload: &EnvWorkload) -> [Cell; 7] {
    let reason = workload.reason.as_ref();
    [
        workload.name.as_str().into(),
        workload.process.as_str().into(),
        workload_state(workload.state),
        active(workload.active, workload.replicas),
        reason.map_or_else(|| "".into(), |reason| Cell::toned(reason.code.as_str(), Tone::Bad)),
        reason.map_or_else(|| "".into(), |reason| age(reason.since).into()),
        workload.message.as_str().into(),
    ]
}
