//! The books as they stand in the database, read row by row and independent of the ledger's code.

use std::collections::BTreeMap;

use anyhow::Context;
use berth_ledger::Ties;

use crate::hand::{Hand, TextRow};

/// Amounts and counts of one node, in the order of [`DIMENSIONS`].
pub type Counters = [i64; 6];

/// What [`Counters`] count.
pub const DIMENSIONS: [&str; 6] = ["cpu", "memory", "disk", "bandwidth", "instances", "capped"];

/// A node's row.
#[derive(Clone, Debug, Default)]
pub struct NodeBook {
    /// Its zone.
    pub zone: Option<String>,
    /// Its rack.
    pub rack: Option<String>,
    /// Whether its capacity is known.
    pub known: bool,
    /// What may be promised; the last is no limit.
    pub limits: Counters,
    /// What the counters say; absent where there are none, as in the naive tables.
    pub used: Option<Counters>,
    /// Memory that each instance costs beside its own.
    pub overhead: i64,
}

/// A claim's row.
#[derive(Clone, Debug, Default)]
pub struct ClaimBook {
    /// The instance, in hexadecimal.
    pub instance: String,
    /// 0 primary, 1 migration target, 2 migration source.
    pub role: i64,
    /// The node.
    pub node: String,
    /// The tenant.
    pub owner: String,
    /// 0 held, 1 binding, 2 active, 3 releasing.
    pub state: i64,
    /// What it is charged.
    pub charged: Counters,
    /// When its lease ends.
    pub lease_until: Option<i64>,
    /// Its fence.
    pub fence: i64,
    /// What else it holds.
    pub ties: Ties,
}

/// A group's row.
#[derive(Clone, Debug, Default)]
pub struct TeamBook {
    /// `together` or `apart`.
    pub kind: String,
    /// Whether it is a rule, not a wish.
    pub hard: bool,
    /// `node`, `rack` or `zone`.
    pub topology: String,
    /// Most members in one domain.
    pub most: Option<i64>,
    /// Where a group that stays together is.
    pub home: Option<String>,
}

/// Everything that must agree.
#[derive(Clone, Debug, Default)]
pub struct Books {
    /// Nodes by name.
    pub nodes: BTreeMap<String, NodeBook>,
    /// Claims.
    pub claims: Vec<ClaimBook>,
    /// Groups by name.
    pub teams: BTreeMap<String, TeamBook>,
    /// Members per group and domain.
    pub domains: BTreeMap<(String, String), i64>,
    /// Members: group, instance, role.
    pub members: Vec<(String, String, i64)>,
    /// Seats: owner, workload, revision and number as text, then instance and role.
    pub slots: Vec<([String; 4], String, i64)>,
    /// Values in use: pool, instance, role.
    pub values: Vec<(String, String, i64)>,
    /// Volumes in use: name and instance.
    pub volumes: Vec<(String, String)>,
    /// Use per node and class.
    pub classes: BTreeMap<(String, String), (i64, i64)>,
    /// Use per tenant with a quota: CPU, memory, disk, instances.
    pub tenants: BTreeMap<String, [i64; 4]>,
}

/// Reads the cells of a row in order.
struct Cells(std::vec::IntoIter<Option<String>>);

impl Cells {
    fn new(row: TextRow) -> Self {
        Self(row.into_iter())
    }

    fn maybe(&mut self) -> Option<String> {
        self.0.next().flatten()
    }

    fn text(&mut self) -> anyhow::Result<String> {
        self.maybe().context("a cell is NULL that may not be")
    }

    fn number(&mut self) -> anyhow::Result<i64> {
        let text = self.text()?;
        text.parse().with_context(|| format!("{text:?} is no number"))
    }

    fn numbers<const N: usize>(&mut self) -> anyhow::Result<[i64; N]> {
        let mut numbers = [0; N];
        for number in &mut numbers {
            *number = self.number()?;
        }
        Ok(numbers)
    }
}

impl Books {
    /// Reads a ledger's tables.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn of_ledger(hand: &Hand) -> anyhow::Result<Self> {
        let mut books = Self::default();
        books.read_nodes(hand)?;
        books.read_claims(hand)?;
        books.read_teams(hand)?;
        books.read_rest(hand)?;
        Ok(books)
    }

    fn read_nodes(&mut self, hand: &Hand) -> anyhow::Result<()> {
        let sql = "SELECT node, zone, rack, known, limit_cpu, limit_memory, limit_disk, \
             limit_bandwidth, limit_instances, used_cpu, used_memory, used_disk, used_bandwidth, \
             used_instances, used_capped, overhead_mib FROM node_room";
        for row in hand.rows(sql)? {
            let mut cells = Cells::new(row);
            let name = cells.text()?;
            let (zone, rack, known) = (cells.maybe(), cells.maybe(), cells.number()? == 1);
            let [cpu, memory, disk, bandwidth, instances] = cells.numbers()?;
            let limits = [cpu, memory, disk, bandwidth, instances, i64::MAX];
            let (used, overhead) = (Some(cells.numbers()?), cells.number()?);
            self.nodes.insert(name, NodeBook { zone, rack, known, limits, used, overhead });
        }
        let sql = "SELECT node, class, lim, used FROM node_class";
        for row in hand.rows(sql)? {
            let mut cells = Cells::new(row);
            let key = (cells.text()?, cells.text()?);
            self.classes.insert(key, (cells.number()?, cells.number()?));
        }
        Ok(())
    }

    fn read_claims(&mut self, hand: &Hand) -> anyhow::Result<()> {
        let sql = "SELECT instance, role, node, owner, state, cpu, memory, disk, bandwidth, 1, \
             capped, fence, lease_until, ties FROM claim";
        for row in hand.rows(sql)? {
            let mut cells = Cells::new(row);
            let (instance, role) = (cells.text()?, cells.number()?);
            let (node, owner, state) = (cells.text()?, cells.text()?, cells.number()?);
            let (charged, fence) = (cells.numbers()?, cells.number()?);
            let lease_until = cells.maybe().map(|until| until.parse()).transpose()?;
            let ties = cells.maybe().map(|ties| serde_json::from_str(&ties)).transpose()?;
            let ties = ties.unwrap_or_default();
            let claim =
                ClaimBook { instance, role, node, owner, state, charged, lease_until, fence, ties };
            self.claims.push(claim);
        }
        Ok(())
    }

    fn read_teams(&mut self, hand: &Hand) -> anyhow::Result<()> {
        let sql = "SELECT id, kind, strength, topology, home, max_per_domain FROM team";
        for row in hand.rows(sql)? {
            let mut cells = Cells::new(row);
            let (id, kind, strength) = (cells.text()?, cells.text()?, cells.text()?);
            let (topology, home) = (cells.text()?, cells.maybe());
            let most = cells.maybe().map(|most| most.parse()).transpose()?;
            let team = TeamBook { kind, hard: strength == "hard", topology, most, home };
            self.teams.insert(id, team);
        }
        for row in hand.rows("SELECT team, domain, members FROM team_domain")? {
            let mut cells = Cells::new(row);
            let key = (cells.text()?, cells.text()?);
            self.domains.insert(key, cells.number()?);
        }
        for row in hand.rows("SELECT team, instance, role FROM team_member")? {
            let mut cells = Cells::new(row);
            self.members.push((cells.text()?, cells.text()?, cells.number()?));
        }
        Ok(())
    }

    fn read_rest(&mut self, hand: &Hand) -> anyhow::Result<()> {
        for row in hand.rows("SELECT owner, workload, revision, slot, instance, role FROM slot")? {
            let mut cells = Cells::new(row);
            let seat = [cells.text()?, cells.text()?, cells.text()?, cells.text()?];
            self.slots.push((seat, cells.text()?, cells.number()?));
        }
        let sql = "SELECT pool, instance, role FROM pool_value WHERE released_at IS NULL";
        for row in hand.rows(sql)? {
            let mut cells = Cells::new(row);
            self.values.push((cells.text()?, cells.text()?, cells.number()?));
        }
        for row in hand.rows("SELECT id, attached_to FROM volume WHERE attached_to IS NOT NULL")? {
            let mut cells = Cells::new(row);
            self.volumes.push((cells.text()?, cells.text()?));
        }
        let sql = "SELECT owner, used_cpu, used_memory, used_disk, used_instances FROM tenant";
        for row in hand.rows(sql)? {
            let mut cells = Cells::new(row);
            self.tenants.insert(cells.text()?, cells.numbers()?);
        }
        Ok(())
    }

    /// Reads the naive tables.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn of_naive(hand: &Hand) -> anyhow::Result<Self> {
        let mut books = Self::default();
        for row in hand.rows("SELECT id, memory FROM naive_node")? {
            let mut cells = Cells::new(row);
            let name = cells.text()?;
            let mut limits = [i64::MAX; 6];
            limits[1] = cells.number()?;
            books.nodes.insert(name, NodeBook { limits, known: true, ..NodeBook::default() });
        }
        for row in hand.rows("SELECT id, kind FROM naive_team")? {
            let mut cells = Cells::new(row);
            let (id, kind) = (cells.text()?, cells.text()?);
            let topology = "node".to_owned();
            let team = TeamBook { kind, hard: true, topology, ..TeamBook::default() };
            books.teams.insert(id, team);
        }
        for row in hand.rows("SELECT instance, node, memory, team FROM naive_claim")? {
            let mut cells = Cells::new(row);
            let (instance, node) = (cells.text()?, cells.text()?);
            let charged = [0, cells.number()?, 0, 0, 1, 0];
            let mut ties = Ties::default();
            ties.groups.extend(cells.maybe().map(|team| berth_ledger::GroupPlace {
                group: team.into(),
                domain: Some(node.as_str().into()),
            }));
            let claim = ClaimBook { instance, node, charged, ties, ..ClaimBook::default() };
            books.claims.push(claim);
        }
        Ok(books)
    }

    /// The domain a node is in, at a level.
    #[must_use]
    pub fn domain(&self, node: &str, topology: &str) -> Option<String> {
        let book = self.nodes.get(node)?;
        match topology {
            "node" => Some(node.to_owned()),
            "rack" => {
                let rack = book.rack.as_deref()?;
                Some(format!("{}/{rack}", book.zone.as_deref().unwrap_or("")))
            }
            _ => book.zone.clone(),
        }
    }

    /// Claims per node.
    #[must_use]
    pub fn claims_per_node(&self) -> BTreeMap<&str, usize> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for claim in &self.claims {
            *counts.entry(&claim.node).or_default() += 1;
        }
        counts
    }
}
