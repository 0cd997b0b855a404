//! `berth policies diff --on` and `--since`: what two policies make of the same arrivals, of a file or of
//! this server's log. Nothing changes on the server.

use berth_api::engine::{Policy, units};
use berth_api::{Event, Page};
use berth_sim::packing::{
    ChangedPlacement, Chooser, FleetNode, LogTrace, Outcome, PlacementDifference, TenantDifference,
    Trace, placement_difference,
};
use clap::Args;
use serde::Serialize;

use crate::cmdutil::style::{BOLD, paint};
use crate::cmdutil::{
    Cell, CmdResult, Exit, Failure, Output, RawJson, Session, Table, Tone, args, columns,
    decode_all, now,
};
use crate::simulate::{Condition, FleetArgs, Source, replay_all};

/// Seed of policies that draw: the same for both.
const SEED: u64 = 1;

/// On which arrivals two policies are compared.
#[derive(Args, Debug)]
pub(super) struct TraceDiffArgs {
    /// Compare what both make of a trace: see berth simulate replay. May be given more than once.
    #[arg(long, value_name = "TRACE", conflicts_with = "on_live")]
    on: Vec<String>,
    /// Compare what both make of the arrivals at this server during this time, such as 7d, from its log.
    #[arg(long, value_name = "DURATION", value_parser = args::duration, conflicts_with_all = ["on_live", "on"])]
    since: Option<u32>,
    /// With --on or --since: fail, with exit code 1, if the second policy is worse by more than this, such
    /// as 'rejected > +0.1%', 'rejected > +5' or 'nodes > 400'. May be given more than once.
    #[arg(long, value_name = "CONDITION", conflicts_with = "on_live")]
    fail_if: Vec<Condition>,
    #[command(flatten)]
    fleet: FleetArgs,
}

/// One trace under two policies.
#[derive(Serialize)]
struct TraceDifference {
    trace: String,
    nodes: usize,
    first: Outcome,
    second: Outcome,
    #[serde(flatten)]
    difference: PlacementDifference,
    /// Conditions of --fail-if that hold.
    failed: Vec<String>,
}

impl TraceDiffArgs {
    pub(super) fn is_wanted(&self) -> bool {
        !self.on.is_empty() || self.since.is_some() || !self.fail_if.is_empty()
    }

    pub(super) async fn run(
        self,
        session: &Session,
        policies: &[Policy],
        listed: usize,
    ) -> CmdResult {
        let choosers: Vec<Chooser> = policies
            .iter()
            .map(|policy| Chooser::of_policy(policy.name(), policy.clone()))
            .collect();
        let mut differences = Vec::new();
        for spec in &self.on {
            let source = Source::load(spec, &self.fleet).map_err(failure)?;
            let nodes = source.fleet(&self.fleet).map_err(failure)?;
            differences.push(self.compare(
                &source.name,
                &source.trace,
                nodes,
                &choosers,
                0,
                listed,
            )?);
        }
        if let Some(seconds) = self.since {
            let (trace, nodes, from) = log_of_server(session, seconds).await?;
            let name = format!("the log of {}", session.client.url());
            differences.push(self.compare(&name, &trace, &nodes, &choosers, from, listed)?);
        }
        if differences.is_empty() {
            return Err(Failure::usage("--fail-if needs arrivals to compare on")
                .accepted("--on TRACE or --since DURATION with it"));
        }
        let out = &session.out;
        if out.is_data() {
            out.data(&differences)?;
        } else {
            differences.iter().for_each(|difference| print(out, difference));
        }
        let failed: Vec<String> = differences
            .iter()
            .flat_map(|of| of.failed.iter().map(|failed| format!("on {}: {failed}", of.trace)))
            .collect();
        if failed.is_empty() { Ok(()) } else { Err(Failure::new(Exit::Failed, failed.join("; "))) }
    }

    fn compare(
        &self,
        name: &str,
        trace: &Trace,
        nodes: &[FleetNode],
        choosers: &[Chooser],
        since: u64,
        listed: usize,
    ) -> CmdResult<TraceDifference> {
        let outcomes = replay_all(trace, nodes, choosers, SEED).map_err(failure)?;
        let mut outcomes = outcomes.into_iter().map(|(outcome, _)| outcome);
        let (Some(mut first), Some(mut second)) = (outcomes.next(), outcomes.next()) else {
            return Err(Failure::usage("two policies are compared"));
        };
        let difference = placement_difference(trace, nodes, [&first, &second], since, listed);
        let failed = self.fail_if.iter().filter_map(|condition| condition.failure(&first, &second));
        let failed = failed.collect();
        // The course over time is for reports.
        first.samples.clear();
        second.samples.clear();
        let trace = name.to_owned();
        Ok(TraceDifference { trace, nodes: nodes.len(), first, second, difference, failed })
    }
}

fn failure(error: anyhow::Error) -> Failure {
    Failure::usage(crate::cmdutil::chain(&*error))
}

/// Everything in the server's log as a trace, its nodes, and the second at which the given time began.
async fn log_of_server(session: &Session, seconds: u32) -> CmdResult<(Trace, Vec<FleetNode>, u64)> {
    let from = ("after", Some("0".to_owned()));
    let page: Page<RawJson> =
        session.get_list_from("/v1/events", &[], Some(usize::MAX), from).await?;
    let events: Vec<Event> = decode_all(&page.items)?;
    let Some(start) = events.first().map(|event| event.at) else {
        return Err(Failure::usage("the log of the server is empty"));
    };
    let since = now() - jiff::SignedDuration::from_secs(seconds.into());
    let mut log = LogTrace::default();
    for event in &events {
        log.add(event.at, &event.kind, &event.body).map_err(|expected| {
            Failure::usage(format!("event {} of the server: expected {expected}", event.seq))
        })?;
    }
    let (trace, nodes) = log.finish();
    if nodes.is_empty() || trace.demands.is_empty() {
        return Err(Failure::usage("the log of the server tells of no arrivals, or of no node"));
    }
    let passed = since.duration_since(start).as_secs();
    Ok((trace, nodes, u64::try_from(passed).unwrap_or(0)))
}

fn print(out: &Output, of: &TraceDifference) {
    let TraceDifference { trace, nodes, first, second, difference, .. } = of;
    let changed = difference.arrived - difference.same;
    let title = format!(
        "{changed} of {} arrivals are treated differently on {nodes} nodes, {trace}",
        difference.arrived
    );
    out.line(paint(BOLD, &title));
    let mut table = Table::new(&["MEASURE", &first.policy, &second.policy]);
    let mut row = |name: &str, one: String, other: String| {
        table.row([name.into(), one.into(), other.into()]);
    };
    row("rejected", first.rejected.to_string(), second.rejected.to_string());
    let cpu = |it: &Outcome| units::cpu(i64::try_from(it.rejected_cpu_milli).unwrap_or(i64::MAX));
    let size =
        |it: &Outcome| units::size(i64::try_from(it.rejected_memory_mib).unwrap_or(i64::MAX));
    row("rejected CPU", cpu(first), cpu(second));
    row("rejected memory", size(first), size(second));
    let mean = |it: &Outcome| crate::simulate::tenths_of_milli(it.mean_nodes_milli);
    row("mean nodes", mean(first), mean(second));
    row("peak nodes", first.peak_nodes.to_string(), second.peak_nodes.to_string());
    out.line(out.text_of(&table));
    out.line(format!(
        "same {}, other node {}, placed only by the first {}, only by the second {}",
        difference.same, difference.other_node, difference.only_first, difference.only_second
    ));
    if !difference.tenants.is_empty() {
        out.line(format!("\n{}", out.text_of(&tenants(&difference.tenants))));
    }
    if !difference.placements.is_empty() {
        out.line(format!("\n{}", out.text_of(&placements(&difference.placements))));
        let left = changed.saturating_sub(difference.placements.len() as u64);
        if left > 0 {
            out.note(format!("{left} more differ; show more with --limit"));
        }
    }
}

fn tenants(tenants: &[TenantDifference]) -> Table {
    let columns = columns![tenant: TenantDifference;
        "TENANT" => tenant.tenant.as_str(),
        ">ARRIVALS" => tenant.arrived.to_string(),
        ">DIFFERENT" => tenant.changed.to_string(),
        ">REJECTED, FIRST" => tenant.rejected_first.to_string(),
        ">REJECTED, SECOND" => tenant.rejected_second.to_string(),
    ];
    Table::of(tenants, false, columns)
}

fn placements(placements: &[ChangedPlacement]) -> Table {
    fn place(node: &Option<String>) -> Cell {
        let refused = || Cell::with_tone("refused", Tone::Bad);
        node.as_ref().map_or_else(refused, |node| node.as_str().into())
    }
    let columns = columns![placement: ChangedPlacement;
        "INSTANCE" => placement.instance.as_str(),
        "TENANT" => placement.tenant.as_str(),
        ">AT" => format!("{} s", placement.time),
        ">CPU" => units::cpu(placement.cpu_milli.into()),
        ">MEMORY" => units::size(placement.memory_mib.into()),
        "FIRST" => place(&placement.first),
        "SECOND" => place(&placement.second),
    ];
    Table::of(placements, false, columns)
}
