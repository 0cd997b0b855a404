//! `berth place --preempt`: show who would make room, ask, then place.
//!
//! The instances that are released are those that were shown; the server checks each again.

use berth_api::{
    ApplyPreemption, PlaceRequest, PreemptedInstance, Preemption, PreemptionApplied,
    PreemptionVictim,
};
use berth_client::ClientError;

use super::{Place, print};
use crate::cmdutil::{
    CmdResult, Failure, NonInteractive, Output, RawJson, Session, Table, amounts, claim_state,
    columns, confirm, decode, or_dash, plural,
};

/// What is added to the refusal.
const NOBODY: &str = "No instances of lower priority that may be preempted would make room.\n";

impl Place {
    /// Places the request in the room of others if there is none.
    pub(super) async fn run_preempting(
        &self,
        session: &Session,
        mut request: PlaceRequest,
    ) -> CmdResult {
        let out = &session.out;
        let dry_run = std::mem::take(&mut request.dry_run);
        let raw: Result<RawJson, ClientError> =
            session.client.post("/v1/placements/preemption", &request).await;
        let raw = match raw {
            Ok(raw) => raw,
            Err(error) => {
                let failure: Failure = error.into();
                if failure.problem().is_some_and(|problem| problem.code == "no_preemption") {
                    out.note(NOBODY);
                }
                return Err(self.draw_failure(session, failure, &request).await);
            }
        };
        let proposed: Preemption = decode(&raw)?;
        if dry_run {
            return out.response(&raw, |proposed: Preemption| {
                print_victims(out, &proposed);
                out.note(&proposed.message);
            });
        }
        if proposed.victims.is_empty() {
            return self.place(session, request).await;
        }
        if !out.is_data() && !out.quiet {
            print_victims(out, &proposed);
        }
        if !self.handling.yes {
            let victims = plural(proposed.victims.len(), "instance");
            confirm(&format!("release {victims} to make room"), NonInteractive::Refuse)?;
        }
        let victims = proposed.victims.iter();
        let victims = victims.map(|it| PreemptionVictim { instance: it.instance, fence: it.fence });
        let apply = ApplyPreemption { request, victims: Some(victims.collect()) };
        let raw: Result<RawJson, ClientError> =
            session.client.post("/v1/placements/preemption/apply", &apply).await;
        match raw {
            Ok(raw) => out.response(&raw, |applied: PreemptionApplied| {
                print::print_placement(out, &applied.placed);
                out.note(format!("\n{}.", applied.message));
            }),
            Err(error) => Err(self.draw_failure(session, error.into(), &apply.request).await),
        }
    }
}

/// Prints who would make room.
fn print_victims(out: &Output, proposed: &Preemption) {
    let columns = columns![victim: PreemptedInstance;
        "INSTANCE" => victim.instance.to_string(),
        "NAME" => or_dash(victim.name.as_deref()),
        "TENANT" => victim.tenant.as_str(),
        "WORKLOAD" => or_dash(victim.workload.as_deref()),
        ">PRIORITY" => victim.priority.to_string(),
        "STATE" => claim_state(victim.state),
        "RESOURCES" => amounts(&victim.resources),
        "+WHY" => victim.why.as_str(),
    ];
    let table = Table::of(&proposed.victims, out.is_wide(), columns);
    if !table.is_empty() {
        out.table(&table, "");
    }
}
