//! One event as JSON, and what each kind of reader may see of it.

use std::sync::Arc;

use berth_engine::NodeId;
use berth_ledger::{Event, EventBody, Text};
use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::caller::Caller;
use crate::instance_spec::show_tenant;

/// Who reads the feed, and what they asked for.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    /// Only these kinds, or kinds that begin like this and a dot; empty: all.
    pub kinds: Vec<String>,
    /// Whether a tenant may see the names of nodes.
    pub sees_nodes: bool,
}

/// An event, ready to be sent.
#[derive(Debug)]
pub struct FeedEvent {
    /// Its number.
    pub seq: i64,
    /// When.
    pub at: Timestamp,
    /// Its kind.
    pub kind: String,
    /// The tenant it is about; absent when it is about none.
    pub tenant: Option<Text>,
    /// The node it is about.
    pub node: Option<NodeId>,
    /// Whether only the server itself has a use for it.
    hidden: bool,
    body: Arc<Map<String, Value>>,
}

/// What a tenant may see of its own instances.
const FOR_TENANTS: [&str; 12] = [
    "kind",
    "instance_id",
    "role",
    "node_id",
    "state",
    "fence",
    "lease_until",
    "resources",
    "reason",
    "name",
    "values",
    "overlay_ipv6",
];

impl FeedEvent {
    /// An event of the log.
    #[must_use]
    pub fn of(event: Event) -> Self {
        let (tenant, node) = about(&event.body);
        let hidden = matches!(&event.body, EventBody::DocumentChanged { .. });
        let mut body = match serde_json::to_value(&event.body) {
            Ok(Value::Object(body)) => body,
            Ok(_) | Err(_) => Map::new(),
        };
        body.remove("spec_no");
        if let EventBody::Allocated(allocated) = &event.body
            && let Some(spec) = &allocated.spec
            && let Ok(request) = serde_json::from_str(spec.as_str())
        {
            body.insert("request".to_owned(), request);
        }
        for part in PARTS {
            if let Some(Value::Object(inner)) = body.get_mut(part) {
                show_tenant(inner);
            }
        }
        show_tenant(&mut body);
        if let Some(slot) = body.remove("seat") {
            body.insert("slot".to_owned(), slot);
        }
        if let Some(tenant) = &tenant {
            body.insert("tenant".to_owned(), Value::from(&**tenant));
        }
        let kind = match body.remove("kind") {
            Some(Value::String(kind)) => kind,
            _ => String::new(),
        };
        let at = Timestamp::from_microsecond(event.at.0).unwrap_or(Timestamp::UNIX_EPOCH);
        Self { seq: event.seq, at, kind, tenant, node, hidden, body: Arc::new(body) }
    }

    /// The event as a caller may see it; absent when it may not, or did not ask for it.
    #[must_use]
    pub fn seen_by(&self, caller: &Caller, reader: &Reader) -> Option<berth_api::Event> {
        if self.hidden || !reader.wants(&self.kind) {
            return None;
        }
        let mut body = (*self.body).clone();
        if caller.is_tenant() {
            let mine = self.tenant.as_ref().is_some_and(|tenant| caller.sees(tenant));
            if !mine {
                return None;
            }
            if self.kind.starts_with("instance.") || self.kind == "lease.expired" {
                let seen = |key: &String| key == "tenant" || FOR_TENANTS.contains(&key.as_str());
                body.retain(|key, _| seen(key));
            }
            if !reader.sees_nodes {
                body.remove("node_id");
                if let Some(Value::Object(volume)) = body.get_mut("volume") {
                    volume.remove("home");
                }
            }
        }
        let kind = self.kind.clone();
        Some(berth_api::Event { seq: self.seq, at: self.at, kind, body: Value::Object(body) })
    }
}

/// Parts of events that are stored as they are in tables, and name a tenant.
const PARTS: [&str; 4] = ["request", "group", "volume", "workload"];

impl Reader {
    fn wants(&self, kind: &str) -> bool {
        let begins = |wanted: &String| {
            kind == wanted || kind.strip_prefix(wanted.as_str()).is_some_and(|k| k.starts_with('.'))
        };
        self.kinds.is_empty() || self.kinds.iter().any(begins)
    }
}

/// The tenant and the node that an event is about.
fn about(body: &EventBody) -> (Option<Text>, Option<NodeId>) {
    match body {
        EventBody::Allocated(allocated) => {
            let request = allocated.spec.as_ref().and_then(|spec| spec.request().ok());
            let tenant = request.map(|request| Text::from(request.tenant));
            (tenant, Some(allocated.node_id.clone()))
        }
        EventBody::State { tenant, node_id, .. }
        | EventBody::Resized { tenant, node_id, .. }
        | EventBody::Permit { tenant, node_id, .. }
        | EventBody::Bounds { tenant, node_id, .. }
        | EventBody::LeaseExpired { tenant, node_id, .. }
        | EventBody::Released { tenant, node_id, .. } => {
            (Some(Text::clone(tenant)), Some(node_id.clone()))
        }
        EventBody::NodeChanged { facts, .. } => (None, Some(facts.id.clone())),
        EventBody::NodeState { node_id, .. }
        | EventBody::ReportRefused { node_id, .. }
        | EventBody::NodeRemoved { node_id } => (None, Some(node_id.clone())),
        EventBody::GroupChanged { group } => (group.tenant.as_deref().map(Text::from), None),
        EventBody::VolumeChanged { volume } => {
            (volume.tenant.as_deref().map(Text::from), Some(volume.home.clone()))
        }
        EventBody::QuotaChanged { tenant }
        | EventBody::SchedulingFailed { tenant, .. }
        | EventBody::SchedulingRecovered { tenant, .. }
        | EventBody::WorkloadChanged { tenant, .. } => (Some(Text::clone(tenant)), None),
        EventBody::SecretsChanged { tenant, .. } => (tenant.clone(), None),
        EventBody::GroupRemoved { .. }
        | EventBody::VolumeRemoved { .. }
        | EventBody::PoolChanged { .. }
        | EventBody::PolicyChanged { .. }
        | EventBody::DocumentChanged { .. }
        | EventBody::Drift { .. } => (None, None),
    }
}
