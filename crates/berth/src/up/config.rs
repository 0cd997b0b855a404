//! `berth config`: check and show the configuration of a server without starting it.

use std::path::PathBuf;

use berth_server::config::{KEYS, Source};
use clap::{Args, Subcommand};

use super::options::Flags;

/// The verbs of `berth config`.
#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check the configuration, and print every invalid setting; exit code 2 if there is one.
    ///
    /// Example: berth config check /etc/berth/berth.toml
    Check(CheckArgs),
    /// Show the effective settings, and the source of each value.
    ///
    /// Example: berth config show --config /etc/berth/berth.toml
    Show(ShowArgs),
}

#[derive(Args)]
pub(crate) struct CheckArgs {
    /// Configuration file; only variables are checked without one.
    file: Option<PathBuf>,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Args)]
pub(crate) struct ShowArgs {
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

impl CheckArgs {
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

impl ShowArgs {
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
