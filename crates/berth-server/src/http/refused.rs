//! Refusals of placements, as callers see them.

use berth_ledger::RefusalReason;
use http::StatusCode;

use super::problem::ApiError;

/// A limit of the ledger that another node would not change.
#[must_use]
pub(crate) fn refused(by: &RefusalReason) -> ApiError {
    let code = by.code();
    match by {
        RefusalReason::Quota { owner, resource, used, wanted, limit } => ApiError::conflict(
            code,
            format!("{owner} uses {used} of {limit} {resource} and asks for {wanted} more"),
        )
        .remedy("release instances, or have an operator raise the quota")
        .retry(true),
        RefusalReason::PoolExhausted { pool, .. } => {
            ApiError::conflict(code, format!("pool {pool} has no free value"))
                .remedy("release instances that hold its values, or widen its range")
                .retry(true)
        }
        RefusalReason::UnknownPool(pool) => {
            ApiError::field("pools", Some(format!("{pool:?}")), "pools that exist")
        }
        RefusalReason::RequestIdReused { request_id } => ApiError::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            code,
            "the request id was used for something else",
            format!("request id {request_id:?} was used with another body"),
        )
        .remedy("send the first body again to get the first answer, or use a new id"),
        RefusalReason::Malformed(why) => ApiError::invalid(why.clone()),
    }
}
