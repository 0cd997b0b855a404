//! `berth claims`: the hold of instances on nodes, and the steps of its life.

use berth_api::engine::InstanceId;
use berth_api::{Claim, ClaimRole, ClaimStatus, FencedRequest, ReleaseClaim, RenewClaim};
use clap::{Args, Subcommand};
use serde::Serialize;

use super::instances::InstanceFilter;
use super::resource::{InstanceArg, Resource};
use crate::cmdutil::style::{BOLD, paint};
use crate::cmdutil::{
    Cell, CmdResult, Column, Failure, RawJson, Session, Tone, age, amounts, api_name, args,
    claim_state, columns, concurrently, decode, partition, timestamp,
};

/// Show, renew and release claims.
#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Claims {
    /// List claims.
    #[command(visible_alias = "ls", after_help = LIST_EXAMPLES)]
    List(InstanceFilter),
    /// Show a claim.
    #[command(after_help = "Example:\n  berth claims show web-1")]
    Show(InstanceArg),
    /// Extend the lease of a held claim.
    #[command(after_help = "Example:\n  berth claims renew web-1 --lease 10m")]
    Renew(RenewArgs),
    /// Bind a held claim, as an agent does.
    #[command(after_help = "Example:\n  berth claims bind web-1")]
    Bind(StepArgs),
    /// Report that a bound instance runs, as an agent does.
    #[command(after_help = "Example:\n  berth claims activate web-1")]
    Activate(StepArgs),
    /// Release claims: held ones immediately, others when their agent confirms that the instance is
    /// gone.
    #[command(after_help = RELEASE_EXAMPLES)]
    Release(ReleaseArgs),
}

const EXAMPLES: &str = "\
Examples:
  berth claims list --tenant acme
  berth claims release 01890a5d-ac96-774b-bcce-b302099a8057

An instance is named by its id, by the first characters of it, or by its name.";

const LIST_EXAMPLES: &str = "\
Examples:
  berth claims list --node node-000012
  berth claims list --tenant acme --state held -q";

const RELEASE_EXAMPLES: &str = "\
Examples:
  berth claims release web-1 web-2
  berth claims release web-1 --confirmed --reason 'the node burnt down'
  berth claims list --tenant acme -q | xargs berth claims release";

#[derive(Args, Debug)]
pub(crate) struct RenewArgs {
    #[command(flatten)]
    step: StepArgs,
    /// New length of the lease from now; 2m by default.
    #[arg(long, value_parser = args::duration, value_name = "DURATION")]
    lease: Option<u32>,
}

/// A step of a claim's life.
#[derive(Args, Debug)]
pub(crate) struct StepArgs {
    #[command(flatten)]
    arg: InstanceArg,
    /// Fence with which the claim was granted; read from the claim by default.
    #[arg(long, value_name = "N")]
    fence: Option<i64>,
}

#[derive(Args, Debug)]
pub(crate) struct ReleaseArgs {
    /// Ids of the instances, unique prefixes of them, or their names.
    #[arg(required = true)]
    instances: Vec<String>,
    /// Confirm that the instance is gone, which frees its room immediately.
    #[arg(long)]
    confirmed: bool,
    /// Fence with which the claim was granted; refused if a later holder has a higher one.
    #[arg(long, value_name = "N")]
    fence: Option<i64>,
    /// Reason, for the audit log.
    #[arg(long)]
    reason: Option<String>,
    /// Role of the claim, if the instance is being moved or was found in two places: primary,
    /// migration_target or migration_source.
    #[arg(long, value_name = "ROLE", value_parser = args::api_value::<ClaimRole>("primary, migration_target or migration_source"))]
    role: Option<ClaimRole>,
}

impl Resource for Claim {
    const KIND: &'static str = "claim";
    const PATH: &'static str = "/v1/claims";
    const EMPTY: &'static str = "No claims match.";
    const COLUMNS: &'static [Column<Self>] = columns![claim;
        "INSTANCE" => claim.instance.to_string(),
        "ROLE" => api_name(&claim.role),
        "NAME" => claim.name.as_deref(),
        "TENANT" => claim.tenant.as_str(),
        "WORKLOAD" => claim.workload.as_deref(),
        "NODE" => claim.node.as_ref().map(|node| node.as_str()),
        "STATE" => claim_state(claim.state),
        "CHARGED" => amounts(&claim.resources),
        "LEASE" => claim.lease_until.map(age),
        "AGE" => age(claim.created_at),
        "?MIGRATION" => match claim.role {
            ClaimRole::Primary => Cell::with_tone("runs here", Tone::Dim),
            ClaimRole::MigrationTarget => "moves here".into(),
            ClaimRole::MigrationSource => "moved away".into(),
        },
    ];

    fn key(&self) -> String {
        format!("{} {}", self.instance, api_name(&self.role))
    }

    fn fields(&self) -> Vec<(&'static str, String)> {
        let values = self.values.iter().map(|held| format!("{}={}", held.pool, held.value));
        vec![
            ("instance", paint(BOLD, &self.instance.to_string())),
            ("name", self.name.clone().unwrap_or_default()),
            ("tenant", self.tenant.clone()),
            ("workload", self.workload.clone().unwrap_or_default()),
            ("node", self.node.as_ref().map(ToString::to_string).unwrap_or_default()),
            ("state", api_name(&self.state)),
            ("lease", self.lease_until.map(|at| format!("ends {}", age(at))).unwrap_or_default()),
            ("charged", amounts(&self.resources)),
            ("fence", self.fence.to_string()),
            ("values", values.collect::<Vec<_>>().join(" ")),
            ("granted", format!("{} ({})", timestamp(self.created_at), age(self.created_at))),
        ]
    }
}

impl Claims {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        match self {
            Self::List(filter) => filter.list::<Claim>(session).await,
            Self::Show(arg) => {
                let id = session.instance(&arg.instance).await?;
                session.show::<Claim>(&id.to_string()).await
            }
            Self::Renew(RenewArgs { step, lease }) => {
                step.run(session, "renew", |fence| RenewClaim { fence, lease_s: lease }).await
            }
            Self::Bind(step) => step.run(session, "bind", |fence| FencedRequest { fence }).await,
            Self::Activate(step) => {
                step.run(session, "activate", |fence| FencedRequest { fence }).await
            }
            Self::Release(release) => release.run(session).await,
        }
    }
}

impl StepArgs {
    async fn run<B: Serialize + Sync>(
        self,
        session: &Session,
        verb: &str,
        body: impl FnOnce(i64) -> B,
    ) -> CmdResult {
        let id = session.instance(&self.arg.instance).await?;
        let fence = match self.fence {
            Some(fence) => fence,
            None => session.client.claim(id).await?.fence,
        };
        let path = format!("{}/{id}/{verb}", Claim::PATH);
        let name = name_for_people(session, id).await;
        let raw: RawJson = session.client.post(&path, &body(fence)).await?;
        session.out.response(&raw, |status: ClaimStatus| {
            session.out.line(sentence(&status, name.as_deref()));
        })
    }
}

/// The name of an instance, where people read the output and it has one.
async fn name_for_people(session: &Session, id: InstanceId) -> Option<String> {
    if session.out.is_data() {
        return None;
    }
    session.client.claim(id).await.ok().and_then(|claim| claim.name)
}

fn sentence(status: &ClaimStatus, name: Option<&str>) -> String {
    let id = match name {
        Some(name) => format!("{name} ({})", status.instance),
        None => status.instance.to_string(),
    };
    match (api_name(&status.state).as_str(), status.lease_until) {
        ("", _) => format!("{id} is gone"),
        ("releasing", _) => {
            format!("{id} is releasing: its room is free when its agent confirms that it is gone")
        }
        (state, Some(until)) => format!("{id} is {state}; its lease ends {}", age(until)),
        (state, None) => format!("{id} is {state}"),
    }
}

impl ReleaseArgs {
    async fn run(self, session: &Session) -> CmdResult {
        let out = &session.out;
        let bar = out.bar(self.instances.len(), "release");
        let release = async |text: &String| -> CmdResult<(Option<String>, RawJson)> {
            let id = session.instance(text).await?;
            let name = name_for_people(session, id).await;
            let body = ReleaseClaim {
                fence: self.fence,
                confirmed: self.confirmed,
                reason: self.reason.clone(),
                ..ReleaseClaim::default()
            };
            let query = self.role.map(|role| format!("?role={}", api_name(&role)));
            let path = format!("{}/{id}/release{}", Claim::PATH, query.unwrap_or_default());
            let raw = session.client.post(&path, &body).await;
            bar.inc(1);
            Ok((name, raw?))
        };
        let results = concurrently(&self.instances, release).await;
        let (released, failed) = partition(results);
        bar.finish_and_clear();
        if out.is_data() {
            let raws: Vec<RawJson> = released.into_iter().map(|(_, raw)| raw).collect();
            out.data_of(&raws)?;
        } else {
            for (name, raw) in &released {
                out.line(sentence(&decode(raw)?, name.as_deref()));
            }
        }
        let failed = failed.into_iter().map(|failure| (String::new(), failure)).collect();
        Failure::of_many(failed, self.instances.len(), "claim", "were not released")
    }
}
