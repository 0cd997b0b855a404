//! `berth whoami`: which server, and who one is to it.

use berth_api::WhoAmI;
use clap::Args;

use super::context::{self, Context};
use super::failure::Done;
use super::session::{DEFAULT_URL, Global, Session};
use super::table::pairs;

/// Say which server is asked, and who it takes you for.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  berth whoami\n  berth whoami --url https://berth.example:7070 --token-file token --save"
)]
pub(crate) struct Who {
    /// Keep server and token for later commands, in a file that only you can read.
    #[arg(long)]
    save: bool,
}

impl Who {
    pub(crate) async fn run(self, session: &Session, global: &Global) -> Done {
        let out = &session.out;
        let raw = session.get("/v1/whoami", &[]).await?;
        let file = context::path().filter(|path| path.exists());
        out.answer(&raw, |who: WhoAmI| {
            out.line(pairs(&[
                ("server", session.client.url().to_owned()),
                ("version", who.version),
                ("name", who.name),
                ("role", who.role.name().to_owned()),
                ("token", who.token.unwrap_or_default()),
                ("namespaces", who.namespaces.join(" ")),
                ("node", who.node.map(|node| node.to_string()).unwrap_or_default()),
                ("settings", file.map(|file| file.display().to_string()).unwrap_or_default()),
            ]));
            Ok(())
        })?;
        if self.save {
            let context = global.context()?;
            let url = Some(context.url.unwrap_or_else(|| DEFAULT_URL.to_owned()));
            let ca_cert = context.ca_cert.map(|path| path.canonicalize().unwrap_or(path));
            let path = context::save(&Context { url, ca_cert, token: context.token })?;
            out.note(format!("kept in {}", path.display()));
        }
        Ok(())
    }
}
