//! `/v1/attachments`: sets of volumes that instances use together.

use axum::response::Response;
use berth_api::{Attachment, NewAttachment, Page};
use berth_control::attachments::{self, AttachmentRecord};
use berth_ledger::{Expect, ForTenants, Op, Text};
use http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{check_name, stored};
use crate::http::extract::{Json, Path, Query, RequestContext};
use crate::http::list::{first_page, list_query, page_limit};
use crate::http::routes::{Routes, TenantQuery};
use crate::problem::{ApiError, ApiResult};
use berth_control::ControlPlane;
use berth_control::placement::{Audience, tenant_for};

/// Most volumes of one set.
const MOST: usize = 64;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, put, remove))
}

fn check_set_name(name: &str) -> ApiResult<()> {
    if name.contains('/') {
        let value = Some(format!("{name:?}"));
        return Err(ApiError::field("id", value, "a name without a slash"));
    }
    check_name("id", name)
}

list_query! {
    /// The query of `GET /v1/attachments`.
    struct ListAttachmentsQuery {
        /// Of this tenant.
        #[serde(alias = "owner")]
        tenant: Option<String>,
    }
}

/// List attachments
///
/// In order of tenant and name.
#[utoipa::path(get, path = "/v1/attachments", tag = "volumes", params(ListAttachmentsQuery),
    responses((status = 200, description = "Attachments.", body = Page<Attachment>)))]
async fn list(
    RequestContext { control, caller }: RequestContext,
    Query(query): Query<ListAttachmentsQuery>,
) -> ApiResult<axum::Json<Page<Attachment>>> {
    let limit = page_limit(query.limit)?;
    let tenants: Vec<Option<String>> = match (query.tenant, caller.tenants()) {
        (Some(tenant), _) => vec![Some(tenant_for(&caller, Some(&tenant))?)],
        (None, Some(mine)) => mine.iter().cloned().map(Some).collect(),
        (None, None) => vec![None],
    };
    let after = query.cursor;
    let mut found = control
        .read(move |ledger| {
            let mut found = Vec::new();
            for tenant in &tenants {
                found.extend(attachments::list(
                    ledger,
                    tenant.as_deref(),
                    after.as_deref(),
                    limit + 1,
                )?);
            }
            Ok(found)
        })
        .await?;
    // Each tenant's come in order, and so must all.
    found.sort_by(|one, other| one.id.cmp(&other.id));
    found.dedup_by(|one, other| one.id == other.id);
    control.wait_for_read_your_writes().await;
    let sees_nodes = Audience::of(&control, &caller, "").sees_nodes();
    let mut views = Vec::with_capacity(found.len());
    for document in &found {
        let Some((tenant, name)) = attachments::tenant_and_name(document) else { continue };
        let set = view(&control, tenant, name, attachments::decode(document)?.volumes, sees_nodes);
        views.push((document.id.to_string(), set));
    }
    Ok(axum::Json(first_page(views.into_iter(), limit)))
}

fn view(
    control: &ControlPlane,
    tenant: &str,
    name: &str,
    volumes: Vec<String>,
    sees_nodes: bool,
) -> Attachment {
    let home = attachments::home_of(&control.catalog.read(), tenant, &volumes).ok().flatten();
    let (id, tenant) = (name.to_owned(), tenant.to_owned());
    Attachment { id, tenant, volumes, home: home.filter(|_| sees_nodes) }
}

/// Read an attachment
#[utoipa::path(get, path = "/v1/attachments/{id}", tag = "volumes",
    params(("id" = String, Path, description = "The attachment."), TenantQuery),
    responses((status = 200, description = "The attachment; without a home, its volumes are apart or gone.", body = Attachment)))]
async fn get(
    RequestContext { control, caller }: RequestContext,
    Path(id): Path<String>,
    Query(query): Query<TenantQuery>,
) -> ApiResult<axum::Json<Attachment>> {
    let tenant = tenant_for(&caller, query.tenant.as_deref())?;
    let found = attachments::find(&control, &tenant, &id).await?;
    let found = found.ok_or_else(|| ApiError::not_found("attachment", &id))?;
    control.wait_for_read_your_writes().await;
    let sees_nodes = Audience::of(&control, &caller, &tenant).sees_nodes();
    Ok(axum::Json(view(&control, &tenant, &id, found.volumes, sees_nodes)))
}

/// Define an attachment, or change its volumes
///
/// Refused when the volumes live on two nodes (`attachment_split`) or one is not there
/// (`unknown_volume`).
#[utoipa::path(put, path = "/v1/attachments/{id}", tag = "volumes",
    params(("id" = String, Path, description = "The attachment."), TenantQuery),
    request_body = NewAttachment,
    responses(
        (status = 200, description = "Changed, or unchanged.", body = Attachment),
        (status = 201, description = "Defined.", body = Attachment),
    ))]
async fn put(
    RequestContext { control, caller }: RequestContext,
    Path(id): Path<String>,
    Query(query): Query<TenantQuery>,
    Json(new): Json<NewAttachment>,
) -> ApiResult<Response> {
    check_set_name(&id)?;
    let tenant = match (&new.tenant, &query.tenant) {
        (Some(body), Some(query)) if body != query => {
            let value = Some(format!("{body:?}"));
            return Err(ApiError::field("tenant", value, "the tenant that the query names"));
        }
        (body, query) => tenant_for(&caller, body.as_deref().or(query.as_deref()))?,
    };
    check_volumes(&new.volumes)?;
    control.wait_for_read_your_writes().await;
    let sees_nodes = Audience::of(&control, &caller, &tenant).sees_nodes();
    let home = attachments::home_of(&control.catalog.read(), &tenant, &new.volumes);
    home.map_err(|misplaced| misplaced.into_error(sees_nodes))?;
    let is_new = attachments::find(&control, &tenant, &id).await?.is_none();
    let body = serde_json::to_string(&AttachmentRecord { volumes: new.volumes.clone() });
    let document = attachments::document_id(&tenant, &id);
    let op = Op::PutDocument {
        kind: Text::from(attachments::KIND),
        id: Text::from(document.as_str()),
        body: body.map_err(|error| ApiError::invalid(error.to_string()))?,
        expect: Expect::Any,
    };
    let op =
        Op::ForTenants(Box::new(ForTenants { tenants: vec![Text::from(tenant.as_str())], op }));
    control.administer(&caller, "attachment.put", document, op).await?;
    Ok(stored(is_new, view(&control, &tenant, &id, new.volumes, sees_nodes)))
}

fn check_volumes(volumes: &[String]) -> ApiResult<()> {
    if volumes.is_empty() || volumes.len() > MOST {
        let value = Some(format!("{} volumes", volumes.len()));
        return Err(ApiError::field("volumes", value, "1 to 64 volumes"));
    }
    for (place, volume) in volumes.iter().enumerate() {
        if volumes[..place].contains(volume) {
            let value = Some(format!("{volume:?} twice"));
            return Err(ApiError::field("volumes", value, "each volume once"));
        }
    }
    Ok(())
}

/// Remove an attachment
///
/// Its volumes stay, and so do instances that use them.
#[utoipa::path(delete, path = "/v1/attachments/{id}", tag = "volumes",
    params(("id" = String, Path, description = "The attachment."), TenantQuery),
    responses((status = 204, description = "Removed.")))]
async fn remove(
    RequestContext { control, caller }: RequestContext,
    Path(id): Path<String>,
    Query(query): Query<TenantQuery>,
) -> ApiResult<StatusCode> {
    let tenant = tenant_for(&caller, query.tenant.as_deref())?;
    if attachments::find(&control, &tenant, &id).await?.is_none() {
        return Err(ApiError::not_found("attachment", &id));
    }
    let document = attachments::document_id(&tenant, &id);
    let (kind, key) = (Text::from(attachments::KIND), Text::from(document.as_str()));
    let op = Op::RemoveDocument { kind, id: key, expect: Expect::Any };
    control.administer(&caller, "attachment.remove", document, op).await?;
    Ok(StatusCode::NO_CONTENT)
}
