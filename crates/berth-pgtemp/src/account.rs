//! As whom the server runs. PostgreSQL refuses root, so root lends it the account `postgres`.
//!
//! Never changes an account or a right of the system: it only starts programs under another one.

use std::path::Path;
use std::process::Command;

use crate::error::{CommandError, StartError};
use crate::programs;

/// The account that the system's packages make for the server.
const SERVER_ACCOUNT: &str = "postgres";

/// The account that runs the server's programs.
#[derive(Debug)]
pub(crate) struct Account {
    /// User and group that own the folders; none when the current account is used.
    lent: Option<(u32, u32)>,
    has_setpriv: bool,
}

impl Account {
    /// Ourselves, or `postgres` when we are root.
    pub(crate) fn find() -> Result<Self, StartError> {
        let has_setpriv = programs::run(Command::new("setpriv").arg("--version")).is_ok();
        let is_root = number(Command::new("id").arg("-u"))? == 0;
        let lent = if is_root {
            let user = number(Command::new("id").args(["-u", SERVER_ACCOUNT]));
            let group = number(Command::new("id").args(["-g", SERVER_ACCOUNT]));
            Some((user.map_err(StartError::NoAccount)?, group.map_err(StartError::NoAccount)?))
        } else {
            None
        };
        Ok(Self { lent, has_setpriv })
    }

    /// Makes a folder the account's own.
    pub(crate) fn hand_over(&self, folder: &Path) -> std::io::Result<()> {
        match self.lent {
            Some((user, group)) => std::os::unix::fs::chown(folder, Some(user), Some(group)),
            None => Ok(()),
        }
    }

    /// A command that runs a program under the account.
    pub(crate) fn command(&self, program: &Path) -> Command {
        self.wrapped(program, &[])
    }

    /// The same for a program that must not outlive us: the kernel kills it when the thread that
    /// started it ends, however it ends. Without `setpriv` it is not tied to us.
    pub(crate) fn command_that_dies_with_us(&self, program: &Path) -> Command {
        self.wrapped(program, &["--pdeathsig", "KILL"])
    }

    fn wrapped(&self, program: &Path, ties: &[&str]) -> Command {
        let mut command = match (self.lent.is_some(), self.has_setpriv) {
            (true, true) => {
                let mut command = Command::new("setpriv");
                command.arg(format!("--reuid={SERVER_ACCOUNT}"));
                command.arg(format!("--regid={SERVER_ACCOUNT}"));
                command.arg("--clear-groups").args(ties).arg("--");
                command
            }
            (true, false) => {
                let mut command = Command::new("runuser");
                command.args(["-u", SERVER_ACCOUNT, "--"]);
                command
            }
            (false, true) if !ties.is_empty() => {
                let mut command = Command::new("setpriv");
                command.args(ties).arg("--");
                command
            }
            (false, _) => return Command::new(program),
        };
        command.arg(program);
        command
    }
}

fn number(command: &mut Command) -> Result<u32, CommandError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let printed = programs::run(command)?;
    printed.trim().parse().map_err(|_| CommandError::Run {
        program,
        source: std::io::Error::other(format!("printed {printed:?} instead of a number")),
    })
}
