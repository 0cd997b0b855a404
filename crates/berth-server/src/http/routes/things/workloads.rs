//! `/v1/workloads`: what should run.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use berth_api::{InstanceSpec, NewWorkload, Page, Workload};
use berth_ledger::{Answer as LedgerAnswer, ClaimState, Expect, LedgerError, Op, Outcome, Text};
use http::{StatusCode, header};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::check_name;
use crate::access::Caller;
use crate::catalog::Books;
use crate::http::extract::{IfMatch, Json, Path, Query};
use crate::http::list::{limit, part};
use crate::http::problem::{Answer, ApiError};
use crate::http::routes::Routes;
use crate::placement::{owner_for, request_of};
use crate::service::{Service, unexpected};

/// Most replicas of one workload.
const MOST: u32 = 100_000;

/// How often a change is tried anew when others change the same workload meanwhile.
const TRIES: u32 = 10;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, put, remove))
}

/// Instances of a workload: those that are active, and all.
type Counts = (u32, u32);

/// How many instances of a tenant name each workload.
fn counts<'a>(books: &'a Books, owner: &str) -> BTreeMap<&'a str, Counts> {
    let mut counts: BTreeMap<&str, Counts> = BTreeMap::new();
    let keys = books.by_owner.get(owner).into_iter().flatten();
    // An instance that moves has two claims and is one instance.
    let primary = keys.filter(|key| key.role == berth_ledger::Role::Primary);
    for claim in primary.filter_map(|key| books.claims.get(key)) {
        let Some(workload) = claim.request.workload.as_deref() else { continue };
        let (active, placed) = counts.entry(workload).or_default();
        *active += u32::from(claim.state == ClaimState::Active);
        *placed += 1;
    }
    counts
}

fn view(found: berth_ledger::Workload, (active, placed): Counts) -> Answer<Workload> {
    let template: InstanceSpec = serde_json::from_str(&found.body).map_err(|error| {
        let what = format!("workload {} of {}: {error}", found.name, found.owner);
        ApiError::from(LedgerError::Corrupt(what))
    })?;
    let replicas = u32::try_from(found.replicas).unwrap_or(0);
    let berth_ledger::Workload { owner, name, revision, .. } = found;
    Ok(Workload { owner, name, revision, replicas, active, placed, template })
}

async fn all(service: &Service) -> Answer<Vec<berth_ledger::Workload>> {
    service.read(berth_ledger::Ledger::workloads).await
}

async fn find(
    service: &Service,
    owner: &str,
    name: &str,
) -> Answer<Option<berth_ledger::Workload>> {
    let is_it = |found: &berth_ledger::Workload| found.owner == owner && found.name == name;
    Ok(all(service).await?.into_iter().find(is_it))
}

/// A workload as it is now, with how many of its instances there are.
async fn read(service: &Service, owner: &str, name: &str) -> Answer<Workload> {
    let found = find(service, owner, name).await?.ok_or_else(|| hidden(name))?;
    service.settled().await;
    let books = service.catalog.books();
    let count = counts(&books, owner).get(name).copied().unwrap_or_default();
    view(found, count)
}

fn hidden(name: &str) -> ApiError {
    ApiError::not_found("workload", name)
}

/// A workload and its version.
fn tagged(status: StatusCode, workload: &Workload) -> Response {
    let etag = format!("\"{}\"", workload.revision);
    (status, [(header::ETAG, etag)], axum::Json(workload)).into_response()
}

/// Which workloads.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Wanted {
    /// Of this tenant.
    owner: Option<String>,
    /// How many at most.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
    /// Where the last part ended: its `next`.
    cursor: Option<String>,
}

/// List workloads
///
/// In order of tenant and name; a tenant sees its own.
#[utoipa::path(get, path = "/v1/workloads", tag = "workloads", params(Wanted),
    responses((status = 200, description = "Workloads.", body = Page<Workload>)))]
async fn list(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Query(asked): Query<Wanted>,
) -> Answer<axum::Json<Page<Workload>>> {
    let most = limit(asked.limit)?;
    let owner = asked.owner.as_deref().map(|owner| owner_for(&caller, Some(owner))).transpose()?;
    let after = asked.cursor.as_deref().map(read_cursor).transpose()?;
    let is_wanted = |found: &berth_ledger::Workload| {
        let key = (found.owner.as_str(), found.name.as_str());
        caller.sees(&found.owner)
            && owner.as_ref().is_none_or(|owner| *owner == found.owner)
            && after.as_ref().is_none_or(|(owner, name)| key > (owner.as_str(), name.as_str()))
    };
    let found = all(&service).await?.into_iter().filter(is_wanted);
    let page = part(found.map(|found| (cursor(&found), found)), most);
    service.settled().await;
    let books = service.catalog.books();
    let mut counted: BTreeMap<String, BTreeMap<&str, Counts>> = BTreeMap::new();
    let mut items = Vec::with_capacity(page.items.len());
    for found in page.items {
        let of_owner = counted.entry(found.owner.clone());
        let of_owner = of_owner.or_insert_with(|| counts(&books, &found.owner));
        let count = of_owner.get(found.name.as_str()).copied().unwrap_or_default();
        items.push(view(found, count)?);
    }
    Ok(axum::Json(Page { items, next: page.next }))
}

/// Names may have any character in them, so a cursor is a pair in JSON.
fn cursor(found: &berth_ledger::Workload) -> String {
    serde_json::to_string(&(&found.owner, &found.name)).unwrap_or_default()
}

fn read_cursor(text: &str) -> Answer<(String, String)> {
    serde_json::from_str(text)
        .map_err(|_| ApiError::field("cursor", Some(format!("{text:?}")), "a `next` of before"))
}

/// Read a workload
#[utoipa::path(get, path = "/v1/workloads/{owner}/{name}", tag = "workloads",
    params(
        ("owner" = String, Path, description = "The tenant."),
        ("name" = String, Path, description = "The workload."),
    ),
    responses((status = 200, description = "The workload; its revision is its ETag.", body = Workload)))]
async fn get(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path((owner, name)): Path<(String, String)>,
) -> Answer<Response> {
    if !caller.sees(&owner) {
        return Err(hidden(&name));
    }
    Ok(tagged(StatusCode::OK, &read(&service, &owner, &name).await?))
}

/// Refuses a workload whose replicas could never be placed.
fn check(owner: &str, name: &str, new: &NewWorkload) -> Answer<()> {
    check_name("owner", owner)?;
    check_name("name", name)?;
    if new.replicas > MOST {
        return Err(ApiError::field("replicas", Some(new.replicas.to_string()), "0 to 100000"));
    }
    let template = &new.template;
    if let Some(id) = template.id {
        let accepted = "nothing: every replica has an id of its own";
        return Err(ApiError::field("template.id", Some(id.to_string()), accepted));
    }
    if let Some(count) = template.count {
        let accepted = "nothing: replicas says how many";
        return Err(ApiError::field("template.count", Some(count.to_string()), accepted));
    }
    if let Some(other) = template.workload.as_deref().filter(|other| *other != name) {
        let value = Some(format!("{other:?}"));
        return Err(ApiError::field(
            "template.workload",
            value,
            "the name in the path, or nothing",
        ));
    }
    let mut request = request_of(owner, template);
    request.workload = Some(name.to_owned());
    request.validate().map_err(|invalid| ApiError::invalid(format!("template: {invalid}")))
}

/// Store a workload
///
/// With `If-Match`, only if it is still as it was read.
#[utoipa::path(put, path = "/v1/workloads/{owner}/{name}", tag = "workloads",
    params(
        ("owner" = String, Path, description = "The tenant."),
        ("name" = String, Path, description = "The workload."),
        ("If-Match" = Option<String>, Header, description = "The revision that was read."),
    ),
    request_body = NewWorkload,
    responses(
        (status = 200, description = "Changed, or as it was.", body = Workload),
        (status = 201, description = "Stored.", body = Workload),
    ))]
async fn put(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path((owner, name)): Path<(String, String)>,
    if_match: IfMatch,
    Json(new): Json<NewWorkload>,
) -> Answer<Response> {
    if !caller.sees(&owner) {
        return Err(hidden(&name));
    }
    let wanted = if_match.number()?;
    check(&owner, &name, &new)?;
    let body = serde_json::to_string(&new.template)
        .map_err(|error| ApiError::invalid(error.to_string()))?;
    let replicas = i64::from(new.replicas);
    for _ in 0..TRIES {
        let known = find(&service, &owner, &name).await?;
        let current = known.as_ref().map(|known| known.revision);
        if wanted.is_some_and(|wanted| current != Some(wanted)) {
            return Err(ApiError::stale(current.map(|current| current.to_string())));
        }
        let is_same =
            |known: &berth_ledger::Workload| known.replicas == replicas && known.body == body;
        if known.as_ref().is_some_and(is_same) {
            return Ok(tagged(StatusCode::OK, &read(&service, &owner, &name).await?));
        }
        let workload = berth_ledger::Workload {
            owner: owner.clone(),
            name: name.clone(),
            revision: current.unwrap_or(0) + 1,
            replicas,
            body: body.clone(),
        };
        // What was just read, so that two changes at once are two revisions.
        let expect = current.map_or(Expect::Absent, Expect::Revision);
        let (op, subject) = (Op::PutWorkload { workload, expect }, format!("{owner}/{name}"));
        match service.call(&caller, "workload.put", subject, None, op).await? {
            LedgerAnswer::Outcome(Outcome::Done | Outcome::Unchanged) => {
                let is_new = current.is_none();
                let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
                return Ok(tagged(status, &read(&service, &owner, &name).await?));
            }
            LedgerAnswer::Outcome(Outcome::Impossible(why)) => {
                return Err(ApiError::conflict("impossible", why));
            }
            LedgerAnswer::Outcome(Outcome::Stale { .. }) => {}
            other => return Err(unexpected(&other)),
        }
    }
    Err(ApiError::unavailable("contention", "others change this workload again and again"))
}

/// Remove a workload
///
/// Only one that has no instances left.
#[utoipa::path(delete, path = "/v1/workloads/{owner}/{name}", tag = "workloads",
    params(
        ("owner" = String, Path, description = "The tenant."),
        ("name" = String, Path, description = "The workload."),
    ),
    responses((status = 204, description = "Removed.")))]
async fn remove(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path((owner, name)): Path<(String, String)>,
) -> Answer<StatusCode> {
    if !caller.sees(&owner) || find(&service, &owner, &name).await?.is_none() {
        return Err(hidden(&name));
    }
    let subject = format!("{owner}/{name}");
    let op = Op::RemoveWorkload { owner: Text::from(owner), name: Text::from(name) };
    service.administer(&caller, "workload.remove", subject, op).await?;
    Ok(StatusCode::NO_CONTENT)
}
