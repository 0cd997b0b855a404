//! `berth agent`: runs on a host and keeps its instances as the server wants them.
//!
//! Three parts: `server_sync` talks to the server, `instance_manager` reconciles, and a driver starts
//! and stops instances. `docs/agents.md` is the contract for agents in other languages.

mod connection;
mod driver;
mod exec;
mod facts;
mod health_check;
mod instance_manager;
mod load_meter;
mod migration_commands;
mod migration_tasks;
mod procfs;
mod reclaim_notice;
mod server_sync;
mod volume_copier;

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use connection::{Connection, ConnectionArgs};
use driver::Driver;
use exec::Exec;
use facts::{FactArgs, FactSource, Machine};
use instance_manager::{DesiredState, InstanceManager, ManagerOptions, NodeReport, RestartPolicy};
use migration_commands::MigrationCommands;
use migration_tasks::{Commands, MigrationTasks};
use server_sync::{ServerSync, SyncParts};

use crate::cmdutil::{args, create_private_dir};

/// How often processes are checked.
const TICK: Duration = Duration::from_millis(250);

/// Run on a host: start and stop the instances that are placed there.
///
/// Example: berth agent --node n1 --zone a --command 'exec my-vmm --name "$BERTH_NAME"'
#[derive(Args)]
pub(crate) struct Agent {
    #[command(flatten)]
    connection: ConnectionArgs,
    #[command(flatten)]
    facts: FactArgs,
    /// Directory of the agent's state [default: berth-agent/NODE]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Driver that runs instances.
    #[arg(long, value_enum, default_value_t = DriverName::Exec)]
    driver: DriverName,
    /// With driver exec: command that /bin/sh runs for each instance, described by BERTH_ variables.
    #[arg(long, value_name = "COMMAND")]
    command: String,
    /// Time that an instance has to stop before it is killed, such as 10s.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = args::precise_duration)]
    stop_grace: Duration,
    /// Whether an instance that ends by itself is restarted.
    #[arg(long, value_enum, default_value_t = RestartPolicy::Never)]
    restart: RestartPolicy,
    /// File that appears when this node is about to be taken away, as spot nodes are; it may contain
    /// the seconds that are left.
    #[arg(long, value_name = "FILE")]
    reclaim_file: Option<PathBuf>,
    /// Command that /bin/sh runs every 10 seconds to check the host; while it fails, or takes longer
    /// than 10 seconds, the node is degraded, with the last line that it printed as the reason.
    #[arg(long, value_name = "COMMAND")]
    health_command: Option<String>,
    /// Command that copies volumes to this node, run as COMMAND copy|sync VOLUME FROM TO; exit code 0
    /// means success.
    #[arg(long, value_name = "COMMAND")]
    volume_command: Option<String>,
    /// Command that moves a running instance to another host, described by BERTH_ variables; exit code
    /// 0 means that it runs there and no longer here.
    #[arg(long, value_name = "COMMAND")]
    migrate_command: Option<String>,
    /// Command that receives an instance that is moved to this host: it waits for the instance and
    /// becomes it, or prepares the host and exits with code 0.
    #[arg(long, value_name = "COMMAND")]
    receive_command: Option<String>,
    /// Command that removes the remains of an instance that was moved away, or not moved here after
    /// all.
    #[arg(long, value_name = "COMMAND")]
    drop_command: Option<String>,
    /// Stop all instances when the agent stops; by default they keep running.
    #[arg(long)]
    stop_instances: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DriverName {
    /// One process per instance.
    Exec,
}

impl Agent {
    /// Runs until SIGTERM or SIGINT.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        // Fails only if the process already has a subscriber, which then gets the messages.
        let _ = tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .with_target(false)
            .with_ansi(false)
            .try_init();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.serve())
    }

    async fn serve(self) -> anyhow::Result<()> {
        let default = || Path::new("berth-agent").join(&self.facts.node);
        let folder = self.state_dir.clone().unwrap_or_else(default);
        // Held as long as the agent runs.
        let _lock = lock(&folder)?;
        let driver: Box<dyn Driver> = match self.driver {
            DriverName::Exec => Box::new(Exec::new(&folder, &self.command)?),
        };
        let machine = Machine::detect(&folder, driver.name(), driver.needs_kvm())?;
        let facts = FactSource::new(self.facts, machine)?;
        let connection = Connection::new(self.connection)?;
        tracing::info!(
            node = %facts.node(),
            url = connection.url(),
            url_source = connection.configured_by(),
            "agent started"
        );
        let options = ManagerOptions { stop_grace: self.stop_grace, restart: self.restart };
        let commands = Commands {
            migrate: self.migrate_command,
            receive: self.receive_command,
            drop: self.drop_command,
        };
        let runner = Box::new(MigrationCommands::new(&folder)?);
        let migrations = MigrationTasks::new(runner, commands)?;
        let manager = InstanceManager::new(driver, migrations, options, Instant::now())?;

        let (report_sender, reports) = watch::channel(manager.report());
        let (desired, desired_receiver) = mpsc::channel(4);
        let stop = CancellationToken::new();
        let (reclaim_file, volume_command) = (self.reclaim_file, self.volume_command);
        let parts = SyncParts {
            connection,
            facts,
            reports,
            desired,
            reclaim_file,
            health_command: self.health_command,
            volume_command,
        };
        let sync = tokio::spawn(ServerSync::new(parts).run(stop.clone()));
        manage(manager, desired_receiver, report_sender, self.stop_instances).await?;
        stop.cancel();
        sync.await.context("the task that talks to the server failed")
    }
}

/// Manages the instances until a signal arrives.
async fn manage(
    mut manager: InstanceManager,
    mut desired: mpsc::Receiver<DesiredState>,
    reports: watch::Sender<NodeReport>,
    stop_instances: bool,
) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut child = signal(SignalKind::child())?;
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stopping = false;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = child.recv() => {}
            Some(state) = desired.recv() => manager.set_desired(state, Instant::now()),
            _ = terminate.recv() => stopping = true,
            _ = interrupt.recv() => stopping = true,
        }
        if stopping && !stop_instances {
            tracing::info!("agent stopped; its instances keep running");
            return Ok(());
        }
        if stopping {
            manager.stop_all(Instant::now());
        }
        manager.tick(Instant::now());
        let report = manager.report();
        reports.send_if_modified(|last| {
            let modified = *last != report;
            *last = report;
            modified
        });
        if stopping && manager.is_empty() {
            tracing::info!("agent and its instances stopped");
            return Ok(());
        }
    }
}

/// Creates the state directory, and locks it against a second agent.
fn lock(folder: &Path) -> anyhow::Result<File> {
    let shown = folder.display();
    create_private_dir(folder)
        .with_context(|| format!("failed to create the state directory {shown}"))?;
    let file = File::create(folder.join("lock")).with_context(|| format!("{shown}/lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            bail!("another agent uses {shown}; stop it, or set another --state-dir")
        }
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("{shown}/lock")),
    }
}
