//! `berth quotas`: limits of tenants.

use berth_api::{Quota, QuotaUse, units};
use berth_client::escape;
use clap::{Args, Subcommand};

use super::args;
use super::failure::{Done, Failure};
use super::session::{Raw, Session};
use super::table::{Cell, Table, Tone, pairs};

/// See and set limits of tenants.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "Examples:\n  berth quotas set acme --cpu 64 --memory 256GiB --instances 100\n  berth quotas show acme"
)]
pub(crate) enum Quotas {
    /// List limits and what is used of them.
    #[command(visible_alias = "ls", after_help = "Example:\n  berth quotas list")]
    List,
    /// Show a tenant's limits.
    #[command(after_help = "Example:\n  berth quotas show acme")]
    Show(One),
    /// Set a tenant's limits; what is not given is unlimited.
    #[command(
        after_help = "Example:\n  berth quotas set acme --cpu 64 --memory 256GiB --instances 100"
    )]
    Set(Set),
    /// Take limits away.
    #[command(visible_alias = "rm", after_help = "Example:\n  berth quotas remove acme")]
    Remove(Names),
}

/// One tenant.
#[derive(Args, Debug)]
pub(crate) struct One {
    /// The tenant.
    owner: String,
}

/// Some tenants.
#[derive(Args, Debug)]
pub(crate) struct Names {
    /// The tenants.
    #[arg(required = true)]
    owners: Vec<String>,
}

/// Limits of a tenant.
#[derive(Args, Debug)]
pub(crate) struct Set {
    /// The tenant.
    owner: String,
    /// Cores.
    #[arg(long, value_parser = args::cpu_had, value_name = "CORES")]
    cpu: Option<u32>,
    /// Memory.
    #[arg(long, value_parser = args::size_had, value_name = "SIZE")]
    memory: Option<u32>,
    /// Disk.
    #[arg(long, value_parser = args::size_had, value_name = "SIZE")]
    disk: Option<u32>,
    /// Instances.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(0..))]
    instances: Option<i64>,
}

impl Quotas {
    pub(crate) async fn run(self, session: &Session) -> Done {
        let out = &session.out;
        match self {
            Self::List => {
                let human = |quotas: Vec<QuotaUse>| {
                    out.table(&table(&quotas), "No tenant has limits.");
                };
                session.show_list("/v1/quotas", &[], None, human).await
            }
            Self::Show(one) => {
                let raw = session.get(&format!("/v1/quotas/{}", escape(&one.owner)), &[]).await?;
                print(session, &raw)
            }
            Self::Set(set) => {
                let quota = Quota {
                    cpu_milli: set.cpu.map(i64::from),
                    memory_mib: set.memory.map(i64::from),
                    disk_mib: set.disk.map(i64::from),
                    instances: set.instances,
                };
                if quota == Quota::default() {
                    return Err(Failure::usage("no limit is given").accepted(
                        "at least one of --cpu, --memory, --disk and --instances; \
                         berth quotas remove takes all away",
                    ));
                }
                let path = format!("/v1/quotas/{}", escape(&set.owner));
                let raw: Raw = session.client.put(&path, &quota).await?;
                print(session, &raw)
            }
            Self::Remove(names) => session.remove("limits of", "/v1/quotas", &names.owners).await,
        }
    }
}

fn of(used: Option<i64>, limit: Option<i64>, text: fn(i64) -> String) -> String {
    match limit {
        Some(limit) => format!("{} of {}", text(used.unwrap_or(0)), text(limit)),
        None => format!("{} of any", text(used.unwrap_or(0))),
    }
}

fn parts(quota: &QuotaUse) -> [String; 4] {
    let (used, limits) = (&quota.used, &quota.limits);
    [
        of(used.cpu_milli, limits.cpu_milli, units::cpu),
        of(used.memory_mib, limits.memory_mib, units::size),
        of(used.disk_mib, limits.disk_mib, units::size),
        of(used.instances, limits.instances, |count| count.to_string()),
    ]
}

fn table(quotas: &[QuotaUse]) -> Table {
    let mut table = Table::new(&["OWNER", "CPU", "MEMORY", "DISK", "INSTANCES"]);
    for quota in quotas {
        let full = |used: Option<i64>, limit: Option<i64>| {
            limit.is_some_and(|limit| used.unwrap_or(0) >= limit)
        };
        let (used, limits) = (&quota.used, &quota.limits);
        let is_full = [
            full(used.cpu_milli, limits.cpu_milli),
            full(used.memory_mib, limits.memory_mib),
            full(used.disk_mib, limits.disk_mib),
            full(used.instances, limits.instances),
        ];
        let cells = parts(quota).into_iter().zip(is_full);
        let cells = cells
            .map(|(text, full)| Cell::toned(text, if full { Tone::Warn } else { Tone::Plain }));
        table.row(std::iter::once(quota.owner.as_str().into()).chain(cells));
    }
    table
}

fn print(session: &Session, raw: &Raw) -> Done {
    session.out.answer(raw, |quota: QuotaUse| {
        let [cpu, memory, disk, instances] = parts(&quota);
        session.out.line(pairs(&[
            ("owner", quota.owner.clone()),
            ("cpu", cpu),
            ("memory", memory),
            ("disk", disk),
            ("instances", instances),
        ]));
        Ok(())
    })
}
