//! The commands that talk to a server: one file for each noun, one subcommand for each verb.
//!
//! They send requests and print responses, and decide nothing themselves. `resource` holds the verbs
//! that nouns share.

mod audit;
mod changed_request;
mod claims;
mod completion;
mod debug;
mod decisions;
mod environments;
mod evacuate;
mod events;
mod explain;
mod explain_pod;
mod explanation;
mod fixes;
mod groups;
mod instances;
mod migrations;
mod name_hints;
mod nodes;
mod offline;
mod permits;
mod place;
mod policies;
mod policies_live;
mod policies_trace;
mod pools;
mod queue;
#[cfg(test)]
mod queues;
mod quotas;
mod rebalance;
#[cfg(test)]
mod reference;
mod refusal;
mod resource;
mod secrets;
mod status;
mod tenants;
mod tokens;
mod top;
mod volumes;
mod watch;
mod whoami;
mod workloads;

use std::process::ExitCode;

use clap::{Command, Subcommand};

pub(crate) use completion::answer_shell;

use crate::cmdutil::{CmdResult, Failure, Format, Global};

/// Commands that talk to a server, and those that describe the commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Client {
    Place(Box<place::Place>),
    Explain(Box<explain::Explain>),
    #[command(subcommand)]
    Nodes(nodes::Nodes),
    #[command(subcommand)]
    Evacuate(evacuate::Evacuate),
    #[command(subcommand)]
    Rebalance(rebalance::Rebalances),
    #[command(subcommand)]
    Instances(instances::Instances),
    #[command(subcommand)]
    Migrations(migrations::Migrations),
    #[command(subcommand)]
    Claims(claims::Claims),
    #[command(subcommand)]
    Queue(queue::Queue),
    #[command(subcommand)]
    Decisions(decisions::Decisions),
    Events(events::Events),
    Top(top::Top),
    Status(status::StatusArgs),
    Version(status::VersionArgs),
    #[command(subcommand)]
    Policies(policies::Policies),
    #[command(subcommand)]
    Workloads(workloads::Workloads),
    #[command(subcommand)]
    Environments(environments::Environments),
    #[command(subcommand)]
    Groups(groups::Groups),
    #[command(subcommand)]
    Volumes(volumes::Volumes),
    #[command(subcommand)]
    Pools(pools::Pools),
    #[command(subcommand)]
    Quotas(quotas::Quotas),
    #[command(subcommand)]
    Tenants(tenants::Tenants),
    #[command(subcommand)]
    Secrets(secrets::Secrets),
    #[command(subcommand)]
    Tokens(tokens::Tokens),
    Audit(audit::Audit),
    #[command(subcommand)]
    Debug(debug::Debug),
    Whoami(whoami::WhoAmIArgs),
    Completions(offline::Completions),
    Man(offline::Man),
}

impl Client {
    /// Runs the command, and returns its exit code.
    pub(crate) fn run(self, global: &Global, command: Command) -> ExitCode {
        if global.no_color {
            anstream::ColorChoice::Never.write_global();
        }
        match self.run_sync(global, command) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                failure.report(&global.out());
                ExitCode::from(failure.exit as u8)
            }
        }
    }

    fn run_sync(self, global: &Global, command: Command) -> CmdResult {
        match self {
            Self::Completions(completions) => return completions.run(),
            Self::Man(man) => return man.run(command, &global.out()),
            _ => {}
        }
        self.check_format(global)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.run_async(global))
    }

    /// Refuses a format that the command has not before it does anything.
    fn check_format(&self, global: &Global) -> CmdResult {
        let has_toml = matches!(self, Self::Policies(policies) if policies.has_toml());
        if global.output == Format::Toml && !has_toml {
            return Err(Failure::usage("-o toml is only for berth policies show")
                .accepted("table, wide, json or yaml"));
        }
        Ok(())
    }

    async fn run_async(self, global: &Global) -> CmdResult {
        let session = || global.session();
        match self {
            Self::Place(place) => place.run(&session()?).await,
            Self::Explain(explain) => explain.run(global).await,
            Self::Nodes(nodes) => nodes.run(&session()?).await,
            Self::Evacuate(evacuate) => evacuate.run(&session()?).await,
            Self::Rebalance(rebalance) => rebalance.run(&session()?).await,
            Self::Instances(instances) => instances.run(&session()?).await,
            Self::Migrations(migrations) => migrations.run(&session()?).await,
            Self::Claims(claims) => claims.run(&session()?).await,
            Self::Queue(queue) => queue.run(&session()?).await,
            Self::Decisions(decisions) => decisions.run(&session()?).await,
            Self::Events(events) => events.run(&session()?).await,
            Self::Top(top) => top.run(&session()?).await,
            Self::Status(status) => status.run(&session()?).await,
            Self::Version(version) => version.run(global).await,
            Self::Policies(policies) => policies.run(global).await,
            Self::Workloads(workloads) => workloads.run(&session()?).await,
            Self::Environments(environments) => environments.run(&session()?).await,
            Self::Groups(groups) => groups.run(&session()?).await,
            Self::Volumes(volumes) => volumes.run(&session()?).await,
            Self::Pools(pools) => pools.run(&session()?).await,
            Self::Quotas(quotas) => quotas.run(&session()?).await,
            Self::Tenants(tenants) => tenants.run(&session()?).await,
            Self::Secrets(secrets) => secrets.run(&session()?).await,
            Self::Tokens(tokens) => tokens.run(global).await,
            Self::Audit(audit) => audit.run(&session()?).await,
            Self::Debug(debug) => debug.run(global).await,
            Self::Whoami(args) => args.run(&session()?, global).await,
            Self::Completions(_) | Self::Man(_) => Ok(()),
        }
    }
}
