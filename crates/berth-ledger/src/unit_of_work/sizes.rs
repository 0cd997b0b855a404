//! What has changed about a claim: most writes touch a few columns, and need not rewrite the row.

use crate::model::Claim;

/// Whether two states of a claim differ in nothing but what a step of its life changes.
pub(crate) fn only_steps(before: &Claim, now: &Claim) -> bool {
    // Looked at first, since it is what a permit changes, and clones are not free.
    if before.amounts != now.amounts || before.permit != now.permit {
        return false;
    }
    let stepped = Claim {
        state: now.state,
        lease_until: now.lease_until,
        fence: now.fence,
        holdings: now.holdings.clone(),
        ..before.clone()
    };
    stepped == *now
}

/// Whether they differ in CPU, memory and permit alone.
pub(crate) fn only_size(before: &Claim, now: &Claim) -> bool {
    let same = (before.state, before.fence, before.lease_until)
        == (now.state, now.fence, now.lease_until)
        && before.amounts.disk_mib == now.amounts.disk_mib
        && before.amounts.bandwidth_mbps == now.amounts.bandwidth_mbps;
    same && {
        let sized = Claim { amounts: now.amounts, permit: now.permit.clone(), ..before.clone() };
        sized == *now
    }
}
