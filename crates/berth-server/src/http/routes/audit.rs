//! `/v1/audit`: who changed what, from where.

use std::sync::Arc;

use axum::extract::State;
use berth_api::{AuditEntry, Page};
use berth_ledger::AuditFilter;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Routes;
use crate::http::extract::Query;
use crate::http::list::{first_page, invalid_cursor, list_query, page_limit};
use crate::problem::ApiResult;
use berth_control::{ControlPlane, clock::moment};

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(list))
}

list_query! {
    /// The query of `GET /v1/audit`.
    struct ListAuditQuery {
        /// By this actor, exactly as in the entries.
        actor: Option<String>,
        /// With this action: `node.cordon`.
        action: Option<String>,
        /// On a subject whose name contains this.
        subject: Option<String>,
    }
}

/// Read the audit log
///
/// Every change by a caller, newest first.
#[utoipa::path(get, path = "/v1/audit", tag = "access", params(ListAuditQuery),
    responses((status = 200, description = "Entries.", body = Page<AuditEntry>)))]
async fn list(
    State(control): State<Arc<ControlPlane>>,
    Query(query): Query<ListAuditQuery>,
) -> ApiResult<axum::Json<Page<AuditEntry>>> {
    let limit = page_limit(query.limit)?;
    let before = match query.cursor.as_deref() {
        Some(text) => Some(text.parse().map_err(|_| invalid_cursor(text))?),
        None => None,
    };
    let ListAuditQuery { actor, action, subject, .. } = query;
    let filter = AuditFilter { actor, action, subject_contains: subject };
    let found = control.read(move |ledger| ledger.audit(before, limit + 1, &filter)).await?;
    let named = found.into_iter().map(|entry| (entry.n.to_string(), view(&entry)));
    Ok(axum::Json(first_page(named, limit)))
}

fn view(entry: &berth_ledger::AuditEntry) -> AuditEntry {
    AuditEntry {
        n: entry.n,
        at: moment(entry.at),
        actor: entry.actor.to_string(),
        origin: entry.origin.to_string(),
        action: entry.action.to_string(),
        subject: entry.subject.to_string(),
        request_id: entry.request_id.as_ref().map(ToString::to_string),
    }
}
