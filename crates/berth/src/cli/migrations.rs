//! `berth migrations`: instances that move while they run.

use std::time::Duration;

use berth_api::{Migration, MigrationReason, MigrationState, StartMigration};
use berth_client::escape;
use clap::{Args, Subcommand};
use tokio::time::Instant;

use super::args::duration;
use super::failure::{Done, Exit, Failure};
use super::output::Output;
use super::output::style::{BOLD, paint};
use super::permits::both;
use super::session::{Raw, Session, read_as};
use super::table::{Cell, Table, Tone, pairs};
use super::words::{age, or_dash};

/// How often a migration that is waited for is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Move instances while they run, and see what is being moved.
#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Migrations {
    /// List migrations: those under way, and those that ended within a day.
    #[command(visible_alias = "ls", after_help = LIST_EXAMPLES)]
    List(Wanted),
    /// Show one migration.
    #[command(
        after_help = "Example:\n  berth migrations show 019a8c53-53c5-7bb2-b3c0-6e2a11a05c4f"
    )]
    Show(One),
    /// Move an instance to another node while it runs.
    #[command(after_help = START_EXAMPLES)]
    Start(Start),
    /// Call a migration off: the instance goes on where it is.
    #[command(
        after_help = "Example:\n  berth migrations cancel 019a8c53-53c5-7bb2-b3c0-6e2a11a05c4f"
    )]
    Cancel(One),
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

/// Which migrations.
#[derive(Args, Debug)]
pub(crate) struct Wanted {
    /// Only those that are not over.
    #[arg(long)]
    open: bool,
    /// From or to this node.
    #[arg(long)]
    node: Option<String>,
    /// Of this instance: its id, the beginning of it, or its name.
    #[arg(long)]
    instance: Option<String>,
    /// In this state.
    #[arg(long, value_parser = STATES.map(MigrationState::name))]
    state: Option<String>,
    /// How many at most.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
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

/// One migration.
#[derive(Args, Debug)]
pub(crate) struct One {
    /// The migration.
    id: String,
}

/// What is moved, and where to.
#[derive(Args, Debug)]
pub(crate) struct Start {
    /// Its id, the beginning of it, or its name.
    instance: String,
    /// The node it goes to; the best one when not given.
    #[arg(long, value_name = "NODE")]
    to: Option<String>,
    /// Say where it would go, and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Wait until it runs there and nothing is left where it was.
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,
    /// With --wait: how long at most.
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "wait")]
    timeout: Option<u32>,
}

impl Migrations {
    pub(crate) async fn run(self, session: &Session) -> Done {
        match self {
            Self::List(wanted) => wanted.run(session).await,
            Self::Show(one) => print(&session.out, &session.get(&one.path(), &[]).await?),
            Self::Start(start) => start.run(session).await,
            Self::Cancel(one) => {
                let nothing = serde_json::Map::new();
                let path = format!("{}/cancel", one.path());
                let raw: Raw = session.client.post(&path, &nothing).await?;
                print(&session.out, &raw)
            }
        }
    }
}

impl One {
    fn path(&self) -> String {
        path(&self.id)
    }
}

fn path(id: &str) -> String {
    format!("/v1/migrations/{}", escape(id))
}

impl Wanted {
    async fn run(self, session: &Session) -> Done {
        let instance = match &self.instance {
            Some(text) => Some(session.instance(text).await?.to_string()),
            None => None,
        };
        let parts = [("node", &self.node), ("instance", &instance), ("state", &self.state)];
        let mut query = super::session::given(&parts);
        if self.open {
            query.push(("open", "true"));
        }
        let limit = self.limit.and_then(|limit| usize::try_from(limit).ok());
        let human = |migrations: Vec<Migration>| {
            let table = table(&migrations, session.out.is_wide());
            session.out.table(&table, "There are no migrations like that.");
        };
        session.show_list("/v1/migrations", &query, limit, human).await
    }
}

impl Start {
    async fn run(self, session: &Session) -> Done {
        let id = session.instance(&self.instance).await?;
        let to = self.to.as_deref().map(Into::into);
        let body = StartMigration { to, dry_run: self.dry_run };
        let raw: Raw = session.client.post(&format!("/v1/instances/{id}/migrate"), &body).await?;
        let migration: Migration = read_as(&raw)?;
        if self.wait {
            let limit = self.timeout.map(|s| Instant::now() + Duration::from_secs(s.into()));
            return follow(session, &migration.id, limit).await;
        }
        if self.dry_run {
            return session.out.answer(&raw, |found: Migration| {
                let (from, to) = (&found.source, &found.target);
                let frees = both(found.frees);
                session.out.line(format!("{id} would go from {from} to {to} and free {frees}"));
                Ok(())
            });
        }
        print(&session.out, &raw)?;
        session.out.note(format!("Follow it with: berth migrations show {}", migration.id));
        if migration.state == MigrationState::Failed {
            return Err(Failure::new(Exit::Failed, migration.message));
        }
        Ok(())
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
    Cell::toned(state.name(), tone)
}

const fn reason(reason: MigrationReason) -> &'static str {
    match reason {
        MigrationReason::Pressure => "pressure",
        MigrationReason::Rebalance => "rebalance",
        MigrationReason::Asked => "asked",
    }
}

fn copied(migration: &Migration) -> Option<String> {
    migration.copied_permille.map(|share| format!("{}.{}%", share / 10, share % 10))
}

fn table(migrations: &[Migration], wide: bool) -> Table {
    let mut table =
        Table::new(&["MIGRATION", "INSTANCE", "FROM", "TO", "STATE", ">COPIED", "WHY", "SINCE"]);
    if wide {
        ["OWNER", "FREES", "MESSAGE"].iter().for_each(|name| table.column(name));
    }
    for one in migrations {
        let mut row = vec![
            one.id.as_str().into(),
            one.instance.to_string().into(),
            one.source.as_str().into(),
            one.target.as_str().into(),
            state(one.state),
            or_dash(copied(one).as_deref()),
            reason(one.reason).into(),
            age(one.since).into(),
        ];
        if wide {
            row.push(one.owner.as_str().into());
            row.push(both(one.frees).into());
            row.push(one.message.as_str().into());
        }
        table.row(row);
    }
    table
}

fn print(out: &Output, raw: &Raw) -> Done {
    out.answer(raw, |found: Migration| {
        out.line(pairs(&[
            ("migration", paint(BOLD, &found.id)),
            ("instance", found.instance.to_string()),
            ("owner", found.owner.clone()),
            ("from", found.source.to_string()),
            ("to", found.target.to_string()),
            ("state", found.state.name().to_owned()),
            ("why", reason(found.reason).to_owned()),
            ("copied", copied(&found).unwrap_or_default()),
            ("frees", both(found.frees)),
            ("since", age(found.since)),
            ("changed", age(found.changed_at)),
            ("message", found.message),
        ]));
        Ok(())
    })
}

/// Watches a migration until it has ended, or the time is over.
async fn follow(session: &Session, id: &str, limit: Option<Instant>) -> Done {
    let bar = session.out.spinner("");
    let mut told = String::new();
    loop {
        let raw = session.get(&path(id), &[]).await?;
        let found: Migration = read_as(&raw)?;
        let text = match copied(&found).filter(|_| found.state == MigrationState::Copying) {
            Some(share) => format!("{} ({share})", found.message),
            None => found.message.clone(),
        };
        if text != told {
            bar.set_message(text.clone());
            if bar.is_hidden() {
                session.out.note(format!("{}: {text}", found.state.name()));
            }
            told = text;
        }
        match found.state {
            MigrationState::Done => {
                bar.finish_and_clear();
                return print(&session.out, &raw);
            }
            MigrationState::Failed | MigrationState::Cancelled => {
                bar.finish_and_clear();
                return Err(Failure::new(Exit::Failed, found.message));
            }
            _ if limit.is_some_and(|limit| limit <= Instant::now()) => {
                bar.finish_and_clear();
                let message = format!("not moved in time: {}; it goes on", found.message);
                return Err(Failure::new(Exit::Failed, message));
            }
            _ => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}
