//! `/v1/volumes`: local volumes and the nodes that hold them.

use berth_api::{NewVolume, Page, Volume};
use berth_ledger::{ClaimKey, Op, Text};

use super::{Put, Resource, check_name, get_resource, resource_routes};
use crate::http::extract::{Json, Path, Query};
use crate::http::list::{PageQuery, page_of_map};
use crate::problem::{ApiError, ApiResult};
use berth_control::ControlPlane;
use berth_control::caller::Caller;
use berth_control::catalog::CatalogState;
use berth_control::placement::Audience;

resource_routes! {
    Volume from NewVolume, tag = "volumes", path = "/v1/volumes", item = "/v1/volumes/{id}",
    key = ("id", "The volume."),
    /// List volumes
    ///
    /// In order of name. A tenant sees its own and those open to all tenants.
    list => "Volumes.",
    /// Read a volume
    get => "The volume.",
    /// Define a volume, or change its node
    ///
    /// A volume that is in use keeps its home and its tenant.
    put => ("Changed, or unchanged.", "Defined."),
    /// Remove a volume
    ///
    /// Refused while an instance uses it.
    remove => "Removed.",
}

/// A volume as a caller may see it; absent when it may not.
fn view(
    catalog: &CatalogState,
    caller: &Caller,
    sees_nodes: bool,
    volume: &berth_engine::Volume,
) -> Option<Volume> {
    let is_visible = volume.tenant.as_deref().is_none_or(|tenant| caller.sees(tenant));
    // A volume that is open to all tenants may be used by an instance that this caller must not see.
    let is_own = |instance: &berth_engine::InstanceId| {
        let claim = catalog.claims.get(&ClaimKey::primary(*instance));
        !caller.is_tenant() || claim.is_some_and(|claim| caller.sees(&claim.request.tenant))
    };
    is_visible.then(|| Volume {
        id: volume.id.clone(),
        tenant: volume.tenant.clone(),
        home: sees_nodes.then(|| volume.home.clone()),
        attached_to: volume.attached_to.filter(is_own),
    })
}

impl Resource for Volume {
    const NOUN: &'static str = "volume";
    const PUT_ACTION: &'static str = "volume.put";
    const REMOVE_ACTION: &'static str = "volume.remove";
    type Spec = NewVolume;

    async fn list(
        control: &ControlPlane,
        caller: &Caller,
        query: &PageQuery,
    ) -> ApiResult<Page<Self>> {
        control.wait_for_read_your_writes().await;
        let sees_nodes = Audience::of(control, caller, "").sees_nodes();
        let catalog = control.catalog.read();
        page_of_map(&catalog.volumes, query, |volume| view(&catalog, caller, sees_nodes, volume))
    }

    async fn find(control: &ControlPlane, caller: &Caller, id: &str) -> ApiResult<Option<Self>> {
        control.wait_for_read_your_writes().await;
        let sees_nodes = Audience::of(control, caller, "").sees_nodes();
        let catalog = control.catalog.read();
        Ok(catalog.volumes.get(id).and_then(|found| view(&catalog, caller, sees_nodes, found)))
    }

    async fn check_put(
        control: &ControlPlane,
        _: &Caller,
        id: &str,
        new: NewVolume,
    ) -> ApiResult<Put> {
        check_name("id", id)?;
        if let Some(tenant) = &new.tenant {
            check_name("tenant", tenant)?;
        }
        control.wait_for_read_your_writes().await;
        let (is_new, has_home) = {
            let catalog = control.catalog.read();
            (!catalog.volumes.contains_key(id), catalog.nodes.contains_key(&new.home))
        };
        if !has_home {
            let value = Some(format!("{:?}", new.home.as_str()));
            return Err(ApiError::field("home", value, "a node that is registered"));
        }
        if control.moves.volume_moves.is_under_way(id) {
            let detail = format!("volume {id} is being moved to another node");
            let remedy = format!("wait, or cancel the move: berth volumes move {id} --cancel");
            return Err(ApiError::conflict("volume_moving", detail).remedy(remedy));
        }
        let NewVolume { tenant, home } = new;
        let volume = berth_engine::Volume { id: id.to_owned(), tenant, home, attached_to: None };
        Ok(Put { op: Op::PutVolume(volume), is_new })
    }

    async fn check_remove(control: &ControlPlane, caller: &Caller, id: &str) -> ApiResult<Op> {
        get_resource::<Self>(control, caller, id).await?;
        Ok(Op::RemoveVolume(Text::from(id)))
    }
}
