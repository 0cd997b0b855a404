//! The one binary: `berth`. It parses arguments and prints; what it knows, it asks the crates.

mod bench;
mod demo;

use std::process::ExitCode;

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
    /// Measure Berth on this machine.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Place a batch on a simulated fleet, get one refused, and see why.
    Demo(demo::Demo),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Bench(bench) => bench.run(),
        Command::Demo(demo) => demo.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The chain of causes on one line; where in the code it happened is for developers.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
