//! The one binary: `berth`. It parses arguments and prints; what it knows, it asks the crates.

mod agent;
mod bench;
mod demo;
mod transfer;
mod up;

use std::process::ExitCode;

/// A claim is made on one thread and freed on another, which the system's allocator is slow at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use clap::{Parser, Subcommand};

/// The placement engine for fleets of virtual machines.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Agent(Box<agent::Agent>),
    /// Measure Berth on this machine.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Make certificates, for a server that runs with --tls self.
    #[command(subcommand)]
    Certificate(up::Certificate),
    /// Look at the configuration of a server.
    #[command(subcommand)]
    Config(up::ConfigCommand),
    /// Place a batch on a simulated fleet, get one refused, and see why.
    Demo(demo::Demo),
    /// Write a whole ledger to a file, for a backup or to move it to another database.
    ///
    /// Example: berth export --database-url berth.db --out ledger.jsonl
    Export(transfer::Export),
    /// Read an export into an empty ledger: all of it, or nothing.
    ///
    /// Example: berth import --database-url postgres://berth@localhost/berth ledger.jsonl
    Import(transfer::Import),
    /// Run a server.
    ///
    /// Example: berth up --demo
    Up(up::Up),
    /// Walk the chain of receipts and find any altered or missing decision.
    ///
    /// Example: berth verify --database-url berth.db
    Verify(transfer::Verify),
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
    let outcome = match Cli::parse().command {
        Command::Agent(agent) => agent.run(),
        Command::Bench(bench) => bench.run(),
        Command::Certificate(certificate) => certificate.run(),
        Command::Config(config) => config.run(),
        Command::Demo(demo) => demo.run(),
        Command::Export(export) => export.run(),
        Command::Import(import) => import.run(),
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
