//! `berth config`: check and show the configuration of a server without starting it.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use berth_control::Settings;
use berth_engine::Policy;
use berth_engine::policy::FilterSettings;
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
        let config = &loaded.config;
        let policy = config.policy_file.as_deref().map(read_policy).transpose()?;
        println!("{}", explain_heartbeats(&config.settings, policy.as_ref()));
        Ok(())
    }
}

fn read_policy(path: &Path) -> anyhow::Result<Policy> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("policy.file {} cannot be read", path.display()))?;
    Policy::from_toml(&text).with_context(|| format!("policy.file {}", path.display()))
}

/// How the settings about silent nodes relate: those of the server, and the policy's.
fn explain_heartbeats(settings: &Settings, policy: Option<&Policy>) -> String {
    let (every, lost) = (settings.heartbeat_every.as_secs(), settings.lost_after.as_secs());
    let said = format!(
        "heartbeats: agents send one every {every} s (nodes.heartbeat_every); a node without one for \
         {lost} s is lost and takes nothing new (nodes.lost_after)"
    );
    let grace = policy.map(|policy| u64::from(policy.filters().heartbeat_grace_s));
    let policy = match grace {
        None => format!(
            "the policy in force has a limit of its own, filters.heartbeat_grace_s ({} s unless it \
             says otherwise); keep it at least as long as nodes.lost_after",
            FilterSettings::default().heartbeat_grace_s
        ),
        Some(grace) if grace < lost => format!(
            "warning: filters.heartbeat_grace_s of the policy is {grace} s, so it keeps instances off \
             nodes before they are marked as lost, and such decisions may replay differently; set it \
             to {lost} or more"
        ),
        Some(grace) => format!(
            "filters.heartbeat_grace_s of the policy is {grace} s, so nodes are marked as lost before \
             it excludes them"
        ),
    };
    format!("{said};\n  {policy}")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_limits_on_silence_are_compared() {
        let settings = Settings::default();
        let grace = |seconds: u32| {
            let text = format!("name = 'p'\n[filters]\nheartbeat_grace_s = {seconds}");
            Policy::from_toml(&text).unwrap()
        };
        let cases = [
            (None, "filters.heartbeat_grace_s (90 s unless it says otherwise)"),
            (Some(grace(60)), "warning: filters.heartbeat_grace_s of the policy is 60 s"),
            (Some(grace(90)), "of the policy is 90 s, so nodes are marked as lost"),
        ];
        for (policy, expected) in cases {
            let said = explain_heartbeats(&settings, policy.as_ref());
            assert!(said.starts_with("heartbeats: agents send one every 10 s"), "{said}");
            assert!(said.contains(expected), "{said}");
        }
    }
}
