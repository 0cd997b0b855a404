//! `/v1/attachments`: sets of volumes that instances use together.
//!
//! Each is a document of the ledger. Its id there is the tenant, a slash and the name; a name has no
//! slash, so what is before the last one is the tenant.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use berth_api::{Attachment, NewAttachment, Page};
use berth_engine::NodeId;
use berth_ledger::{Document, Expect, Ledger, LedgerError, Op, Text};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{check_name, stored};
use crate::access::Caller;
use crate::catalog::Books;
use crate::http::extract::{Json, Path, Query};
use crate::http::list::{limit, part};
use crate::http::problem::{Answer, ApiError};
use crate::http::routes::Routes;
use crate::placement::{Audience, owner_for};
use crate::service::Service;

/// The kind of document that an attachment is stored as.
const KIND: &str = "attachment";

/// Most volumes of one set.
const MOST: usize = 64;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, put, remove))
}

/// What is stored of a set; whose it is and its name are the document's id.
#[derive(Serialize, Deserialize)]
struct Stored {
    volumes: Vec<String>,
}

/// Why volumes are no set that an instance could use.
enum Astray {
    Unknown(String),
    Split { first: (String, NodeId), other: (String, NodeId) },
}

/// The one node that a tenant's volumes live on.
fn home_of(books: &Books, owner: &str, volumes: &[String]) -> Result<Option<NodeId>, Astray> {
    let mut first: Option<(&str, &NodeId)> = None;
    for id in volumes {
        // Another tenant's volume is as if it were not there.
        let found = books.volumes.get(id).filter(|volume| volume.is_for(owner));
        let Some(volume) = found else { return Err(Astray::Unknown(id.clone())) };
        match first {
            Some((named, home)) if *home != volume.home => {
                let first = (named.to_owned(), home.clone());
                return Err(Astray::Split { first, other: (id.clone(), volume.home.clone()) });
            }
            Some(_) => {}
            None => first = Some((id, &volume.home)),
        }
    }
    Ok(first.map(|(_, home)| home.clone()))
}

impl Astray {
    fn into_error(self, sees_nodes: bool) -> ApiError {
        match self {
            Self::Unknown(id) => {
                ApiError::conflict("unknown_volume", format!("there is no volume {id:?}"))
                    .remedy("GET /v1/volumes lists those that there are")
            }
            Self::Split { first: (a, a_home), other: (b, b_home) } => {
                let detail = if sees_nodes {
                    format!("volume {a:?} lives on node {a_home} and volume {b:?} on node {b_home}")
                } else {
                    format!("volume {a:?} and volume {b:?} live on two nodes")
                };
                ApiError::conflict("attachment_split", detail)
                    .remedy("an instance has one node: name volumes of one node, or have one moved")
            }
        }
    }
}

fn document_id(owner: &str, name: &str) -> String {
    format!("{owner}/{name}")
}

fn check_set_name(name: &str) -> Answer<()> {
    if name.contains('/') {
        let value = Some(format!("{name:?}"));
        return Err(ApiError::field("id", value, "a name without a slash"));
    }
    check_name("id", name)
}

fn read_stored(document: &Document) -> Result<Stored, LedgerError> {
    let corrupt = |error| LedgerError::Corrupt(format!("attachment {}: {error}", document.id));
    serde_json::from_str(&document.body).map_err(corrupt)
}

/// The volumes of a tenant's set; absent when there is none of that name.
async fn find(service: &Service, owner: &str, name: &str) -> Answer<Option<Stored>> {
    let id = document_id(owner, name);
    let found = service.read(move |ledger| ledger.document(KIND, &id)).await?;
    // A slash in what was asked for would make it another tenant's.
    let found = found.filter(|_| !name.contains('/'));
    Ok(found.as_ref().map(read_stored).transpose()?)
}

/// The volumes of a set, for a tenant's instance: all there, all the tenant's to use, all on one
/// node. What is said of nodes is what the tenant may know, since waiting requests tell it later.
pub(crate) async fn volumes_of(service: &Service, owner: &str, set: &str) -> Answer<Vec<String>> {
    let Some(found) = find(service, owner, set).await? else {
        let detail = format!("there is no attachment {set:?} of {owner}");
        return Err(ApiError::conflict("unknown_attachment", detail)
            .remedy("GET /v1/attachments lists those that there are"));
    };
    service.settled().await;
    let home = home_of(&service.catalog.books(), owner, &found.volumes);
    match home {
        Ok(_) => Ok(found.volumes),
        Err(astray) => Err(astray.into_error(Audience::tenant(service, owner).sees_nodes())),
    }
}

/// Whose attachments.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Whose {
    /// The tenant. May be left out by a token that is bound to one.
    owner: Option<String>,
}

/// Which attachments.
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

/// The sets of one tenant, or of all, in order, after a cursor: at most so many.
fn documents(
    ledger: &Ledger,
    owner: Option<&str>,
    after: Option<&str>,
    most: usize,
) -> Result<Vec<Document>, LedgerError> {
    let prefix = owner.map(|owner| document_id(owner, "")).unwrap_or_default();
    let mut after = after.unwrap_or("").max(&prefix).to_owned();
    let mut found = Vec::new();
    while found.len() < most {
        let page = ledger.documents(KIND, Some(&after), most.min(1000))?;
        let Some(last) = page.last() else { break };
        after = last.id.to_string();
        let beyond = !last.id.starts_with(&prefix);
        let is_wanted = |document: &Document| {
            owner.is_none_or(|owner| named(document).is_some_and(|(whose, _)| whose == owner))
        };
        found.extend(page.into_iter().filter(is_wanted));
        if beyond {
            break;
        }
    }
    found.truncate(most);
    Ok(found)
}

/// Whose a document is, and the set's name.
fn named(document: &Document) -> Option<(&str, &str)> {
    document.id.rsplit_once('/')
}

/// List attachments
///
/// In order of tenant and name.
#[utoipa::path(get, path = "/v1/attachments", tag = "volumes", params(Wanted),
    responses((status = 200, description = "Attachments.", body = Page<Attachment>)))]
async fn list(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Query(asked): Query<Wanted>,
) -> Answer<axum::Json<Page<Attachment>>> {
    let most = limit(asked.limit)?;
    let owners: Vec<Option<String>> = match (asked.owner, caller.namespaces()) {
        (Some(owner), _) => vec![Some(owner_for(&caller, Some(&owner))?)],
        (None, Some(mine)) => mine.iter().cloned().map(Some).collect(),
        (None, None) => vec![None],
    };
    let after = asked.cursor;
    let mut found = service
        .read(move |ledger| {
            let mut found = Vec::new();
            for owner in &owners {
                found.extend(documents(ledger, owner.as_deref(), after.as_deref(), most + 1)?);
            }
            Ok(found)
        })
        .await?;
    // Each tenant's come in order, and so must all.
    found.sort_by(|one, other| one.id.cmp(&other.id));
    found.dedup_by(|one, other| one.id == other.id);
    service.settled().await;
    let sees_nodes = Audience::of(&service, &caller, "").sees_nodes();
    let mut views = Vec::with_capacity(found.len());
    for document in &found {
        let Some((owner, name)) = named(document) else { continue };
        let set = view(&service, owner, name, read_stored(document)?.volumes, sees_nodes);
        views.push((document.id.to_string(), set));
    }
    Ok(axum::Json(part(views.into_iter(), most)))
}

fn view(
    service: &Service,
    owner: &str,
    name: &str,
    volumes: Vec<String>,
    sees_nodes: bool,
) -> Attachment {
    let home = home_of(&service.catalog.books(), owner, &volumes).ok().flatten();
    let (id, owner) = (name.to_owned(), owner.to_owned());
    Attachment { id, owner, volumes, home: home.filter(|_| sees_nodes) }
}

/// Read an attachment
#[utoipa::path(get, path = "/v1/attachments/{id}", tag = "volumes",
    params(("id" = String, Path, description = "The attachment."), Whose),
    responses((status = 200, description = "The attachment; without a home, its volumes are apart or gone.", body = Attachment)))]
async fn get(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
    Query(whose): Query<Whose>,
) -> Answer<axum::Json<Attachment>> {
    let owner = owner_for(&caller, whose.owner.as_deref())?;
    let found = find(&service, &owner, &id).await?;
    let found = found.ok_or_else(|| ApiError::not_found("attachment", &id))?;
    service.settled().await;
    let sees_nodes = Audience::of(&service, &caller, &owner).sees_nodes();
    Ok(axum::Json(view(&service, &owner, &id, found.volumes, sees_nodes)))
}

/// Define an attachment, or change its volumes
///
/// Refused when the volumes live on two nodes (`attachment_split`) or one is not there
/// (`unknown_volume`).
#[utoipa::path(put, path = "/v1/attachments/{id}", tag = "volumes",
    params(("id" = String, Path, description = "The attachment."), Whose),
    request_body = NewAttachment,
    responses(
        (status = 200, description = "Changed, or as it was.", body = Attachment),
        (status = 201, description = "Defined.", body = Attachment),
    ))]
async fn put(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
    Query(whose): Query<Whose>,
    Json(new): Json<NewAttachment>,
) -> Answer<Response> {
    check_set_name(&id)?;
    let owner = match (&new.owner, &whose.owner) {
        (Some(body), Some(query)) if body != query => {
            let value = Some(format!("{body:?}"));
            return Err(ApiError::field("owner", value, "the tenant that the query names"));
        }
        (body, query) => owner_for(&caller, body.as_deref().or(query.as_deref()))?,
    };
    check_volumes(&new.volumes)?;
    service.settled().await;
    let sees_nodes = Audience::of(&service, &caller, &owner).sees_nodes();
    let home = home_of(&service.catalog.books(), &owner, &new.volumes);
    home.map_err(|astray| astray.into_error(sees_nodes))?;
    let is_new = find(&service, &owner, &id).await?.is_none();
    let body = serde_json::to_string(&Stored { volumes: new.volumes.clone() });
    let document = document_id(&owner, &id);
    let op = Op::PutDocument {
        kind: Text::from(KIND),
        id: Text::from(document.as_str()),
        body: body.map_err(|error| ApiError::invalid(error.to_string()))?,
        expect: Expect::Any,
    };
    service.administer(&caller, "attachment.put", document, op).await?;
    Ok(stored(is_new, view(&service, &owner, &id, new.volumes, sees_nodes)))
}

fn check_volumes(volumes: &[String]) -> Answer<()> {
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
    params(("id" = String, Path, description = "The attachment."), Whose),
    responses((status = 204, description = "Removed.")))]
async fn remove(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
    Query(whose): Query<Whose>,
) -> Answer<StatusCode> {
    let owner = owner_for(&caller, whose.owner.as_deref())?;
    if find(&service, &owner, &id).await?.is_none() {
        return Err(ApiError::not_found("attachment", &id));
    }
    let document = document_id(&owner, &id);
    let (kind, key) = (Text::from(KIND), Text::from(document.as_str()));
    let op = Op::RemoveDocument { kind, id: key, expect: Expect::Any };
    service.administer(&caller, "attachment.remove", document, op).await?;
    Ok(StatusCode::NO_CONTENT)
}
