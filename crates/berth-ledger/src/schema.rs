//! Every table and column, the same in every database, and rows as plain cells.
//!
//! Exports, imports and the statements of PostgreSQL are made from it. It knows no SQL.

use serde_json::Value;

use crate::encoding::hex;
use crate::error::Fault;

/// The newest version among embedded migrations.
pub(crate) fn newest_version(migrations: &[refinery::Migration]) -> i64 {
    let versions = migrations.iter().map(|migration| i64::from(migration.version()));
    versions.max().unwrap_or(0)
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Int(&'static str),
    Text(&'static str),
    Bytes(&'static str),
}

impl Column {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Int(name) | Self::Text(name) | Self::Bytes(name) => name,
        }
    }
}

/// A table, the same in every database.
pub(crate) struct Shape {
    pub(crate) table: &'static str,
    pub(crate) columns: &'static [Column],
}

/// One value of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Null,
    Int(i64),
    Text(String),
    Bytes(Vec<u8>),
}

impl Cell {
    /// The value in JSON; bytes in hexadecimal.
    pub(crate) fn value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Int(number) => Value::from(*number),
            Self::Text(text) => Value::from(text.as_str()),
            Self::Bytes(bytes) => Value::from(hex(bytes)),
        }
    }
}

/// Takes rows as they are read: which table, and its cells in the order of its columns.
pub(crate) type TakeRow<'a> = dyn FnMut(usize, Vec<Cell>) -> Result<(), Fault> + 'a;

/// Hands out rows to be stored.
pub(crate) type NextRow<'a> = dyn FnMut() -> Result<Option<(usize, Vec<Cell>)>, Fault> + 'a;

/// Every table and column, in the order of the schema.
pub(crate) static TABLES: &[Shape] = &[
    Shape {
        table: "ledger",
        columns: &[
            Column::Int("one"),
            Column::Text("id"),
            Column::Int("next_event"),
            Column::Int("first_event"),
        ],
    },
    Shape {
        table: "node",
        columns: &[Column::Text("id"), Column::Text("facts"), Column::Int("heartbeat_at")],
    },
    Shape {
        table: "node_room",
        columns: &[
            Column::Text("node"),
            Column::Text("state"),
            Column::Int("known"),
            Column::Text("zone"),
            Column::Text("rack"),
            Column::Int("constraint_gen"),
            Column::Int("rules_gen"),
            Column::Int("fence"),
            Column::Int("limit_cpu"),
            Column::Int("limit_memory"),
            Column::Int("limit_disk"),
            Column::Int("limit_bandwidth"),
            Column::Int("limit_instances"),
            Column::Int("overhead_mib"),
            Column::Text("cap_mode"),
            Column::Int("used_cpu"),
            Column::Int("used_memory"),
            Column::Int("used_disk"),
            Column::Int("used_bandwidth"),
            Column::Int("used_instances"),
            Column::Int("used_capped"),
        ],
    },
    Shape {
        table: "node_class",
        columns: &[
            Column::Text("node"),
            Column::Text("class"),
            Column::Int("lim"),
            Column::Int("used"),
        ],
    },
    Shape {
        table: "claim",
        columns: &[
            Column::Bytes("instance"),
            Column::Int("role"),
            Column::Text("node"),
            Column::Text("owner"),
            Column::Text("workload"),
            Column::Int("state"),
            Column::Int("cpu"),
            Column::Int("memory"),
            Column::Int("disk"),
            Column::Int("bandwidth"),
            Column::Int("capped"),
            Column::Int("lease_until"),
            Column::Int("fence"),
            Column::Text("request_id"),
            Column::Bytes("batch"),
            Column::Text("name"),
            Column::Text("spec"),
            Column::Text("ties"),
            Column::Text("release_id"),
            Column::Text("secrets_version"),
            Column::Int("created_at"),
            Column::Text("permit"),
        ],
    },
    Shape {
        table: "request",
        columns: &[
            Column::Text("request_id"),
            Column::Text("owner"),
            Column::Bytes("body_hash"),
            Column::Text("answer"),
            Column::Int("at"),
        ],
    },
    Shape {
        table: "placement_group",
        columns: &[
            Column::Text("id"),
            Column::Text("owner"),
            Column::Text("kind"),
            Column::Text("strength"),
            Column::Text("topology"),
            Column::Int("max_per_domain"),
            Column::Text("home"),
        ],
    },
    Shape {
        table: "placement_group_domain",
        columns: &[Column::Text("placement_group"), Column::Text("domain"), Column::Int("members")],
    },
    Shape {
        table: "placement_group_member",
        columns: &[Column::Text("placement_group"), Column::Bytes("instance"), Column::Int("role")],
    },
    Shape {
        table: "volume",
        columns: &[
            Column::Text("id"),
            Column::Text("owner"),
            Column::Text("home"),
            Column::Bytes("attached_to"),
            Column::Text("moving_to"),
        ],
    },
    Shape {
        table: "pool",
        columns: &[
            Column::Text("id"),
            Column::Text("kind"),
            Column::Bytes("first"),
            Column::Bytes("last"),
            Column::Bytes("next"),
            Column::Int("quarantine_s"),
            Column::Text("owner"),
        ],
    },
    Shape {
        table: "pool_value",
        columns: &[
            Column::Text("pool"),
            Column::Bytes("value"),
            Column::Bytes("instance"),
            Column::Int("role"),
            Column::Int("released_at"),
        ],
    },
    Shape {
        table: "tenant",
        columns: &[
            Column::Text("owner"),
            Column::Int("limit_cpu"),
            Column::Int("limit_memory"),
            Column::Int("limit_disk"),
            Column::Int("limit_instances"),
            Column::Int("used_cpu"),
            Column::Int("used_memory"),
            Column::Int("used_disk"),
            Column::Int("used_instances"),
            Column::Text("removal"),
        ],
    },
    Shape {
        table: "workload",
        columns: &[
            Column::Text("owner"),
            Column::Text("name"),
            Column::Int("revision"),
            Column::Int("replicas"),
            Column::Text("body"),
        ],
    },
    Shape {
        table: "slot",
        columns: &[
            Column::Text("owner"),
            Column::Text("workload"),
            Column::Int("revision"),
            Column::Int("slot"),
            Column::Bytes("instance"),
            Column::Int("role"),
        ],
    },
    Shape {
        table: "env_secrets",
        columns: &[Column::Text("env"), Column::Text("version"), Column::Text("owner")],
    },
    Shape {
        table: "policy",
        columns: &[
            Column::Text("hash"),
            Column::Text("name"),
            Column::Text("body"),
            Column::Int("at"),
            Column::Int("active"),
        ],
    },
    Shape {
        table: "demand",
        columns: &[
            Column::Text("shape"),
            Column::Text("owner"),
            Column::Text("code"),
            Column::Text("spec"),
            Column::Int("times"),
            Column::Int("first_at"),
            Column::Int("last_at"),
        ],
    },
    Shape {
        table: "event_segment",
        columns: &[
            Column::Int("id"),
            Column::Int("first"),
            Column::Int("count"),
            Column::Int("at"),
            Column::Text("origin"),
            Column::Text("body"),
        ],
    },
    Shape {
        table: "chain",
        columns: &[
            Column::Text("id"),
            Column::Int("length"),
            Column::Bytes("head"),
            Column::Int("base"),
            Column::Bytes("base_hash"),
            Column::Int("started_at"),
        ],
    },
    Shape {
        table: "receipt",
        columns: &[
            Column::Text("chain"),
            Column::Int("n"),
            Column::Int("at"),
            Column::Bytes("hash"),
            Column::Int("count"),
            Column::Text("body"),
        ],
    },
    Shape {
        table: "document",
        columns: &[
            Column::Text("kind"),
            Column::Text("id"),
            Column::Int("rev"),
            Column::Text("body"),
            Column::Int("at"),
        ],
    },
    Shape {
        table: "audit",
        columns: &[
            Column::Int("n"),
            Column::Int("at"),
            Column::Text("actor"),
            Column::Text("origin"),
            Column::Text("action"),
            Column::Text("subject"),
            Column::Text("request_id"),
        ],
    },
    Shape {
        table: "policy_history",
        columns: &[Column::Int("n"), Column::Text("hash"), Column::Int("at")],
    },
];

/// Tables whose rows belong to the tenant in their column `owner`: all of them must be empty of a
/// tenant before it is gone. The row in `tenant` itself is the last.
pub(crate) const OWNED: [&str; 9] = [
    "claim",
    "workload",
    "slot",
    "placement_group",
    "volume",
    "pool",
    "env_secrets",
    "request",
    "demand",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_with_an_owner_must_be_empty_of_a_tenant_before_it_is_gone() {
        let has_owner =
            |shape: &&Shape| shape.columns.iter().any(|column| column.name() == "owner");
        let owned = TABLES.iter().filter(has_owner).map(|shape| shape.table);
        let mut owned: Vec<&str> = owned.filter(|table| *table != "tenant").collect();
        let mut listed = OWNED.to_vec();
        owned.sort_unstable();
        listed.sort_unstable();
        assert_eq!(owned, listed);
    }
}
