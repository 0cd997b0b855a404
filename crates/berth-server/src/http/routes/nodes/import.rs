//! Nodes by the thousand: all of an import, or nothing.

use std::collections::BTreeSet;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::response::{IntoResponse, Response};
use berth_api::data_error::DataError;
use berth_api::units::{Rounding, parse_bandwidth, parse_cpu, parse_size};
use berth_api::{ImportLine, ImportReport};
use berth_engine::{
    Amounts, FactChange, FactLayer, FactValues, NodeFacts, Timestamp, TraitValue, values_of_patch,
};
use berth_ledger::{Answer, Op, Outcome, Text};
use http::{HeaderMap, StatusCode, header};
use serde_json::json;

use super::facts::FactLayerQuery;
use crate::http::extract::{Query, RequestContext, too_large};
use crate::problem::{ApiError, ApiResult};
use berth_control::ControlPlane;
use berth_control::caller::Caller;

/// Maximum number of reported errors.
const ERRORS: usize = 100;

/// Maximum number of reported facts that an import owns.
const OWNED: usize = 256;

/// Import nodes
///
/// CSV with a header line (`id,cpu,memory,disk,zone,rack,label.hall,trait.ssd,…`), or JSON: a list
/// of facts. Everything is checked first; if a line is wrong, nothing is taken.
///
/// An import owns the columns of its file, or the keys of each JSON object: an empty cell takes its
/// value away, and facts that the file does not name stay. It states what nodes report unless `as` is
/// `set`; so what an operator set on a node wins over it.
#[utoipa::path(post, path = "/v1/nodes/import", tag = "nodes", params(FactLayerQuery),
    request_body(content(
        (Vec<NodeFacts> = "application/json"),
        (String = "text/csv"),
    )),
    responses(
        (status = 200, description = "What was imported.", body = ImportReport),
        (status = 422, description = "Invalid lines; nothing was imported.", body = ImportReport),
    ))]
pub(super) async fn import(
    RequestContext { control, caller }: RequestContext,
    Query(query): Query<FactLayerQuery>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> ApiResult<Response> {
    let body = body.map_err(|rejection| {
        if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
            return too_large();
        }
        ApiError::invalid(format!("the body could not be read: {}", rejection.body_text()))
    })?;
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.unwrap_or("").split(';').next().unwrap_or("").trim();
    let (nodes, mut errors) = match kind {
        "text/csv" => read_csv(&body),
        "application/json" => read_list(&body)?,
        other => {
            let detail =
                format!("Content-Type is {other:?}; accepted are application/json and text/csv");
            let title = "unsupported media type";
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Err(ApiError::new(status, "unsupported_media_type", title, detail));
        }
    };
    for (line, node) in &nodes {
        if let Err(error) = super::facts::check(&node.facts) {
            let (node, error) = (Some(node.facts.id.to_string()), error.problem().detail.clone());
            errors.push(ImportLine { line: *line, node, error });
        }
    }
    if !errors.is_empty() {
        errors.sort_by_key(|error| error.line);
        errors.truncate(ERRORS);
        let report = ImportReport { errors, ..ImportReport::default() };
        return Ok((StatusCode::UNPROCESSABLE_ENTITY, axum::Json(report)).into_response());
    }
    let nodes = nodes.into_iter().map(|(_, node)| node).collect();
    let layer = query.layer.unwrap_or(FactLayer::Reported);
    Ok(axum::Json(store(&control, &caller, nodes, layer).await?).into_response())
}

/// A node of an import.
struct ImportedNode {
    /// What is stated, with defaults for the rest.
    facts: NodeFacts,
    /// What is stated by path; null: an owned column without a value.
    values: FactValues,
}

impl ImportedNode {
    /// The change of the node's facts, and what the node starts from if it is new.
    fn into_change(self, layer: FactLayer) -> (FactChange, NodeFacts) {
        let change = match layer {
            FactLayer::Reported => FactChange::Report(self.values),
            FactLayer::Set => {
                let (unset, values): (FactValues, FactValues) =
                    self.values.into_iter().partition(|(_, value)| value.is_null());
                FactChange::Set { values, unset: unset.into_keys().collect() }
            }
        };
        let NodeFacts { id, state, heartbeat_at, .. } = self.facts;
        let bare = NodeFacts::unknown(id.as_str());
        (change, NodeFacts { state, heartbeat_at, ..bare })
    }
}

/// Stores nodes, many at once.
async fn store(
    control: &ControlPlane,
    caller: &Caller,
    nodes: Vec<ImportedNode>,
    layer: FactLayer,
) -> ApiResult<ImportReport> {
    let now = Timestamp(control.now().as_second());
    let owned: BTreeSet<&String> = nodes.iter().flat_map(|node| node.values.keys()).collect();
    let owned = owned.into_iter().take(OWNED).cloned().collect();
    let mut report = ImportReport { layer: Some(layer), owned, ..ImportReport::default() };
    let mut waiting = Vec::with_capacity(nodes.len());
    let subject = Text::from(format!("import of {} nodes", nodes.len()));
    for node in nodes {
        let known = control.catalog.read().nodes.contains_key(&node.facts.id);
        let (change, mut create) = node.into_change(layer);
        let heard_at = create.heartbeat_at.0;
        create.heartbeat_at = if heard_at <= 0 { now } else { Timestamp(heard_at.min(now.0)) };
        let op = Op::ChangeFacts {
            node: create.id.clone(),
            change: Box::new(change),
            create: Some(Box::new(create)),
            expect: None,
        };
        // Handed over together, so that they share a commit.
        let done = control.call(caller, "node.import", Text::clone(&subject), None, op);
        waiting.push((known, done));
    }
    let (known, calls): (Vec<bool>, Vec<_>) = waiting.into_iter().unzip();
    for (known, answer) in known.into_iter().zip(futures_util::future::join_all(calls).await) {
        match answer? {
            Answer::Outcome(Outcome::Unchanged) => report.unchanged += 1,
            Answer::Outcome(Outcome::Done) if known => report.changed += 1,
            Answer::Outcome(Outcome::Done) => report.added += 1,
            Answer::Outcome(Outcome::Impossible(error)) => {
                report.errors.push(ImportLine { line: 0, node: None, error });
            }
            other => return Err(berth_control::unexpected(&other).into()),
        }
    }
    control.wait_for_read_your_writes().await;
    Ok(report)
}

/// Nodes by line, and lines that could not be read.
type ImportedLines = (Vec<(u64, ImportedNode)>, Vec<ImportLine>);

fn read_list(body: &[u8]) -> ApiResult<ImportedLines> {
    let values: Vec<serde_json::Value> = crate::http::extract::read_json(body)?;
    let (mut nodes, mut errors) = (Vec::with_capacity(values.len()), Vec::new());
    for (line, value) in (1..).zip(values) {
        let node = value.get("id").and_then(|id| id.as_str()).map(str::to_owned);
        match serde_path_to_error::deserialize::<_, NodeFacts>(&value) {
            Ok(facts) => {
                let values = owned_values(&facts, value);
                nodes.push((line, ImportedNode { facts, values }));
            }
            Err(error) => {
                let (path, message) = (error.path().to_string(), error.inner().to_string());
                let error = DataError::new("the node", &path, &message).to_string();
                errors.push(ImportLine { line, node, error });
            }
        }
    }
    Ok((nodes, errors))
}

/// The facts that a JSON object names.
fn owned_values(facts: &NodeFacts, value: serde_json::Value) -> FactValues {
    let serde_json::Value::Object(mut named) = value else { return FactValues::new() };
    for fixed in
        ["id", "state", "state_reason", "heartbeat_at", "policy_reserve", "load", "overridden"]
    {
        named.remove(fixed);
    }
    if facts.boots.is_empty() {
        named.remove("boots");
    }
    values_of_patch(facts, named).unwrap_or_default()
}

fn read_csv(body: &[u8]) -> ImportedLines {
    let (mut nodes, mut errors) = (Vec::new(), Vec::new());
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(body);
    let columns = match reader.headers() {
        Ok(columns) => columns.clone(),
        Err(error) => {
            errors.push(ImportLine { line: 1, node: None, error: error.to_string() });
            return (nodes, errors);
        }
    };
    if !columns.iter().any(|column| column == "id") {
        let error = "there is no column id; the first line names the columns".to_owned();
        errors.push(ImportLine { line: 1, node: None, error });
        return (nodes, errors);
    }
    for (row, record) in reader.records().enumerate() {
        let line = u64::try_from(row).unwrap_or(0) + 2;
        match record {
            Ok(record) => match read_row(&columns, &record) {
                Ok(facts) => {
                    let cells = columns.iter().zip(&record);
                    let values = cells.filter_map(|cell| value_of(&facts, cell)).collect();
                    nodes.push((line, ImportedNode { facts, values }));
                }
                Err((node, error)) => errors.push(ImportLine { line, node, error }),
            },
            Err(error) => {
                errors.push(ImportLine { line, node: None, error: error.to_string() });
            }
        }
    }
    (nodes, errors)
}

/// The fact that a column owns, and its value; null when the cell is empty.
fn value_of(
    facts: &NodeFacts,
    (column, cell): (&str, &str),
) -> Option<(String, serde_json::Value)> {
    let (path, value) = match column {
        "id" => return None,
        "cpu" | "cpu_milli" | "memory" | "memory_mib" | "disk" | "disk_mib" | "bandwidth"
        | "bandwidth_mbps" => {
            let Some(capacity) = facts.capacity else {
                return Some(("capacity".to_owned(), serde_json::Value::Null));
            };
            let [cpu, memory, disk, bandwidth] = capacity.named();
            let (name, amount, _) = match column.split('_').next() {
                Some("cpu") => cpu,
                Some("memory") => memory,
                Some("disk") => disk,
                _ => bandwidth,
            };
            (format!("capacity.{name}"), json!(amount))
        }
        "reserve_cpu" => {
            ("system_reserve.cpu_milli".to_owned(), json!(facts.system_reserve.cpu_milli))
        }
        "reserve_memory" => {
            ("system_reserve.memory_mib".to_owned(), json!(facts.system_reserve.memory_mib))
        }
        "zone" => ("zone".to_owned(), json!(facts.zone)),
        "rack" => ("rack".to_owned(), json!(facts.rack)),
        "capacity_type" => ("capacity_type".to_owned(), json!(facts.capacity_type)),
        "hardware_class" => ("hardware_class".to_owned(), json!(facts.hardware_class)),
        "instance_limit" => ("instance_limit".to_owned(), json!(facts.instance_limit)),
        "vmm_overhead_mib" => ("vmm_overhead_mib".to_owned(), json!(facts.vmm_overhead_mib)),
        _ => match column.split_once('.')? {
            ("label", name) => (format!("labels.{name}"), json!(facts.labels.get(name))),
            ("trait", name) => (format!("traits.{name}"), json!(facts.traits.get(name))),
            ("extra", name) => (format!("extra.{name}"), json!(facts.extra.get(name))),
            // All columns of networks are one fact.
            _ => return Some(("networks".to_owned(), json!(facts.networks))),
        },
    };
    Some((path, if cell.is_empty() { serde_json::Value::Null } else { value }))
}

/// Columns that are not parts of a name, for the error about an unknown one.
const COLUMNS: &str = "id, cpu, memory, disk, bandwidth, reserve_cpu, reserve_memory, zone, rack, \
     capacity_type, hardware_class, instance_limit, vmm_overhead_mib, label.NAME, trait.NAME, \
     extra.NAME, network.NAME";

fn read_row(
    columns: &csv::StringRecord,
    record: &csv::StringRecord,
) -> Result<NodeFacts, (Option<String>, String)> {
    let id = columns.iter().zip(record).find(|(column, _)| *column == "id").map(|(_, id)| id);
    let id = id.unwrap_or("");
    let named = |error: String| (Some(id.to_owned()).filter(|id| !id.is_empty()), error);
    let mut facts = NodeFacts::new(id, Amounts::default());
    let mut capacity = Amounts::default();
    for (column, value) in columns.iter().zip(record).filter(|(_, value)| !value.is_empty()) {
        let read = set(&mut facts, &mut capacity, column, value);
        read.map_err(|error| named(format!("{column}: {error}")))?;
    }
    // A node without a stated capacity is registered, but accepts no instances.
    facts.capacity = (capacity != Amounts::default()).then_some(capacity);
    Ok(facts)
}

fn set(
    facts: &mut NodeFacts,
    capacity: &mut Amounts,
    column: &str,
    value: &str,
) -> Result<(), String> {
    let down = Rounding::Down;
    let text = |error: berth_api::units::UnitError| error.to_string();
    let number = |value: &str| {
        value.parse().map_err(|_| format!("{value:?} is not a whole number from 0 on"))
    };
    match column {
        "id" => {}
        "cpu" => capacity.cpu_milli = parse_cpu(value, down).map_err(text)?,
        "cpu_milli" => capacity.cpu_milli = number(value)?,
        "memory" | "memory_mib" => capacity.memory_mib = parse_size(value, down).map_err(text)?,
        "disk" | "disk_mib" => capacity.disk_mib = parse_size(value, down).map_err(text)?,
        "bandwidth" | "bandwidth_mbps" => {
            capacity.bandwidth_mbps = parse_bandwidth(value, down).map_err(text)?;
        }
        "reserve_cpu" => {
            facts.system_reserve.cpu_milli = parse_cpu(value, Rounding::Up).map_err(text)?;
        }
        "reserve_memory" => {
            facts.system_reserve.memory_mib = parse_size(value, Rounding::Up).map_err(text)?;
        }
        "zone" => facts.zone = Some(value.to_owned()),
        "rack" => facts.rack = Some(value.to_owned()),
        "capacity_type" => {
            facts.capacity_type = serde_json::from_value(value.into())
                .map_err(|_| format!("{value:?} is neither on-demand nor spot"))?;
        }
        "hardware_class" => {
            facts.hardware_class =
                value.parse().map_err(|_| format!("{value:?} is not a whole number"))?;
        }
        "instance_limit" => facts.instance_limit = number(value)?,
        "vmm_overhead_mib" => facts.vmm_overhead_mib = number(value)?,
        _ => return set_named(facts, column, value),
    }
    Ok(())
}

fn set_named(facts: &mut NodeFacts, column: &str, value: &str) -> Result<(), String> {
    match column.split_once('.') {
        Some(("label", name)) => drop(facts.labels.insert(name.to_owned(), value.to_owned())),
        Some(("trait", name)) => {
            let value = match value {
                "true" => TraitValue::Bool(true),
                "false" => TraitValue::Bool(false),
                words if words.contains('|') => {
                    TraitValue::List(words.split('|').map(str::to_owned).collect())
                }
                word => TraitValue::Text(word.to_owned()),
            };
            facts.traits.insert(name.to_owned(), value);
        }
        Some(("extra", name)) => {
            let amount = value.parse().map_err(|_| format!("{value:?} is not a whole number"))?;
            facts.extra.insert(name.to_owned(), amount);
        }
        Some(("network", name)) => {
            let link = serde_json::from_value(value.into())
                .map_err(|_| format!("{value:?} is none of up, down, unknown"))?;
            facts.networks.push(berth_engine::Network { tag: name.to_owned(), link });
        }
        _ => return Err(format!("no such column; accepted are {COLUMNS}")),
    }
    Ok(())
}
