//! `berth certificate`: certificates from a server's own authority.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use berth_server::serve::Authority;
use clap::{Args, Subcommand};

use super::options::{default_data_dir, variable};
use crate::cmdutil::write_private_file;

/// The kinds of certificates.
#[derive(Subcommand)]
pub(crate) enum Certificate {
    /// Create a certificate with which an agent authenticates for its node.
    ///
    /// Example: berth certificate agent --node node-1 --out node-1.pem
    Agent(AgentArgs),
}

#[derive(Args)]
pub(crate) struct AgentArgs {
    /// Name of the node.
    #[arg(long)]
    node: String,
    /// Validity in days.
    #[arg(long, default_value_t = 365)]
    days: i64,
    /// Data directory of the server that runs with --tls self.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// File to write, with certificate and key; standard output by default.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Certificate {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let Self::Agent(agent) = self;
        agent.run()
    }
}

impl AgentArgs {
    fn run(self) -> anyhow::Result<()> {
        let data_dir = match self.data_dir.or_else(|| variable("BERTH_DATA_DIR")) {
            Some(folder) => folder,
            None => default_data_dir()?,
        };
        let authority = Authority::existing(&data_dir)?;
        let pem = authority.agent(&self.node, self.days, jiff::Timestamp::now())?;
        let Some(out) = self.out else {
            std::io::stdout().write_all(pem.as_bytes())?;
            return Ok(());
        };
        write_private_file(&out, &pem)
            .with_context(|| format!("failed to write {}", out.display()))?;
        println!(
            "{} is valid for the agent of {} for {} days",
            out.display(),
            self.node,
            self.days
        );
        println!("the agent also needs --ca-cert {}", authority.ca_cert().display());
        Ok(())
    }
}
