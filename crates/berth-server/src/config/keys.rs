//! Every setting there is: one table, from which files are read, checked, shown and documented.

use std::path::PathBuf;

use super::value::{Kind, Value};
use super::{Config, LogFormat, TlsMode, WireSignIn};
use berth_control::Adoption;

/// One setting.
pub struct Key {
    /// Its name in full: `section.key`.
    pub name: &'static str,
    /// What values it takes.
    pub kind: Kind,
    /// Its default, as written in a list or a text.
    pub default: &'static str,
    /// What it does, in a sentence.
    pub meaning: &'static str,
    /// Whether a change takes effect while the server runs.
    pub live: bool,
    /// Puts a value in its place.
    pub(super) set: fn(&mut Config, Value),
}

impl Key {
    /// The section that it is in.
    #[must_use]
    pub fn section(&self) -> &'static str {
        self.name.split_once('.').map_or("", |(section, _)| section)
    }

    /// Its name within the section.
    #[must_use]
    pub fn short(&self) -> &'static str {
        self.name.split_once('.').map_or(self.name, |(_, key)| key)
    }

    /// The variable that sets it. Those of the server itself have the shortest names.
    #[must_use]
    pub fn variable(&self) -> String {
        let name = self.name.strip_prefix("server.").unwrap_or(self.name);
        format!("BERTH_{}", name.replace('.', "_").to_uppercase())
    }
}

/// The sections, and what each is about.
pub const SECTIONS: &[(&str, &str)] = &[
    ("server", "Where the server listens, where it keeps its data, and how it stops."),
    ("http", "Limits of the HTTP layer. Sizes are after decompression."),
    ("tls", "TLS, and client certificates of agents."),
    ("wire", "The protocol of existing agents, on ports of its own; see `docs/wire.md`."),
    ("ledger", "How the database is used."),
    ("nodes", "Heartbeats of agents."),
    ("tenants", "The removal of tenants."),
    ("queue", "Requests that wait for capacity."),
    (
        "limits",
        "What one tenant may ask for in a time, and how much may be under way at once. Rates do not limit tokens of operators and admins.",
    ),
    ("retention", "What the ledger keeps, and for how long."),
    ("loops", "Intervals of background loops."),
    ("evacuation", "Checks whether nodes can be evacuated."),
    ("telemetry", "Logs, traces and metrics."),
    ("policy", "How nodes are chosen."),
];

const SECOND: u64 = 1000;
const DAY: u64 = 86_400 * SECOND;
const GIB: u64 = 1024;

macro_rules! key {
    ($name:literal, $kind:expr, $default:literal, $when:ident, $meaning:literal, $set:expr) => {
        Key {
            name: $name,
            kind: $kind,
            default: $default,
            meaning: $meaning,
            live: key!(@$when),
            set: $set,
        }
    };
    (@live) => { true };
    (@start) => { false };
}

/// Every setting.
pub static KEYS: &[Key] = &[
    key!(
        "server.listen",
        Kind::Addresses,
        "127.0.0.1:7070",
        start,
        "Addresses and ports to listen on. Port 0 takes a free one.",
        |config, value| config.server.listen = value.addresses()
    ),
    key!(
        "server.data_dir",
        Kind::Text,
        "",
        start,
        "The folder for the embedded database and the server's own certificates. Empty: `/var/lib/berth` when it exists and root starts the server, else `berth` in `$XDG_DATA_HOME` or `~/.local/share`.",
        |config, value| config.server.data_dir = PathBuf::from(value.text())
    ),
    key!(
        "server.database_url",
        Kind::Text,
        "",
        start,
        "Another database: `postgres://USER@HOST/NAME`, or the path of a SQLite file. Empty: `berth.db` in the data folder.",
        |config, value| config.server.database_url = value.optional_text()
    ),
    key!(
        "server.no_sign_in",
        Kind::Flag,
        "false",
        start,
        "Callers on this machine need no token. Refused unless every listen address is a loopback address.",
        |config, value| config.server.no_sign_in = value.flag()
    ),
    key!(
        "server.stop_delay",
        Kind::Duration(0, 600 * SECOND),
        "500ms",
        live,
        "How long a stopping server still accepts requests while `/readyz` returns 503, so that load balancers stop sending traffic in time.",
        |config, value| config.server.stop_delay = value.duration()
    ),
    key!(
        "server.stop_grace",
        Kind::Duration(0, 3600 * SECOND),
        "30s",
        live,
        "How long requests in flight may then take to finish before their connections are closed.",
        |config, value| config.server.stop_grace = value.duration()
    ),
    key!(
        "http.body_limit",
        Kind::Size(1, GIB),
        "2MiB",
        start,
        "Maximum size of a request body.",
        |config, value| config.http.limits.body_bytes = value.size()
    ),
    key!(
        "http.import_limit",
        Kind::Size(1, 64 * GIB),
        "256MiB",
        start,
        "Maximum size of the body of a node import.",
        |config, value| config.http.limits.import_bytes = value.size()
    ),
    key!(
        "http.timeout",
        Kind::Duration(SECOND, 3600 * SECOND),
        "30s",
        start,
        "Maximum duration of a request, without the time that it asks to wait (`Prefer: wait`, `wait_s`); streams and imports are exempt.",
        |config, value| config.http.limits.timeout = value.duration()
    ),
    key!(
        "http.header_timeout",
        Kind::Duration(SECOND, 3600 * SECOND),
        "75s",
        live,
        "How long a connection may be idle, or take to send the head of a request or to complete the TLS handshake. Set it longer than a load balancer keeps idle connections, which is often 60s.",
        |config, value| config.http.connections.header_timeout = value.duration()
    ),
    key!(
        "http.stall_timeout",
        Kind::Duration(SECOND, 3600 * SECOND),
        "30s",
        live,
        "How long a client may stop reading a response, or stop sending a body, before it is disconnected. A body must also arrive within this time as a whole, with a second more for every 4 KiB.",
        |config, value| config.http.connections.stall_timeout = value.duration()
    ),
    key!(
        "http.max_connections",
        Kind::Count(1, 1_000_000),
        "50000",
        live,
        "Maximum number of open connections, within the open-file limit of the process; further ones are refused with 503.",
        |config, value| config.http.connections.max_connections = value.number()
    ),
    key!(
        "tls.mode",
        Kind::OneOf(&["off", "self", "files"]),
        "off",
        start,
        "`off`: plain HTTP. `self`: a certificate authority and certificate that the server creates and renews in the data folder. `files`: the certificate and key of the next two settings, read again when they change.",
        |config, value| config.tls.mode = TlsMode::of(&value.text())
    ),
    key!(
        "tls.cert",
        Kind::Text,
        "",
        start,
        "The file with the server's certificate and the chain above it, in PEM.",
        |config, value| config.tls.cert = value.optional_text().map(PathBuf::from)
    ),
    key!(
        "tls.key",
        Kind::Text,
        "",
        start,
        "The file with the certificate's key, in PEM.",
        |config, value| config.tls.key = value.optional_text().map(PathBuf::from)
    ),
    key!(
        "tls.client_ca",
        Kind::Text,
        "",
        start,
        "A file with authorities, in PEM. A client certificate of theirs whose DNS name is the id of a node signs in as the agent of that node. With mode `self`, the server's own authority is always included.",
        |config, value| config.tls.client_ca = value.optional_text().map(PathBuf::from)
    ),
    key!(
        "tls.hosts",
        Kind::List,
        "",
        start,
        "Names and addresses in the certificate of mode `self`, in addition to the listen addresses, `localhost` and the machine's name.",
        |config, value| config.tls.hosts = value.list()
    ),
    key!(
        "wire.listen",
        Kind::NoneOrAddresses,
        "",
        start,
        "Addresses and ports that serve permits in the protocol of existing agents; its usual port is 10299. TLS applies as for `server.listen`. Empty: off.",
        |config, value| config.wire.listen = value.addresses()
    ),
    key!(
        "wire.sign_in",
        Kind::OneOf(&["server", "token", "none"]),
        "server",
        start,
        "Whether those agents must authenticate. `server`: as other callers. `token`: with the token or certificate of an agent or an operator. `none`: no; refused unless every address of `wire.listen` is a loopback address.",
        |config, value| config.wire.sign_in = WireSignIn::of(&value.text())
    ),
    key!(
        "wire.mem_slot",
        Kind::Size(1, GIB),
        "1GiB",
        start,
        "Size of a memory slot, the unit of agents of version 3.0.",
        |config, value| config.wire.slot_mib = u32::try_from(value.count()).unwrap_or(u32::MAX)
    ),
    key!(
        "ledger.lanes",
        Kind::Count(0, 64),
        "0",
        start,
        "Maximum number of concurrent transactions on PostgreSQL. 0: one for every two cores, at most 8.",
        |config, value| {
            if value.count() > 0 {
                config.ledger.writers = value.number();
            }
        }
    ),
    key!(
        "ledger.group",
        Kind::Count(1, 100_000),
        "1000",
        start,
        "Maximum number of operations in one transaction.",
        |config, value| config.ledger.group = value.number()
    ),
    key!(
        "ledger.isolation",
        Kind::OneOf(&["read-committed", "repeatable-read", "serializable"]),
        "read-committed",
        start,
        "PostgreSQL's isolation level. Every level is safe; the higher ones retry more.",
        |config, value| {
            if let Ok(isolation) = value.text().parse() {
                config.ledger.isolation = isolation;
            }
        }
    ),
    key!(
        "ledger.hints",
        Kind::Flag,
        "true",
        start,
        "Whether servers on PostgreSQL tell each other of commits through LISTEN and NOTIFY, so that each reads the log at once. Without, and in case a hint is lost, they read it every `loops.follow_every`. Takes one connection per server.",
        |config, value| config.ledger.hints = value.flag()
    ),
    key!(
        "ledger.patience",
        Kind::Duration(SECOND, 3600 * SECOND),
        "10s",
        start,
        "How long a write is retried while the database is unreachable or does not answer, and how long callers wait for it.",
        |config, value| config.ledger.retry_budget = value.duration()
    ),
    key!(
        "nodes.heartbeat_every",
        Kind::Duration(SECOND, 3600 * SECOND),
        "10s",
        live,
        "How often agents send a heartbeat.",
        |config, value| config.settings.heartbeat_every = value.duration()
    ),
    key!(
        "nodes.lost_after",
        Kind::Duration(2 * SECOND, DAY),
        "90s",
        live,
        "Time without a heartbeat after which a node counts as lost. Longer than `nodes.heartbeat_every`.",
        |config, value| config.settings.lost_after = value.duration()
    ),
    key!(
        "nodes.lost_grace",
        Kind::Duration(0, DAY),
        "2m",
        live,
        "How long after `nodes.lost_after` the instances of a lost node count as gone: those without volumes are replaced.",
        |config, value| config.settings.lost_grace = value.duration()
    ),
    key!(
        "nodes.adopt",
        Kind::OneOf(&["off", "unmanaged", "listed", "any"]),
        "unmanaged",
        live,
        "What becomes of an instance that an agent finds on its node and Berth did not place. `off`: the report is refused. `unmanaged`: it is recorded for the tenant `unmanaged`, whatever tenant its agent names. `listed`: it is recorded for the tenant that its agent names, if that is one of `nodes.adopt_tenants`. `any`: the same for every tenant.",
        |config, value| config.settings.adopt = adoption_of(&value.text())
    ),
    key!(
        "nodes.adopt_tenants",
        Kind::List,
        "",
        live,
        "The tenants that agents may name with `nodes.adopt` set to `listed`.",
        |config, value| {
            if let Adoption::Listed(tenants) = &mut config.settings.adopt {
                *tenants = value.list();
            }
        }
    ),
    key!(
        "tenants.quarantine",
        Kind::Duration(0, DAY),
        "1m",
        live,
        "How long the name of a tenant stays blocked at least once its removal has begun, so that requests that were on their way are refused. Longer than any request takes.",
        |config, value| config.settings.tenant_quarantine = value.duration()
    ),
    key!(
        "queue.patience",
        Kind::Duration(0, DAY),
        "60s",
        live,
        "How long later requests may overtake a queued one.",
        |config, value| config.settings.queue_patience = value.duration()
    ),
    key!(
        "queue.limit",
        Kind::Count(0, 10_000_000),
        "10000",
        live,
        "Maximum number of queued requests per tenant.",
        |config, value| config.settings.queue_limit = value.number()
    ),
    key!(
        "queue.total",
        Kind::Count(0, 10_000_000),
        "100000",
        live,
        "Maximum number of queued requests of all tenants. Each takes about 5 KiB of memory in every server. Further ones get 503 `total_queue_full` with `Retry-After`.",
        |config, value| config.settings.queue_total = value.number()
    ),
    key!(
        "limits.placements",
        Kind::Count(0, 10_000_000),
        "5000",
        live,
        "Instances that one tenant may ask to place in a second. 0: no limit.",
        |config, value| config.settings.tenant_rates.placements = value.number()
    ),
    key!(
        "limits.dry_runs",
        Kind::Count(0, 10_000_000),
        "1000",
        live,
        "Instances that one tenant may ask for in dry runs in a second. 0: no limit.",
        |config, value| config.settings.tenant_rates.dry_runs = value.number()
    ),
    key!(
        "limits.tickets",
        Kind::Count(0, 10_000_000),
        "200",
        live,
        "Requests that one tenant may queue in a second. 0: no limit.",
        |config, value| config.settings.tenant_rates.tickets = value.number()
    ),
    key!(
        "limits.refusals",
        Kind::Count(0, 10_000_000),
        "20",
        live,
        "Refusals that one tenant may cause in a second: each is explained and stored. Every 16 instances of a refused batch count as one more. Beyond that its placements and dry runs have to wait. 0: no limit.",
        |config, value| config.settings.tenant_rates.refusals = value.number()
    ),
    key!(
        "limits.explanations",
        Kind::Count(0, 10_000_000),
        "5",
        live,
        "Explanations of requests and decisions that one tenant may ask for in a second. One that is derived from a log of 50000 events counts as two, of 100000 as three, and so on. 0: no limit.",
        |config, value| config.settings.tenant_rates.explanations = value.number()
    ),
    key!(
        "limits.events_per_day",
        Kind::Count(0, 1_000_000_000),
        "2000000",
        live,
        "Events that may be written to the log on behalf of one tenant in a day, by this or other servers since this one started; the record of a refusal counts as four. Beyond that the tenant can only read and release. Compare `retention.events`. 0: no limit.",
        |config, value| config.settings.tenant_rates.events_per_day = value.number()
    ),
    key!(
        "limits.burst",
        Kind::Duration(SECOND, 3600 * SECOND),
        "10s",
        live,
        "How long a tenant may save up what it did not ask for.",
        |config, value| config.settings.tenant_rates.burst = value.duration()
    ),
    key!(
        "limits.planner_queue",
        Kind::Count(1, 10_000_000),
        "4096",
        start,
        "Requests of one tenant that may wait for the planner, and as many for the explainer. Tenants take turns; further requests are refused with `tenant_busy`. What operators ask for on behalf of a tenant counts apart from what it asks for itself.",
        |config, value| config.claim_path.planner_queue = value.number()
    ),
    key!(
        "limits.in_flight",
        Kind::Count(0, 10_000_000),
        "20000",
        start,
        "Instances of all tenants' requests that may be under way, and as many that may wait for the explainer. A tenant that is alone may fill four fifths, and heavy ones share it; who asks for more gets 429 `tenant_busy`, and when all together fill it, 503 `overloaded`. 0: no limit.",
        |config, value| config.claim_path.in_flight = value.number()
    ),
    key!(
        "limits.queue_delay",
        Kind::Duration(0, 3600 * SECOND),
        "500ms",
        start,
        "How long placements should wait at most. Once most of them take longer, fewer instances than `limits.in_flight` may be under way: as many as are served in that time. 0s: as long as it takes.",
        |config, value| config.claim_path.queue_delay = value.duration()
    ),
    key!(
        "retention.events",
        Kind::Count(1000, 1_000_000_000_000),
        "10000000",
        live,
        "Number of events to keep. A follower that needs older ones must reload.",
        |config, value| {
            config.maintenance.retention.events = i64::try_from(value.count()).unwrap_or(i64::MAX);
        }
    ),
    key!(
        "retention.answers",
        Kind::Duration(60 * SECOND, 3650 * DAY),
        "7d",
        live,
        "How long a retry with the same request id gets the first response.",
        |config, value| {
            let seconds = value.duration().as_secs();
            config.maintenance.retention.answers_s = i64::try_from(seconds).unwrap_or(i64::MAX);
        }
    ),
    key!(
        "retention.receipts",
        Kind::Age,
        "forever",
        live,
        "How long receipts of decisions are kept.",
        |config, value| config.maintenance.retention.receipts_s = value.age_s()
    ),
    key!(
        "retention.refusals",
        Kind::Age,
        "7d",
        live,
        "How long refusals with their explanations are kept. `forever`: as long as other receipts.",
        |config, value| config.maintenance.retention.refusals_s = value.age_s()
    ),
    key!(
        "retention.audit",
        Kind::Age,
        "forever",
        live,
        "How long the audit log is kept.",
        |config, value| config.maintenance.retention.audit_s = value.age_s()
    ),
    key!(
        "loops.reap_every",
        Kind::Duration(100, 3600 * SECOND),
        "5s",
        live,
        "How often expired leases are ended.",
        |config, value| config.maintenance.reap_every = value.duration()
    ),
    key!(
        "loops.reconcile_every",
        Kind::Duration(SECOND, DAY),
        "60s",
        live,
        "How often counters are compared with claims.",
        |config, value| config.maintenance.reconcile_every = value.duration()
    ),
    key!(
        "loops.forget_every",
        Kind::Duration(SECOND, DAY),
        "10m",
        live,
        "How often data beyond its retention is deleted.",
        |config, value| config.maintenance.forget_every = value.duration()
    ),
    key!(
        "loops.follow_every",
        Kind::Duration(1, 60 * SECOND),
        "50ms",
        start,
        "How often events of other servers are polled.",
        |config, value| config.follow_every = value.duration()
    ),
    key!(
        "evacuation.check_every",
        Kind::Duration(0, DAY),
        "60s",
        live,
        "How often to check whether each node can be evacuated, for `berth nodes show` and the metrics. 0s: never.",
        |config, value| config.settings.evacuation_every = value.duration()
    ),
    key!(
        "telemetry.log_format",
        Kind::OneOf(&["text", "json"]),
        "text",
        start,
        "Format of the log on standard error.",
        |config, value| config.telemetry.log_format = LogFormat::of(&value.text())
    ),
    key!(
        "telemetry.log_level",
        Kind::Text,
        "info",
        live,
        "What is logged: `error`, `warn`, `info`, `debug`, `trace`, or directives as in `info,berth_server=debug`.",
        |config, value| config.telemetry.log_level = value.text()
    ),
    key!(
        "telemetry.otlp_endpoint",
        Kind::Text,
        "",
        start,
        "Where to send traces by OTLP over HTTP: `http://127.0.0.1:4318`. Empty: off.",
        |config, value| config.telemetry.otlp_endpoint = value.optional_text()
    ),
    key!(
        "telemetry.open_metrics",
        Kind::Flag,
        "false",
        live,
        "Serve `/metrics` without a token.",
        |config, value| config.settings.open_metrics = value.flag()
    ),
    key!(
        "policy.initial",
        Kind::Text,
        "balanced",
        start,
        "The policy of a new ledger: the name of a built-in one, or a file in TOML or JSON. A ledger that has a policy keeps it.",
        |config, value| config.policy = value.text()
    ),
    key!(
        "policy.file",
        Kind::Text,
        "",
        start,
        "A policy in TOML or JSON that is activated when the server starts and whenever the file changes. A policy activated by command stays active until the file changes again. An invalid file changes nothing. Empty: none.",
        |config, value| config.policy_file = value.optional_text().map(PathBuf::from)
    ),
];

/// What becomes of found instances, by its word.
fn adoption_of(word: &str) -> Adoption {
    match word {
        "off" => Adoption::Off,
        "listed" => Adoption::Listed(Vec::new()),
        "any" => Adoption::Any,
        _ => Adoption::Unmanaged,
    }
}
