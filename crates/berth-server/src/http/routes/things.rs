//! Groups, volumes, attachments, pools, quotas, secrets and workloads.

use crate::access::Caller;
use crate::http::problem::Answer;
use crate::service::Service;

use super::Routes;

pub(super) fn routes() -> Routes {
    Routes::new()
}

/// The volumes of a set, for a tenant's instance.
pub(crate) async fn volumes_of(
    _service: &Service,
    _caller: &Caller,
    _owner: &str,
    _set: &str,
) -> Answer<Vec<String>> {
    Ok(Vec::new())
}
