//! The process that is killed: it writes to a ledger and prints every request and every answer.
//!
//! Prints one line a message and flushes it, so that what was printed was known when it died.

use std::io::Write;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, bail};
use berth_faults::{Load, Message, Size, decide_first, fill, set_up};
use berth_ledger::{Backend, Ledger, Options};

/// Clients of a load.
const THREADS: u32 = 6;

fn print(line: &str) {
    let mut out = std::io::stdout().lock();
    // A parent that is gone has killed us or will.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn send(message: &Message) {
    if let Ok(line) = serde_json::to_string(message) {
        print(&line);
    }
}

fn load(ledger: Ledger, seed: u64, round: u32, acknowledges_early: bool) -> anyhow::Result<()> {
    let nodes = set_up(&ledger)?;
    let load = Load { ledger, nodes, seed, round, threads: THREADS, acknowledges_early };
    load.run(&AtomicBool::new(false), &|message| send(&message));
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |place: usize| -> anyhow::Result<&str> {
        arguments.get(place).map(String::as_str).context("an argument is missing")
    };
    let mode = argument(0)?;
    let backend = Backend::parse(argument(1)?)?;
    let open = || Ledger::open(backend.clone(), Options::default());
    match mode {
        "load" => load(open()?, argument(2)?.parse()?, argument(3)?.parse()?, false),
        "load-early" => load(open()?, argument(2)?.parse()?, argument(3)?.parse()?, true),
        "fill" => {
            let ledger = open()?;
            fill(&ledger, Size { nodes: argument(2)?.parse()?, claims: argument(3)?.parse()? })?;
            print("filled");
            load(ledger, 5, 5, false)
        }
        "decide" => {
            let first = decide_first(backend)?;
            let (started, decided) = (first.started.as_millis(), first.decided.as_millis());
            print(&format!("{started} {decided}"));
            Ok(())
        }
        other => bail!("{other:?} is no mode: load, load-early, fill or decide"),
    }
}
