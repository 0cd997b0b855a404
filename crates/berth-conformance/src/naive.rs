//! The claim that this project was asked for first, and that does not hold: a conditional INSERT on
//! a SUM, with affinity by NOT EXISTS. It is here to be caught.
//!
//! It must never be repaired: a harness that cannot see these faults proves nothing.

use std::time::Duration;

use anyhow::Context;
use berth_engine::{InstanceRequest, NodeId};
use berth_ledger::GrantedClaim;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, NoTls};

use crate::protocol::{Outcome, PlaceTask, Settings};

/// The naive tables: no counters, only claims.
pub(crate) const TABLES: &str = "
    CREATE TABLE naive_node (id text PRIMARY KEY, memory bigint NOT NULL);
    CREATE TABLE naive_group (id text PRIMARY KEY, kind text NOT NULL);
    CREATE TABLE naive_claim (
        instance text PRIMARY KEY, node text NOT NULL, memory bigint NOT NULL, placement_group text);
    CREATE INDEX naive_claim_by_node ON naive_claim (node);";

/// Between the check and the commit, as a server has that does anything else in its transaction.
const PAUSE: Duration = Duration::from_millis(2);

/// Seed 001's primitive: the sum is checked and the row written in one statement, which is atomic
/// by itself and sees nothing of what others have not committed yet.
const CLAIM: &str = "
    INSERT INTO naive_claim (instance, node, memory, placement_group)
    SELECT $1::text, $2::text, $3::bigint, $4::text
    WHERE (SELECT coalesce(sum(memory), 0) FROM naive_claim WHERE node = $2) + $3
       <= (SELECT memory FROM naive_node WHERE id = $2)
      AND NOT EXISTS (
        SELECT 1 FROM naive_claim AS other JOIN naive_group ON naive_group.id = other.placement_group
        WHERE other.placement_group = $4
          AND ((naive_group.kind = 'apart' AND other.node = $2)
            OR (naive_group.kind = 'together' AND other.node <> $2)))";

/// A scheduler with the naive claim.
pub struct Naive {
    // Dropped before the runtime that carries it.
    client: Client,
    runtime: Runtime,
    nodes: Vec<String>,
    begin_round: String,
}

impl Naive {
    /// Connects, and reads which nodes there are.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub fn open(settings: &Settings) -> anyhow::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (client, connection) =
            runtime.block_on(tokio_postgres::connect(&settings.url, NoTls))?;
        runtime.spawn(connection);
        let rows = runtime.block_on(client.query("SELECT id FROM naive_node ORDER BY id", &[]))?;
        let nodes = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        let level = settings.isolation.replace('-', " ");
        Ok(Self { client, runtime, nodes, begin_round: format!("BEGIN ISOLATION LEVEL {level}") })
    }

    /// Places all instances, or none.
    pub fn place(&self, ask: &PlaceTask) -> Outcome {
        match self.runtime.block_on(self.attempt(ask)) {
            Ok(Some(claims)) => Outcome::Granted { claims, decision: String::new() },
            Ok(None) => Outcome::NoRoom(serde_json::Value::Null),
            Err(error) => Outcome::Unknown(format!("{error:#}")),
        }
    }

    async fn attempt(&self, ask: &PlaceTask) -> anyhow::Result<Option<Vec<GrantedClaim>>> {
        self.client.batch_execute(&self.begin_round).await?;
        let placed = self.place_all(ask).await;
        if matches!(placed, Ok(Some(_))) {
            tokio::time::sleep(PAUSE).await;
            self.client.batch_execute("COMMIT").await?;
        } else {
            self.client.batch_execute("ROLLBACK").await?;
        }
        placed
    }

    async fn place_all(&self, ask: &PlaceTask) -> anyhow::Result<Option<Vec<GrantedClaim>>> {
        let mut claims = Vec::with_capacity(ask.instances.len());
        for instance in &ask.instances {
            match self.place_one(instance).await.context("a naive claim failed")? {
                Some(node) => claims.push(GrantedClaim {
                    instance: instance.id,
                    role: berth_ledger::Role::Primary,
                    node: NodeId::new(node),
                    fence: 0,
                    lease_until: None,
                    values: Vec::new(),
                    slot: None,
                }),
                None => return Ok(None),
            }
        }
        Ok(Some(claims))
    }

    /// Tries the nodes from a random one on, as schedulers do that share no state.
    async fn place_one(&self, instance: &InstanceRequest) -> anyhow::Result<Option<&str>> {
        let id = instance.id.to_string();
        let memory = i64::from(instance.resources.memory_mib);
        let group = instance.groups.first();
        let start = fastrand::usize(..self.nodes.len().max(1));
        for node in self.nodes.iter().cycle().skip(start).take(self.nodes.len()) {
            if self.client.execute(CLAIM, &[&id, node, &memory, &group]).await? == 1 {
                return Ok(Some(node));
            }
        }
        Ok(None)
    }
}
