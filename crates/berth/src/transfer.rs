//! `berth export`, `berth import` and `berth verify`: a ledger as a file, and its integrity.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use berth_ledger::{Backend, Ledger, Options, Transfer};
use clap::Args;

use crate::cmdutil::{args, create_private_file};

/// Options of `berth export`.
#[derive(Args)]
pub(crate) struct Export {
    /// Database of the ledger: a SQLite file, or postgres://USER@HOST/NAME.
    #[arg(long)]
    database_url: String,
    /// File to write, readable only by you; `-` writes to standard output.
    #[arg(long, default_value = "-")]
    out: PathBuf,
    /// What --out was called before.
    #[arg(short = 'o', value_name = "FILE", hide = true, value_parser = refuse_short_out)]
    short_out: Option<String>,
}

/// Refuses `-o`, which is the format of results everywhere else.
fn refuse_short_out(file: &str) -> Result<String, String> {
    Err(format!("-o is the format of results; use --out {}", args::shell_quote(file)))
}

/// Options of `berth import`.
#[derive(Args)]
pub(crate) struct Import {
    /// Database of an empty ledger: a SQLite file, or postgres://USER@HOST/NAME.
    #[arg(long)]
    database_url: String,
    /// File of an export; `-` reads standard input.
    file: PathBuf,
}

/// Options of `berth verify`.
#[derive(Args)]
pub(crate) struct Verify {
    /// Database of the ledger: a SQLite file, or postgres://USER@HOST/NAME.
    #[arg(long)]
    database_url: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

fn open(url: &str, must_exist: bool) -> anyhow::Result<Ledger> {
    let backend = Backend::parse(url)?;
    if let Backend::Sqlite(path) = &backend
        && must_exist
        && !path.exists()
    {
        bail!("{} does not exist; accepted is the file of a ledger", path.display());
    }
    let options = Options { writers: 1, ..Options::default() };
    Ledger::open(backend, options).with_context(|| format!("opening the ledger {url}"))
}

fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

impl Export {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let ledger = open(&self.database_url, true)?;
        let name = self.out.display();
        let out: Box<dyn Write> = if is_standard(&self.out) {
            Box::new(std::io::stdout().lock())
        } else {
            // It has hashes of tokens, and keys.
            Box::new(create_private_file(&self.out).with_context(|| format!("creating {name}"))?)
        };
        let transfer = ledger.export(&mut BufWriter::new(out))?;
        eprintln!("{}", summary("exported", &transfer));
        Ok(())
    }
}

impl Import {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let input: Box<dyn Read> = if is_standard(&self.file) {
            Box::new(std::io::stdin().lock())
        } else {
            let name = self.file.display();
            Box::new(File::open(&self.file).with_context(|| format!("opening {name}"))?)
        };
        let ledger = open(&self.database_url, false)?;
        let transfer = ledger.import(&mut BufReader::new(input))?;
        let drifts = ledger.reconcile()?;
        if !drifts.is_empty() {
            bail!("the imported counters were not the sum of the claims: {drifts:?}");
        }
        eprintln!("{}", summary("imported", &transfer));
        Ok(())
    }
}

fn summary(done: &str, transfer: &Transfer) -> String {
    let claims = transfer.tables.get("claim").copied().unwrap_or(0);
    let nodes = transfer.tables.get("node").copied().unwrap_or(0);
    format!(
        "{done} {} rows: {nodes} nodes, {claims} claims; checksum {}",
        transfer.rows, transfer.checksum
    )
}

impl Verify {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let found = open(&self.database_url, true)?.verify()?;
        if self.json {
            println!("{}", serde_json::to_string(&found)?);
        } else {
            for fault in &found.faults {
                println!("{fault}");
            }
            println!(
                "{} chains, {} receipts, {} decisions",
                found.chains, found.receipts, found.decisions
            );
        }
        match found.faults.len() {
            0 => Ok(()),
            1 => bail!("1 fault: a record was altered or lost"),
            many => bail!("{many} faults: records were altered or lost"),
        }
    }
}
