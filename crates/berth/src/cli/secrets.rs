//! `berth secrets`: which environments have a bundle of secrets. What is in it is not Berth's business.

use berth_api::Secrets as State;
use berth_client::escape;
use clap::{Args, Subcommand};

use super::failure::{Done, Failure};
use super::session::{Raw, Session};

/// Say which environments have secrets.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "Examples:\n  berth secrets set production v7\n  berth place --memory 4GiB --env production --needs-secrets"
)]
pub(crate) enum Secrets {
    /// State the version of an environment's bundle of secrets, or that there is none.
    #[command(
        after_help = "Examples:\n  berth secrets set production v7\n  berth secrets set production --none"
    )]
    Set(Set),
}

/// An environment and its bundle.
#[derive(Args, Debug)]
pub(crate) struct Set {
    /// The environment.
    env: String,
    /// The current version of its bundle.
    #[arg(required_unless_present = "none")]
    version: Option<String>,
    /// There is none.
    #[arg(long, conflicts_with = "version")]
    none: bool,
}

impl Secrets {
    pub(crate) async fn run(self, session: &Session) -> Done {
        let Self::Set(Set { env, version, none }) = self;
        if env.is_empty() {
            return Err(Failure::usage("the environment is empty").accepted("its name"));
        }
        let version = version.filter(|_| !none);
        let has =
            version.as_ref().map_or_else(|| "no secrets".to_owned(), |v| format!("secrets {v}"));
        let path = format!("/v1/environments/{}/secrets", escape(&env));
        let raw: Raw = session.client.put(&path, &State { version }).await?;
        if session.out.is_data() {
            return session.out.data(&raw);
        }
        session.out.line(format!("{env} has {has}"));
        Ok(())
    }
}
