//! `berth agent`: runs on a host, and keeps there what the server says should be there.
//!
//! Three parts: `voice` speaks with the server, `keeper` compares and decides, and a driver starts
//! and stops. What an agent in another language has to do is in `docs/agents.md`.

mod driver;
mod exec;
mod facts;
mod keeper;
mod link;
mod moves;
mod notice;
mod procfs;
mod runs;
mod say;
mod voice;
mod volumes;

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use driver::Driver;
use exec::Exec;
use facts::{FactArgs, FactSource, Machine};
use keeper::{Habits, Keeper, Orders, Report, Restart};
use link::{Link, LinkArgs};
use moves::{Commands, Moves};
use runs::Runs;
use say::say;
use voice::{Parts, Voice};

/// How often processes are looked at.
const TICK: Duration = Duration::from_millis(250);

/// Run on a host: start and stop what is placed there.
///
/// Example: berth agent --node n1 --zone a --command 'exec my-vmm --name "$BERTH_NAME"'
#[derive(Args)]
pub(crate) struct Agent {
    #[command(flatten)]
    link: LinkArgs,
    #[command(flatten)]
    facts: FactArgs,
    /// Where the agent remembers what it started [default: berth-agent/NODE]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// What runs instances.
    #[arg(long, value_enum, default_value_t = DriverName::Exec)]
    driver: DriverName,
    /// With driver exec: what /bin/sh runs for each instance, told about it by BERTH_ variables.
    #[arg(long, value_name = "COMMAND")]
    command: String,
    /// How long an instance may take to stop before it is killed, such as 10s.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    stop_grace: Duration,
    /// What becomes of an instance that ends by itself.
    #[arg(long, value_enum, default_value_t = Restart::Never)]
    restart: Restart,
    /// A file that appears when this node is about to be taken away, as spot nodes are; it may hold
    /// the seconds that are left.
    #[arg(long, value_name = "FILE")]
    reclaim_file: Option<PathBuf>,
    /// What copies volumes to this node: run as COMMAND copy|sync VOLUME FROM TO; exit code 0 says
    /// that it is done.
    #[arg(long, value_name = "COMMAND")]
    volume_command: Option<String>,
    /// What moves a running instance to another host, told about it by BERTH_ variables; exit code 0
    /// says that it runs there and no longer here.
    #[arg(long, value_name = "COMMAND")]
    migrate_command: Option<String>,
    /// What receives an instance that is moved to this host: it waits for it and becomes it, or makes
    /// things ready and ends with exit code 0.
    #[arg(long, value_name = "COMMAND")]
    receive_command: Option<String>,
    /// What removes the rest of an instance that was moved away, or that was not moved here after all.
    #[arg(long, value_name = "COMMAND")]
    drop_command: Option<String>,
    /// Stop all instances when the agent is stopped; else they go on without it.
    #[arg(long)]
    stop_instances: bool,
}

/// The drivers there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DriverName {
    /// One process per instance.
    Exec,
}

/// A time such as `500ms`, `10s` or `2m`.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time; give a whole number with ms, s or m, such as 10s");
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let number: u32 = text[..digits].parse().map_err(|_| wrong())?;
    match &text[digits..] {
        "ms" => Ok(Duration::from_millis(u64::from(number))),
        "s" => Ok(Duration::from_secs(u64::from(number))),
        "m" => Ok(Duration::from_secs(u64::from(number) * 60)),
        _ => Err(wrong()),
    }
}

impl Agent {
    /// Runs until SIGTERM or SIGINT.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.serve())
    }

    async fn serve(self) -> anyhow::Result<()> {
        let default = || Path::new("berth-agent").join(&self.facts.node);
        let folder = self.state_dir.clone().unwrap_or_else(default);
        // Held as long as the agent lives.
        let _lock = lock(&folder)?;
        let driver: Box<dyn Driver> = match self.driver {
            DriverName::Exec => Box::new(Exec::new(&folder, &self.command)?),
        };
        let machine = Machine::find(&folder, driver.name(), driver.needs_kvm())?;
        let facts = FactSource::new(self.facts, machine)?;
        let link = Link::new(self.link)?;
        let habits = Habits { stop_grace: self.stop_grace, restart: self.restart };
        let commands = Commands {
            migrate: self.migrate_command,
            receive: self.receive_command,
            drop: self.drop_command,
        };
        let moves = Moves::new(Box::new(Runs::new(&folder)?), commands)?;
        let keeper = Keeper::new(driver, moves, habits, Instant::now())?;

        let (tell, reports) = watch::channel(keeper.report());
        let (give_orders, orders) = mpsc::channel(4);
        let quiet = CancellationToken::new();
        let (reclaim_file, volume_command) = (self.reclaim_file, self.volume_command);
        let orders_to = give_orders;
        let parts = Parts { link, facts, reports, orders: orders_to, reclaim_file, volume_command };
        let voice = Voice::new(parts);
        let speaking = tokio::spawn(voice.run(quiet.clone()));
        keep(keeper, orders, tell, self.stop_instances).await?;
        quiet.cancel();
        speaking.await.context("the conversation with the server broke off")
    }
}

/// Keeps the host in order until a signal comes.
async fn keep(
    mut keeper: Keeper,
    mut orders: mpsc::Receiver<Orders>,
    tell: watch::Sender<Report>,
    stop_instances: bool,
) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut child = signal(SignalKind::child())?;
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut leaving = false;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = child.recv() => {}
            Some(answer) = orders.recv() => keeper.take(answer, Instant::now()),
            _ = terminate.recv() => leaving = true,
            _ = interrupt.recv() => leaving = true,
        }
        if leaving && !stop_instances {
            say!("the agent stops; its instances go on");
            return Ok(());
        }
        if leaving {
            keeper.leave(Instant::now());
        }
        keeper.tick(Instant::now());
        let report = keeper.report();
        tell.send_if_modified(|last| {
            let modified = *last != report;
            *last = report;
            modified
        });
        if leaving && keeper.is_empty() {
            say!("the agent stops, and so did its instances");
            return Ok(());
        }
    }
}

/// Makes the folder, and keeps a second agent out of it.
fn lock(folder: &Path) -> anyhow::Result<File> {
    let shown = folder.display();
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("the state directory {shown} cannot be made"))?;
    let file = File::create(folder.join("lock")).with_context(|| format!("{shown}/lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            bail!("another agent uses {shown}; stop it, or give this one another --state-dir")
        }
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("{shown}/lock")),
    }
}
