//! `berth bench ledger`: durable claims through engine and ledger, compared with the bare database in
//! the same run.

mod clients;
mod floor;
mod report;

use std::sync::Arc;

use anyhow::{Context, bail};
use berth_control::{Placer, PlacerOptions};
use berth_engine::{Amounts, NodeFacts, Policy};
use berth_ledger::{Backend, Op, Outcome};
use berth_pgtemp::TempPostgres;
use berth_sim::NOW;
use clap::{Args, ValueEnum};

use report::Report;

/// Options of `berth bench ledger`.
#[derive(Args)]
pub(crate) struct LedgerBench {
    /// Database to measure.
    #[arg(long, value_enum, default_value_t = Kind::Sqlite)]
    backend: Kind,
    /// URL of the database; a temporary one by default.
    #[arg(long)]
    database_url: Option<String>,
    /// Number of clients, each with one request at a time.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    clients: u16,
    /// Nodes; with few, all claims meet on the same rows.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=200_000))]
    nodes: u64,
    /// Instances per request, placed all or none.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    batch: u16,
    /// How long to measure each part, in seconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Concurrent transactions on PostgreSQL; one for every two cores by default.
    #[arg(long, alias = "lanes", value_parser = clap::value_parser!(u16).range(1..=64))]
    writers: Option<u16>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Embedded.
    Sqlite,
    /// A server.
    Postgres,
}

/// The databases of a run; temporary ones are removed after it.
struct Databases {
    backend: Backend,
    /// The database of the floor.
    floor: Backend,
    _folder: Option<tempfile::TempDir>,
    _server: Option<TempPostgres>,
}

impl LedgerBench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let databases = self.databases()?;
        let mut report = self.measure(&databases)?;
        let group = report.group_size.max(1);
        let settings = floor::Floor {
            nodes: self.nodes,
            clients: usize::from(self.clients),
            seconds: self.seconds,
            writers: self.writers(),
            group,
        };
        let floor = floor::measure(&databases.floor, &settings)?;
        report.floor_grouped_per_s = floor.grouped_per_s;
        report.floor_single_per_s = floor.single_per_s;
        super::print_report(self.json, &report)
    }

    fn writers(&self) -> usize {
        self.writers.map_or(berth_ledger::Options::default().writers, usize::from)
    }

    fn databases(&self) -> anyhow::Result<Databases> {
        if let Some(url) = &self.database_url {
            let backend = Backend::parse(url)?;
            let fits = match (&backend, self.backend) {
                (Backend::Sqlite(_), Kind::Sqlite) | (Backend::Postgres(_), Kind::Postgres) => true,
                (Backend::Sqlite(_), Kind::Postgres) | (Backend::Postgres(_), Kind::Sqlite) => {
                    false
                }
            };
            if !fits {
                bail!("--database-url {url:?} is not a {:?} database", self.backend);
            }
            let folder = tempfile::tempdir()?;
            let floor = match &backend {
                Backend::Sqlite(path) => Backend::Sqlite(path.with_extension("floor")),
                Backend::Postgres(url) => Backend::Postgres(url.clone()),
            };
            return Ok(Databases { backend, floor, _folder: Some(folder), _server: None });
        }
        let folder = tempfile::Builder::new().prefix("berth-bench-").tempdir()?;
        match self.backend {
            Kind::Sqlite => {
                let backend = Backend::Sqlite(folder.path().join("ledger.db"));
                let floor = Backend::Sqlite(folder.path().join("floor.db"));
                Ok(Databases { backend, floor, _folder: Some(folder), _server: None })
            }
            Kind::Postgres => {
                let server = TempPostgres::start(berth_pgtemp::Options::default())
                    .context("starting a PostgreSQL for this run")?;
                let backend = Backend::Postgres(server.create_database("ledger")?);
                let floor = Backend::Postgres(server.create_database("floor")?);
                Ok(Databases { backend, floor, _folder: None, _server: Some(server) })
            }
        }
    }

    fn measure(&self, databases: &Databases) -> anyhow::Result<Report> {
        let mut options = PlacerOptions::new(Policy::builtin("balanced")?);
        options.clock = Arc::new(|| NOW);
        options.ledger.writers = self.writers();
        {
            let ledger = berth_ledger::Ledger::open(databases.backend.clone(), options.ledger)?;
            self.add_nodes(&ledger)?;
        }
        let placer = Arc::new(Placer::start(databases.backend.clone(), &options)?);
        let run = clients::Run {
            clients: usize::from(self.clients),
            batch: usize::from(self.batch),
            seconds: self.seconds,
        };
        let measured = clients::measure(&placer, run)?;
        let drifts = placer.ledger().reconcile()?;
        if !drifts.is_empty() {
            bail!("counters are not the sum of the claims: {drifts:?}");
        }
        Ok(Report::new(self, &measured))
    }

    /// Nodes large enough that none is full before the run ends.
    fn add_nodes(&self, ledger: &berth_ledger::Ledger) -> anyhow::Result<()> {
        let mut fleet = berth_engine::Fleet::new();
        berth_sim::add_nodes(&mut fleet, self.nodes, 20_260_101)?;
        let (sender, receiver) = std::sync::mpsc::channel();
        for number in 0..self.nodes {
            let id = berth_sim::node_id(number);
            let facts = fleet.node(&id).context("a simulated node is missing")?;
            let sender = sender.clone();
            let op = Op::put_node(self.enlarge(facts));
            let reply = Box::new(move |answer| drop(sender.send(answer)));
            ledger.submit([berth_ledger::Job { op, reply }]);
        }
        drop(sender);
        for answer in receiver {
            if let berth_ledger::Answer::Outcome(Outcome::Impossible(why)) = answer? {
                bail!("the fleet cannot be stored: {why}");
            }
        }
        Ok(())
    }

    fn enlarge(&self, mut facts: NodeFacts) -> NodeFacts {
        facts.instance_limit = 10_000_000;
        facts.reserved = false;
        if self.nodes < 1000 {
            facts = NodeFacts {
                id: facts.id,
                zone: facts.zone,
                rack: facts.rack,
                ..NodeFacts::new("", Amounts::default())
            };
            facts.heartbeat_at = NOW;
            facts.instance_limit = 10_000_000;
            let most = Amounts::MAX / 8;
            facts.capacity = Some(Amounts::new(most, most).with_disk(most).with_bandwidth(most));
        } else if let Some(capacity) = facts.capacity.as_mut() {
            capacity.memory_mib *= 16;
            capacity.disk_mib = capacity.disk_mib.saturating_mul(16).min(Amounts::MAX / 4);
        }
        facts
    }
}
