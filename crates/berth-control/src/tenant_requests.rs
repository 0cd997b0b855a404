//! How many requests of one tenant are under way at a time, apart from placements, which are admitted by the claim
//! path: one tenant's releases, renewals and reads leave room for everyone else's in the queues of the
//! ledger. Operators and agents are not limited.

use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap;

use crate::error::{ControlError, ErrorKind};

/// Changes of one tenant that may be under way.
pub(crate) const CHANGES_OF_TENANT_MAX: usize = 2048;

/// Reads of one tenant that may be under way.
pub(crate) const READS_OF_TENANT_MAX: usize = 512;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// It changes something.
    Change,
    /// It reads.
    Read,
}

/// The requests of tenants that are under way.
#[derive(Clone, Default)]
pub(crate) struct TenantRequests(Arc<Mutex<FxHashMap<(String, RequestKind), usize>>>);

/// A place of a request; another may have it when this is dropped.
pub struct TenantRequest {
    requests: TenantRequests,
    key: (String, RequestKind),
}

impl TenantRequests {
    /// A place for a request of a tenant.
    ///
    /// # Errors
    /// When too many of its requests are under way.
    pub(crate) fn enter(
        &self,
        tenant: &str,
        kind: RequestKind,
    ) -> Result<TenantRequest, ControlError> {
        let limit = match kind {
            RequestKind::Change => CHANGES_OF_TENANT_MAX,
            RequestKind::Read => READS_OF_TENANT_MAX,
        };
        let key = (tenant.to_owned(), kind);
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(key.clone()).or_default();
        if *count >= limit {
            return Err(too_many(limit, kind));
        }
        *count += 1;
        drop(counts);
        Ok(TenantRequest { requests: self.clone(), key })
    }
}

impl Drop for TenantRequest {
    fn drop(&mut self) {
        let mut counts = self.requests.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

fn too_many(limit: usize, kind: RequestKind) -> ControlError {
    let kind = match kind {
        RequestKind::Change => "changes",
        RequestKind::Read => "reads",
    };
    let detail =
        format!("{limit} {kind} of this tenant are under way; nothing was done for this one");
    let title = "the tenant has too many requests under way";
    ControlError::new(ErrorKind::LimitReached, "tenant_busy", title, detail).retry_after(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tenants_requests_leave_room_for_others_and_for_its_reads() {
        let requests = TenantRequests::default();
        let enter = |tenant, kind| requests.enter(tenant, kind);
        let mut loud: Vec<_> =
            (0..CHANGES_OF_TENANT_MAX).map(|_| enter("loud", RequestKind::Change)).collect();
        assert!(loud.iter().all(Result::is_ok));
        let refused = enter("loud", RequestKind::Change).err().map(ControlError::into_problem);
        let refused = refused.unwrap();
        assert_eq!((refused.status, &*refused.code), (429, "tenant_busy"));
        let others = [enter("quiet", RequestKind::Change), enter("loud", RequestKind::Read)];
        assert!(others.iter().all(Result::is_ok));
        loud.pop();
        assert!(enter("loud", RequestKind::Change).is_ok(), "what is answered makes room");
        drop((loud, others));
        assert!(requests.0.lock().unwrap().is_empty());
    }
}
