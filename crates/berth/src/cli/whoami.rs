//! `berth whoami`: which server is used, and as whom.

use berth_api::WhoAmI;
use clap::Args;

use crate::cmdutil::client_config::{self, ClientConfig};
use crate::cmdutil::{CmdResult, Global, Session};

/// Show which server is used, and as whom.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  berth whoami\n  berth whoami --url https://berth.example:7070 --token-file token --save"
)]
pub(crate) struct WhoAmIArgs {
    /// Save server and token for later commands, in a file that only you can read.
    #[arg(long)]
    save: bool,
}

impl WhoAmIArgs {
    pub(crate) async fn run(self, session: &Session, global: &Global) -> CmdResult {
        let out = &session.out;
        let raw = session.get("/v1/whoami", &[]).await?;
        let file = client_config::path().filter(|path| path.exists());
        out.response(&raw, |who: WhoAmI| {
            out.pairs(&[
                ("server", session.client.url().to_owned()),
                ("version", who.version),
                ("name", who.name),
                ("role", who.role.name().to_owned()),
                ("token", who.token.unwrap_or_default()),
                ("tenants", who.tenants.join(" ")),
                ("node", who.node.map(|node| node.to_string()).unwrap_or_default()),
                ("configuration", file.map(|file| file.display().to_string()).unwrap_or_default()),
            ]);
        })?;
        if self.save {
            let server = global.server()?;
            let url = Some(session.client.url().to_owned());
            let ca_cert = server.ca_cert.map(|path| path.canonicalize().unwrap_or(path));
            let path = client_config::save(&ClientConfig { url, ca_cert, token: server.token })?;
            out.note(format!("saved to {}", path.display()));
        }
        Ok(())
    }
}
