//! `berth debug`: a dump of a server's state, and a check of its consistency.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use berth_control::debug::{CheckReport, Dump, check};
use clap::{ArgGroup, Args, Subcommand};

use crate::cmdutil::style::{BAD, GOOD, WARN, paint};
use crate::cmdutil::{
    CmdResult, Exit, Failure, Global, Output, RawJson, Session, create_private_file, file, plural,
};

/// Dump and check the state of a server, to find defects of Berth itself.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "Examples:\n  berth debug dump --out dump.json\n  berth debug check dump.json\n  berth debug check --live"
)]
pub(crate) enum Debug {
    /// Dump the state of a server to a file: counters, claims, permits, migrations, and its copies in
    /// memory. It contains no tokens and no keys.
    #[command(
        after_help = "Examples:\n  berth debug dump --out dump.json\n  berth debug dump | gzip > dump.json.gz"
    )]
    Dump(DumpArgs),
    /// Check a dump: every counter is the sum of its claims, in the ledger and in every copy.
    ///
    /// Prints each violated invariant with both numbers, and fails with exit code 1 if there is one.
    #[command(after_help = "Examples:\n  berth debug check dump.json\n  berth debug check --live")]
    Check(CheckArgs),
}

#[derive(Args, Debug)]
pub(crate) struct DumpArgs {
    /// File to write; `-` writes to standard output.
    #[arg(long, value_name = "FILE", default_value = "-")]
    out: PathBuf,
}

#[derive(Args, Debug)]
#[group(skip)]
#[command(group = ArgGroup::new("what").required(true).args(["file", "live"]))]
pub(crate) struct CheckArgs {
    /// File that `berth debug dump` wrote; `-` reads standard input.
    file: Option<PathBuf>,
    /// Check the running server.
    #[arg(long)]
    live: bool,
}

impl Debug {
    pub(crate) async fn run(self, global: &Global) -> CmdResult {
        let out = global.out();
        match self {
            Self::Dump(DumpArgs { out: to }) => {
                let raw = get_state(&global.session()?).await?;
                write(&out, &to, &raw)
            }
            Self::Check(CheckArgs { file: Some(path), .. }) => {
                let text = file::text(&path)?;
                check_dump(&out, &text, &path.display().to_string())
            }
            Self::Check(CheckArgs { file: None, .. }) => {
                let raw = get_state(&global.session()?).await?;
                check_dump(&out, raw.get(), "response of the server")
            }
        }
    }
}

async fn get_state(session: &Session) -> CmdResult<RawJson> {
    session.get("/v1/debug/state", &[]).await
}

fn write(out: &Output, to: &Path, raw: &RawJson) -> CmdResult {
    if to.as_os_str() == "-" {
        out.line(raw.get());
        return Ok(());
    }
    create_private_file(to)
        .and_then(|mut file| file.write_all(raw.get().as_bytes()))
        .map_err(|error| Failure::usage(format!("cannot write {}: {error}", to.display())))?;
    out.note(format!("wrote {}; check it with: berth debug check {0}", to.display()));
    Ok(())
}

fn check_dump(out: &Output, text: &str, source: &str) -> CmdResult {
    let dump =
        Dump::read(text).map_err(|error| Failure::usage(error.to_string()).within(source))?;
    let checked = check(&dump);
    if out.is_data() {
        out.data(&checked)?;
    } else {
        print(out, &checked);
    }
    match checked.violations.len() {
        0 => Ok(()),
        count => {
            Err(Failure::new(Exit::Failed, format!("{} violated", plural(count, "invariant")))
                .remedy(
                    "keep the dump and report it: this is a defect of Berth or of its database",
                ))
        }
    }
}

fn print(out: &Output, checked: &CheckReport) {
    for violation in &checked.violations {
        out.line(format!("{} {violation}", paint(BAD, "violated")));
    }
    for note in &checked.notes {
        out.line(format!("{} {note}", paint(WARN, "note")));
    }
    let scope = format!("{}, {}", plural(checked.nodes, "node"), plural(checked.claims, "claim"));
    if checked.violations.is_empty() {
        out.line(format!("{}: {scope}; all invariants hold", paint(GOOD, "consistent")));
    } else {
        out.line(format!("{scope}; {} violated", plural(checked.violations.len(), "invariant")));
    }
    if checked.unsteady > 0 {
        let nodes = plural(checked.unsteady, "node");
        out.note(format!(
            "{nodes} changed in the meantime; their copies in memory were not compared"
        ));
    }
}
