//! A workload as a caller may see it.

use berth_api::{Degraded, Workload};

use berth_control::ControlPlane;
use berth_control::placement::Audience;
use berth_control::workload::Definition;
use berth_control::workloads::{HostContext, Hosts, status};

/// A workload with its status.
pub(super) fn of(control: &ControlPlane, found: &Definition, audience: &Audience) -> Workload {
    let mut members = Vec::new();
    let crashes = {
        let catalog = control.catalog.read();
        Hosts::new(&catalog, HostContext::of(control)).collect(found, &mut members);
        catalog.crashes.get(&found.key).and_then(|it| it.of(found.body.revision))
    };
    let degraded = control.degraded.get(&found.key).map(|it| seen_by(&it.value, audience));
    let now = control.now();
    status::view(found, status::StatusInput { members: &members, degraded, crashes, now })
}

/// What is wrong, without what the caller may not see.
fn seen_by(degraded: &Degraded, audience: &Audience) -> Degraded {
    let mut visible = degraded.clone();
    let refusal = visible.refusal.take().map(|refusal| vec![*refusal]);
    let refusal = refusal.and_then(|refusal| audience.refusals(refusal).pop());
    visible.refusal = refusal.map(Box::new);
    visible
}
