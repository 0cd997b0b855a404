//! Everything that the servers say, as one picture. It is read over HTTP and taken as it is: list after
//! list, so what a background loop does meanwhile may be in one list and not yet in another.

use std::collections::BTreeMap;
use std::ops::{Add, Sub};

use serde_json::Value;

/// CPU in thousandths of a core, and memory in MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) cpu: i64,
    pub(crate) memory: i64,
}

impl Pair {
    pub(crate) const fn new(cpu: i64, memory: i64) -> Self {
        Self { cpu, memory }
    }

    /// From a size or amounts.
    #[track_caller]
    pub(crate) fn read(size: &Value) -> Self {
        Self::new(size["cpu_milli"].as_i64().unwrap(), size["memory_mib"].as_i64().unwrap())
    }

    pub(crate) fn json(self) -> Value {
        serde_json::json!({ "cpu_milli": self.cpu, "memory_mib": self.memory })
    }

    pub(crate) fn each(self, other: Self, of: impl Fn(i64, i64) -> i64) -> Self {
        Self::new(of(self.cpu, other.cpu), of(self.memory, other.memory))
    }

    pub(crate) fn of(self, of: impl Fn(i64) -> i64) -> Self {
        Self::new(of(self.cpu), of(self.memory))
    }

    /// Whether both are at most as much.
    pub(crate) fn within(self, most: Self) -> bool {
        self.cpu <= most.cpu && self.memory <= most.memory
    }

    /// Both resources, with their names.
    pub(crate) fn named(self) -> [(&'static str, i64); 2] {
        [("cpu", self.cpu), ("memory", self.memory)]
    }
}

impl Add for Pair {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.each(other, |one, more| one + more)
    }
}

impl Sub for Pair {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.each(other, |one, less| one - less)
    }
}

/// A node's account.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NodePicture {
    pub(crate) total: Pair,
    pub(crate) system: Pair,
    pub(crate) other: Pair,
    pub(crate) reserved: Pair,
    pub(crate) buffer: Pair,
    pub(crate) pressure: Pair,
    pub(crate) accounted_for: Pair,
    /// Memory that each instance costs beyond its own.
    pub(crate) overhead: i64,
    pub(crate) instances: i64,
}

impl NodePicture {
    fn read(node: &Value) -> Self {
        let of = |field: &str| {
            let amount = |resource: &str| node["account"][resource][field].as_i64().unwrap();
            Pair::new(amount("cpu"), amount("memory"))
        };
        Self {
            total: of("total"),
            system: of("system"),
            other: of("other"),
            reserved: of("reserved"),
            buffer: of("buffer"),
            pressure: of("capacity_pressure"),
            accounted_for: of("pressure_accounted_for"),
            overhead: node["facts"]["vmm_overhead_mib"].as_i64().unwrap_or(0),
            instances: node["instances"].as_i64().unwrap(),
        }
    }

    /// What may be reserved.
    pub(crate) fn limit(&self) -> Pair {
        self.total - self.system
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClaimPicture {
    pub(crate) instance: String,
    pub(crate) role: String,
    pub(crate) node: String,
    pub(crate) charged: Pair,
    pub(crate) fence: i64,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PermitPicture {
    pub(crate) node: String,
    pub(crate) fence: i64,
    pub(crate) seq: u64,
    pub(crate) granted: Pair,
    pub(crate) pressure: Pair,
    /// What is set aside beyond that, for want of knowledge or as headroom.
    pub(crate) buffer: Pair,
    pub(crate) uncertain: bool,
    pub(crate) min: Pair,
    pub(crate) max: Pair,
    pub(crate) charged: Pair,
    pub(crate) unit: Option<Pair>,
    pub(crate) frozen: bool,
}

impl PermitPicture {
    pub(crate) fn read(permit: &Value) -> Self {
        let granted = Pair::read(&permit["permit"]);
        let unknown = Pair::read(&permit["buffer"]);
        let headroom = permit.get("headroom").map(|it| Pair::read(&it["up_to"]) - granted);
        Self {
            node: permit["node"].as_str().unwrap().to_owned(),
            fence: permit["fence"].as_i64().unwrap(),
            seq: permit["seq"].as_u64().unwrap(),
            granted,
            pressure: Pair::read(&permit["capacity_pressure"]),
            buffer: unknown + headroom.unwrap_or_default(),
            uncertain: permit["uncertain"] == true,
            min: Pair::read(&permit["min"]),
            max: Pair::read(&permit["max"]),
            charged: Pair::read(&permit["charged"]),
            unit: permit.get("compute_unit").map(Pair::read),
            frozen: permit["frozen"] == true,
        }
    }
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Picture {
    pub(crate) nodes: BTreeMap<String, NodePicture>,
    pub(crate) claims: Vec<ClaimPicture>,
    pub(crate) permits: BTreeMap<String, PermitPicture>,
    /// Instances that are on their way, with the node that they leave.
    pub(crate) leaving: BTreeMap<String, String>,
    /// The state of each open migration.
    pub(crate) migrations: BTreeMap<String, String>,
}

impl Picture {
    /// From the lists of nodes, instances, claims and open migrations.
    pub(crate) fn read(nodes: &Value, claims: &Value, instances: &Value, open: &Value) -> Self {
        let items = |list: &Value| list["items"].as_array().unwrap().clone();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let node = |node: &Value| (text(&node["facts"]["id"]), NodePicture::read(node));
        let claim = |claim: &Value| ClaimPicture {
            instance: text(&claim["instance"]),
            role: text(&claim["role"]),
            node: text(&claim["node"]),
            charged: Pair::read(&claim["resources"]),
            fence: claim["fence"].as_i64().unwrap(),
        };
        let elastic = items(instances).into_iter().filter(|it| it.get("permit").is_some());
        let permit = |it: Value| (text(&it["instance"]), PermitPicture::read(&it["permit"]));
        let leaving = |it: &Value| (text(&it["instance"]), text(&it["source"]));
        let migration = |it: &Value| (text(&it["id"]), text(&it["state"]));
        Self {
            nodes: items(nodes).iter().map(node).collect(),
            claims: items(claims).iter().map(claim).collect(),
            permits: elastic.map(permit).collect(),
            leaving: items(open).iter().map(leaving).collect(),
            migrations: items(open).iter().map(migration).collect(),
        }
    }
}
