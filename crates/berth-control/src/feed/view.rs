//! One event as JSON, and what each kind of reader may see of it.

use std::sync::OnceLock;

use berth_engine::NodeId;
use berth_ledger::{Event, EventBody, Micros, Text, invariant, invariant_ok};
use bytes::Bytes;
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

/// An event as a document, for lists.
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
    /// Whether it stands for an event that cannot be read, about anything and of any kind.
    is_unreadable: bool,
    body: Map<String, Value>,
}

/// An event of a stream: written once for each kind of reader, and shared by all streams that send it.
#[derive(Debug)]
pub struct StreamEvent {
    /// Its number.
    pub seq: i64,
    /// Its kind.
    pub kind: Box<str>,
    tenant: Option<Text>,
    hidden: bool,
    is_unreadable: bool,
    for_operators: Bytes,
    /// Made when the first of them reads it: for tenants that see nodes, and for those that do not.
    for_tenants: [OnceLock<Bytes>; 2],
}

/// The kind of an event that cannot be read.
const UNREADABLE: &str = "log.unreadable";

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
    ///
    /// # Errors
    ///
    /// If the request that it stores is not JSON: it was damaged in the database.
    pub fn of(event: Event) -> Result<Self, serde_json::Error> {
        let (tenant, node) = about(&event.body);
        let hidden = matches!(&event.body, EventBody::DocumentChanged { .. });
        let mut body: Map<String, Value> =
            serde_json::from_value(serde_json::to_value(&event.body)?)?;
        body.remove("spec_no");
        if let EventBody::Allocated(allocated) = &event.body
            && let Some(spec) = &allocated.spec
        {
            body.insert("request".to_owned(), serde_json::from_str(spec.as_str())?);
        }
        for part in PARTS {
            if let Some(Value::Object(inner)) = body.get_mut(part) {
                show_tenant(inner);
            }
        }
        show_tenant(&mut body);
        if let Some(mut slot) = body.remove("seat") {
            if let (Some(tenant), Some(request)) = (&tenant, body.get("request")) {
                add_slot_id(&mut slot, tenant, request);
            }
            body.insert("slot".to_owned(), slot);
        }
        if let Some(tenant) = &tenant {
            body.insert("tenant".to_owned(), Value::from(&**tenant));
        }
        let kind = match body.remove("kind") {
            Some(Value::String(kind)) => kind,
            other => {
                invariant!(false, "event_has_a_kind", seq = event.seq, kind = other);
                String::new()
            }
        };
        let at = Timestamp::from_microsecond(event.at.0).unwrap_or(Timestamp::UNIX_EPOCH);
        Ok(Self { seq: event.seq, at, kind, tenant, node, hidden, is_unreadable: false, body })
    }

    /// Stands for an event of the log that cannot be read. Every reader gets it: what it was about is not
    /// known, so a follower of the log must list again.
    #[must_use]
    pub fn unreadable(seq: i64, at: Micros) -> Self {
        Self {
            seq,
            at: Timestamp::from_microsecond(at.0).unwrap_or(Timestamp::UNIX_EPOCH),
            kind: UNREADABLE.to_owned(),
            tenant: None,
            node: None,
            hidden: false,
            is_unreadable: true,
            body: Map::new(),
        }
    }

    /// What happened, with everything that an operator may see.
    #[must_use]
    pub fn body(&self) -> &Map<String, Value> {
        &self.body
    }

    /// The event as a caller may see it; absent when it may not, or did not ask for it.
    #[must_use]
    pub fn seen_by(&self, caller: &Caller, reader: &Reader) -> Option<berth_api::Event> {
        let is_wanted = !self.hidden && reader.wants(&self.kind);
        let may_see = !caller.is_tenant() || is_about(self.tenant.as_ref(), caller);
        if !(self.is_unreadable || is_wanted && may_see) {
            return None;
        }
        let mut body = self.body.clone();
        if caller.is_tenant() {
            hide_from_tenant(&self.kind, &mut body, reader.sees_nodes);
        }
        let kind = self.kind.clone();
        Some(berth_api::Event { seq: self.seq, at: self.at, kind, body: Value::Object(body) })
    }
}

fn is_about(tenant: Option<&Text>, caller: &Caller) -> bool {
    tenant.is_some_and(|tenant| caller.sees(tenant))
}

/// Removes what a tenant may not see of an event about it.
fn hide_from_tenant(kind: &str, body: &mut Map<String, Value>, sees_nodes: bool) {
    if kind.starts_with("instance.") || kind == "lease.expired" {
        let seen = |key: &String| key == "tenant" || FOR_TENANTS.contains(&key.as_str());
        body.retain(|key, _| seen(key));
    }
    if !sees_nodes {
        body.remove("node_id");
        if let Some(Value::Object(volume)) = body.get_mut("volume") {
            volume.remove("home");
        }
    }
}

impl StreamEvent {
    /// The same for streams.
    #[must_use]
    pub fn of(event: FeedEvent) -> Self {
        let FeedEvent { seq, at, kind, tenant, node: _, hidden, is_unreadable, body } = event;
        let event = berth_api::Event { seq, at, kind, body: Value::Object(body) };
        // What no reader is sent is not written.
        let for_operators = if hidden { Bytes::new() } else { frame(&event) };
        let kind = event.kind.into_boxed_str();
        let for_tenants = Default::default();
        Self { seq, kind, tenant, hidden, is_unreadable, for_operators, for_tenants }
    }

    /// The event as a caller is sent it; absent when it may not see it, or did not ask for it.
    #[must_use]
    pub fn frame_for(&self, caller: &Caller, reader: &Reader) -> Option<Bytes> {
        if self.is_unreadable {
            return Some(self.for_operators.clone());
        }
        if self.hidden || !reader.wants(&self.kind) {
            return None;
        }
        if !caller.is_tenant() {
            return Some(self.for_operators.clone());
        }
        if !is_about(self.tenant.as_ref(), caller) {
            return None;
        }
        let made = &self.for_tenants[usize::from(reader.sees_nodes)];
        Some(made.get_or_init(|| self.frame_for_tenants(reader.sees_nodes)).clone())
    }

    fn frame_for_tenants(&self, sees_nodes: bool) -> Bytes {
        let document = document_of(&self.for_operators);
        let Ok(mut event) = serde_json::from_slice::<berth_api::Event>(document) else {
            return Bytes::new();
        };
        if let Value::Object(body) = &mut event.body {
            hide_from_tenant(&self.kind, body, sees_nodes);
        }
        frame(&event)
    }

    /// Memory that it takes, without what is made for tenants: each of those is shorter.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.kind.len() + self.for_operators.len()
    }
}

/// What is in front of the document of an event that is sent.
const DATA: &str = "\ndata: ";

/// A server-sent event.
fn frame(event: &berth_api::Event) -> Bytes {
    let document = serde_json::to_string(event);
    let document = invariant_ok!(document, "event_is_json", seq = event.seq).unwrap_or_default();
    Bytes::from(format!("id: {}\nevent: {}{DATA}{document}\n\n", event.seq, event.kind))
}

/// The document of a server-sent event.
fn document_of(frame: &[u8]) -> &[u8] {
    let start = frame.windows(DATA.len()).position(|window| window == DATA.as_bytes());
    start.map_or(&[], |start| frame[start + DATA.len()..].trim_ascii_end())
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

/// Adds the identity of the slot that an instance was placed in.
fn add_slot_id(slot: &mut Value, tenant: &str, request: &Value) {
    let workload = request.get("workload").and_then(Value::as_str);
    let number = slot.get("slot").and_then(Value::as_i64);
    if let (Some(workload), Some(number)) = (workload, number) {
        slot["id"] = Value::from(berth_ledger::slot_id(tenant, workload, number).to_string());
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
        | EventBody::NodeLoad { node_id, .. }
        | EventBody::ReportRefused { node_id, .. }
        | EventBody::NodeRemoved { node_id, .. } => (None, Some(node_id.clone())),
        EventBody::GroupChanged { group } => (group.tenant.as_deref().map(Text::from), None),
        EventBody::VolumeChanged { volume } => {
            (volume.tenant.as_deref().map(Text::from), Some(volume.home.clone()))
        }
        EventBody::QuotaChanged { tenant }
        | EventBody::TenantRemoving { tenant }
        | EventBody::TenantRemoved { tenant }
        | EventBody::SchedulingFailed { tenant, .. }
        | EventBody::SchedulingRecovered { tenant, .. }
        | EventBody::TicketQuarantined { tenant, .. }
        | EventBody::WorkloadChanged { tenant, .. } => (Some(Text::clone(tenant)), None),
        EventBody::SecretsChanged { tenant, .. } => (tenant.clone(), None),
        EventBody::GroupRemoved { .. }
        | EventBody::VolumeRemoved { .. }
        | EventBody::PoolChanged { .. }
        | EventBody::PolicyChanged { .. }
        | EventBody::PolicyQuarantined { .. }
        | EventBody::DocumentChanged { .. }
        | EventBody::Drift { .. } => (None, None),
    }
}
