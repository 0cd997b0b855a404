//! `/v1/quotas`: limits of tenants, and what they use of them.

use berth_api::{Page, Quota, QuotaUse};
use berth_ledger::{Op, Text};

use super::{Put, Resource, check_name, resource_routes};
use crate::http::extract::{Json, Path, Query};
use crate::http::instrument::items_with_age;
use crate::http::list::{PageQuery, page_by_name};
use crate::problem::{ApiError, ApiResult};
use berth_control::ControlPlane;
use berth_control::caller::Caller;

resource_routes! {
    QuotaUse from Quota, tag = "quotas", path = "/v1/quotas", item = "/v1/quotas/{tenant}",
    key = ("tenant", "The tenant."),
    /// List quotas
    ///
    /// Of tenants that have limits; a tenant sees its own.
    list => "Quotas, in order of tenant.",
    /// Read a tenant's quota
    get => "Its limits and its usage.",
    /// Set a tenant's limits
    ///
    /// A limit that is left out is unlimited. A tenant keeps what it holds beyond a new limit, but
    /// gets no more.
    put => ("Changed, or unchanged.", "Set."),
    /// Remove a tenant's limits
    remove => "The tenant is unlimited now.",
}

fn view(found: &berth_ledger::QuotaUse) -> QuotaUse {
    let (quota, used) = (found.quota, found.used);
    QuotaUse {
        tenant: found.tenant.to_string(),
        limits: Quota {
            cpu_milli: quota.cpu_milli,
            memory_mib: quota.memory_mib,
            disk_mib: quota.disk_mib,
            instances: quota.instances,
        },
        used: Quota {
            cpu_milli: Some(used.cpu_milli),
            memory_mib: Some(used.memory_mib),
            disk_mib: Some(used.disk_mib),
            instances: Some(used.instances),
        },
    }
}

/// Quotas that a caller may see, in order of tenant.
async fn visible(control: &ControlPlane, caller: &Caller) -> ApiResult<Vec<QuotaUse>> {
    let quotas = items_with_age(control.list_quotas().await?);
    Ok(quotas.iter().filter(|quota| caller.sees(&quota.tenant)).map(view).collect())
}

impl Resource for QuotaUse {
    const NOUN: &'static str = "quota";
    const PUT_ACTION: &'static str = "quota.put";
    const REMOVE_ACTION: &'static str = "quota.remove";
    type Spec = Quota;

    async fn list(
        control: &ControlPlane,
        caller: &Caller,
        query: &PageQuery,
    ) -> ApiResult<Page<Self>> {
        page_by_name(visible(control, caller).await?, |quota| &quota.tenant, query)
    }

    async fn find(
        control: &ControlPlane,
        caller: &Caller,
        tenant: &str,
    ) -> ApiResult<Option<Self>> {
        Ok(visible(control, caller).await?.into_iter().find(|quota| quota.tenant == tenant))
    }

    async fn check_put(
        control: &ControlPlane,
        caller: &Caller,
        tenant: &str,
        new: Quota,
    ) -> ApiResult<Put> {
        check_name("tenant", tenant)?;
        for (field, value) in [
            ("cpu_milli", new.cpu_milli),
            ("memory_mib", new.memory_mib),
            ("disk_mib", new.disk_mib),
            ("instances", new.instances),
        ] {
            if let Some(value) = value.filter(|value| *value < 0) {
                let accepted = "0 or more, or left out";
                return Err(ApiError::field(field, Some(value.to_string()), accepted));
            }
        }
        let quota = berth_ledger::Quota {
            cpu_milli: new.cpu_milli,
            memory_mib: new.memory_mib,
            disk_mib: new.disk_mib,
            instances: new.instances,
        };
        let is_new = Self::find(control, caller, tenant).await?.is_none();
        Ok(Put { op: Op::PutQuota { tenant: Text::from(tenant), quota }, is_new })
    }

    async fn check_remove(_: &ControlPlane, _: &Caller, tenant: &str) -> ApiResult<Op> {
        Ok(Op::RemoveQuota(Text::from(tenant)))
    }
}
