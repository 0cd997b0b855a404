//! The one binary: `berth`. It parses arguments and prints; what it knows, it asks the crates.

mod agent;
mod bench;
mod cli;
mod cmdutil;
mod kube;
mod simulate;
mod transfer;
mod up;

use std::process::ExitCode;

/// A claim is made on one thread and freed on another, which the system's allocator is slow at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand};

/// The placement engine for fleets of virtual machines: which node?
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    global: cmdutil::Global,
    #[command(subcommand)]
    command: Command,
}

const FIRST_STEPS: &str = "\
First steps:
  berth up --demo                            a server with a simulated fleet
  berth nodes list --limit 10                what there is
  berth place --cpu 2 --memory 4GiB --owner acme --explain
  berth top                                  the fleet, live

Which server: --url and --token, else BERTH_URL and BERTH_TOKEN, else the file that BERTH_CONFIG
names, else berth/client.toml in the folder for settings, else http://127.0.0.1:7070.

";

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Client(cli::Client),
    Agent(Box<agent::Agent>),
    /// Measure Berth on this machine.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Make certificates, for a server that runs with --tls self.
    ///
    /// Example: berth certificate agent --node n1 --data-dir berth-data
    #[command(subcommand)]
    Certificate(up::Certificate),
    /// Look at the configuration of a server.
    ///
    /// Example: berth config check berth.toml
    #[command(subcommand)]
    Config(up::ConfigCommand),
    /// Write a whole ledger to a file, for a backup or to move it to another database.
    ///
    /// Example: berth export --database-url berth.db --out ledger.jsonl
    Export(transfer::Export),
    /// Read an export into an empty ledger: all of it, or nothing.
    ///
    /// Example: berth import --database-url postgres://berth@localhost/berth ledger.jsonl
    Import(transfer::Import),
    /// Run Berth in Kubernetes: a scheduler, or an admission webhook for on-demand and spot nodes.
    ///
    /// Example: berth kube scheduler
    #[command(subcommand)]
    Kube(kube::Kube),
    /// Play a day in memory, to judge a rule before a fleet depends on it.
    ///
    /// Example: berth simulate elastic --nodes 100 --instances 2000
    #[command(subcommand)]
    Simulate(simulate::Simulate),
    /// Run a server.
    ///
    /// Example: berth up --demo
    Up(up::Up),
    /// Walk the chain of receipts and find any altered or missing decision.
    ///
    /// Example: berth verify --database-url berth.db
    Verify(transfer::Verify),
}

/// Commands that ask no server, or have ways of their own to say which: they show none of the
/// options that do.
const LOCAL: [&str; 10] = [
    "agent",
    "bench",
    "certificate",
    "config",
    "export",
    "import",
    "kube",
    "simulate",
    "up",
    "verify",
];

/// The whole command line. Options that say which server are hidden where none is asked.
fn command() -> clap::Command {
    let mut command = Cli::command().after_help(format!("{FIRST_STEPS}{}", cmdutil::EXIT_CODES));
    let global: Vec<Arg> =
        command.get_arguments().filter(|arg| arg.is_global_set()).cloned().collect();
    for name in LOCAL {
        command = command.mut_subcommand(name, |local| {
            // Its own options go first; one of the same letter keeps it.
            let free = |arg: &&Arg| local.get_arguments().all(|own| own.get_id() != arg.get_id());
            let hidden: Vec<Arg> =
                global.iter().filter(free).map(|arg| arg.clone().hide(true).short(None)).collect();
            local.args(hidden)
        });
    }
    command
}

/// Whoever reads our output may stop early, as `head` does. That is no defect of ours to report.
fn leave_quietly_when_nobody_reads() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let message = panic.payload_as_str().unwrap_or_default();
        if message.starts_with("failed printing to stdout") {
            std::process::exit(0);
        }
        report(panic);
    }));
}

fn main() -> ExitCode {
    leave_quietly_when_nobody_reads();
    let matches = command().get_matches();
    let Cli { global, command: asked } = match Cli::from_arg_matches(&matches) {
        Ok(asked) => asked,
        Err(error) => error.exit(),
    };
    let outcome = match asked {
        Command::Client(client) => return client.run(&global, command()),
        Command::Agent(agent) => agent.run(),
        Command::Bench(bench) => bench.run(),
        Command::Certificate(certificate) => certificate.run(),
        Command::Config(config) => config.run(),
        Command::Export(export) => export.run(),
        Command::Import(import) => import.run(),
        Command::Kube(kube) => return kube.run(&global),
        Command::Simulate(simulate) => simulate.run(),
        Command::Up(up) => up.run(),
        Command::Verify(verify) => verify.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The chain of causes on one line; where in the code it happened is for developers.
            eprintln!("error: {error:#}");
            let is_usage = error.is::<up::BadConfig>();
            if is_usage { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_sound() {
        super::command().debug_assert();
    }
}
