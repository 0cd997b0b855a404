//! `berth certificate`: certificates from the authority that a server made for itself.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use berth_server::serve::Authority;
use clap::{Args, Subcommand};

use super::options::{default_data_dir, variable};

/// Which certificate.
#[derive(Subcommand)]
pub(crate) enum Certificate {
    /// Make a certificate with which an agent signs in for its node.
    ///
    /// Example: berth certificate agent --node node-1 --out node-1.pem
    Agent(Agent),
}

/// The certificate of an agent.
#[derive(Args)]
pub(crate) struct Agent {
    /// The id of the node.
    #[arg(long)]
    node: String,
    /// How many days it is good for.
    #[arg(long, default_value_t = 365)]
    days: i64,
    /// The data folder of the server that runs with --tls self.
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
    /// The file to write, certificate and key one after the other; printed when not given.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Certificate {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let Self::Agent(agent) = self;
        agent.run()
    }
}

impl Agent {
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
        let wrong = || format!("{} cannot be written", out.display());
        let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty());
        // A temporary file is for its owner only, as a key must be.
        let folder = folder.unwrap_or(std::path::Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(folder).with_context(wrong)?;
        file.write_all(pem.as_bytes()).with_context(wrong)?;
        file.persist(&out).with_context(wrong)?;
        println!("{} signs in as the agent of {} for {} days", out.display(), self.node, self.days);
        println!("the agent trusts the server by {}", authority.ca_cert().display());
        Ok(())
    }
}
