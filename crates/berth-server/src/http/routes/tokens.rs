//! `/v1/tokens`: who may call.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use berth_api::{CreatedToken, FieldError, NewToken, Page, Role, Token};
use berth_ledger::{Expect, LedgerError, Op, Text};
use http::{StatusCode, header};
use jiff::Timestamp;
use tokio::sync::Mutex;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Routes;
use crate::access::{AccessControl, TOKEN_KIND, TokenError, TokenRecord, Tokens};
use crate::http::extract::{Json, Path, Query};
use crate::http::list::{PageQuery, page_by_name};
use crate::problem::{ApiError, ApiResult};
use berth_control::ControlPlane;
use berth_control::caller::Caller;

/// One revocation at a time, so that two admins cannot each revoke the other as not the last.
static REVOKING: Mutex<()> = Mutex::const_new(());

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(revoke))
}

/// List tokens
///
/// Without their secrets, which are not stored. Revoked and expired tokens are included.
#[utoipa::path(get, path = "/v1/tokens", tag = "access", params(PageQuery),
    responses((status = 200, description = "Tokens, in order of id.", body = Page<Token>)))]
async fn list(
    State(access): State<Arc<AccessControl>>,
    Query(query): Query<PageQuery>,
) -> ApiResult<axum::Json<Page<Token>>> {
    page_by_name(access.tokens.list(), |token| &token.id, &query).map(axum::Json)
}

fn invalid_token(error: TokenError) -> ApiError {
    let detail = error.to_string();
    let TokenError { field, accepted, .. } = error;
    let (field, accepted) = (field.to_owned(), accepted.to_owned());
    ApiError::invalid(detail).with_field(FieldError { field, value: None, accepted })
}

fn body_of(record: &TokenRecord) -> ApiResult<String> {
    serde_json::to_string(record).map_err(|error| ApiError::invalid(error.to_string()))
}

/// For the audit log: which token.
fn subject(token: &Token) -> String {
    format!("{} ({} {})", token.name, token.role.name(), token.id)
}

/// Create a token
///
/// Its secret is only in this response; it cannot be read later.
#[utoipa::path(post, path = "/v1/tokens", tag = "access",
    request_body = NewToken,
    responses((status = 201, description = "The token and its secret.", body = CreatedToken)))]
async fn create(
    State(control): State<Arc<ControlPlane>>,
    State(access): State<Arc<AccessControl>>,
    caller: Caller,
    Json(new): Json<NewToken>,
) -> ApiResult<Response> {
    let (record, secret) = TokenRecord::make(&new, control.now()).map_err(invalid_token)?;
    let op = record.store_op().map_err(|error| ApiError::invalid(error.to_string()))?;
    control.administer(&caller, "token.create", subject(&record.token), op).await?;
    let token = record.token.clone();
    access.tokens.put(record, 1);
    let made = axum::Json(CreatedToken { token, secret });
    Ok((StatusCode::CREATED, [(header::CACHE_CONTROL, "no-store")], made).into_response())
}

/// Revoke a token
///
/// Takes effect at once on this server, and shortly after on others. It stays in the list. The last token of an
/// admin cannot be revoked, since no other could be created then.
#[utoipa::path(delete, path = "/v1/tokens/{id}", tag = "access",
    params(("id" = String, Path, description = "The token's id, which is not its secret.")),
    responses((status = 204, description = "Revoked, now or before.")))]
async fn revoke(
    State(control): State<Arc<ControlPlane>>,
    State(access): State<Arc<AccessControl>>,
    caller: Caller,
    Path(id): Path<String>,
) -> ApiResult<StatusCode> {
    let _one = REVOKING.lock().await;
    let wanted = id.clone();
    // From the ledger rather than from memory: another server may have revoked an admin just now.
    let (found, all) = control
        .read(move |ledger| Ok((ledger.document(TOKEN_KIND, &wanted)?, Tokens::load(ledger)?)))
        .await?;
    let document = found.ok_or_else(|| ApiError::not_found("token", &id))?;
    let mut record: TokenRecord = serde_json::from_str(&document.body).map_err(|error| {
        ApiError::from(LedgerError::Corrupt(format!("token {id} cannot be read: {error}")))
    })?;
    if record.token.revoked_at.is_some() {
        access.tokens.put(record, document.rev);
        return Ok(StatusCode::NO_CONTENT);
    }
    let now = control.now();
    let is_admin = |token: &Token| token.role == Role::Admin && is_valid(token, now);
    if is_admin(&record.token) && !all.list().iter().any(|token| token.id != id && is_admin(token))
    {
        let detail = format!("token {id} is the last valid one of an admin");
        return Err(ApiError::conflict("last_admin", detail)
            .remedy("create another token of role admin first"));
    }
    record.token.revoked_at = Some(now);
    let op = Op::PutDocument {
        kind: Text::from(TOKEN_KIND),
        id: Text::from(id),
        body: body_of(&record)?,
        expect: Expect::Revision(document.rev),
    };
    control.administer(&caller, "token.revoke", subject(&record.token), op).await?;
    access.tokens.put(record, document.rev + 1);
    Ok(StatusCode::NO_CONTENT)
}

fn is_valid(token: &Token, now: Timestamp) -> bool {
    token.revoked_at.is_none() && token.expires_at.is_none_or(|end| end > now)
}
