//! The one binary, `berth`: it parses arguments and runs commands.

mod agent;
mod bench;
mod cli;
mod cmdutil;
mod kube;
mod simulate;
mod transfer;
mod up;

use std::process::ExitCode;

/// A claim is allocated on one thread and freed on another, which is slow with the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand};

/// Place virtual machines on the nodes of a fleet.
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
  berth up --demo                            start a server with a simulated fleet
  berth nodes list --limit 10                list nodes
  berth place --cpu 2 --memory 4GiB --tenant acme --explain
  berth top                                  show the fleet, live

Server: --url and --token, otherwise BERTH_URL and BERTH_TOKEN, otherwise the file that BERTH_CONFIG
names, otherwise berth/client.toml in the configuration directory, otherwise http://127.0.0.1:7070.

";

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Client(cli::Client),
    Agent(Box<agent::Agent>),
    /// Measure Berth on this machine.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Create certificates for a server that runs with --tls self.
    ///
    /// Example: berth certificate agent --node n1 --data-dir berth-data
    #[command(subcommand)]
    Certificate(up::Certificate),
    /// Check and show the configuration of a server.
    ///
    /// Example: berth config check berth.toml
    #[command(subcommand)]
    Config(up::ConfigCommand),
    /// Export a ledger to a file, for a backup or to move it to another database.
    ///
    /// Example: berth export --database-url berth.db --out ledger.jsonl
    Export(transfer::Export),
    /// Import an export into an empty ledger: all of it, or nothing.
    ///
    /// Example: berth import --database-url postgres://berth@localhost/berth ledger.jsonl
    Import(transfer::Import),
    /// Run Berth in Kubernetes: a scheduler, or an admission webhook for on-demand and spot nodes.
    ///
    /// Example: berth kube scheduler
    #[command(subcommand)]
    Kube(kube::Kube),
    /// Simulate a day in memory, to evaluate a rule before a fleet depends on it.
    ///
    /// Example: berth simulate elastic --nodes 100 --instances 2000
    #[command(subcommand)]
    Simulate(simulate::Simulate),
    Tune(simulate::Tune),
    /// Run a server.
    ///
    /// Example: berth up --demo
    Up(up::Up),
    /// Verify the chain of receipts, and find altered or missing decisions.
    ///
    /// Example: berth verify --database-url berth.db
    Verify(transfer::Verify),
}

/// Commands that use no server, or have their own options for it: the global options are hidden.
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

/// The whole command line.
fn command() -> clap::Command {
    let mut command = Cli::command().after_help(format!("{FIRST_STEPS}{}", cmdutil::EXIT_CODES));
    let global: Vec<Arg> =
        command.get_arguments().filter(|arg| arg.is_global_set()).cloned().collect();
    for name in LOCAL {
        command = command.mut_subcommand(name, |local| {
            // The command's own options take precedence.
            let free = |arg: &&Arg| local.get_arguments().all(|own| own.get_id() != arg.get_id());
            let hidden: Vec<Arg> =
                global.iter().filter(free).map(|arg| arg.clone().hide(true).short(None)).collect();
            local.args(hidden)
        });
    }
    command
}

/// Exits quietly when the reader of the output stops early, as `head` does.
fn exit_quietly_on_broken_pipe() {
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
    exit_quietly_on_broken_pipe();
    if cli::answer_shell(command) {
        return ExitCode::SUCCESS;
    }
    let matches = command().get_matches();
    let Cli { global, command: parsed } = match Cli::from_arg_matches(&matches) {
        Ok(parsed) => parsed,
        Err(error) => error.exit(),
    };
    let outcome = match parsed {
        Command::Client(client) => return client.run(&global, command()),
        Command::Agent(agent) => agent.run(),
        Command::Bench(bench) => bench.run(),
        Command::Certificate(certificate) => certificate.run(),
        Command::Config(config) => config.run(),
        Command::Export(export) => export.run(),
        Command::Import(import) => import.run(),
        Command::Kube(kube) => return kube.run(&global),
        Command::Simulate(simulate) => simulate.run(),
        Command::Tune(tune) => tune.run(),
        Command::Up(up) => up.run(),
        Command::Verify(verify) => verify.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The chain of causes on one line.
            eprintln!("error: {error:#}");
            let is_usage = error.is::<up::BadConfig>();
            if is_usage { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_valid() {
        super::command().debug_assert();
    }
}
