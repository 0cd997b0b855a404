//! `berth completions` and `berth man`: what shells and readers of manuals get, made from the
//! commands themselves.

use std::io::Write as _;
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use super::failure::Done;
use super::output::Output;

/// Print completions for a shell.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  source <(berth completions bash)\n  berth completions zsh > ~/.zfunc/_berth\n  berth completions fish > ~/.config/fish/completions/berth.fish"
)]
pub(crate) struct Completions {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self, mut command: Command) -> Done {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut command, "berth", &mut text);
        std::io::stdout().write_all(&text)?;
        Ok(())
    }
}

/// Print the manual, or write a page for every command.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  berth man | man -l -\n  berth man --out /usr/local/share/man/man1"
)]
pub(crate) struct Man {
    /// The folder to write pages to, one for each command.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

impl Man {
    pub(crate) fn run(self, command: Command, out: &Output) -> Done {
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
