//! Explains why a pod is where it is, or unschedulable: as text, as JSON, and without a running scheduler.

use std::fmt::Write as _;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1 as storage;
use kube::api::{DynamicObject, ListParams};
use kube::core::Resource;
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use thiserror::Error;

use super::messages::Change;
use super::optional_kinds::{OPTIONAL_KINDS, OptionalKind};
use crate::cluster::observed_pod::ObservedPod;
use crate::cluster::outcome::{PodExplanation, Refusal};
use crate::cluster::pod::Key;
use crate::cluster::{Cluster, Settings};

/// Objects per page of a list.
const PAGE_SIZE: u32 = 500;

/// A pod cannot be explained.
#[derive(Debug, Error)]
pub enum ExplainError {
    /// A list failed.
    #[error("failed to list {kind}")]
    List {
        /// The kind, in the plural.
        kind: String,
        /// The error of the client.
        source: Box<kube::Error>,
    },
    /// The pod does not exist.
    #[error("pod {0} not found")]
    NoPod(Key),
}

/// Lists all objects once and explains a pod as a scheduler with these settings would see it.
///
/// # Errors
/// When a list fails, or the pod does not exist.
pub async fn explain_once(
    client: &Client,
    settings: Settings,
    pod: &Key,
) -> Result<PodExplanation, ExplainError> {
    let mut cluster = Cluster::new(settings);
    let now = berth_engine::Timestamp(jiff::Timestamp::now().as_second());
    for it in list_all::<core::Namespace>(client).await? {
        let labels = it.metadata.labels.unwrap_or_default();
        cluster.put_namespace(it.metadata.name.as_deref().unwrap_or_default(), &labels);
    }
    list_all::<core::Node>(client).await?.iter().for_each(|it| cluster.put_node(it));
    let volumes = cluster.volumes();
    list_all::<storage::StorageClass>(client).await?.iter().for_each(|it| volumes.put_class(it));
    list_all::<storage::CSINode>(client).await?.iter().for_each(|it| volumes.put_csi_node(it));
    list_all::<storage::CSIDriver>(client).await?.iter().for_each(|it| volumes.put_csi_driver(it));
    let capacities = list_all::<storage::CSIStorageCapacity>(client).await?;
    capacities.iter().for_each(|it| volumes.put_csi_capacity(it));
    list_all::<core::PersistentVolume>(client).await?.iter().for_each(|it| volumes.put_volume(it));
    let claims = list_all::<core::PersistentVolumeClaim>(client).await?;
    claims.iter().for_each(|it| volumes.put_claim(it));
    list_all::<PodDisruptionBudget>(client).await?.iter().for_each(|it| cluster.put_budget(it));
    for kind in OPTIONAL_KINDS {
        for it in list_optional(client, kind).await? {
            match kind.change(&it) {
                Change::Vm(vm) => cluster.put_vm(&vm),
                Change::Group(kind, it) => cluster.put_group(kind, &it),
                Change::Device(kind, it) => cluster.devices().put(kind, &it),
                _ => {}
            }
        }
    }
    for it in list_all::<ObservedPod>(client).await? {
        cluster.put_pod(&it);
    }
    cluster.explain(pod, now).ok_or_else(|| ExplainError::NoPod(pod.clone()))
}

async fn list_all<K>(client: &Client) -> Result<Vec<K>, ExplainError>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    list_pages(Api::<K>::all(client.clone())).await.map_err(|error| ExplainError::List {
        kind: K::plural(&()).into_owned(),
        source: Box::new(error),
    })
}

/// The objects of a kind, if it is served.
async fn list_optional(
    client: &Client,
    kind: OptionalKind,
) -> Result<Vec<DynamicObject>, ExplainError> {
    let failure = |source| ExplainError::List { kind: kind.to_string(), source: Box::new(source) };
    let Some(resource) = kind.discover(client).await.map_err(failure)? else {
        return Ok(Vec::new());
    };
    match list_pages(Api::<DynamicObject>::all_with(client.clone(), &resource)).await {
        Ok(found) => Ok(found),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        Err(error) => Err(failure(error)),
    }
}

async fn list_pages<K>(api: Api<K>) -> Result<Vec<K>, kube::Error>
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let (mut found, mut token) = (Vec::new(), None);
    loop {
        let params =
            ListParams { limit: Some(PAGE_SIZE), continue_token: token, ..Default::default() };
        let page = api.list(&params).await?;
        found.extend(page.items);
        token = page.metadata.continue_.filter(|it| !it.is_empty());
        if token.is_none() {
            return Ok(found);
        }
    }
}

/// An explanation as JSON.
#[must_use]
pub fn as_json(found: &PodExplanation) -> Value {
    let table = found.table.iter().map(|it| {
        let removed = it.removed_by.iter().map(|(rule, why)| json!({"rule": rule, "why": why}));
        json!({
            "node": &*it.node,
            "removed_by": removed.collect::<Vec<_>>(),
            "total": it.total,
        })
    });
    json!({
        "namespace": &*found.pod.namespace,
        "pod": &*found.pod.name,
        "node": found.node.as_deref(),
        "best": found.best.as_deref(),
        "refusal": found.refusal.as_ref().map(refusal_as_json),
        "table": table.collect::<Vec<_>>(),
    })
}

fn refusal_as_json(refusal: &Refusal) -> Value {
    let counts = refusal.counts.iter().map(|it| {
        let nearest =
            it.nearest.as_ref().map(|(node, lacks)| json!({"node": &**node, "lacks": lacks}));
        json!({"rule": it.rule, "nodes": it.nodes, "nearest": nearest})
    });
    json!({
        "code": refusal.code,
        "line": refusal.line,
        "help": refusal.help,
        "nodes": refusal.nodes,
        "counts": counts.collect::<Vec<_>>(),
    })
}

/// An explanation as text: the answer first, then every node with its verdict.
#[must_use]
pub fn as_text(found: &PodExplanation) -> String {
    let mut text = String::new();
    let pod = &found.pod;
    let first = match (&found.node, &found.best, &found.refusal) {
        (Some(node), Some(best), _) if node == best => {
            format!("{pod} is on {node}, which would be chosen again")
        }
        (Some(node), Some(best), _) => {
            format!("{pod} is on {node}; if it were scheduled now, {best} would be chosen")
        }
        (Some(node), None, Some(refusal)) => {
            format!("{pod} is on {node}; if it were scheduled now: {}", refusal.line)
        }
        (Some(node), None, None) => format!("{pod} is on {node}"),
        (None, Some(best), _) => format!("{pod} would be scheduled on {best}"),
        (None, None, Some(refusal)) => format!("{pod} is unschedulable: {}", refusal.line),
        (None, None, None) => format!("{pod} is unschedulable"),
    };
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{first}");
    for line in found.refusal.iter().flat_map(|it| &it.help) {
        let _ = writeln!(text, "  {line}");
    }
    let width = found.table.iter().map(|it| it.node.len()).max().unwrap_or(0).max(4);
    let _ = writeln!(text, "\n{:width$}  TOTAL  REMOVED BY", "NODE");
    for it in &found.table {
        let total = it.total.map_or_else(|| "-".to_owned(), |total| total.to_string());
        let mut removed = it.removed_by.iter().map(|(rule, why)| format!("{rule}: {why}"));
        let first = removed.next().unwrap_or_default();
        let line = format!("{:width$}  {total:>5}  {first}", it.node);
        let _ = writeln!(text, "{}", line.trim_end());
        for more in removed {
            let _ = writeln!(text, "{:width$}         {more}", "");
        }
    }
    text
}
