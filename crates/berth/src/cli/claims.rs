//! `berth claims`: the hold of instances on nodes, and the steps of its life.

use berth_api::{Claim, ClaimRole, ClaimStatus, FencedRequest, ReleaseClaim, RenewClaim};
use clap::{Args, Subcommand};
use futures_util::StreamExt as _;
use serde::Serialize;

use super::args;
use super::failure::{Done, Failure};
use super::instances::Wanted;
use super::output::style::{BOLD, paint};
use super::session::{Raw, Session, read_as};
use super::table::{Cell, Table, Tone, pairs};
use super::words::{age, amounts, claim_state, many, moment, or_dash};

/// How many claims are released at once.
const AT_ONCE: usize = 16;

/// See claims, renew and release them.
#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Claims {
    /// List claims.
    #[command(visible_alias = "ls", after_help = LIST_EXAMPLES)]
    List(Wanted),
    /// Show one claim.
    #[command(after_help = "Example:\n  berth claims show web-1")]
    Show(Which),
    /// Give a held claim more time.
    #[command(after_help = "Example:\n  berth claims renew web-1 --lease 10m")]
    Renew(Renew),
    /// Take a held claim up, as an agent does.
    #[command(after_help = "Example:\n  berth claims bind web-1")]
    Bind(Step),
    /// Say that a bound instance runs, as an agent does.
    #[command(after_help = "Example:\n  berth claims activate web-1")]
    Activate(Step),
    /// End claims: held ones at once, others when their agent says that the instance is gone.
    #[command(after_help = RELEASE_EXAMPLES)]
    Release(Release),
}

const EXAMPLES: &str = "\
Examples:
  berth claims list --owner acme
  berth claims release 01890a5d-ac96-774b-bcce-b302099a8057

An instance is named by its id, the first characters of it, or its name.";

const LIST_EXAMPLES: &str = "\
Examples:
  berth claims list --node node-000012
  berth claims list --owner acme --state held -q";

const RELEASE_EXAMPLES: &str = "\
Examples:
  berth claims release web-1 web-2
  berth claims release web-1 --confirmed --reason 'the node burnt down'
  berth claims list --owner acme -q | xargs berth claims release";

/// One claim.
#[derive(Args, Debug)]
pub(crate) struct Which {
    /// The instance: its id, the beginning of it, or its name.
    instance: String,
}

/// More time for a claim.
#[derive(Args, Debug)]
pub(crate) struct Renew {
    #[command(flatten)]
    step: Step,
    /// How long from now; 2m when not given.
    #[arg(long, value_parser = args::duration, value_name = "DURATION")]
    lease: Option<u32>,
}

/// A step of a claim's life.
#[derive(Args, Debug)]
pub(crate) struct Step {
    /// The instance: its id, the beginning of it, or its name.
    instance: String,
    /// The fence it was granted with; read from the claim when not given.
    #[arg(long, value_name = "N")]
    fence: Option<i64>,
}

/// What is released.
#[derive(Args, Debug)]
pub(crate) struct Release {
    /// The instances: ids, beginnings of them, or names.
    #[arg(required = true)]
    instances: Vec<String>,
    /// The instance is known to be gone; its room is freed at once.
    #[arg(long)]
    confirmed: bool,
    /// The fence it was granted with; refused if a later holder has a higher one.
    #[arg(long, value_name = "N")]
    fence: Option<i64>,
    /// Why, for the record.
    #[arg(long)]
    reason: Option<String>,
    /// Which of its claims, where it is being moved or was found in two places: primary,
    /// migration_target or migration_source.
    #[arg(long, value_name = "ROLE", value_parser = role)]
    role: Option<ClaimRole>,
}

fn role(text: &str) -> Result<ClaimRole, String> {
    let read = serde_json::from_value(serde_json::Value::from(text));
    read.map_err(|_| "accepted are primary, migration_target, migration_source".to_owned())
}

fn role_name(role: ClaimRole) -> String {
    let name = serde_json::to_value(role).ok();
    name.and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
}

impl Claims {
    pub(crate) async fn run(self, session: &Session) -> Done {
        let out = &session.out;
        match self {
            Self::List(wanted) => {
                let (parts, limit) = (wanted.query(), wanted.limit());
                let query: Vec<(&str, &str)> =
                    parts.iter().map(|(name, value)| (*name, value.as_str())).collect();
                let human = |claims: Vec<Claim>| {
                    out.table(&table(&claims), "There are no claims like that.");
                };
                session.show_list("/v1/claims", &query, limit, human).await
            }
            Self::Show(which) => {
                let id = session.instance(&which.instance).await?;
                session
                    .show(&format!("/v1/claims/{id}"), |claim: Claim| {
                        out.line(pairs(&lines(&claim)));
                        Ok(())
                    })
                    .await
            }
            Self::Renew(Renew { step, lease }) => {
                let body = |fence| RenewClaim { fence, lease_s: lease };
                step.take(session, "renew", body).await
            }
            Self::Bind(step) => step.take(session, "bind", |fence| FencedRequest { fence }).await,
            Self::Activate(step) => {
                step.take(session, "activate", |fence| FencedRequest { fence }).await
            }
            Self::Release(release) => release.run(session).await,
        }
    }
}

fn table(claims: &[Claim]) -> Table {
    let columns = [
        "INSTANCE", "ROLE", "NAME", "OWNER", "WORKLOAD", "NODE", "STATE", "CHARGED", "LEASE", "AGE",
    ];
    let mut table = Table::new(&columns);
    // An instance that is being moved has two.
    let moving = claims.iter().any(|claim| claim.role != ClaimRole::Primary);
    if moving {
        table.column("ROLE");
    }
    for claim in claims {
        let role = match claim.role {
            ClaimRole::Primary => "runs here",
            ClaimRole::MigrationTarget => "moves here",
            ClaimRole::MigrationSource => "moved away",
        };
        let cells = [
            claim.instance.to_string().into(),
            role_name(claim.role).into(),
            or_dash(claim.name.as_deref()),
            claim.owner.as_str().into(),
            or_dash(claim.workload.as_deref()),
            or_dash(claim.node.as_ref().map(|node| node.as_str())),
            claim_state(claim.state),
            amounts(&claim.resources).into(),
            claim.lease_until.map_or_else(|| Cell::toned("-", Tone::Dim), |at| age(at).into()),
            age(claim.created_at).into(),
        ];
        table.row(cells.into_iter().chain(moving.then(|| role.into())));
    }
    table
}

/// A claim, line by line.
pub(crate) fn lines(claim: &Claim) -> Vec<(&'static str, String)> {
    let values = claim.values.iter().map(|held| format!("{}={}", held.pool, held.value));
    let state = serde_json::to_value(claim.state).ok();
    let state = state.and_then(|state| state.as_str().map(str::to_owned)).unwrap_or_default();
    vec![
        ("instance", paint(BOLD, &claim.instance.to_string())),
        ("name", claim.name.clone().unwrap_or_default()),
        ("owner", claim.owner.clone()),
        ("workload", claim.workload.clone().unwrap_or_default()),
        ("node", claim.node.as_ref().map(ToString::to_string).unwrap_or_default()),
        ("state", state),
        ("lease", claim.lease_until.map(|at| format!("ends {}", age(at))).unwrap_or_default()),
        ("charged", amounts(&claim.resources)),
        ("fence", claim.fence.to_string()),
        ("values", values.collect::<Vec<_>>().join(" ")),
        ("granted", format!("{} ({})", moment(claim.created_at), age(claim.created_at))),
    ]
}

impl Step {
    async fn take<B: Serialize + Sync>(
        self,
        session: &Session,
        verb: &str,
        body: impl FnOnce(i64) -> B,
    ) -> Done {
        let id = session.instance(&self.instance).await?;
        let fence = match self.fence {
            Some(fence) => fence,
            None => session.client.claim(id).await?.fence,
        };
        let path = format!("/v1/claims/{id}/{verb}");
        let raw: Raw = session.client.post(&path, &body(fence)).await?;
        session.out.answer(&raw, |standing: ClaimStatus| {
            session.out.line(in_words(&standing));
            Ok(())
        })
    }
}

fn in_words(standing: &ClaimStatus) -> String {
    let id = standing.instance;
    let state = serde_json::to_value(standing.state).ok();
    match (state.as_ref().and_then(|state| state.as_str()), standing.lease_until) {
        (None, _) => format!("{id} is gone"),
        (Some("releasing"), _) => {
            format!("{id} is releasing: its room is free when its agent says that it is gone")
        }
        (Some(state), Some(until)) => format!("{id} is {state}; its lease ends {}", age(until)),
        (Some(state), None) => format!("{id} is {state}"),
    }
}

impl Release {
    async fn run(self, session: &Session) -> Done {
        let out = &session.out;
        let bar = out.bar(u64::try_from(self.instances.len()).unwrap_or(0), "release");
        let one = async |text: &String| {
            let id = session.instance(text).await?;
            let body = ReleaseClaim {
                request_id: None,
                fence: self.fence,
                confirmed: self.confirmed,
                reason: self.reason.clone(),
            };
            let which = self.role.map(|role| format!("?role={}", role_name(role)));
            let path = format!("/v1/claims/{id}/release{}", which.unwrap_or_default());
            let raw: Raw = session.client.post(&path, &body).await?;
            Done::Ok(raw)
        };
        let all = futures_util::stream::iter(&self.instances).map(one);
        let mut answers = all.buffered(AT_ONCE);
        let (mut done, mut failed): (Vec<Raw>, Vec<Failure>) = (Vec::new(), Vec::new());
        while let Some(answer) = answers.next().await {
            bar.inc(1);
            match answer {
                Ok(raw) => done.push(raw),
                Err(failure) => failed.push(failure),
            }
        }
        bar.finish_and_clear();
        match (out.is_data(), done.as_slice()) {
            (true, [one]) => out.data(one)?,
            (true, many) => out.data(many)?,
            (false, many) => {
                for raw in many {
                    out.line(in_words(&read_as(raw)?));
                }
            }
        }
        if failed.len() <= 1 {
            return failed.pop().map_or(Ok(()), Err);
        }
        failed.iter().for_each(|failure| anstream::eprintln!("{}", failure.text()));
        let all = many(self.instances.len(), "claim");
        Err(Failure::new(failed[0].exit, format!("{} of {all} were not released", failed.len())))
    }
}
