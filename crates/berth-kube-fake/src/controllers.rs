//! Built-in controllers, as far as tests need them. Each reads the store itself, handles what changed since
//! its last pass, and runs often.

mod deployment;
mod disruption;
mod garbage;
mod kubelet;
mod pods;
mod replica_set;
mod resource_claims;
mod stateful_set;
mod volumes;
mod work;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::api::Api;
use crate::object::{Key, Object};
use crate::store::{Change, Store, TableId};

/// The interval between passes of a controller.
const TICK: Duration = Duration::from_millis(20);

/// Events that a controller reads at once.
const BATCH: usize = 4096;

/// A change of an object.
struct ObjectChange {
    object: Arc<Object>,
    before: Option<Arc<Object>>,
    gone: bool,
}

/// Follows one table. After a loss of history, everything is reported again.
struct TableFollower {
    api: Arc<Api>,
    id: TableId,
    seen: Option<u64>,
}

impl TableFollower {
    fn new(api: &Arc<Api>, group: &str, plural: &str) -> Option<Self> {
        let id = api.table(group, plural).ok()?;
        Some(Self { api: Arc::clone(api), id, seen: None })
    }

    /// The changes since the last call; at first, all existing objects.
    fn take_changes(&mut self) -> Vec<ObjectChange> {
        let store = self.api.store();
        let events = self.seen.and_then(|seen| store.events_after(self.id, seen, BATCH).ok());
        let Some(events) = events else {
            self.seen = Some(store.version());
            return store
                .iter(self.id, None)
                .map(|(_, object)| ObjectChange {
                    object: Arc::clone(object),
                    before: None,
                    gone: false,
                })
                .collect();
        };
        if let Some(last) = events.last() {
            self.seen = Some(last.version);
        }
        let event = |event: &Arc<crate::store::Event>| ObjectChange {
            object: Arc::clone(&event.object),
            before: event.before.clone(),
            gone: event.change == Change::Deleted,
        };
        events.iter().map(event).collect()
    }
}

/// Starts the controllers that the options ask for.
pub(crate) fn start(api: &Arc<Api>) {
    if api.options.budgets {
        spawn(api, disruption::run(Arc::clone(api)));
    }
    if api.options.kubelet {
        spawn(api, kubelet::run(Arc::clone(api)));
    }
    if api.options.controllers {
        spawn(api, deployment::run(Arc::clone(api)));
        spawn(api, replica_set::run(Arc::clone(api)));
        spawn(api, stateful_set::run(Arc::clone(api)));
        spawn(api, garbage::run(Arc::clone(api)));
    }
    if api.options.volume_binder {
        spawn(api, volumes::run(Arc::clone(api)));
    }
    if api.options.claim_controller {
        spawn(api, resource_claims::run(Arc::clone(api)));
    }
}

/// Changes one object of a locked store, if it exists and the change has an effect.
fn change(store: &mut Store, id: TableId, key: &Key, how: impl FnOnce(&mut Value)) {
    let Some(old) = store.get(id, key).cloned() else { return };
    let mut new = old.value.clone();
    how(&mut new);
    if new != old.value {
        store.put(id, new);
    }
}

fn spawn(api: &Arc<Api>, work: impl Future<Output = ()> + Send + 'static) {
    let stop = api.stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = work => {}
            () = stop.cancelled() => {}
        }
    });
}

/// Waits for the next pass.
async fn pause() {
    tokio::time::sleep(TICK).await;
}
