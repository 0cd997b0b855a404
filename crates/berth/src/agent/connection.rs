//! The agent's connection to its server.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use berth_client::{Client, Connect};
use clap::Args;

use crate::cmdutil::client_config::ServerFlags;

/// The server, and how to authenticate.
#[derive(Args, Clone, Debug)]
pub(crate) struct ConnectionArgs {
    /// URL of the server; otherwise that of the client file, otherwise http://127.0.0.1:7070.
    #[arg(long, value_name = "URL", env = "BERTH_URL")]
    url: Option<String>,
    /// Token of the agent. Prefer --token-file: other users may see arguments.
    #[arg(long, value_name = "TOKEN", env = "BERTH_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// File with the token; read again when the server no longer accepts it.
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// PEM file of CA certificates to trust in addition to the system's.
    #[arg(long, value_name = "FILE", env = "BERTH_CA_CERT")]
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
    /// What configured the server's URL.
    configured_by: String,
}

impl Connection {
    /// Reads token and certificates; connects when first used.
    pub(super) fn new(arguments: ConnectionArgs) -> anyhow::Result<Self> {
        let (client, configured_by) = connect(&arguments)?;
        Ok(Self { arguments, client, configured_by })
    }

    /// A client; copies share their connections.
    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    pub(super) fn url(&self) -> &str {
        self.client.url()
    }

    pub(super) fn configured_by(&self) -> &str {
        &self.configured_by
    }

    /// Reads token and certificates again, because they may have been replaced.
    pub(super) fn refresh(&mut self) {
        match connect(&self.arguments) {
            Ok((client, by)) => (self.client, self.configured_by) = (client, by),
            Err(error) => {
                tracing::warn!(
                    "failed to reload token and certificates: {error:#}; keeping the old ones"
                );
            }
        }
    }
}

fn connect(arguments: &ConnectionArgs) -> anyhow::Result<(Client, String)> {
    let identity_pem = match (&arguments.client_cert, &arguments.client_key) {
        (Some(certificate), Some(key)) => {
            let mut pem = read(certificate)?;
            pem.push(b'\n');
            pem.extend(read(key)?);
            Some(pem)
        }
        _ => None,
    };
    let ConnectionArgs { url, token, token_file, ca_cert, .. } = arguments.clone();
    let is_token_given = token.is_some() || token_file.is_some();
    let mut server = ServerFlags { url, token, token_file, ca_cert }.resolve()?;
    // An agent with a certificate needs no token, least of all that of a person.
    if identity_pem.is_some() && !is_token_given {
        server.token = None;
    }
    let configured_by = server.configured_by.clone();
    let timeout = Some(Duration::from_secs(15));
    let client = server.client(Connect { identity_pem, timeout, ..Connect::default() })?;
    Ok((client, configured_by))
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("failed to read {}", file.display()))
}
