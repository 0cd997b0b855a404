//! `berth environments`: the workloads that share secrets.

use berth_api::{Env, EnvWorkload};
use clap::{Args, Subcommand};

use super::resource::{Resource, WatchOption, path_of};
use super::workloads::active;
use crate::cmdutil::{
    Cell, CmdResult, Column, Exit, Failure, Output, RawJson, Session, Table, Tone, age, columns,
    decode_all, pairs, plural, query_params, workload_state,
};

/// Show environments and their workloads.
#[derive(Subcommand, Debug)]
#[command(
    visible_alias = "envs",
    after_help = "Examples:\n  berth environments list\n  berth environments show production --tenant acme"
)]
pub(crate) enum Environments {
    /// List environments of workloads.
    #[command(
        visible_alias = "ls",
        after_help = "Example:\n  berth environments list --tenant acme"
    )]
    List(ListArgs),
    /// Show an environment and its workloads.
    #[command(after_help = "Example:\n  berth environments show production --tenant acme")]
    Show(ShowArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Show only environments of this tenant.
    #[arg(long, alias = "owner")]
    tenant: Option<String>,
    #[command(flatten)]
    watch: WatchOption,
}

#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// Name of the environment.
    env: String,
    /// Tenant; required if several tenants have an environment of that name.
    #[arg(long, alias = "owner")]
    tenant: Option<String>,
}

impl Resource for Env {
    const KIND: &'static str = "environment";
    const PATH: &'static str = "/v1/environments";
    const EMPTY: &'static str = "No workload has an environment.";
    const COLUMNS: &'static [Column<Self>] = columns![env;
        "ENVIRONMENT" => env.name.as_str(),
        "TENANT" => env.tenant.as_str(),
        "STATE" => workload_state(env.state),
        ">WORKLOADS" => env.workloads.len(),
        "SECRETS" => env.secrets_version.as_deref(),
        "MESSAGE" => env.message.as_str(),
    ];

    fn print(&self, out: &Output) {
        let fields = pairs(&[
            ("environment", self.name.clone()),
            ("tenant", self.tenant.clone()),
            ("state", workload_state(self.state).to_string()),
            ("message", self.message.clone()),
            ("secrets", self.secrets_version.clone().unwrap_or_else(|| "none".to_owned())),
        ]);
        let table = Table::of(&self.workloads, false, WORKLOAD_COLUMNS);
        out.line(format!("{fields}\n\n{}", out.text_of(&table)));
    }
}

const WORKLOAD_COLUMNS: &[Column<EnvWorkload>] = columns![workload;
    "WORKLOAD" => workload.name.as_str(),
    "PROCESS" => workload.process.as_str(),
    "STATE" => workload_state(workload.state),
    "ACTIVE" => active(workload.active, workload.replicas),
    "REASON" => workload.reason.as_ref().map_or_else(
        || "".into(),
        |reason| Cell::with_tone(reason.code.as_str(), Tone::Bad),
    ),
    "SINCE" => workload.reason.as_ref().map_or_else(String::new, |reason| age(reason.since)),
    "MESSAGE" => workload.message.as_str(),
];

impl Environments {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        match self {
            Self::List(list) => {
                session.list::<Env>(&query_params(&[("tenant", &list.tenant)]), list.watch).await
            }
            Self::Show(show) => session.print::<Env>(&show.find(session).await?),
        }
    }
}

impl ShowArgs {
    async fn find(&self, session: &Session) -> CmdResult<RawJson> {
        if let Some(tenant) = &self.tenant {
            return session.get(&path_of::<Env>(&self.env), &[("tenant", tenant)]).await;
        }
        let page = session.get_list(Env::PATH, &[], None).await?;
        let envs: Vec<Env> = decode_all(&page.items)?;
        let mut found: Vec<(&Env, RawJson)> =
            envs.iter().zip(page.items).filter(|(env, _)| env.name == self.env).collect();
        match found.len() {
            1 => Ok(found.swap_remove(0).1),
            0 => {
                let message = format!("environment {:?} not found in any workload", self.env);
                let names = envs.iter().map(|env| env.name.as_str());
                let otherwise = "list environments with: berth environments list";
                Err(Failure::new(Exit::NotFound, message).did_you_mean(&self.env, names, otherwise))
            }
            several => {
                let tenants: Vec<&str> = found.iter().map(|(env, _)| env.tenant.as_str()).collect();
                let count = plural(several, "tenant");
                Err(Failure::usage(format!("{count} have an environment {:?}", self.env))
                    .accepted(format!("--tenant with one of {}", tenants.join(", "))))
            }
        }
    }
}
