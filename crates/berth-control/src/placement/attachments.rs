//! Attachments: named sets of volumes that instances use together.
//!
//! Each is a document of the ledger. Its id is the tenant, a slash and the name; a name has no slash,
//! so everything before the last one is the tenant.

use berth_engine::NodeId;
use berth_ledger::{Document, Ledger, LedgerError};
use serde::{Deserialize, Serialize};

use super::Audience;
use crate::catalog::CatalogState;
use crate::control_plane::ControlPlane;
use crate::error::{ControlError, ControlResult};

/// The kind of document that an attachment is stored as.
pub const KIND: &str = "attachment";

/// What is stored of a set; its tenant and name are the document's id.
#[derive(Serialize, Deserialize)]
pub struct AttachmentRecord {
    /// The volumes.
    pub volumes: Vec<String>,
}

/// Why an instance cannot use a set of volumes.
pub enum MisplacedVolumes {
    /// There is no such volume, or it is another tenant's.
    Unknown(String),
    /// Two of them live on different nodes.
    Split {
        /// A volume and its node.
        first: (String, NodeId),
        /// A volume on another node.
        other: (String, NodeId),
    },
}

impl MisplacedVolumes {
    /// The error for a caller who may, or may not, see the names of nodes.
    #[must_use]
    pub fn into_error(self, sees_nodes: bool) -> ControlError {
        match self {
            Self::Unknown(id) => {
                ControlError::conflict("unknown_volume", format!("there is no volume {id:?}"))
                    .remedy("GET /v1/volumes lists those that there are")
            }
            Self::Split { first: (a, a_home), other: (b, b_home) } => {
                let detail = if sees_nodes {
                    format!("volume {a:?} lives on node {a_home} and volume {b:?} on node {b_home}")
                } else {
                    format!("volume {a:?} and volume {b:?} live on two nodes")
                };
                ControlError::conflict("attachment_split", detail)
                    .remedy("an instance has one node: name volumes of one node, or have one moved")
            }
        }
    }
}

/// The one node that a tenant's volumes live on.
///
/// # Errors
/// When one does not exist, or two live on different nodes.
pub fn home_of(
    catalog: &CatalogState,
    tenant: &str,
    volumes: &[String],
) -> Result<Option<NodeId>, MisplacedVolumes> {
    let mut first: Option<(&str, &NodeId)> = None;
    for id in volumes {
        // Another tenant's volume is treated as if it did not exist.
        let found = catalog.volumes.get(id).filter(|volume| volume.is_for(tenant));
        let Some(volume) = found else { return Err(MisplacedVolumes::Unknown(id.clone())) };
        match first {
            Some((named, home)) if *home != volume.home => {
                let first = (named.to_owned(), home.clone());
                let other = (id.clone(), volume.home.clone());
                return Err(MisplacedVolumes::Split { first, other });
            }
            Some(_) => {}
            None => first = Some((id, &volume.home)),
        }
    }
    Ok(first.map(|(_, home)| home.clone()))
}

/// The id of the document that holds a tenant's set.
#[must_use]
pub fn document_id(tenant: &str, name: &str) -> String {
    format!("{tenant}/{name}")
}

/// The tenant and the name of a stored set.
#[must_use]
pub fn tenant_and_name(document: &Document) -> Option<(&str, &str)> {
    document.id.rsplit_once('/')
}

/// Reads a stored set.
///
/// # Errors
/// When it cannot be decoded.
pub fn decode(document: &Document) -> Result<AttachmentRecord, LedgerError> {
    let corrupt = |error| LedgerError::Corrupt(format!("attachment {}: {error}", document.id));
    serde_json::from_str(&document.body).map_err(corrupt)
}

/// A tenant's set; absent when there is none of that name.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn find(
    control: &ControlPlane,
    tenant: &str,
    name: &str,
) -> ControlResult<Option<AttachmentRecord>> {
    let id = document_id(tenant, name);
    let found = control.read(move |ledger| ledger.document(KIND, &id)).await?;
    // A slash in the name would make it another tenant's.
    let found = found.filter(|_| !name.contains('/'));
    Ok(found.as_ref().map(decode).transpose()?)
}

/// The volumes of a set, for a tenant's instance: all there, all the tenant's to use, all on one
/// node. The error names nodes only where the tenant may know them, since waiting requests show it
/// later.
///
/// # Errors
/// When there is no such set, or its volumes cannot be used together.
pub async fn volumes_of(
    control: &ControlPlane,
    tenant: &str,
    set: &str,
) -> ControlResult<Vec<String>> {
    let Some(found) = find(control, tenant, set).await? else {
        let detail = format!("there is no attachment {set:?} of {tenant}");
        return Err(ControlError::conflict("unknown_attachment", detail)
            .remedy("GET /v1/attachments lists those that there are"));
    };
    control.wait_for_read_your_writes().await;
    let home = home_of(&control.catalog.read(), tenant, &found.volumes);
    match home {
        Ok(_) => Ok(found.volumes),
        Err(misplaced) => Err(misplaced.into_error(Audience::tenant(control, tenant).sees_nodes())),
    }
}

/// The sets of one tenant, or of all, in order, after a cursor: at most so many.
///
/// # Errors
/// When the ledger cannot be read.
pub fn list(
    ledger: &Ledger,
    tenant: Option<&str>,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<Document>, LedgerError> {
    let prefix = tenant.map(|tenant| document_id(tenant, "")).unwrap_or_default();
    let mut after = after.unwrap_or("").max(&prefix).to_owned();
    let mut found = Vec::new();
    while found.len() < limit {
        let page = ledger.documents(KIND, Some(&after), limit.min(1000))?;
        let Some(last) = page.last() else { break };
        after = last.id.to_string();
        let beyond = !last.id.starts_with(&prefix);
        let is_listed = |document: &Document| {
            tenant.is_none_or(|tenant| {
                tenant_and_name(document).is_some_and(|(whose, _)| whose == tenant)
            })
        };
        found.extend(page.into_iter().filter(is_listed));
        if beyond {
            break;
        }
    }
    found.truncate(limit);
    Ok(found)
}
