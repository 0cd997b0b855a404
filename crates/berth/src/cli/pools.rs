//! `berth pools`: ranges of addresses and numbers that instances take values from.

use berth_api::units::duration;
use berth_api::{NewPool, Pool};
use clap::{Args, Subcommand};

use super::resource::{NameArg, NameArgs, Resource, WatchOption};
use crate::cmdutil::{CmdResult, Column, Session, args, columns};

/// Manage pools of addresses or numbers.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "Examples:\n  berth pools set overlay fd00:7::/64\n  berth place --memory 4GiB --pool overlay"
)]
pub(crate) enum Pools {
    /// List pools.
    #[command(visible_alias = "ls", after_help = "Example:\n  berth pools list")]
    List(WatchOption),
    /// Show a pool.
    #[command(after_help = "Example:\n  berth pools show overlay")]
    Show(NameArg<Pool>),
    /// Create or replace a pool.
    #[command(
        after_help = "Examples:\n  berth pools set overlay fd00:7::/64 --open --quarantine 10m\n  berth pools set vlan 1000-4999 --tenant acme"
    )]
    Set(SetArgs),
    /// Remove pools without values in use.
    #[command(visible_alias = "rm", after_help = "Example:\n  berth pools remove overlay")]
    Remove(NameArgs<Pool>),
}

#[derive(Args, Debug)]
pub(crate) struct SetArgs {
    /// Name of the pool.
    pool: String,
    /// Network (fd00:7::/64, 10.0.0.0/24) or range of numbers (1000-4999).
    range: String,
    /// How long a released value is withheld before it is assigned again; 10m by default.
    #[arg(long, value_parser = args::duration, value_name = "DURATION")]
    quarantine: Option<u32>,
    /// Let only instances of this tenant take values.
    #[arg(long, value_name = "TENANT", conflicts_with = "open")]
    tenant: Option<String>,
    /// Let instances of all tenants take values; a new pool is open unless it has a tenant.
    #[arg(long)]
    open: bool,
}

impl Resource for Pool {
    const KIND: &'static str = "pool";
    const PATH: &'static str = "/v1/pools";
    const EMPTY: &'static str = "There are no pools.";
    const COLUMNS: &'static [Column<Self>] = columns![pool;
        "POOL" => pool.id.as_str(),
        "TENANT" => pool.tenant.as_deref().unwrap_or("(open)"),
        "KIND" => pool.kind.as_str(),
        "FIRST" => pool.first.as_str(),
        "LAST" => pool.last.as_str(),
        ">SIZE" => pool.size.as_str(),
        ">USED" => pool.used.to_string(),
        "QUARANTINE" => duration(i64::from(pool.quarantine_s)),
    ];
}

impl Pools {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        match self {
            Self::List(watch) => session.list::<Pool>(&[], watch).await,
            Self::Show(arg) => session.show::<Pool>(&arg.name).await,
            Self::Set(SetArgs { pool, range, quarantine, tenant, open }) => {
                let new = NewPool { range, quarantine_s: quarantine, tenant, open };
                session.put::<Pool>(&pool, &new).await
            }
            Self::Remove(args) => session.remove::<Pool>(&args.names).await,
        }
    }
}
