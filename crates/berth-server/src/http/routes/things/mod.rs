//! Groups, volumes, attachments, pools, quotas and secrets.

mod attachments;
mod groups;
mod pools;
mod quotas;
mod secrets;
mod volume_moves;
mod volumes;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Serialize;

use super::Routes;
use crate::problem::{Answer, ApiError};
use berth_control::caller::is_name;

pub(super) fn routes() -> Routes {
    Routes::new()
        .merge(groups::routes())
        .merge(volumes::routes())
        .merge(volume_moves::routes())
        .merge(attachments::routes())
        .merge(pools::routes())
        .merge(quotas::routes())
        .merge(secrets::routes())
}

/// Refuses what cannot be a name.
fn check_name(field: &str, name: &str) -> Answer<()> {
    if is_name(name) {
        return Ok(());
    }
    let value = Some(format!("{name:?}"));
    Err(ApiError::field(field, value, "1 to 200 characters, none of them control"))
}

/// The answer to a PUT.
fn stored<T: Serialize>(is_new: bool, thing: T) -> Response {
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    (status, axum::Json(thing)).into_response()
}
