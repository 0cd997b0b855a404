//! Limits of everything that a caller sends: which field of which object has which limit.
//!
//! The numbers are in [`berth_engine::limits::table`]; here is where they apply. A body that the
//! server reads must be [`Limited`], so a new kind of request cannot be without limits.

use std::borrow::Cow;
use std::fmt::Write as _;

use berth_engine::limit_fields;
pub use berth_engine::limits::table;
use berth_engine::limits::table::{NAME, REASON};
pub use berth_engine::limits::{
    Excess, FieldLimits, Limit, LimitExceeded, Limited, Meter, check_regexes, check_size,
    is_control, is_name, read_items, read_rules,
};
use berth_engine::{BootOutcome, Elastic, Locality, Network, NodeFacts, PlatformBounds};
use utoipa::ToSchema;

use crate::{
    ApplyPreemption, ApplyRebalance, AskPermit, ChangeRollout, DrainNode, EvacuationQuery,
    FencedRequest, FoundInstance, Heartbeat, InstanceSpec, MigrationReport, MoveVolume,
    NewAttachment, NewGroup, NewPool, NewToken, NewVolume, NewWorkload, NodeStateChange,
    PlaceRequest, PlanRebalance, PolicyDiffQuery, PolicyRef, PolicyText, PreemptionVictim, Quota,
    RebalanceStep, ReclaimNotice, ReleaseClaim, RenewClaim, RunningInstance, ScaleWorkload,
    Secrets, SetBounds, StartMigration, UnsetFacts, VolumeMoveReport,
};

const PARTS: Limit = Limit::Parts;

limit_fields!(InstanceSpec {
    name: NAME,
    env: NAME,
    workload: NAME,
    extra: table::EXTRA,
    elastic: PARTS,
    tags: table::TAGS,
    traits: table::TRAITS,
    networks: table::NETWORKS,
    platform: PARTS,
    volumes: table::VOLUMES,
    attachments: table::ATTACHMENTS,
    image: table::IMAGE,
    groups: table::GROUPS,
    affinity: table::RULES,
    required_place as "where": table::SELECTOR,
    preferred_places as "prefer": table::PREFERRED_PLACES,
    locality: PARTS,
} fixed {
    id, count, resources, ratios, capacity_type, needs_secrets, cpu_capped, exclude_virtual,
    image_mib, priority,
} within table::SPEC_BYTES);

limit_fields!(NewWorkload {
    process: NAME,
    template: PARTS,
    pools: table::POOLS,
    release: NAME,
} fixed { replicas, capacity, rolling, paused });

limit_fields!(ScaleWorkload {} fixed { replicas });
limit_fields!(ChangeRollout {} fixed { action, to_revision });

limit_fields!(RenewClaim {} fixed { fence, lease_s });
limit_fields!(FencedRequest {} fixed { fence });
limit_fields!(ReleaseClaim { request_id: NAME, reason: REASON } fixed { fence, confirmed });

limit_fields!(NodeStateChange { reason: REASON } fixed {});
limit_fields!(DrainNode { reason: REASON } fixed { deadline_s, dry_run });
limit_fields!(ReclaimNotice {} fixed { in_s });
limit_fields!(EvacuationQuery { nodes: table::NODES, rack: NAME, zone: NAME } fixed { all });
limit_fields!(MoveVolume { to: NAME } fixed { dry_run });
limit_fields!(VolumeMoveReport { volume: NAME, reason: REASON } fixed { step, round, copied_permille });

limit_fields!(Heartbeat {
    facts: PARTS,
    running: table::REPORTED,
    degraded: REASON,
    reclaim: PARTS,
} fixed { load });
limit_fields!(UnsetFacts { fields: table::UNSET_FIELDS } fixed {});
limit_fields!(RunningInstance { reason: REASON, found: PARTS } fixed {
    instance, fence, state, cause,
});
limit_fields!(FoundInstance { tenant: NAME, tags: table::TAGS, elastic: PARTS } fixed {
    resources,
} within table::SPEC_BYTES);

limit_fields!(AskPermit {} fixed { resources, seq, fence, last_permit, heard, headroom, load });
limit_fields!(SetBounds {} fixed { min, max });
limit_fields!(StartMigration { to: NAME } fixed { dry_run });
limit_fields!(MigrationReport { id: NAME, reason: REASON } fixed { step, copied_permille });

limit_fields!(PlanRebalance {} fixed { goal, budget, min_gain_ppm, onto_empty, all });
limit_fields!(ApplyRebalance { moves: table::MOVES } fixed {
    goal, budget, min_gain_ppm, onto_empty, all,
});
limit_fields!(RebalanceStep {
    name: NAME,
    tenant: NAME,
    from: NAME,
    to: NAME,
    why: table::SENTENCE,
} fixed { instance, gain, cost });

limit_fields!(ApplyPreemption { request: PARTS, victims: table::VICTIMS } fixed {});
limit_fields!(PreemptionVictim {} fixed { instance, fence });

limit_fields!(NewGroup { tenant: NAME } fixed { kind, strength, topology, max_per_domain });
limit_fields!(NewVolume { tenant: NAME, home: NAME } fixed {});
limit_fields!(NewAttachment { tenant: NAME, volumes: table::VOLUMES } fixed {});
limit_fields!(NewPool { range: NAME, tenant: NAME } fixed { quarantine_s, open });
limit_fields!(Quota {} fixed { cpu_milli, memory_mib, disk_mib, instances });
limit_fields!(Secrets { version: NAME } fixed {});

limit_fields!(NewToken { name: table::TOKEN_NAME, tenants: table::TENANTS, node: NAME } fixed {
    role, expires_in_s,
});

limit_fields!(PolicyText { toml: table::POLICY_TEXT } fixed {});
limit_fields!(PolicyDiffQuery { from: PARTS, to: PARTS } fixed { live, limit, after });

impl Limited for PolicyRef {
    fn check(&self, limit: Limit, meter: &mut Meter) -> Result<(), LimitExceeded> {
        match self {
            Self::Named(name) => name.check(NAME, meter),
            Self::Text(text) => text.check(limit, meter),
        }
    }
}

impl FieldLimits for PlaceRequest {
    const FIELDS: &'static [(&'static str, Limit)] = &[
        ("request_id", NAME),
        ("tenant", NAME),
        ("instances", table::INSTANCES),
        ("pools", table::POOLS),
    ];
}

/// Each instance of a batch is a copy of its specification, so what counts is their product.
impl Limited for PlaceRequest {
    fn check(&self, _: Limit, meter: &mut Meter) -> Result<(), LimitExceeded> {
        let Self { request_id, tenant, instances, pools, .. } = self;
        request_id.check(NAME, meter).map_err(|error| error.inside("request_id"))?;
        tenant.check(NAME, meter).map_err(|error| error.inside("tenant"))?;
        pools.check(table::POOLS, meter).map_err(|error| error.inside("pools"))?;
        let (found, most) = (instances.len(), table::INSTANCES.most());
        if found > most {
            let error = LimitExceeded::new(Excess::Items { found, most });
            return Err(error.inside("instances"));
        }
        let mut total: usize = 0;
        for (place, spec) in instances.iter().enumerate() {
            let mut each = Meter { bytes: 0, ..*meter };
            let checked = spec.check(PARTS, &mut each);
            checked.map_err(|error| error.at(place).inside("instances"))?;
            let count = usize::try_from(spec.count.unwrap_or(1)).unwrap_or(usize::MAX);
            total = total.saturating_add(each.bytes.saturating_mul(count));
        }
        check_size(total, table::REQUEST_BYTES).map_err(|error| error.inside("instances"))?;
        meter.add(total);
        Ok(())
    }
}

/// An object of the API and the limits of its fields.
pub struct ObjectLimits {
    /// The name of its schema.
    pub schema: Cow<'static, str>,
    /// Its fields that have limits.
    pub fields: &'static [(&'static str, Limit)],
}

fn limits_of<T: FieldLimits + ToSchema>() -> ObjectLimits {
    ObjectLimits { schema: T::name(), fields: T::FIELDS }
}

/// Every object that callers send and that has a field with a limit.
#[must_use]
pub fn objects() -> Vec<ObjectLimits> {
    vec![
        limits_of::<PlaceRequest>(),
        limits_of::<InstanceSpec>(),
        limits_of::<Elastic>(),
        limits_of::<PlatformBounds>(),
        limits_of::<Locality>(),
        limits_of::<NewWorkload>(),
        limits_of::<ReleaseClaim>(),
        limits_of::<NewGroup>(),
        limits_of::<NewVolume>(),
        limits_of::<NewAttachment>(),
        limits_of::<NewPool>(),
        limits_of::<Secrets>(),
        limits_of::<NodeFacts>(),
        limits_of::<Network>(),
        limits_of::<BootOutcome>(),
        limits_of::<NodeStateChange>(),
        limits_of::<UnsetFacts>(),
        limits_of::<DrainNode>(),
        limits_of::<EvacuationQuery>(),
        limits_of::<MoveVolume>(),
        limits_of::<VolumeMoveReport>(),
        limits_of::<Heartbeat>(),
        limits_of::<RunningInstance>(),
        limits_of::<FoundInstance>(),
        limits_of::<StartMigration>(),
        limits_of::<MigrationReport>(),
        limits_of::<ApplyPreemption>(),
        limits_of::<ApplyRebalance>(),
        limits_of::<RebalanceStep>(),
        limits_of::<NewToken>(),
        limits_of::<PolicyText>(),
    ]
}

/// Schemas that are a text, or a text among others, with the limit of that text.
#[must_use]
pub fn texts() -> [(&'static str, Limit); 3] {
    [("NodeId", NAME), ("TraitValue", table::TRAIT_VALUE), ("PolicyRef", NAME)]
}

/// The table of all limits, as `docs/limits.md` has it.
#[must_use]
pub fn reference() -> String {
    let mut text = String::from(
        "# Limits\n\nThis page is generated by `cargo xtask docs`.\n\n\
         A request that exceeds a limit is answered with 400 `invalid_request`, which names the field, what was found and\n\
         what is accepted; nothing of it is done. The OpenAPI document has the same limits (`maxLength`, `maxItems`,\n\
         `maxProperties`). Characters are Unicode code points. Texts have no control characters, no line or paragraph\n\
         separators and no characters that change the direction of writing; only policies have several lines.\n\n\
         A stored workload that exceeds a limit of a newer Berth is *quarantined*: it stays as it is, its members keep\n\
         running, its state is `degraded` with the code `quarantined`, and nothing is placed for it until it is stored\n\
         again or removed. A waiting request that exceeds one is closed as `refused`, with the event `ticket.quarantined`.\n\
         The ledger checks every operation, too, whoever sends it.\n\n\
         | Object | Field | At most |\n|---|---|---|\n",
    );
    for object in objects() {
        for (field, limit) in object.fields.iter().filter(|(_, limit)| *limit != PARTS) {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "| `{}` | `{field}` | {limit} |", object.schema);
        }
    }
    let _ = writeln!(text, "| | a name in a path | {NAME} |");
    let _ = writeln!(text, "| | a value in a query | {} |", table::QUERY_VALUE);
    let _ = writeln!(text, "| | `where` in a query | {} |", table::QUERY_SELECTOR);
    text.push_str(
        "\n## Sums\n\nAn item counts 16 bytes besides its text.\n\n| Subject | At most |\n|---|---|\n",
    );
    for (subject, most, unit) in table::SUMS {
        let _ = writeln!(text, "| {subject} | {most} {unit} |");
    }
    text
}
