//! `berth completions` and `berth man`: shell completions and manual pages, generated from the
//! commands.

use std::io::Write as _;
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;
use clap_complete::env::Shells;

use super::completion;
use crate::cmdutil::{CmdResult, Failure, Output};

/// Print shell completions, which ask the server for names of nodes, instances, tenants and more.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  source <(berth completions bash)\n  berth completions zsh > ~/.zfunc/_berth\n  berth completions fish > ~/.config/fish/completions/berth.fish"
)]
pub(crate) struct Completions {
    /// Shell.
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> CmdResult {
        let mut text = Vec::new();
        let name = self.shell.to_string();
        let shells = Shells::builtins();
        let Some(shell) = shells.completer(&name) else {
            return Err(Failure::usage(format!("there are no completions for {name}")));
        };
        shell.write_registration(completion::VARIABLE, "berth", "berth", "berth", &mut text)?;
        std::io::stdout().write_all(&text)?;
        Ok(())
    }
}

/// Print the manual page, or write a page for every command.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  berth man | man -l -\n  berth man --out /usr/local/share/man/man1"
)]
pub(crate) struct Man {
    /// Directory to write the pages to, one for each command.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Man {
    pub(crate) fn run(self, command: Command, out: &Output) -> CmdResult {
        match self.out {
            Some(folder) => {
                std::fs::create_dir_all(&folder)?;
                clap_mangen::generate_to(command, &folder)?;
                let pages = std::fs::read_dir(&folder)?.count();
                out.note(format!("{pages} pages in {}", folder.display()));
                Ok(())
            }
            None => {
                let mut text = Vec::new();
                clap_mangen::Man::new(command).render(&mut text)?;
                std::io::stdout().write_all(&text)?;
                Ok(())
            }
        }
    }
}
