//! Elastic pods: stores permits, resizes pods, and starts migrations and evictions because of pressure.
//!
//! Decides nothing. A write without an answer is looked up before anything is said about it.

use std::sync::Arc;

use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::{ApiExecutor, ApiFailure, NOT_LEADER};
use crate::client::backoff_delay;
use crate::cluster::elastic::migrations::{SOURCE_NODE, STARTED_BY, TARGET_NODE};
use crate::cluster::elastic::permits::{PermitTarget, PermitWrite};
use crate::cluster::elastic::relief::{Departure, Leaver};
use crate::cluster::elastic::resizable::Resize;
use crate::cluster::elastic::source::PERMIT;
use crate::cluster::pod::Key;
use crate::scheduler::messages::{ActionResult, EvictionOutcome, PermitWriteResult};
use berth_engine::elastic::Permit;
use berth_ledger::invariant_ok;

/// Attempts at the write of a permit: its agent waits.
const TRIES: u32 = 4;
/// The longest name of a machine that the name of its migration contains.
const NAME_MAX: usize = 200;

fn resource(kind: &str, plural: &str) -> ApiResource {
    let text = str::to_owned;
    ApiResource {
        group: text("vm.neon.tech"),
        version: text("v1"),
        api_version: text("vm.neon.tech/v1"),
        kind: text(kind),
        plural: text(plural),
    }
}

/// A machine on which a permit is stored.
struct StoreTarget<'a> {
    vm: &'a Key,
    uid: &'a str,
    /// The number of the permit that is there before.
    stored_seq: Option<u64>,
    /// The version that is expected.
    version: Option<String>,
}

impl ApiExecutor {
    /// Stores a permit and reports the outcome.
    pub(super) async fn store_permit(&self, write: PermitWrite) {
        let result = match &write.target {
            PermitTarget::Vm { vm, uid, version, stored_seq } => {
                let (stored_seq, version) = (*stored_seq, version.clone());
                let target = StoreTarget { vm, uid, stored_seq, version };
                self.store_on_vm(target, &write.permit).await
            }
            PermitTarget::Container(resize) => self.resize_pod(&write, resize).await,
        };
        self.send_result(ActionResult::PermitWritten { uid: write.uid, result }).await;
    }

    fn vms(&self, namespace: &str) -> Api<DynamicObject> {
        let kind = resource("VirtualMachine", "virtualmachines");
        Api::namespaced_with(self.inner.client.clone(), namespace, &kind)
    }

    fn migrations(&self, namespace: &str) -> Api<DynamicObject> {
        let kind = resource("VirtualMachineMigration", "virtualmachinemigrations");
        Api::namespaced_with(self.inner.client.clone(), namespace, &kind)
    }

    /// Writes the annotation of a machine, unless another replica has written it meanwhile.
    async fn store_on_vm(&self, mut target: StoreTarget<'_>, permit: &Permit) -> PermitWriteResult {
        let api = self.vms(&target.vm.namespace);
        let written = invariant_ok!(serde_json::to_string(permit), "permit_is_json");
        let text = written.unwrap_or_default();
        let mut in_doubt = false;
        for attempt in 1..=TRIES {
            if !self.is_leader() {
                return not_stored(in_doubt, NOT_LEADER.to_owned());
            }
            let mut meta = json!({"uid": target.uid, "annotations": {PERMIT: text}});
            if let Some(version) = &target.version {
                meta["resourceVersion"] = version.as_str().into();
            }
            let body = json!({"metadata": meta});
            let (params, patch) = (PatchParams::default(), Patch::Merge(&body));
            let failure =
                match self.call("patch", api.patch(&target.vm.name, &params, &patch)).await {
                    Ok(vm) => return PermitWriteResult::StoredOnVm(Box::new(as_json(&vm))),
                    Err(failure) => failure,
                };
            match failure {
                ApiFailure::NotFound(reason) | ApiFailure::Rejected(reason) => {
                    return not_stored(in_doubt, reason);
                }
                ApiFailure::Conflict(_) => {}
                ApiFailure::RetryLater { .. } | ApiFailure::Forbidden(_) => {
                    tokio::time::sleep(backoff_delay(attempt)).await;
                }
                ApiFailure::Unknown(_) => {
                    in_doubt = true;
                    tokio::time::sleep(backoff_delay(attempt)).await;
                }
            }
            // What is there now, and may it be replaced?
            let Ok(vm) = self.call("get", api.get(&target.vm.name)).await else { continue };
            if vm.metadata.uid.as_deref() != Some(target.uid) {
                return PermitWriteResult::NotStored(
                    "the virtual machine was recreated".to_owned(),
                );
            }
            let stored = vm.metadata.annotations.as_ref().and_then(|it| it.get(PERMIT));
            if stored == Some(&text) {
                return PermitWriteResult::StoredOnVm(Box::new(as_json(&vm)));
            }
            let seq =
                stored.and_then(|it| serde_json::from_str::<Permit>(it).ok()).map(|it| it.seq);
            if seq != target.stored_seq {
                let reason = "another replica has stored a permit".to_owned();
                return PermitWriteResult::NotStored(reason);
            }
            // An unanswered write with an older version cannot succeed once this one has.
            target.version = vm.metadata.resource_version;
        }
        not_stored(in_doubt, format!("no success in {TRIES} attempts"))
    }

    /// Changes the resources of a container of a running pod.
    async fn resize_pod(&self, write: &PermitWrite, resize: &Resize) -> PermitWriteResult {
        let api = self.pods(&write.pod.namespace);
        let body = resize_patch(&write.uid, resize);
        let (params, patch) = (PatchParams::default(), Patch::Strategic(&body));
        let (mut in_doubt, mut is_forbidden, mut last) = (false, false, String::new());
        for attempt in 1..=TRIES {
            if !self.is_leader() {
                return not_stored(in_doubt, NOT_LEADER.to_owned());
            }
            let request = api.patch_subresource("resize", &write.pod.name, &params, &patch);
            match self.call("patch", request).await {
                Ok(pod) => return PermitWriteResult::StoredInPod(Box::new(pod)),
                Err(ApiFailure::NotFound(reason)) => {
                    let reason =
                        format!("{reason}; resizing in place needs Kubernetes 1.33 or later");
                    return self.refuse_resize(write, in_doubt, reason);
                }
                Err(ApiFailure::Rejected(reason)) => {
                    return self.refuse_resize(write, in_doubt, reason);
                }
                Err(ApiFailure::Unknown(reason)) => {
                    (in_doubt, is_forbidden, last) = (true, false, reason);
                }
                // By a quota, or for a moment by an API server that has just started.
                Err(ApiFailure::Forbidden(reason)) => (is_forbidden, last) = (true, reason),
                Err(failure) => {
                    is_forbidden = false;
                    failure.reason().clone_into(&mut last);
                }
            }
            tokio::time::sleep(backoff_delay(attempt)).await;
            // The same resize again changes nothing, so that what is in doubt is repeated.
        }
        if is_forbidden {
            return self.refuse_resize(write, in_doubt, last);
        }
        not_stored(in_doubt, last)
    }

    fn refuse_resize(
        &self,
        write: &PermitWrite,
        in_doubt: bool,
        reason: String,
    ) -> PermitWriteResult {
        let note = format!("it could not be resized: {reason}");
        self.inner.events.record_resize_failure(&write.pod, &write.uid, note);
        not_stored(in_doubt, reason)
    }

    /// Creates the migration of a machine, and reports whether it exists.
    pub(super) async fn migrate(&self, leaver: Leaver, timeout_s: u32) {
        let Departure::Migrate { vm } = &leaver.departure else { return };
        let object = migration_object(&leaver, vm, &self.inner.name, timeout_s);
        let object: DynamicObject = match serde_json::from_value(object) {
            Ok(object) => object,
            Err(error) => {
                let result = Err(error.to_string());
                let uid = Arc::clone(&leaver.uid);
                return self.send_result(ActionResult::DepartureStarted { uid, result }).await;
            }
        };
        let (api, params) = (self.migrations(&vm.namespace), PostParams::default());
        let created = self.retry(|| self.call("create", api.create(&params, &object))).await;
        let result = match created {
            // Its name is that of this second: an unanswered request has created it.
            Ok(_) | Err(ApiFailure::Conflict(_)) => Ok(()),
            Err(failure) => Err(failure.reason().to_owned()),
        };
        self.report_departure(&leaver, false, result).await;
    }

    /// Evicts a pod from a node under pressure, as far as disruption budgets allow.
    pub(super) async fn evict_for_pressure(&self, leaver: Leaver) {
        let outcome = if self.is_leader() {
            self.request_eviction(&leaver.pod, &leaver.uid).await
        } else {
            EvictionOutcome::Failed { reason: NOT_LEADER.to_owned() }
        };
        let result = match outcome {
            EvictionOutcome::Accepted => Ok(()),
            EvictionOutcome::BlockedByBudget { reason, .. }
            | EvictionOutcome::Failed { reason } => Err(reason),
        };
        self.report_departure(&leaver, true, result).await;
    }

    async fn report_departure(&self, leaver: &Leaver, evicted: bool, result: Result<(), String>) {
        let way = if evicted { "eviction" } else { "migration" };
        let Leaver { pod, uid, from, to, frees, .. } = leaver;
        match &result {
            Ok(()) => {
                self.inner.metrics.record_departure(way, "started");
                let note = format!(
                    "node {from} is above its watermark; leaving frees {frees}; {to} has room"
                );
                self.inner.events.record_departure(pod, uid, evicted, note);
            }
            Err(reason) => {
                self.inner.metrics.record_departure(way, "failed");
                tracing::warn!(%pod, node = &**from, way, reason, "failed to relieve node");
            }
        }
        let uid = Arc::clone(uid);
        self.send_result(ActionResult::DepartureStarted { uid, result }).await;
    }

    /// Deletes a migration of this scheduler.
    pub(super) async fn delete_migration(&self, migration: &Key, is_late: bool) {
        if !self.is_leader() {
            return;
        }
        let api = self.migrations(&migration.namespace);
        let params = DeleteParams::default();
        let request = async { api.delete(&migration.name, &params).await.map(drop) };
        match self.call("delete", request).await {
            Ok(()) if is_late => {
                self.inner.metrics.record_departure("migration", "late");
                tracing::warn!(%migration, "deleted a migration whose target did not start in time");
            }
            Ok(()) | Err(ApiFailure::NotFound(_)) => {}
            Err(failure) => {
                let reason = failure.reason();
                tracing::debug!(%migration, reason, "failed to delete migration");
            }
        }
    }
}

/// A write that was not confirmed.
fn not_stored(in_doubt: bool, reason: String) -> PermitWriteResult {
    match in_doubt {
        true => PermitWriteResult::Unknown(reason),
        false => PermitWriteResult::NotStored(reason),
    }
}

fn as_json(object: &DynamicObject) -> Value {
    // What was deserialized can be serialized.
    invariant_ok!(serde_json::to_value(object), "machine_is_json").unwrap_or_default()
}

fn resize_patch(uid: &str, resize: &Resize) -> Value {
    let memory = i64::from(resize.size.memory_mib) << 20;
    let mut resources = json!({
        "requests": {
            "cpu": format!("{}m", resize.size.cpu_milli), "memory": memory.to_string(),
        },
    });
    let cpu = resize.cpu_limit_milli.map(|it| ("cpu", format!("{it}m")));
    let memory = resize.memory_limit.map(|it| ("memory", it.to_string()));
    for (name, amount) in cpu.into_iter().chain(memory) {
        resources["limits"][name] = amount.into();
    }
    json!({
        "metadata": {"uid": uid},
        "spec": {"containers": [{"name": resize.container, "resources": resources}]},
    })
}

fn migration_object(leaver: &Leaver, vm: &Key, scheduler: &str, timeout_s: u32) -> Value {
    let name: String = vm.name.chars().take(NAME_MAX).collect();
    let second = jiff::Timestamp::now().as_second();
    json!({
        "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration",
        "metadata": {
            "name": format!("{name}-{second}"), "namespace": &*vm.namespace,
            "labels": {STARTED_BY: scheduler},
            "annotations": {SOURCE_NODE: &*leaver.from, TARGET_NODE: &*leaver.to},
        },
        "spec": {
            "vmName": &*vm.name, "preventMigrationToSameHost": true,
            "completionTimeout": timeout_s, "incremental": true, "autoConverge": true,
            "maxBandwidth": "1Gi", "allowPostCopy": false,
        },
    })
}
