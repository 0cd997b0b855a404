//! `berth status`: the server and its fleet on one screen, and what needs attention. `berth version`:
//! the versions of client and server.

use std::collections::BTreeMap;

use berth_api::engine::NodeState;
use berth_api::{Decision, Node, Page, ServerStatus, Ticket, TicketState, units};
use clap::Args;
use serde::Serialize;

use super::resource::Resource as _;
use super::top::{Fleet, Usage};
use crate::cmdutil::style::{BAD, GOOD, WARN, paint};
use crate::cmdutil::{
    CmdResult, Exit, Failure, Global, Output, Session, age, decode, decode_all, now, plural,
};

/// Show whether the server is ready, how full its fleet is, and what needs attention.
///
/// Fails with exit code 7 if the server is not ready.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  berth status\n  berth status -o json")]
pub(crate) struct StatusArgs {}

/// Show the versions of this program and of the server.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  berth version\n  berth version --client -o json")]
pub(crate) struct VersionArgs {
    /// Show only the version of this program, and ask no server.
    #[arg(long)]
    client: bool,
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Most pages of decisions that are read to count refusals.
const DECISION_PAGES: usize = 5;

/// A difference between clocks that is worth a warning, in seconds.
const CLOCK_TOLERANCE_S: i64 = 5;

impl VersionArgs {
    pub(crate) async fn run(self, global: &Global) -> CmdResult {
        #[derive(Serialize)]
        struct Versions<'a> {
            client: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            server: Option<Server>,
        }
        #[derive(Serialize)]
        struct Server {
            url: String,
            version: String,
            schema: i64,
            database: String,
        }
        let out = global.out();
        let server = if self.client { None } else { Some(read_server(global).await) };
        let (server, failure) = match server {
            Some(Ok((url, ServerStatus { version, schema, database, .. }))) => {
                (Some(Server { url, version, schema, database }), None)
            }
            Some(Err(failure)) => (None, Some(failure)),
            None => (None, None),
        };
        if out.is_data() {
            out.data(&Versions { client: VERSION, server })?;
        } else {
            let text = server.map(|server| {
                let Server { url, version, schema, database } = server;
                format!("{version} at {url}, schema {schema} on {database}")
            });
            out.pairs(&[("client", VERSION.to_owned()), ("server", text.unwrap_or_default())]);
        }
        failure.map_or(Ok(()), Err)
    }
}

async fn read_server(global: &Global) -> CmdResult<(String, ServerStatus)> {
    let session = global.session()?;
    let status = decode(&session.get("/v1/status", &[]).await?)?;
    Ok((session.client.url().to_owned(), status))
}

/// Everything on the screen.
#[derive(Serialize)]
struct Status {
    url: String,
    server: ServerStatus,
    /// How far the server's clock is ahead of this machine's, in seconds.
    clock_ahead_s: i64,
    /// Absent for callers that may not see nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    fleet: Option<FleetStatus>,
    waiting: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_since: Option<jiff::Timestamp>,
    /// Refusals of the last hour by code.
    refusals_last_hour: BTreeMap<String, usize>,
    /// Whether all decisions of the last hour were read, or only the latest.
    refusals_complete: bool,
    warnings: Vec<Warning>,
}

#[derive(Serialize)]
struct FleetStatus {
    nodes: BTreeMap<&'static str, usize>,
    instances: u64,
    cpu_milli: UsageStatus,
    memory_mib: UsageStatus,
    disk_mib: UsageStatus,
    /// Nodes on which more CPU is promised than their ratio allows.
    over_promised: usize,
    #[serde(skip)]
    fleet: Fleet,
}

#[derive(Serialize)]
struct UsageStatus {
    used: u64,
    total: u64,
}

/// What needs attention, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Warning {
    text: String,
    remedy: String,
}

impl StatusArgs {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        let status = Status::read(session).await?;
        let out = &session.out;
        if out.is_data() {
            out.data(&status)?;
        } else {
            status.print(out);
        }
        if status.server.ready {
            return Ok(());
        }
        let why = status.server.reason.as_deref().unwrap_or("it does not say why");
        Err(Failure::new(Exit::Unreachable, format!("the server is not ready: {why}")))
    }
}

impl Status {
    async fn read(session: &Session) -> CmdResult<Self> {
        let asked = now();
        let server: ServerStatus = decode(&session.get("/v1/status", &[]).await?)?;
        // The answer was written about half-way between.
        let middle = (asked.as_second() + now().as_second()) / 2;
        let clock_ahead_s = server.time.as_second() - middle;
        let fleet = read_fleet(session).await?;
        let tickets: Vec<Ticket> = read_list(session, Ticket::PATH, &[], 1000).await?;
        let waiting: Vec<&Ticket> =
            tickets.iter().filter(|ticket| ticket.state == TicketState::Waiting).collect();
        let start = server.time.as_second() - 3600;
        let (refusals_last_hour, refusals_complete) = read_refusals(session, start).await?;
        let mut status = Self {
            url: session.client.url().to_owned(),
            clock_ahead_s,
            fleet,
            waiting: waiting.len(),
            waiting_since: waiting.iter().map(|ticket| ticket.since).min(),
            refusals_last_hour,
            refusals_complete,
            warnings: Vec::new(),
            server,
        };
        status.warnings = status.find_warnings();
        Ok(status)
    }

    fn find_warnings(&self) -> Vec<Warning> {
        let mut warnings = Vec::new();
        let mut warn = |text: String, remedy: &str| {
            warnings.push(Warning { text, remedy: remedy.to_owned() });
        };
        if self.server.version != VERSION {
            let text = format!("server is {}, this program is {VERSION}", self.server.version);
            warn(text, "use the version of berth that the server runs");
        }
        if self.clock_ahead_s.abs() > CLOCK_TOLERANCE_S {
            let difference = units::duration(self.clock_ahead_s.abs());
            let text = format!("the clocks of server and this machine differ by {difference}");
            warn(text, "synchronize both with NTP");
        }
        for warning in &self.server.warnings {
            warn(warning.text.clone(), &warning.remedy);
        }
        if let Some(fleet) = &self.fleet {
            fleet.find_warnings(&mut warn);
        }
        if self.waiting > 0 {
            let text = format!("{} wait for room", plural(self.waiting, "request"));
            warn(text, "see what is missing with: berth queue demand");
        }
        warnings
    }

    fn print(&self, out: &Output) {
        let server = &self.server;
        let ready = match &server.reason {
            None => paint(GOOD, "ready"),
            Some(why) => paint(BAD, &format!("not ready: {why}")),
        };
        let took = server.database_ms.map(|ms| format!(", answers in {ms} ms"));
        let mut fields = vec![
            ("server", format!("{}, version {}, {ready}", self.url, server.version)),
            (
                "database",
                format!(
                    "{}, schema {}{}",
                    server.database,
                    server.schema,
                    took.unwrap_or_default()
                ),
            ),
        ];
        if let Some(fleet) = &self.fleet {
            fields.extend(fleet.fields());
        }
        let since = self.waiting_since.map(|at| format!(", the first since {}", age(at)));
        let waiting = plural(self.waiting, "request");
        fields.push(("waiting", format!("{waiting}{}", since.unwrap_or_default())));
        fields.push(("refusals", self.refusals()));
        out.pairs(&fields);
        for Warning { text, remedy } in &self.warnings {
            out.line(format!("\n{} {text}\n  remedy: {remedy}", paint(WARN, "warning:")));
        }
    }

    fn refusals(&self) -> String {
        let total: usize = self.refusals_last_hour.values().sum();
        let least = if self.refusals_complete { "" } else { "at least " };
        let mut codes: Vec<(&String, &usize)> = self.refusals_last_hour.iter().collect();
        codes.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let codes: Vec<String> =
            codes.iter().take(5).map(|(code, count)| format!("{count} {code}")).collect();
        let codes =
            if codes.is_empty() { String::new() } else { format!(": {}", codes.join(", ")) };
        format!("{least}{total} in the last hour{codes}")
    }
}

impl FleetStatus {
    fn new(fleet: Fleet) -> Self {
        let nodes = fleet.states.iter().map(|(state, count)| (state.name(), *count)).collect();
        let usage = |Usage { used, total }: Usage| UsageStatus { used, total };
        Self {
            nodes,
            instances: fleet.instances,
            cpu_milli: usage(fleet.cpu),
            memory_mib: usage(fleet.memory),
            disk_mib: usage(fleet.disk),
            over_promised: fleet.over_promised,
            fleet,
        }
    }

    fn fields(&self) -> Vec<(&'static str, String)> {
        let states: Vec<String> =
            self.nodes.iter().map(|(state, count)| format!("{count} {state}")).collect();
        let states =
            if states.is_empty() { String::new() } else { format!(": {}", states.join(", ")) };
        let size = |usage: Usage| {
            let text = |mib: u64| units::size(i64::try_from(mib).unwrap_or(i64::MAX));
            format!("{}% of {}", usage.percent(), text(usage.total))
        };
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let fleet = &self.fleet;
        let (used, limit) = (signed(fleet.cpu.used), signed(fleet.cpu.total));
        vec![
            ("nodes", format!("{}{states}", fleet.nodes())),
            ("cpu", units::promised_cores(used, signed(fleet.cores), limit)),
            ("memory", size(fleet.memory)),
            ("disk", size(fleet.disk)),
            ("instances", self.instances.to_string()),
        ]
    }

    fn find_warnings(&self, warn: &mut impl FnMut(String, &str)) {
        let fleet = &self.fleet;
        if fleet.nodes() == 0 {
            warn("there are no nodes".to_owned(), "add one with: berth nodes register");
        }
        for (state, remedy) in [
            (NodeState::Lost, "see why with: berth nodes list --where 'state = lost' -o wide"),
            (
                NodeState::Degraded,
                "see why with: berth nodes list --where 'state = degraded' -o wide",
            ),
        ] {
            let count = fleet.states.get(&state).copied().unwrap_or(0);
            if count > 0 {
                let verb = if count == 1 { "is" } else { "are" };
                warn(format!("{} {verb} {}", plural(count, "node"), state.name()), remedy);
            }
        }
        if self.over_promised > 0 {
            let nodes = plural(self.over_promised, "node");
            let text = format!("more CPU is promised on {nodes} than the ratio allows");
            warn(text, "spread them with: berth rebalance plan --goal spread");
        }
        for (name, usage) in [("memory", fleet.memory), ("disk", fleet.disk)] {
            if usage.percent() >= 90 {
                let text = format!("{}% of the fleet's {name} is used", usage.percent());
                warn(text, "add nodes; berth queue demand says for what");
            }
        }
    }
}

/// The fleet; none for callers that may not see nodes.
async fn read_fleet(session: &Session) -> CmdResult<Option<FleetStatus>> {
    match session.get_list(Node::PATH, &[], None).await {
        Ok(page) => Ok(Some(FleetStatus::new(Fleet::of(&decode_all(&page.items)?)))),
        Err(failure) if failure.exit == Exit::Denied => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Refusals since a second by code, and whether all decisions since then were read.
async fn read_refusals(
    session: &Session,
    start: i64,
) -> CmdResult<(BTreeMap<String, usize>, bool)> {
    let mut codes: BTreeMap<String, usize> = BTreeMap::new();
    let mut cursor = None::<String>;
    for _ in 0..DECISION_PAGES {
        let mut query = vec![("limit", "1000")];
        query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
        let page: Page<Decision> = match session.client.get(Decision::PATH, &query).await {
            Ok(page) => page,
            // A server may keep no record of decisions, and a caller may not see it.
            Err(error) => match Failure::from(error) {
                failure if matches!(failure.exit, Exit::Denied | Exit::NotFound) => break,
                failure => return Err(failure),
            },
        };
        for decision in page.items.iter().filter(|one| one.at.as_second() >= start) {
            if let Some(code) = &decision.code {
                *codes.entry(code.clone()).or_default() += 1;
            }
        }
        let is_older = page.items.last().is_some_and(|one| one.at.as_second() < start);
        cursor = page.next;
        if is_older || cursor.is_none() {
            return Ok((codes, true));
        }
    }
    Ok((codes, cursor.is_none()))
}

/// The first items of a list; none if the caller may not see them, or nothing is kept.
async fn read_list<T: serde::de::DeserializeOwned>(
    session: &Session,
    path: &str,
    query: &[(&str, &str)],
    limit: usize,
) -> CmdResult<Vec<T>> {
    match session.get_list(path, query, Some(limit)).await {
        Ok(page) => decode_all(&page.items),
        Err(failure) if matches!(failure.exit, Exit::Denied | Exit::NotFound) => Ok(Vec::new()),
        Err(failure) => Err(failure),
    }
}
