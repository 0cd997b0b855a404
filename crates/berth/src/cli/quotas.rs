//! `berth quotas`: limits of tenants.

use berth_api::{Quota, QuotaUse, units};
use clap::{Args, Subcommand};

use super::resource::{NameArg, NameArgs, Resource, WatchOption};
use crate::cmdutil::{Cell, CmdResult, Column, Failure, Session, Tone, args, columns};

/// Manage limits of tenants.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "Examples:\n  berth quotas set acme --cpu 64 --memory 256GiB --instances 100\n  berth quotas show acme"
)]
pub(crate) enum Quotas {
    /// List limits and their usage.
    #[command(visible_alias = "ls", after_help = "Example:\n  berth quotas list")]
    List(WatchOption),
    /// Show the limits of a tenant.
    #[command(after_help = "Example:\n  berth quotas show acme")]
    Show(NameArg<QuotaUse>),
    /// Set the limits of a tenant; those not given are unlimited.
    #[command(
        after_help = "Example:\n  berth quotas set acme --cpu 64 --memory 256GiB --instances 100"
    )]
    Set(SetArgs),
    /// Remove all limits of tenants.
    #[command(visible_alias = "rm", after_help = "Example:\n  berth quotas remove acme")]
    Remove(NameArgs<QuotaUse>),
}

#[derive(Args, Debug)]
pub(crate) struct SetArgs {
    /// Name of the tenant.
    tenant: String,
    /// Most cores.
    #[arg(long, value_parser = args::cpu_capacity, value_name = "CORES")]
    cpu: Option<u32>,
    /// Most memory.
    #[arg(long, value_parser = args::size_capacity, value_name = "SIZE")]
    memory: Option<u32>,
    /// Most disk.
    #[arg(long, value_parser = args::size_capacity, value_name = "SIZE")]
    disk: Option<u32>,
    /// Most instances.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(0..))]
    instances: Option<i64>,
}

impl Resource for QuotaUse {
    const KIND: &'static str = "tenant";
    const PATH: &'static str = "/v1/quotas";
    const EMPTY: &'static str = "No tenant has limits.";
    const COLUMNS: &'static [Column<Self>] = columns![quota;
        "TENANT" => quota.tenant.as_str(),
        "CPU" => usage(quota.used.cpu_milli, quota.limits.cpu_milli, units::cpu),
        "MEMORY" => usage(quota.used.memory_mib, quota.limits.memory_mib, units::size),
        "DISK" => usage(quota.used.disk_mib, quota.limits.disk_mib, units::size),
        "INSTANCES" => usage(quota.used.instances, quota.limits.instances, |n| n.to_string()),
    ];
}

fn usage(used: Option<i64>, limit: Option<i64>, text: fn(i64) -> String) -> Cell {
    let used = used.unwrap_or(0);
    let tone = if limit.is_some_and(|limit| used >= limit) { Tone::Warn } else { Tone::Plain };
    let limit = limit.map_or_else(|| "any".to_owned(), text);
    Cell::with_tone(format!("{} of {limit}", text(used)), tone)
}

impl Quotas {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        match self {
            Self::List(watch) => session.list::<QuotaUse>(&[], watch).await,
            Self::Show(arg) => session.show::<QuotaUse>(&arg.name).await,
            Self::Set(set) => {
                let quota = Quota {
                    cpu_milli: set.cpu.map(i64::from),
                    memory_mib: set.memory.map(i64::from),
                    disk_mib: set.disk.map(i64::from),
                    instances: set.instances,
                };
                if quota == Quota::default() {
                    return Err(Failure::usage("no limit is given")
                        .accepted("at least one of --cpu, --memory, --disk and --instances")
                        .remedy("remove all limits with: berth quotas remove"));
                }
                session.put::<QuotaUse>(&set.tenant, &quota).await
            }
            Self::Remove(args) => {
                session.delete_each::<QuotaUse>(&args.names, "removed limits of").await
            }
        }
    }
}
