//! `berth config`: look at the configuration of a server without starting one.

use std::path::PathBuf;

use berth_server::config::{KEYS, Source};
use clap::{Args, Subcommand};

use super::options::Flags;

/// What to do with a configuration.
#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Name every setting that is not accepted; exit code 2 when there is one.
    ///
    /// Example: berth config check /etc/berth/berth.toml
    Check(Check),
    /// Print what is in force, and where each value comes from.
    ///
    /// Example: berth config show --config /etc/berth/berth.toml
    Show(Show),
}

/// What is checked.
#[derive(Args)]
pub(crate) struct Check {
    /// The file; without one, variables are checked alone.
    file: Option<PathBuf>,
    #[command(flatten)]
    flags: Flags,
}

/// What is shown.
#[derive(Args)]
pub(crate) struct Show {
    #[command(flatten)]
    flags: Flags,
}

impl ConfigCommand {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Check(check) => check.run(),
            Self::Show(show) => show.run(),
        }
    }
}

impl Check {
    fn run(self) -> anyhow::Result<()> {
        let loaded = self.flags.with_file(self.file).load()?;
        for warning in &loaded.warnings {
            eprintln!("warning: {warning}");
        }
        let set = loaded.values.iter().filter(|(_, source)| *source != Source::Default).count();
        println!("accepted: {set} of {} settings are set", KEYS.len());
        Ok(())
    }
}

impl Show {
    fn run(self) -> anyhow::Result<()> {
        let loaded = self.flags.load()?;
        for warning in &loaded.warnings {
            eprintln!("warning: {warning}");
        }
        let mut section = "";
        for (key, (value, source)) in KEYS.iter().zip(&loaded.values) {
            if key.section() != section {
                if !section.is_empty() {
                    println!();
                }
                section = key.section();
                println!("[{section}]");
            }
            // A URL may hold a password.
            let shown = format!("{} = {}", key.short(), hide(key.name, &value.to_string()));
            println!("{shown:<50} # {source}");
        }
        Ok(())
    }
}

fn hide(name: &str, value: &str) -> String {
    if name != "server.database_url" {
        return value.to_owned();
    }
    super::open::without_password(value)
}
