//! Errors of a private server, each with its remedy.
//!
//! Never hides what PostgreSQL itself said: each failure carries the program's own words.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// PostgreSQL is not installed, or not where anybody would look.
    #[error(
        "no PostgreSQL server programs in {}; \
         install PostgreSQL (for example: apt-get install postgresql) or put initdb and postgres \
         on PATH",
        list(.looked_in)
    )]
    BinariesMissing {
        /// Every folder that was tried.
        looked_in: Vec<PathBuf>,
    },
    /// PostgreSQL refuses to run as root, and there is no account to run it as.
    #[error(
        "running as root, and there is no user `postgres` to run the server as; \
         install PostgreSQL from the system's packages, or run as another user"
    )]
    NoAccount(#[source] CommandError),
    /// The server's folder could not be made or handed over.
    #[error("cannot prepare a folder in {}", .path.display())]
    Directory {
        /// The folder in which it was to be made.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A program on the way to the server failed.
    #[error("cannot set the server up")]
    Command(#[from] CommandError),
    /// Every port that was tried was in use.
    #[error("no free port after {tries} tries; the server's log ends with:\n{log_tail}")]
    PortsTaken {
        /// How many ports were tried.
        tries: u32,
        /// The end of the server's log.
        log_tail: String,
    },
    /// The server ended before it answered.
    #[error("the server ended ({status}) before it answered; its log ends with:\n{log_tail}")]
    Exited {
        /// How it ended.
        status: ExitStatus,
        /// The end of the server's log.
        log_tail: String,
    },
    /// The server runs but does not answer.
    #[error("no answer from the server after {waited_s} s; its log ends with:\n{log_tail}")]
    NotReady {
        /// How long was waited, in seconds.
        waited_s: u64,
        /// The end of the server's log.
        log_tail: String,
    },
}

/// Why a program that was run next to the server did not do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// It could not be run at all.
    #[error("cannot run {program}")]
    Run {
        /// The program.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// It ran and failed.
    #[error("{program} failed ({status}): {output}")]
    Failed {
        /// The program.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// What it wrote to its error output.
        output: String,
    },
    /// A database name that would need quoting in an address.
    #[error("database name {name:?} is not made of a-z, 0-9 and _ alone")]
    Name {
        /// The name.
        name: String,
    },
    /// The server did not stop.
    #[error("the server did not stop within {waited_s} s")]
    StillRuns {
        /// How long was waited, in seconds.
        waited_s: u64,
    },
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(", ")
}
