//! `/v1/audit`: who changed what, from where.

use std::sync::Arc;

use axum::extract::State;
use berth_api::{AuditEntry, Page};
use berth_ledger::AuditFilter;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Routes;
use crate::http::extract::Query;
use crate::http::list::{limit, part};
use crate::problem::{Answer, ApiError};
use berth_control::{ControlPlane, clock::moment};

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(list))
}

/// Which entries.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Wanted {
    /// By this actor, as it stands in the entries.
    actor: Option<String>,
    /// Of this kind: `node.cordon`.
    action: Option<String>,
    /// To something whose name has this in it.
    subject: Option<String>,
    /// How many at most.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
    /// Where the last part ended: its `next`.
    cursor: Option<String>,
}

/// Read the audit log
///
/// Every change that somebody made, newest first.
#[utoipa::path(get, path = "/v1/audit", tag = "access", params(Wanted),
    responses((status = 200, description = "Entries.", body = Page<AuditEntry>)))]
async fn list(
    State(control): State<Arc<ControlPlane>>,
    Query(asked): Query<Wanted>,
) -> Answer<axum::Json<Page<AuditEntry>>> {
    let most = limit(asked.limit)?;
    let before = match asked.cursor.as_deref() {
        Some(text) => Some(text.parse().map_err(|_| {
            ApiError::field("cursor", Some(format!("{text:?}")), "a `next` of before")
        })?),
        None => None,
    };
    let Wanted { actor, action, subject, .. } = asked;
    let filter = AuditFilter { actor, action, subject_contains: subject };
    let found = control.read(move |ledger| ledger.audit(before, most + 1, &filter)).await?;
    let named = found.into_iter().map(|entry| (entry.n.to_string(), view(&entry)));
    Ok(axum::Json(part(named, most)))
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
