//! A planner that can be held, so that requests wait for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use serde_json::json;

/// A clock that can stop the planner: it asks for the time before it plans.
pub(crate) struct HeldPlanner {
    is_held: Arc<AtomicBool>,
    /// Dropped to let it go on.
    hold: Option<mpsc::Sender<()>>,
}

impl HeldPlanner {
    pub(crate) fn new(options: &mut berth_control::ControlOptions) -> Self {
        let (hold, held) = mpsc::channel::<()>();
        let (is_held, held) = (Arc::new(AtomicBool::new(false)), Mutex::new(held));
        let (flag, clock) = (Arc::clone(&is_held), Arc::clone(&options.placer.clock));
        options.placer.clock = Arc::new(move || {
            if flag.load(Ordering::SeqCst) && std::thread::current().name() == Some("planner") {
                // Ends when the other side is dropped.
                let _ = held.lock().unwrap().recv();
            }
            clock()
        });
        Self { is_held, hold: Some(hold) }
    }

    pub(crate) fn hold(&self) {
        self.is_held.store(true, Ordering::SeqCst);
    }

    pub(crate) fn release(&mut self) {
        self.is_held.store(false, Ordering::SeqCst);
        self.hold = None;
    }
}

/// One small instance of the usual tenant.
pub(crate) fn small_request(id: &str) -> serde_json::Value {
    small_request_of(super::TENANT, id)
}

/// One small instance.
pub(crate) fn small_request_of(tenant: &str, id: &str) -> serde_json::Value {
    json!({
        "request_id": id, "tenant": tenant,
        "instances": [{ "resources": { "cpu_milli": 100, "memory_mib": 128 } }],
    })
}
