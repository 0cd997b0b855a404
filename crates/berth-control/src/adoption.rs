//! Ids of the requests that record instances which agents found and nobody placed.

use berth_engine::InstanceId;
use uuid::Uuid;

/// The id of a new request. What is there already is not recorded twice, so every report may be a new
/// one.
#[must_use]
pub fn adoption_request_id(instance: InstanceId) -> String {
    format!("adopt-{instance}-{}", Uuid::now_v7())
}

/// Whether a claim was made by such a request.
#[must_use]
pub fn is_adoption(instance: InstanceId, request_id: &str) -> bool {
    let rest = request_id.strip_prefix("adopt-");
    rest.and_then(|rest| rest.strip_prefix(&instance.to_string()))
        .is_some_and(|rest| rest.starts_with('-'))
}
