//! `/v1/pools`: ranges of addresses and numbers that claims take values from.

use berth_api::{NewPool, Page, Pool};
use berth_ledger::{Op, Text};

use super::{Put, Resource, check_name, resource_routes};
use crate::http::extract::{Json, Path, Query};
use crate::http::instrument::items_with_age;
use crate::http::list::{PageQuery, page_by_name};
use crate::problem::{ApiError, ApiResult};
use berth_control::ControlPlane;
use berth_control::caller::Caller;

resource_routes! {
    Pool from NewPool, tag = "pools", path = "/v1/pools", item = "/v1/pools/{id}",
    key = ("id", "The pool."),
    /// List pools
    list => "Pools, in order of name.",
    /// Read a pool
    get => "The pool.",
    /// Define a pool, or change its range
    ///
    /// A pool belongs to one tenant, or is open to all. Values that are held stay held, whatever the
    /// new range and of its tenant.
    put => ("Changed, or unchanged.", "Defined."),
    /// Remove a pool
    ///
    /// Refused while one of its values is held.
    remove => "Removed.",
}

fn view((pool, used): &(berth_ledger::Pool, i64)) -> Pool {
    Pool {
        id: pool.id.to_string(),
        kind: pool.kind.name().to_owned(),
        first: pool.kind.write(pool.first),
        last: pool.kind.write(pool.last),
        quarantine_s: pool.quarantine_s,
        size: pool.size().to_string(),
        used: *used,
        open: pool.tenant.is_none(),
        tenant: pool.tenant.as_deref().map(str::to_owned),
    }
}

async fn all(control: &ControlPlane) -> ApiResult<Vec<Pool>> {
    let pools = items_with_age(control.list_pools().await?);
    Ok(pools.iter().map(view).collect())
}

impl Resource for Pool {
    const NOUN: &'static str = "pool";
    const PUT_ACTION: &'static str = "pool.put";
    const REMOVE_ACTION: &'static str = "pool.remove";
    type Spec = NewPool;

    async fn list(control: &ControlPlane, _: &Caller, query: &PageQuery) -> ApiResult<Page<Self>> {
        page_by_name(all(control).await?, |pool| &pool.id, query)
    }

    async fn find(control: &ControlPlane, _: &Caller, id: &str) -> ApiResult<Option<Self>> {
        Ok(all(control).await?.into_iter().find(|pool| pool.id == id))
    }

    async fn check_put(
        control: &ControlPlane,
        caller: &Caller,
        id: &str,
        new: NewPool,
    ) -> ApiResult<Put> {
        check_name("id", id)?;
        let mut pool = berth_ledger::Pool::parse(id, &new.range).map_err(|invalid| {
            ApiError::field("range", Some(format!("{:?}", invalid.range)), invalid.accepted)
        })?;
        pool.quarantine_s = new.quarantine_s.unwrap_or(berth_ledger::Pool::DEFAULT_QUARANTINE_S);
        let old = Self::find(control, caller, id).await?;
        let is_new = old.is_none();
        let tenant = match (new.tenant, new.open) {
            (Some(_), true) => {
                return Err(ApiError::field("open", Some("true".to_owned()), "tenant or open"));
            }
            (Some(tenant), false) => {
                check_name("tenant", &tenant)?;
                Some(tenant)
            }
            (None, true) => None,
            // A change of the range must not open a pool.
            (None, false) => old.and_then(|old| old.tenant),
        };
        pool.tenant = tenant.as_deref().map(Text::from);
        Ok(Put { op: Op::PutPool(pool), is_new })
    }

    async fn check_remove(_: &ControlPlane, _: &Caller, id: &str) -> ApiResult<Op> {
        Ok(Op::RemovePool(Text::from(id)))
    }
}
