//! `berth pools`: addresses and numbers that instances take values from.

use berth_api::{NewPool, Pool};
use berth_client::escape;
use clap::{Args, Subcommand};

use super::args;
use super::failure::Done;
use super::session::{Raw, Session};
use super::table::{Table, pairs};

/// See and define pools of addresses or numbers.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "Examples:\n  berth pools set overlay fd00:7::/64\n  berth place --memory 4GiB --pool overlay"
)]
pub(crate) enum Pools {
    /// List pools.
    #[command(visible_alias = "ls", after_help = "Example:\n  berth pools list")]
    List,
    /// Show one pool.
    #[command(after_help = "Example:\n  berth pools show overlay")]
    Show(One),
    /// Define a pool.
    #[command(
        after_help = "Examples:\n  berth pools set overlay fd00:7::/64 --quarantine 10m\n  berth pools set vlan 1000-4999"
    )]
    Set(Set),
    /// Remove pools of which nothing is in use.
    #[command(visible_alias = "rm", after_help = "Example:\n  berth pools remove overlay")]
    Remove(Names),
}

/// One pool.
#[derive(Args, Debug)]
pub(crate) struct One {
    /// Its name.
    pool: String,
}

/// Some pools.
#[derive(Args, Debug)]
pub(crate) struct Names {
    /// Their names.
    #[arg(required = true)]
    pools: Vec<String>,
}

/// A pool as it is defined.
#[derive(Args, Debug)]
pub(crate) struct Set {
    /// Its name.
    pool: String,
    /// A network (fd00:7::/64, 10.0.0.0/24) or numbers (1000-4999).
    range: String,
    /// How long a released value rests before it is given out again; 10m when not given.
    #[arg(long, value_parser = args::duration, value_name = "DURATION")]
    quarantine: Option<u32>,
}

impl Pools {
    pub(crate) async fn run(self, session: &Session) -> Done {
        let out = &session.out;
        match self {
            Self::List => {
                let human = |pools: Vec<Pool>| {
                    let columns = ["POOL", "KIND", "FIRST", "LAST", ">SIZE", ">USED", "RESTS"];
                    let mut table = Table::new(&columns);
                    for pool in &pools {
                        table.row([
                            pool.id.as_str().into(),
                            pool.kind.as_str().into(),
                            pool.first.as_str().into(),
                            pool.last.as_str().into(),
                            pool.size.as_str().into(),
                            pool.used.to_string().into(),
                            berth_api::units::duration(i64::from(pool.quarantine_s)).into(),
                        ]);
                    }
                    out.table(&table, "There are no pools.");
                };
                session.show_list("/v1/pools", &[], None, human).await
            }
            Self::Show(one) => {
                let raw = session.get(&format!("/v1/pools/{}", escape(&one.pool)), &[]).await?;
                print(session, &raw)
            }
            Self::Set(set) => {
                let new = NewPool { range: set.range, quarantine_s: set.quarantine };
                let path = format!("/v1/pools/{}", escape(&set.pool));
                let raw: Raw = session.client.put(&path, &new).await?;
                print(session, &raw)
            }
            Self::Remove(names) => session.remove("pool", "/v1/pools", &names.pools).await,
        }
    }
}

fn print(session: &Session, raw: &Raw) -> Done {
    session.out.answer(raw, |pool: Pool| {
        session.out.line(pairs(&[
            ("pool", pool.id),
            ("kind", pool.kind),
            ("first", pool.first),
            ("last", pool.last),
            ("size", pool.size),
            ("used or at rest", pool.used.to_string()),
            ("rests", berth_api::units::duration(i64::from(pool.quarantine_s))),
        ]));
        Ok(())
    })
}
