//! `berth migrations`: instances that move to another node while they run.

use berth_api::{Migration, MigrationState, StartMigration};
use clap::{Args, Subcommand};

use super::permits::cpu_and_memory;
use super::resource::{ListOptions, NameArg, Operation, Resource, deadline, path_of};
use crate::cmdutil::style::{BOLD, paint};
use crate::cmdutil::{
    Cell, CmdResult, Column, Exit, Failure, RawJson, Session, Tone, age, api_name, args, columns,
    decode, query_params,
};

/// Move running instances, and show their progress.
#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Migrations {
    /// List migrations that are open or ended within the last day.
    #[command(visible_alias = "ls", after_help = LIST_EXAMPLES)]
    List(ListArgs),
    /// Show a migration.
    #[command(
        after_help = "Example:\n  berth migrations show 019a8c53-53c5-7bb2-b3c0-6e2a11a05c4f"
    )]
    Show(NameArg<Migration>),
    /// Move a running instance to another node.
    #[command(after_help = START_EXAMPLES)]
    Start(StartArgs),
    /// Cancel a migration; the instance keeps running where it is.
    #[command(
        after_help = "Example:\n  berth migrations cancel 019a8c53-53c5-7bb2-b3c0-6e2a11a05c4f"
    )]
    Cancel(NameArg<Migration>),
}

const EXAMPLES: &str = "\
Examples:
  berth migrations list --open
  berth migrations start db-1 --to node-000012 --wait";

const LIST_EXAMPLES: &str = "\
Examples:
  berth migrations list --open
  berth migrations list --node node-000012
  berth migrations list --instance db-1 --state failed";

const START_EXAMPLES: &str = "\
Examples:
  berth migrations start db-1 --dry-run
  berth migrations start db-1 --to node-000012 --wait --timeout 10m";

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Show only migrations that have not ended.
    #[arg(long)]
    open: bool,
    /// Show only migrations from or to this node.
    #[arg(long)]
    node: Option<String>,
    /// Show only migrations of this instance: its id, a unique prefix of it, or its name.
    #[arg(long)]
    instance: Option<String>,
    /// Show only migrations in this state.
    #[arg(long, value_parser = STATES.map(MigrationState::name))]
    state: Option<String>,
    #[command(flatten)]
    options: ListOptions,
}

const STATES: [MigrationState; 7] = [
    MigrationState::Planned,
    MigrationState::TargetHeld,
    MigrationState::Copying,
    MigrationState::Switched,
    MigrationState::Done,
    MigrationState::Failed,
    MigrationState::Cancelled,
];

#[derive(Args, Debug)]
pub(crate) struct StartArgs {
    /// Id of the instance, a unique prefix of it, or its name.
    instance: String,
    /// Node to move it to; the best one by default.
    #[arg(long, value_name = "NODE")]
    to: Option<String>,
    /// Show where it would go, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Wait until it runs there and nothing is left on its old node.
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,
    /// Give up waiting after this time.
    #[arg(long, value_name = "DURATION", value_parser = args::duration, requires = "wait")]
    timeout: Option<u32>,
}

impl Resource for Migration {
    const KIND: &'static str = "migration";
    const KEY: &'static str = "id";
    const PATH: &'static str = "/v1/migrations";
    const EMPTY: &'static str = "No migrations match.";
    const COLUMNS: &'static [Column<Self>] = columns![migration;
        "MIGRATION" => migration.id.as_str(),
        "INSTANCE" => migration.instance.to_string(),
        "FROM" => migration.source.as_str(),
        "TO" => migration.target.as_str(),
        "STATE" => state(migration.state),
        ">COPIED" => copied_share(migration),
        "REASON" => api_name(&migration.reason),
        "SINCE" => age(migration.since),
        "+TENANT" => migration.tenant.as_str(),
        "+FREES" => cpu_and_memory(migration.frees),
        "+MESSAGE" => migration.message.as_str(),
    ];

    fn fields(&self) -> Vec<(&'static str, String)> {
        vec![
            ("migration", paint(BOLD, &self.id)),
            ("instance", self.instance.to_string()),
            ("tenant", self.tenant.clone()),
            ("from", self.source.to_string()),
            ("to", self.target.to_string()),
            ("state", self.state.name().to_owned()),
            ("reason", api_name(&self.reason)),
            ("copied", copied_share(self).unwrap_or_default()),
            ("frees", cpu_and_memory(self.frees)),
            ("since", age(self.since)),
            ("changed", age(self.changed_at)),
            ("message", self.message.clone()),
        ]
    }
}

impl Operation for Migration {
    fn state(&self) -> String {
        self.state.name().to_owned()
    }

    fn message(&self) -> &str {
        &self.message
    }

    fn progress(&self) -> String {
        match copied_share(self).filter(|_| self.state == MigrationState::Copying) {
            Some(share) => format!("{} ({share})", self.message),
            None => self.message.clone(),
        }
    }

    fn succeeded(&self) -> Option<bool> {
        match self.state {
            MigrationState::Done => Some(true),
            MigrationState::Failed | MigrationState::Cancelled => Some(false),
            _ => None,
        }
    }
}

fn state(state: MigrationState) -> Cell {
    let tone = match state {
        MigrationState::Planned | MigrationState::TargetHeld | MigrationState::Copying => {
            Tone::Warn
        }
        MigrationState::Switched | MigrationState::Done => Tone::Good,
        MigrationState::Failed => Tone::Bad,
        MigrationState::Cancelled => Tone::Dim,
    };
    Cell::with_tone(state.name(), tone)
}

fn copied_share(migration: &Migration) -> Option<String> {
    migration.copied_permille.map(|share| format!("{}.{}%", share / 10, share % 10))
}

impl Migrations {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        match self {
            Self::List(list) => list.run(session).await,
            Self::Show(arg) => session.show::<Migration>(&arg.name).await,
            Self::Start(start) => start.run(session).await,
            Self::Cancel(arg) => {
                let path = format!("{}/cancel", path_of::<Migration>(&arg.name));
                session.post::<Migration>(&path, &serde_json::Map::new()).await
            }
        }
    }
}

impl ListArgs {
    async fn run(self, session: &Session) -> CmdResult {
        let instance = match &self.instance {
            Some(text) => Some(session.instance(text).await?.to_string()),
            None => None,
        };
        let open = self.open.then(|| "true".to_owned());
        let query = query_params(&[
            ("node", &self.node),
            ("instance", &instance),
            ("state", &self.state),
            ("open", &open),
        ]);
        session.list::<Migration>(&query, self.options).await
    }
}

impl StartArgs {
    async fn run(self, session: &Session) -> CmdResult {
        let id = session.instance(&self.instance).await?;
        let to = self.to.as_deref().map(Into::into);
        let body = StartMigration { to, dry_run: self.dry_run };
        let raw: RawJson =
            session.client.post(&format!("/v1/instances/{id}/migrate"), &body).await?;
        let migration: Migration = decode(&raw)?;
        if self.wait {
            let path = path_of::<Migration>(&migration.id);
            return session.follow::<Migration>(&path, deadline(self.timeout)).await;
        }
        if self.dry_run {
            return session.out.response(&raw, |planned: Migration| {
                let (from, to) = (&planned.source, &planned.target);
                let frees = cpu_and_memory(planned.frees);
                session.out.line(format!("{id} would move from {from} to {to} and free {frees}"));
            });
        }
        session.print::<Migration>(&raw)?;
        session.out.note(format!("Show its progress with: berth migrations show {}", migration.id));
        if migration.state == MigrationState::Failed {
            return Err(Failure::new(Exit::Failed, migration.message));
        }
        Ok(())
    }
}
