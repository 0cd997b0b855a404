//! Built-in admission plugins: priorities, tolerations, and the default storage class.

use serde_json::{Value, json};

use crate::api::Api;
use crate::defaults::absent;
use crate::failure::Failure;
use crate::object::{self, Key};
use crate::resource::Resource;

const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

impl Api {
    pub(super) fn builtin(&self, resource: &Resource, value: &mut Value) -> Result<(), Failure> {
        match (resource.group.as_str(), resource.kind.as_str()) {
            ("", "Pod") => {
                absent(&mut value["spec"], "serviceAccountName", json!("default"));
                let account = value["spec"]["serviceAccountName"].clone();
                absent(&mut value["spec"], "serviceAccount", account);
                tolerations(&mut value["spec"]);
                self.priority(resource, value)
            }
            ("", "PersistentVolumeClaim") => {
                self.default_class(value);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The value of the priority class.
    fn priority(&self, resource: &Resource, pod: &mut Value) -> Result<(), Failure> {
        let name = object::name(pod).to_owned();
        let store = self.store();
        let Some(classes) = store.find("scheduling.k8s.io", "priorityclasses") else {
            return Ok(());
        };
        let wanted = pod["spec"]["priorityClassName"].as_str().unwrap_or_default().to_owned();
        let class = if wanted.is_empty() {
            let default = store
                .iter(classes, None)
                .map(|(_, class)| class)
                .filter(|class| class.value["globalDefault"] == true)
                .min_by_key(|class| class.value["value"].as_i64().unwrap_or(0));
            default.cloned()
        } else {
            let found = store.get(classes, &Key::new("", &wanted)).cloned();
            if found.is_none() {
                let why = format!("no PriorityClass with name {wanted} was found");
                return Err(Failure::forbidden(resource, &name, why));
            }
            found
        };
        let (number, policy) = match &class {
            Some(class) => (class.value["value"].clone(), class.value["preemptionPolicy"].clone()),
            None => (json!(0), json!("PreemptLowerPriority")),
        };
        if let Some(class) = &class {
            pod["spec"]["priorityClassName"] = json!(object::name(&class.value));
        }
        let given = &pod["spec"]["priority"];
        if !given.is_null() && *given != number {
            let why = format!(
                "the integer value of priority ({given}) must not be provided in pod spec; \
                 priority admission controller computed {number} from the given PriorityClass name"
            );
            return Err(Failure::forbidden(resource, &name, why));
        }
        pod["spec"]["priority"] = number;
        let policy = if policy.is_null() { json!("PreemptLowerPriority") } else { policy };
        pod["spec"]["preemptionPolicy"] = policy;
        Ok(())
    }

    /// A claim that names no class gets the default one.
    fn default_class(&self, claim: &mut Value) {
        if !claim["spec"]["storageClassName"].is_null() {
            return;
        }
        let store = self.store();
        let Some(classes) = store.find("storage.k8s.io", "storageclasses") else { return };
        let default = store
            .iter(classes, None)
            .map(|(_, class)| class)
            .find(|class| object::annotation(&class.value, DEFAULT_CLASS) == Some("true"));
        if let Some(class) = default {
            claim["spec"]["storageClassName"] = json!(object::name(&class.value));
        }
    }
}

/// A pod tolerates a lost node for five minutes, unless it states otherwise.
fn tolerations(spec: &mut Value) {
    let covers = |one: &Value, key: &str| {
        let fits = one["key"] == key
            || (one["key"].as_str().is_none_or(str::is_empty) && one["operator"] == "Exists");
        let effect = one["effect"].as_str().unwrap_or_default();
        fits && (effect.is_empty() || effect == "NoExecute")
    };
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        if object::items(&spec["tolerations"]).any(|one| covers(one, key)) {
            continue;
        }
        if !spec["tolerations"].is_array() {
            spec["tolerations"] = json!([]);
        }
        if let Some(list) = spec["tolerations"].as_array_mut() {
            list.push(json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300,
            }));
        }
    }
}
