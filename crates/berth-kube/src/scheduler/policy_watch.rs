//! The policy in a ConfigMap: watched, and read as soon as it changes.
//!
//! Only reads it: the core puts a valid one in use, and keeps the last one otherwise.

use std::pin::pin;
use std::sync::Arc;

use berth_engine::Policy;
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::runtime::watcher;

use super::informers::Informers;
use super::messages::{Message, ObservedPolicy};
use crate::cluster::pod::Key;
use crate::cluster::policies;
use crate::watch::{ObjectIndex, WatchDelta, watch_events};

/// The kind, for metrics and readiness.
pub(super) const CONFIG_MAPS: &str = "configmaps";
/// The key with a policy as TOML.
const TOML: &str = "policy.toml";
/// The key with the name of a built-in policy.
const NAME: &str = "policy";
/// Seconds after which a quiet watch is replaced.
const WATCH_TIMEOUT_S: u32 = 240;

impl Informers {
    /// Watches the ConfigMap until stopped. If it does not exist, or is deleted, the policy stays.
    pub(super) async fn run_policy_informer(self, namespace: String, name: String) {
        let api = Api::<ConfigMap>::namespaced(self.client.clone(), &namespace);
        let config = watcher::Config::default()
            .fields(&format!("metadata.name={name}"))
            .timeout(WATCH_TIMEOUT_S);
        let mut events = pin!(watch_events(api, config, self.stop.clone()));
        let mut index = ObjectIndex::default();
        let mut last = None;
        while let Some(event) = events.next().await {
            let deltas = match event {
                Ok(event) => index.apply_event(event),
                Err(error) => {
                    self.record_watch_error(CONFIG_MAPS, &error);
                    continue;
                }
            };
            for delta in deltas {
                let message = match delta {
                    WatchDelta::Updated(map) if last.as_ref() == Some(&map.data) => continue,
                    WatchDelta::Updated(map) => {
                        last = Some(map.data.clone());
                        Message::PolicyObserved(Box::new(observe(&map)))
                    }
                    WatchDelta::Deleted(key, _) => {
                        last = None;
                        tracing::warn!(config_map = %key, "policy was deleted; the last one stays in use");
                        continue;
                    }
                    WatchDelta::Synced => Message::Synced(CONFIG_MAPS),
                };
                if self.inbox.send(message).await.is_err() {
                    return;
                }
            }
        }
    }
}

fn observe(map: &ConfigMap) -> ObservedPolicy {
    let uid: Arc<str> = map.metadata.uid.as_deref().unwrap_or_default().into();
    ObservedPolicy { config_map: Key::of(&map.metadata), uid, policy: read(map) }
}

fn read(map: &ConfigMap) -> Result<Policy, String> {
    let value = |key: &str| map.data.as_ref().and_then(|it| it.get(key));
    match (value(TOML), value(NAME)) {
        (Some(text), None) => {
            Policy::from_toml(text).map_err(|it| format!("{TOML}: {}", chain(&it)))
        }
        (None, Some(name)) => {
            policies::builtin(name.trim()).map_err(|it| format!("{NAME}: {}", chain(&it)))
        }
        (Some(_), Some(_)) => {
            Err(format!("it has both {TOML} and {NAME}; accepted is one of them"))
        }
        (None, None) => Err(format!(
            "it has neither {TOML}, a policy as TOML, nor {NAME}, the name of a built-in one"
        )),
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_policy_is_toml_or_the_name_of_a_builtin_one_and_everything_else_is_named() {
        let read = |data: serde_json::Value| {
            read(&serde_json::from_value::<ConfigMap>(json!({"data": data})).unwrap())
        };
        assert_eq!(read(json!({"policy": "pack\n"})).unwrap().name(), "pack");
        let toml = "name = \"mine\"\n[elastic]\ngrants = \"per-resource\"\n";
        assert_eq!(read(json!({"policy.toml": toml})).unwrap().name(), "mine");
        let cases = [
            (json!({}), "it has neither policy.toml"),
            (json!({"policy": "other"}), "policy: "),
            (json!({"policy": "pack", "policy.toml": toml}), "it has both"),
            (
                json!({"policy.toml": "name = \"x\"\n[elastic.watermark]\ncpu_permille = 0\n"}),
                "cpu_permille",
            ),
        ];
        for (data, expected) in cases {
            let error = read(data).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
