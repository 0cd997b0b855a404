//! What must hold of a dump, whatever happened before. Each rule is broken by a fault of Berth or by
//! a hand in the database, never by load, crashes or configuration: those have their reasons, which
//! are told as notes.

mod claims;
mod counts;
mod holdings;
mod nodes;
mod records;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use berth_engine::elastic::ElasticSettings;
use berth_engine::{InstanceId, NodeId, Policy};
use serde::Serialize;

use super::dump::{ClaimDump, Dump};

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Invariant {
    /// The policy in force can be read, and its hash is that of its content.
    PolicyReadable,
    /// A node's counters are the sum of its claims.
    NodeUsed,
    /// So are the readers'.
    CatalogueUsed,
    /// So are the planner's.
    ReplicaUsed,
    /// Counters of further classes are the sums of claims.
    NodeClasses,
    /// A node's limits follow from its facts.
    NodeLimits,
    /// Totals, what the host keeps and what is reserved follow from facts and counters.
    AccountFrame,
    /// Buffer, pressure and what is accounted for are sums over instances and migrations.
    AccountSums,
    /// The watermark is its share of what may be given, in whole units, rounded down.
    Watermark,
    /// No more is reserved than may be, unless configuration or reality brought it about.
    ReservedWithin,
    /// No claim is there twice.
    OneClaimPerRole,
    /// A second claim of an instance belongs to a migration, or was found there.
    MigrationRecord,
    /// A migration has the claims that its state says.
    MigrationClaims,
    /// Claims are on nodes that are there.
    KnownNode,
    /// A claim's fence is at most its node's.
    Fence,
    /// A permit is what was asked for at most, and what is set aside stays below the maximum.
    PermitWithin,
    /// A node is charged the permit over the overcommit, rounded up.
    Charge,
    /// A volume that an instance holds is attached to it.
    VolumeAttached,
    /// A group's counters are the number of its members.
    GroupCounts,
    /// A tenant's counters are the sum of its claims.
    QuotaUsed,
    /// A slot that a claim has is taken: it has a row.
    SlotTaken,
    /// A slot's row names a claim that has the slot.
    SlotHolder,
    /// A slot has one claim, and while it is handed over those that had it before.
    SlotHandover,
    /// A value of a pool is in use by the claim that holds it, and by no other.
    PoolValues,
    /// A ticket is stored under its id, and names what was placed if it was granted.
    TicketRecord,
    /// A node that is being emptied has a record of it, and no other has.
    DrainRecord,
    /// A volume that moves is there, and lives on the node that it leaves or on the one it goes to.
    VolumeMoveRecord,
    /// A volume that is attached to an instance is held by it.
    VolumeHolder,
    /// A volume that nobody may begin to use is on the way that its open move says.
    VolumeMark,
}

impl Invariant {
    /// Its name as it stands in data.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PolicyReadable => "policy_readable",
            Self::NodeUsed => "node_used",
            Self::CatalogueUsed => "catalogue_used",
            Self::ReplicaUsed => "replica_used",
            Self::NodeClasses => "node_classes",
            Self::NodeLimits => "node_limits",
            Self::AccountFrame => "account_frame",
            Self::AccountSums => "account_sums",
            Self::Watermark => "watermark",
            Self::ReservedWithin => "reserved_within",
            Self::OneClaimPerRole => "one_claim_per_role",
            Self::MigrationRecord => "migration_record",
            Self::MigrationClaims => "migration_claims",
            Self::KnownNode => "known_node",
            Self::Fence => "fence",
            Self::PermitWithin => "permit_within",
            Self::Charge => "charge",
            Self::VolumeAttached => "volume_attached",
            Self::GroupCounts => "group_counts",
            Self::QuotaUsed => "quota_used",
            Self::SlotTaken => "slot_taken",
            Self::SlotHolder => "slot_holder",
            Self::SlotHandover => "slot_handover",
            Self::PoolValues => "pool_values",
            Self::TicketRecord => "ticket_record",
            Self::DrainRecord => "drain_record",
            Self::VolumeMoveRecord => "volume_move_record",
            Self::VolumeHolder => "volume_holder",
            Self::VolumeMark => "volume_mark",
        }
    }

    /// All of them.
    pub const ALL: [Self; 29] = [
        Self::PolicyReadable,
        Self::NodeUsed,
        Self::CatalogueUsed,
        Self::ReplicaUsed,
        Self::NodeClasses,
        Self::NodeLimits,
        Self::AccountFrame,
        Self::AccountSums,
        Self::Watermark,
        Self::ReservedWithin,
        Self::OneClaimPerRole,
        Self::MigrationRecord,
        Self::MigrationClaims,
        Self::KnownNode,
        Self::Fence,
        Self::PermitWithin,
        Self::Charge,
        Self::VolumeAttached,
        Self::GroupCounts,
        Self::QuotaUsed,
        Self::SlotTaken,
        Self::SlotHolder,
        Self::SlotHandover,
        Self::PoolValues,
        Self::TicketRecord,
        Self::DrainRecord,
        Self::VolumeMoveRecord,
        Self::VolumeHolder,
        Self::VolumeMark,
    ];
}

/// A rule that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Which.
    pub invariant: Invariant,
    /// Of what: `node n1`, `instance …`.
    pub subject: String,
    /// What was looked at.
    pub what: String,
    /// What was found.
    pub found: String,
    /// What it must be.
    pub expected: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { invariant, subject, what, found, expected } = self;
        write!(f, "{subject}: {what} is {found}, must be {expected} ({})", invariant.name())
    }
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct CheckReport {
    /// Nodes that were looked at.
    pub nodes: usize,
    /// Claims that were looked at.
    pub claims: usize,
    /// Nodes that changed while the dump was taken: copies of them were not compared.
    pub unsteady: usize,
    /// Rules that do not hold.
    pub violations: Vec<Violation>,
    /// What looks wrong and has its reason.
    pub notes: Vec<String>,
}

impl CheckReport {
    fn must(
        &mut self,
        invariant: Invariant,
        subject: &dyn fmt::Display,
        what: impl fmt::Display,
        found: impl fmt::Display,
        expected: impl fmt::Display,
    ) {
        let (found, expected) = (found.to_string(), expected.to_string());
        if found != expected {
            let (subject, what) = (subject.to_string(), what.to_string());
            self.violations.push(Violation { invariant, subject, what, found, expected });
        }
    }
}

/// What the rules are asked about.
struct CheckContext<'a> {
    dump: &'a Dump,
    settings: ElasticSettings,
    by_node: BTreeMap<&'a NodeId, Vec<&'a ClaimDump>>,
    /// Instances that are on their way off a node.
    leaving: BTreeSet<(InstanceId, &'a NodeId)>,
}

/// Checks everything that can be report without the server.
#[must_use]
pub fn check(dump: &Dump) -> CheckReport {
    let mut report = CheckReport {
        nodes: dump.nodes.len(),
        claims: dump.claims.len(),
        ..CheckReport::default()
    };
    let settings = policy(dump, &mut report);
    let mut by_node: BTreeMap<&NodeId, Vec<&ClaimDump>> = BTreeMap::new();
    for claim in &dump.claims {
        by_node.entry(&claim.node).or_default().push(claim);
    }
    let open = dump.migrations.iter().map(|it| &it.record).filter(|record| record.is_open());
    let leaving = open.map(|record| (record.instance, &record.source)).collect();
    let context = CheckContext { dump, settings, by_node, leaving };
    for node in &dump.nodes {
        nodes::check(&context, node, &mut report);
    }
    claims::check(&context, &mut report);
    counts::check(&context, &mut report);
    holdings::check(dump, &mut report);
    records::check(dump, &mut report);
    report
}

fn policy(dump: &Dump, report: &mut CheckReport) -> ElasticSettings {
    let Some(stored) = &dump.policy else { return ElasticSettings::default() };
    let subject = format!("policy {}", stored.name);
    match Policy::from_stored(&stored.body.to_string()) {
        Ok(policy) => {
            let hash = policy.hash();
            report.must(Invariant::PolicyReadable, &subject, "its hash", &stored.hash, hash);
            policy.elastic().clone()
        }
        Err(error) => {
            let (found, expected) = (error.to_string(), "a policy");
            report.must(Invariant::PolicyReadable, &subject, "its content", found, expected);
            ElasticSettings::default()
        }
    }
}
