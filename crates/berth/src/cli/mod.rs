//! The command line: nouns and verbs for everything that a server can be asked.
//!
//! It sends requests and prints answers; what it prints it was told by a server. One file for each
//! noun.

mod args;
mod audit;
mod claims;
pub(crate) mod context;
mod debug;
mod decisions;
mod document;
mod environments;
mod evacuate;
mod events;
mod explain;
mod explain_pod;
mod failure;
mod groups;
mod instances;
mod migrations;
mod names;
mod nodes;
mod offline;
mod output;
mod permits;
mod picture;
mod place;
mod policy;
mod policy_live;
mod pools;
mod queue;
mod quotas;
mod rebalance;
#[cfg(test)]
mod reference;
mod secrets;
mod session;
mod shell;
mod table;
mod token;
mod top;
mod volume_moves;
mod volumes;
mod whoami;
mod why;
mod words;
mod workloads;

use std::process::ExitCode;

use clap::{Command, Subcommand};

pub(crate) use args::duration as seconds;
pub(crate) use failure::{Done, EXIT_CODES, Exit, Failure, chain};
pub(crate) use session::Global;

/// Commands that talk to a server, or about such commands.
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
    #[command(subcommand)]
    Policy(policy::Policy),
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
    Secrets(secrets::Secrets),
    #[command(subcommand)]
    Token(token::Tokens),
    Audit(audit::Audit),
    #[command(subcommand)]
    Debug(debug::Debug),
    Whoami(whoami::Who),
    Completions(offline::Completions),
    Man(offline::Man),
}

impl Client {
    /// Does what was asked, and says how it ended.
    pub(crate) fn run(self, global: &Global, command: Command) -> ExitCode {
        if global.no_color {
            anstream::ColorChoice::Never.write_global();
        }
        match self.done(global, command) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                failure.report(&global.out());
                ExitCode::from(failure.exit as u8)
            }
        }
    }

    fn done(self, global: &Global, command: Command) -> Result<(), Failure> {
        match self {
            Self::Completions(completions) => return completions.run(command),
            Self::Man(man) => return man.run(command, &global.out()),
            _ => {}
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.asked(global))
    }

    async fn asked(self, global: &Global) -> Result<(), Failure> {
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
            Self::Policy(policy) => policy.run(global).await,
            Self::Workloads(workloads) => workloads.run(&session()?).await,
            Self::Environments(environments) => environments.run(&session()?).await,
            Self::Groups(groups) => groups.run(&session()?).await,
            Self::Volumes(volumes) => volumes.run(&session()?).await,
            Self::Pools(pools) => pools.run(&session()?).await,
            Self::Quotas(quotas) => quotas.run(&session()?).await,
            Self::Secrets(secrets) => secrets.run(&session()?).await,
            Self::Token(token) => token.run(global).await,
            Self::Audit(audit) => audit.run(&session()?).await,
            Self::Debug(debug) => debug.run(global).await,
            Self::Whoami(who) => who.run(&session()?, global).await,
            Self::Completions(_) | Self::Man(_) => Ok(()),
        }
    }
}
