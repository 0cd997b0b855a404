//! The agent's connection to its server.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use berth_client::{Client, Connect};
use clap::Args;

/// The server, and how to authenticate.
#[derive(Args, Clone, Debug)]
pub(crate) struct ConnectionArgs {
    /// URL of the server.
    #[arg(long, value_name = "URL", env = "BERTH_URL", default_value = "http://127.0.0.1:7070")]
    url: String,
    /// Token of the agent. Prefer --token-file: other users may see arguments.
    #[arg(long, value_name = "TOKEN", env = "BERTH_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// File with the token; read again when the server no longer accepts it.
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// PEM file of CA certificates to trust in addition to the system's.
    #[arg(long, value_name = "FILE")]
    ca_cert: Option<PathBuf>,
    /// Certificate of the agent, in PEM.
    #[arg(long, value_name = "FILE", requires = "client_key")]
    client_cert: Option<PathBuf>,
    /// Key of the agent's certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
}

/// A connection that can be set up again.
pub(super) struct Connection {
    arguments: ConnectionArgs,
    client: Client,
}

impl Connection {
    /// Reads token and certificates; connects when first used.
    pub(super) fn new(arguments: ConnectionArgs) -> anyhow::Result<Self> {
        let client = connect(&arguments)?;
        Ok(Self { arguments, client })
    }

    /// A client; copies share their connections.
    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    pub(super) fn url(&self) -> &str {
        self.client.url()
    }

    /// Reads token and certificates again, because they may have been replaced.
    pub(super) fn refresh(&mut self) {
        match connect(&self.arguments) {
            Ok(client) => self.client = client,
            Err(error) => {
                tracing::warn!(
                    "failed to reload token and certificates: {error:#}; keeping the old ones"
                );
            }
        }
    }
}

fn connect(arguments: &ConnectionArgs) -> anyhow::Result<Client> {
    let token = match &arguments.token_file {
        Some(file) => Some(String::from_utf8(read(file)?).context("the token is not text")?),
        None => arguments.token.clone(),
    };
    let identity_pem = match (&arguments.client_cert, &arguments.client_key) {
        (Some(certificate), Some(key)) => {
            let mut pem = read(certificate)?;
            pem.push(b'\n');
            pem.extend(read(key)?);
            Some(pem)
        }
        _ => None,
    };
    let ca_pem = arguments.ca_cert.as_deref().map(read).transpose()?;
    let timeout = Some(Duration::from_secs(15));
    let url = arguments.url.clone();
    Ok(Client::new(Connect { url, token, ca_pem, identity_pem, timeout })?)
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("failed to read {}", file.display()))
}
