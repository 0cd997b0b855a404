//! Groups, volumes, attachments, pools, quotas and secrets.
//!
//! Groups, volumes, pools and quotas are alike: listed, read, stored and removed by name. Each
//! implements [`Resource`], and [`resource_routes`] makes its four routes.

mod attachments;
mod groups;
mod pools;
mod quotas;
mod secrets;
mod volume_moves;
mod volumes;

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use berth_api::Page;
use berth_ledger::Op;
use http::StatusCode;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Routes;
use crate::http::list::PageQuery;
use crate::problem::{ApiError, ApiResult};
use berth_control::ControlPlane;
use berth_control::caller::{Caller, is_name};

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

/// A checked PUT.
struct Put {
    /// The operation that stores the resource.
    op: Op,
    /// Whether there was none of that name.
    is_new: bool,
}

/// An object that is listed, read, stored and removed by name.
trait Resource: Serialize + Sized + Send {
    /// What it is called in errors.
    const NOUN: &'static str;
    /// What storing one is called in the audit log.
    const PUT_ACTION: &'static str;
    /// What removing one is called in the audit log.
    const REMOVE_ACTION: &'static str;
    /// The body of a PUT.
    type Spec: DeserializeOwned + Send;

    /// A page of those that the caller may see, in order of name.
    async fn list(
        control: &ControlPlane,
        caller: &Caller,
        query: &PageQuery,
    ) -> ApiResult<Page<Self>>;

    /// The one of that name; absent as well when the caller may not see it.
    async fn find(control: &ControlPlane, caller: &Caller, name: &str) -> ApiResult<Option<Self>>;

    /// Checks what is to be stored.
    async fn check_put(
        control: &ControlPlane,
        caller: &Caller,
        name: &str,
        spec: Self::Spec,
    ) -> ApiResult<Put>;

    /// Checks that it may be removed. Returns the operation that removes it.
    async fn check_remove(control: &ControlPlane, caller: &Caller, name: &str) -> ApiResult<Op>;
}

async fn get_resource<T: Resource>(
    control: &ControlPlane,
    caller: &Caller,
    name: &str,
) -> ApiResult<T> {
    let found = T::find(control, caller, name).await?;
    found.ok_or_else(|| ApiError::not_found(T::NOUN, name))
}

async fn put_resource<T: Resource>(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    name: &str,
    spec: T::Spec,
) -> ApiResult<Response> {
    let Put { op, is_new } = T::check_put(control, caller, name, spec).await?;
    control.administer(caller, T::PUT_ACTION, name, op).await?;
    Ok(stored(is_new, get_resource::<T>(control, caller, name).await?))
}

async fn remove_resource<T: Resource>(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    name: &str,
) -> ApiResult<StatusCode> {
    let op = T::check_remove(control, caller, name).await?;
    match control.administer(caller, T::REMOVE_ACTION, name, op).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::not_found(T::NOUN, name)),
    }
}

/// Makes the routes of a [`Resource`], documented as given.
macro_rules! resource_routes {
    (
        $resource:ident from $spec:ident, tag = $tag:tt, path = $path:tt, item = $item:tt,
        key = ($key:tt, $about:tt),
        $(#[$list:meta])* list => $listed:tt,
        $(#[$get:meta])* get => $found:tt,
        $(#[$put:meta])* put => ($changed:tt, $created:tt),
        $(#[$remove:meta])* remove => $removed:tt,
    ) => {
        pub(super) fn routes() -> crate::http::routes::Routes {
            utoipa_axum::router::OpenApiRouter::new()
                .routes(utoipa_axum::routes!(list))
                .routes(utoipa_axum::routes!(get, put, remove))
        }

        $(#[$list])*
        #[utoipa::path(get, path = $path, tag = $tag,
            params(crate::http::list::PageQuery),
            responses((status = 200, description = $listed, body = berth_api::Page<$resource>)))]
        async fn list(
            crate::http::extract::RequestContext { control, caller }: crate::http::extract::RequestContext,
            Query(query): Query<crate::http::list::PageQuery>,
        ) -> ApiResult<axum::Json<berth_api::Page<$resource>>> {
            <$resource as Resource>::list(&control, &caller, &query).await.map(axum::Json)
        }

        $(#[$get])*
        #[utoipa::path(get, path = $item, tag = $tag,
            params(($key = String, Path, description = $about)),
            responses((status = 200, description = $found, body = $resource)))]
        async fn get(
            crate::http::extract::RequestContext { control, caller }: crate::http::extract::RequestContext,
            Path(name): Path<String>,
        ) -> ApiResult<axum::Json<$resource>> {
            super::get_resource(&control, &caller, &name).await.map(axum::Json)
        }

        $(#[$put])*
        #[utoipa::path(put, path = $item, tag = $tag,
            params(($key = String, Path, description = $about)),
            request_body = $spec,
            responses(
                (status = 200, description = $changed, body = $resource),
                (status = 201, description = $created, body = $resource),
            ))]
        async fn put(
            crate::http::extract::RequestContext { control, caller }: crate::http::extract::RequestContext,
            Path(name): Path<String>,
            Json(spec): Json<$spec>,
        ) -> ApiResult<axum::response::Response> {
            super::put_resource::<$resource>(&control, &caller, &name, spec).await
        }

        $(#[$remove])*
        #[utoipa::path(delete, path = $item, tag = $tag,
            params(($key = String, Path, description = $about)),
            responses((status = 204, description = $removed)))]
        async fn remove(
            crate::http::extract::RequestContext { control, caller }: crate::http::extract::RequestContext,
            Path(name): Path<String>,
        ) -> ApiResult<http::StatusCode> {
            super::remove_resource::<$resource>(&control, &caller, &name).await
        }
    };
}
use resource_routes;

/// Refuses what cannot be a name.
fn check_name(field: &str, name: &str) -> ApiResult<()> {
    if is_name(name) {
        return Ok(());
    }
    let value = Some(format!("{name:?}"));
    Err(ApiError::field(field, value, "1 to 200 characters without control characters"))
}

/// The response to a PUT.
fn stored<T: Serialize>(is_new: bool, resource: T) -> Response {
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    (status, axum::Json(resource)).into_response()
}
