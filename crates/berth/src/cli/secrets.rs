//! `berth secrets`: which environments have secrets. Berth never sees the secrets themselves.

use berth_api::Secrets as SecretsVersion;
use berth_client::escape;
use clap::{ArgGroup, Args, Subcommand};

use crate::cmdutil::{CmdResult, Failure, RawJson, Session};

/// Record which environments have secrets.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "Examples:\n  berth secrets set production v7 --tenant acme\n  berth place --tenant acme --memory 4GiB --env production --needs-secrets"
)]
pub(crate) enum Secrets {
    /// Record the version of an environment's secrets, or that it has none.
    #[command(
        after_help = "Examples:\n  berth secrets set production v7 --tenant acme\n  berth secrets set production --none --tenant acme"
    )]
    Set(SetArgs),
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("value").required(true).args(["version", "none"]))]
pub(crate) struct SetArgs {
    /// Name of the environment.
    env: String,
    /// Current version of its secrets.
    version: Option<String>,
    /// Record that it has no secrets.
    #[arg(long)]
    none: bool,
    /// Tenant that the environment belongs to. Only secrets from before they had a tenant have none.
    #[arg(long, required_unless_present = "none")]
    tenant: Option<String>,
}

impl Secrets {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        let Self::Set(SetArgs { env, version, tenant, .. }) = self;
        if env.is_empty() {
            return Err(Failure::usage("the environment is empty").accepted("its name"));
        }
        let has = version.as_ref().map_or_else(|| "no secrets".into(), |v| format!("secrets {v}"));
        let query = tenant.map(|tenant| format!("?tenant={}", escape(&tenant)));
        let query = query.unwrap_or_default();
        let path = format!("/v1/environments/{}/secrets{query}", escape(&env));
        let raw: RawJson = session.client.put(&path, &SecretsVersion { version }).await?;
        session.out.response(&raw, |_: serde::de::IgnoredAny| {
            session.out.line(format!("{env} has {has}"));
        })
    }
}
