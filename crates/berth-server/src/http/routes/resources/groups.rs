//! `/v1/groups`: which instances belong together, or apart.

use berth_api::{Group, NewGroup, Page};
use berth_ledger::{Op, Text};
use http::StatusCode;

use super::{Put, Resource, check_name, get_resource, resource_routes};
use crate::http::extract::{Json, Path, Query};
use crate::http::list::{PageQuery, page_of_map};
use crate::problem::{ApiError, ApiResult};
use berth_control::ControlPlane;
use berth_control::caller::Caller;
use berth_control::placement::tenant_for;

resource_routes! {
    Group from NewGroup, tag = "groups", path = "/v1/groups", item = "/v1/groups/{id}",
    key = ("id", "The group."),
    /// List groups
    ///
    /// In order of name. A tenant sees its own and those open to all tenants.
    list => "Groups.",
    /// Read a group
    get => "The group.",
    /// Define a group, or change its rules
    ///
    /// A tenant's groups are its own. Kind and topology can change while it has no members; its tenant
    /// cannot.
    put => ("Changed, or unchanged.", "Defined."),
    /// Remove a group
    ///
    /// Refused while it has members.
    remove => "Removed.",
}

/// A tenant sees its own groups and those that are open to all tenants.
fn is_visible(caller: &Caller, group: &berth_engine::Group) -> bool {
    group.tenant.as_deref().is_none_or(|tenant| caller.sees(tenant))
}

/// A tenant changes only its own.
fn may_change(caller: &Caller, tenant: Option<&str>) -> bool {
    !caller.is_tenant() || tenant.is_some_and(|tenant| caller.sees(tenant))
}

impl Resource for Group {
    const NOUN: &'static str = "group";
    const PUT_ACTION: &'static str = "group.put";
    const REMOVE_ACTION: &'static str = "group.remove";
    type Spec = NewGroup;

    async fn list(
        control: &ControlPlane,
        caller: &Caller,
        query: &PageQuery,
    ) -> ApiResult<Page<Self>> {
        control.wait_for_read_your_writes().await;
        let catalog = control.catalog.read();
        let view =
            |group: &berth_engine::Group| is_visible(caller, group).then(|| Self::from(group));
        page_of_map(&catalog.groups, query, view)
    }

    async fn find(control: &ControlPlane, caller: &Caller, id: &str) -> ApiResult<Option<Self>> {
        control.wait_for_read_your_writes().await;
        let catalog = control.catalog.read();
        let group = catalog.groups.get(id).filter(|group| is_visible(caller, group));
        Ok(group.map(Self::from))
    }

    async fn check_put(
        control: &ControlPlane,
        caller: &Caller,
        id: &str,
        new: NewGroup,
    ) -> ApiResult<Put> {
        check_name("id", id)?;
        if new.max_per_domain == Some(0) {
            return Err(ApiError::field("max_per_domain", Some("0".to_owned()), "1 or more"));
        }
        control.wait_for_read_your_writes().await;
        let known = control.catalog.read().groups.get(id).cloned();
        let tenant = match &new.tenant {
            None if !caller.is_tenant() => None,
            stated => {
                let mine = known.as_ref().and_then(|group| group.tenant.as_deref());
                // A tenant of several tenants need not repeat the tenant of its group.
                let mine = mine.filter(|tenant| caller.is_tenant() && caller.sees(tenant));
                Some(tenant_for(caller, stated.as_deref().or(mine))?)
            }
        };
        if known.as_ref().is_some_and(|known| !may_change(caller, known.tenant.as_deref())) {
            return Err(name_taken(id));
        }
        let NewGroup { kind, strength, topology, max_per_domain, .. } = new;
        let id = id.to_owned();
        let group = berth_engine::Group { id, tenant, kind, strength, topology, max_per_domain };
        Ok(Put { op: Op::PutGroup(group), is_new: known.is_none() })
    }

    async fn check_remove(control: &ControlPlane, caller: &Caller, id: &str) -> ApiResult<Op> {
        let group: Self = get_resource(control, caller, id).await?;
        if !may_change(caller, group.tenant.as_deref()) {
            let detail = format!("group {id:?} is open to all tenants; only operators remove it");
            let title = "this token may not do this";
            return Err(ApiError::new(StatusCode::FORBIDDEN, "not_allowed", title, detail));
        }
        Ok(Op::RemoveGroup(Text::from(id)))
    }
}

/// All tenants share the names of groups. The error does not tell whose it is.
fn name_taken(id: &str) -> ApiError {
    let detail = format!("the name {id:?} is not available to this token");
    ApiError::conflict("name_taken", detail)
        .remedy("choose another name, for example one that starts with the tenant's name")
}
