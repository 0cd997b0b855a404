//! `berth debug`: the inside of a server, as a document, and whether all of it agrees.

use std::path::{Path, PathBuf};

use berth_control::debug::{Checked, Dump, check};
use clap::{Args, Subcommand};

use super::failure::{Done, Exit, Failure};
use super::output::Output;
use super::output::style::{BAD, GOOD, WARN, paint};
use super::place::file;
use super::session::{Global, Raw, Session};
use super::words::many;

/// Look inside a server: for whoever looks for a fault in Berth itself.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "Examples:\n  berth debug dump --out dump.json\n  berth debug check dump.json\n  berth debug check --live"
)]
pub(crate) enum Debug {
    /// Write everything inside a server to a file: counters, claims, permits, migrations, and what
    /// its copies in memory say. No tokens and no keys.
    #[command(
        after_help = "Examples:\n  berth debug dump --out dump.json\n  berth debug dump | gzip > dump.json.gz"
    )]
    Dump(Write),
    /// Check a dump: every counter is the sum of its claims, in the ledger and in every copy.
    ///
    /// Prints each rule that does not hold with both numbers, and fails with exit code 1 if there
    /// is one.
    #[command(after_help = "Examples:\n  berth debug check dump.json\n  berth debug check --live")]
    Check(Which),
}

/// Where to.
#[derive(Args, Debug)]
pub(crate) struct Write {
    /// The file to write; `-` writes to standard output.
    #[arg(long, value_name = "FILE", default_value = "-")]
    out: PathBuf,
}

/// What is checked.
#[derive(Args, Debug)]
#[group(skip)]
pub(crate) struct Which {
    /// A file that `berth debug dump` wrote; `-` reads standard input.
    #[arg(required_unless_present = "live", conflicts_with = "live")]
    file: Option<PathBuf>,
    /// The server as it is now.
    #[arg(long)]
    live: bool,
}

impl Debug {
    pub(crate) async fn run(self, global: &Global) -> Done {
        let out = global.out();
        match self {
            Self::Dump(Write { out: to }) => {
                let raw = taken(&global.session()?).await?;
                write(&out, &to, &raw)
            }
            Self::Check(Which { file: Some(path), .. }) => {
                let text = file::text(&path)?;
                verdict(&out, &text, &path.display().to_string())
            }
            Self::Check(Which { file: None, .. }) => {
                let raw = taken(&global.session()?).await?;
                verdict(&out, raw.get(), "what the server says")
            }
        }
    }
}

async fn taken(session: &Session) -> Done<Raw> {
    session.get("/v1/debug/state", &[]).await
}

fn write(out: &Output, to: &Path, raw: &Raw) -> Done {
    if to.as_os_str() == "-" {
        out.line(raw.get());
        return Ok(());
    }
    std::fs::write(to, raw.get())
        .map_err(|error| Failure::usage(format!("{} cannot be written: {error}", to.display())))?;
    out.note(format!("wrote {}; check it with: berth debug check {0}", to.display()));
    Ok(())
}

fn verdict(out: &Output, text: &str, whence: &str) -> Done {
    let dump =
        Dump::read(text).map_err(|error| Failure::usage(error.to_string()).within(whence))?;
    let checked = check(&dump);
    if out.is_data() {
        out.data(&checked)?;
    } else {
        print(out, &checked);
    }
    match checked.violations.len() {
        0 => Ok(()),
        count => Err(Failure::new(Exit::Failed, format!("{} broken", many(count, "rule")))
            .remedy("keep the dump, and report it: this is a fault of Berth or of its database")),
    }
}

fn print(out: &Output, checked: &Checked) {
    for violation in &checked.violations {
        out.line(format!("{} {violation}", paint(BAD, "broken")));
    }
    for note in &checked.notes {
        out.line(format!("{} {note}", paint(WARN, "note")));
    }
    let looked = format!("{}, {}", many(checked.nodes, "node"), many(checked.claims, "claim"));
    if checked.violations.is_empty() {
        out.line(format!("{}: {looked}, and every rule holds", paint(GOOD, "sound")));
    } else {
        out.line(format!("{looked}; {} broken", many(checked.violations.len(), "rule")));
    }
    if checked.unsteady > 0 {
        let nodes = many(checked.unsteady, "node");
        out.note(format!("{nodes} changed meanwhile; their copies in memory were not compared"));
    }
}
