//! `berth tenants`: what a tenant holds, and removing it.

use berth_api::{TenantHolding, TenantHoldings};
use berth_client::ClientError;
use clap::{Args, Subcommand};

use super::resource::{NameArg, POLL_INTERVAL, Resource, path_of};
use crate::cmdutil::{
    CmdResult, Column, NonInteractive, Output, RawJson, Session, Table, columns, confirm, decode,
};

/// Show what tenants hold, and remove tenants.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "Examples:\n  berth tenants show acme\n  berth tenants remove acme --dry-run\n  berth tenants remove acme --yes"
)]
pub(crate) enum Tenants {
    /// Show what a tenant holds, by kind.
    #[command(after_help = "Example:\n  berth tenants show acme")]
    Show(NameArg<TenantHoldings>),
    /// Remove a tenant with all it holds.
    ///
    /// From then on nothing is granted to the tenant. Its tokens end, its instances are released,
    /// and everything else that belongs to it is removed. The servers continue this even if the
    /// command ends; repeating the command shows how far it is.
    #[command(
        visible_alias = "rm",
        after_help = "Examples:\n  berth tenants remove acme --dry-run\n  berth tenants remove acme --yes\n  berth tenants remove acme --yes --force"
    )]
    Remove(RemoveArgs),
}

#[derive(Args, Debug)]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    tenant: NameArg<TenantHoldings>,
    /// Show what would be removed, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Remove without confirmation.
    #[arg(long, short)]
    yes: bool,
    /// End claims without waiting for agents to stop their instances.
    #[arg(long)]
    force: bool,
    /// Return once the removal has begun.
    #[arg(long)]
    no_wait: bool,
}

impl Resource for TenantHoldings {
    const KIND: &'static str = "tenant";
    const PATH: &'static str = "/v1/tenants";
    const VALUE_NAME: &'static str = "TENANT";

    fn print(&self, out: &Output) {
        let mut pairs = vec![("tenant", self.tenant.clone())];
        if let Some(removal) = &self.removal {
            pairs.push(("removal", format!("under way since {}", removal.since)));
            pairs.push(("by", removal.actor.clone()));
            pairs.push(("blocked until", removal.blocked_until.to_string()));
        }
        out.pairs(&pairs);
        out.line("");
        out.table(&Table::of(&self.holdings, out.is_wide(), HOLDINGS), "It holds nothing.");
    }
}

const HOLDINGS: &[Column<TenantHolding>] = columns![held;
    "HOLDS" => held.kind.noun(2),
    ">COUNT" => held.count.to_string(),
    "NAMES" => names(held),
    "NOTE" => held.note.clone(),
];

/// The first names, and how many more there are.
fn names(held: &TenantHolding) -> String {
    const SHOWN: usize = 3;
    if held.names.is_empty() {
        return String::new();
    }
    let shown = held.names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    let shown_count = u64::try_from(held.names.len().min(SHOWN)).unwrap_or(0);
    match held.count.saturating_sub(shown_count) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// What is held, in one line.
fn summary(held: &TenantHoldings) -> String {
    let parts = held.holdings.iter();
    let parts = parts.map(|part| format!("{} {}", part.count, part.kind.noun(part.count)));
    let parts: Vec<String> = parts.collect();
    if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
}

impl Tenants {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        match self {
            Self::Show(arg) => session.show::<TenantHoldings>(&arg.name).await,
            Self::Remove(args) => args.run(session).await,
        }
    }
}

impl RemoveArgs {
    async fn run(self, session: &Session) -> CmdResult {
        let tenant = &self.tenant.name;
        let path = path_of::<TenantHoldings>(tenant);
        let raw = session.get(&path, &[]).await?;
        if self.dry_run {
            session.out.note(format!("Would remove tenant {tenant} with all it holds:"));
            return session.print::<TenantHoldings>(&raw);
        }
        if !self.yes {
            let held: TenantHoldings = decode(&raw)?;
            confirm(
                &format!("remove tenant {tenant} with {}", summary(&held)),
                NonInteractive::Refuse,
            )?;
        }
        let force = if self.force { "?force=true" } else { "" };
        let raw: RawJson = session.client.delete_as(&format!("{path}{force}")).await?;
        if self.no_wait {
            return session.print::<TenantHoldings>(&raw);
        }
        follow(session, tenant, &path, raw).await
    }
}

/// Shows what is left until the tenant is no longer found.
async fn follow(session: &Session, tenant: &str, path: &str, mut raw: RawJson) -> CmdResult {
    let mut progress = session.out.progress("");
    loop {
        let held: TenantHoldings = decode(&raw)?;
        let mut message = format!("removing tenant {tenant}: {} left", summary(&held));
        let notes = held.holdings.iter().filter_map(|part| part.note.as_deref());
        for note in notes {
            message = format!("{message}; {note}");
        }
        if let Some(removal) = held.removal.as_ref().filter(|_| held.holdings.is_empty()) {
            let until = removal.blocked_until;
            message = format!("tenant {tenant} holds nothing; its name is blocked until {until}");
        }
        progress.update(&message, &message);
        tokio::time::sleep(POLL_INTERVAL).await;
        raw = match session.client.get(path, &[]).await {
            Ok(raw) => raw,
            Err(ClientError::Problem { problem, .. }) if problem.status == 404 => {
                progress.finish();
                session.out.note(format!("removed tenant {tenant}"));
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
    }
}
