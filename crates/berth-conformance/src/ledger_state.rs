//! The tables of a ledger, read row by row and independent of the ledger's code.

use std::collections::BTreeMap;

use anyhow::Context;
use berth_ledger::ClaimHoldings;

use crate::raw_sql::{RawSql, TextRow};

/// Amounts and counts of one node, in the order of [`DIMENSIONS`].
pub type Counters = [i64; 6];

/// What [`Counters`] count.
pub const DIMENSIONS: [&str; 6] = ["cpu", "memory", "disk", "bandwidth", "instances", "capped"];

/// A node's row.
#[derive(Clone, Debug, Default)]
pub struct NodeRecord {
    /// Its zone.
    pub zone: Option<String>,
    /// Its rack.
    pub rack: Option<String>,
    /// Whether its capacity is known.
    pub known: bool,
    /// What may be promised; the last is no limit.
    pub limits: Counters,
    /// The counters; absent where there are none, as in the naive tables.
    pub used: Option<Counters>,
    /// Memory overhead of each instance.
    pub overhead: i64,
}

/// A claim's row.
#[derive(Clone, Debug, Default)]
pub struct ClaimRecord {
    /// The instance, in hexadecimal.
    pub instance: String,
    /// 0 primary, 1 migration target, 2 migration source.
    pub role: i64,
    /// The node.
    pub node: String,
    /// The tenant.
    pub tenant: String,
    /// 0 held, 1 binding, 2 active, 3 releasing.
    pub state: i64,
    /// What it is charged.
    pub charged: Counters,
    /// When its lease ends.
    pub lease_until: Option<i64>,
    /// Its fence.
    pub fence: i64,
    /// What else it holds.
    pub holdings: ClaimHoldings,
}

/// A group's row.
#[derive(Clone, Debug, Default)]
pub struct GroupRecord {
    /// `together` or `apart`.
    pub kind: String,
    /// Whether it is hard.
    pub hard: bool,
    /// `node`, `rack` or `zone`.
    pub topology: String,
    /// Most members in one domain.
    pub most: Option<i64>,
    /// Where a group that stays together is.
    pub home: Option<String>,
}

/// Everything that the invariants compare.
#[derive(Clone, Debug, Default)]
pub struct LedgerState {
    /// Nodes by name.
    pub nodes: BTreeMap<String, NodeRecord>,
    /// Claims.
    pub claims: Vec<ClaimRecord>,
    /// Groups by name.
    pub groups: BTreeMap<String, GroupRecord>,
    /// Members per group and domain.
    pub domains: BTreeMap<(String, String), i64>,
    /// Members: group, instance, role.
    pub members: Vec<(String, String, i64)>,
    /// Slots: tenant, workload, revision and number as text, then instance and role.
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

    fn optional(&mut self) -> Option<String> {
        self.0.next().flatten()
    }

    fn text(&mut self) -> anyhow::Result<String> {
        self.optional().context("a cell is NULL that may not be")
    }

    fn number(&mut self) -> anyhow::Result<i64> {
        let text = self.text()?;
        text.parse().with_context(|| format!("{text:?} is not a number"))
    }

    fn numbers<const N: usize>(&mut self) -> anyhow::Result<[i64; N]> {
        let mut numbers = [0; N];
        for number in &mut numbers {
            *number = self.number()?;
        }
        Ok(numbers)
    }
}

impl LedgerState {
    /// Reads a ledger's tables.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn of_ledger(sql_connection: &RawSql) -> anyhow::Result<Self> {
        let mut state = Self::default();
        state.read_nodes(sql_connection)?;
        state.read_claims(sql_connection)?;
        state.read_groups(sql_connection)?;
        state.read_holdings(sql_connection)?;
        Ok(state)
    }

    fn read_nodes(&mut self, sql_connection: &RawSql) -> anyhow::Result<()> {
        let sql = "SELECT node, zone, rack, known, limit_cpu, limit_memory, limit_disk, \
             limit_bandwidth, limit_instances, used_cpu, used_memory, used_disk, used_bandwidth, \
             used_instances, used_capped, overhead_mib FROM node_room";
        for row in sql_connection.rows(sql)? {
            let mut cells = Cells::new(row);
            let name = cells.text()?;
            let (zone, rack, known) = (cells.optional(), cells.optional(), cells.number()? == 1);
            let [cpu, memory, disk, bandwidth, instances] = cells.numbers()?;
            let limits = [cpu, memory, disk, bandwidth, instances, i64::MAX];
            let (used, overhead) = (Some(cells.numbers()?), cells.number()?);
            self.nodes.insert(name, NodeRecord { zone, rack, known, limits, used, overhead });
        }
        let sql = "SELECT node, class, lim, used FROM node_class";
        for row in sql_connection.rows(sql)? {
            let mut cells = Cells::new(row);
            let key = (cells.text()?, cells.text()?);
            self.classes.insert(key, (cells.number()?, cells.number()?));
        }
        Ok(())
    }

    fn read_claims(&mut self, sql_connection: &RawSql) -> anyhow::Result<()> {
        let sql = "SELECT instance, role, node, owner, state, cpu, memory, disk, bandwidth, 1, \
             capped, fence, lease_until, ties FROM claim";
        for row in sql_connection.rows(sql)? {
            let mut cells = Cells::new(row);
            let (instance, role) = (cells.text()?, cells.number()?);
            let (node, tenant, state) = (cells.text()?, cells.text()?, cells.number()?);
            let (charged, fence) = (cells.numbers()?, cells.number()?);
            let lease_until = cells.optional().map(|until| until.parse()).transpose()?;
            let holdings =
                cells.optional().map(|holdings| serde_json::from_str(&holdings)).transpose()?;
            let holdings = holdings.unwrap_or_default();
            let claim = ClaimRecord {
                instance,
                role,
                node,
                tenant,
                state,
                charged,
                lease_until,
                fence,
                holdings,
            };
            self.claims.push(claim);
        }
        Ok(())
    }

    fn read_groups(&mut self, sql_connection: &RawSql) -> anyhow::Result<()> {
        let sql = "SELECT id, kind, strength, topology, home, max_per_domain FROM placement_group";
        for row in sql_connection.rows(sql)? {
            let mut cells = Cells::new(row);
            let (id, kind, strength) = (cells.text()?, cells.text()?, cells.text()?);
            let (topology, home) = (cells.text()?, cells.optional());
            let most = cells.optional().map(|most| most.parse()).transpose()?;
            let group = GroupRecord { kind, hard: strength == "hard", topology, most, home };
            self.groups.insert(id, group);
        }
        for row in sql_connection
            .rows("SELECT placement_group, domain, members FROM placement_group_domain")?
        {
            let mut cells = Cells::new(row);
            let key = (cells.text()?, cells.text()?);
            self.domains.insert(key, cells.number()?);
        }
        for row in sql_connection
            .rows("SELECT placement_group, instance, role FROM placement_group_member")?
        {
            let mut cells = Cells::new(row);
            self.members.push((cells.text()?, cells.text()?, cells.number()?));
        }
        Ok(())
    }

    fn read_holdings(&mut self, sql_connection: &RawSql) -> anyhow::Result<()> {
        for row in sql_connection
            .rows("SELECT owner, workload, revision, slot, instance, role FROM slot")?
        {
            let mut cells = Cells::new(row);
            let slot = [cells.text()?, cells.text()?, cells.text()?, cells.text()?];
            self.slots.push((slot, cells.text()?, cells.number()?));
        }
        let sql = "SELECT pool, instance, role FROM pool_value WHERE released_at IS NULL";
        for row in sql_connection.rows(sql)? {
            let mut cells = Cells::new(row);
            self.values.push((cells.text()?, cells.text()?, cells.number()?));
        }
        for row in sql_connection
            .rows("SELECT id, attached_to FROM volume WHERE attached_to IS NOT NULL")?
        {
            let mut cells = Cells::new(row);
            self.volumes.push((cells.text()?, cells.text()?));
        }
        let sql = "SELECT owner, used_cpu, used_memory, used_disk, used_instances FROM tenant";
        for row in sql_connection.rows(sql)? {
            let mut cells = Cells::new(row);
            self.tenants.insert(cells.text()?, cells.numbers()?);
        }
        Ok(())
    }

    /// Reads the naive tables.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn of_naive(sql_connection: &RawSql) -> anyhow::Result<Self> {
        let mut state = Self::default();
        for row in sql_connection.rows("SELECT id, memory FROM naive_node")? {
            let mut cells = Cells::new(row);
            let name = cells.text()?;
            let mut limits = [i64::MAX; 6];
            limits[1] = cells.number()?;
            state.nodes.insert(name, NodeRecord { limits, known: true, ..NodeRecord::default() });
        }
        for row in sql_connection.rows("SELECT id, kind FROM naive_group")? {
            let mut cells = Cells::new(row);
            let (id, kind) = (cells.text()?, cells.text()?);
            let topology = "node".to_owned();
            let group = GroupRecord { kind, hard: true, topology, ..GroupRecord::default() };
            state.groups.insert(id, group);
        }
        for row in sql_connection
            .rows("SELECT instance, node, memory, placement_group FROM naive_claim")?
        {
            let mut cells = Cells::new(row);
            let (instance, node) = (cells.text()?, cells.text()?);
            let charged = [0, cells.number()?, 0, 0, 1, 0];
            let mut holdings = ClaimHoldings::default();
            holdings.groups.extend(cells.optional().map(|group| berth_ledger::GroupPlace {
                group: group.into(),
                domain: Some(node.as_str().into()),
            }));
            let claim = ClaimRecord { instance, node, charged, holdings, ..ClaimRecord::default() };
            state.claims.push(claim);
        }
        Ok(state)
    }

    /// The domain a node is in, at a level.
    #[must_use]
    pub fn domain(&self, node: &str, topology: &str) -> Option<String> {
        let record = self.nodes.get(node)?;
        match topology {
            "node" => Some(node.to_owned()),
            "rack" => {
                let rack = record.rack.as_deref()?;
                Some(format!("{}/{rack}", record.zone.as_deref().unwrap_or("")))
            }
            _ => record.zone.clone(),
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
