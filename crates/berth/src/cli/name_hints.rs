//! Names in selectors and references that do not exist, and which ones were probably meant. What a
//! refused request asks of nodes, the server hints at itself.

use std::collections::BTreeSet;

use berth_api::engine::BUILTIN_POLICIES;
use berth_api::name_hints::{HintReader, Names};
use berth_api::{Group, Instance, Node, PlaceRequest, Pool, QuotaUse, StoredPolicy, Workload};

use super::resource::Resource;
use crate::cmdutil::{Session, closest, decode_all};

fn did_you_mean(name: &str, known: &[String]) -> Option<String> {
    let near = closest(name, known.iter().map(String::as_str))?;
    Some(format!("{name} does not exist; did you mean {near}?"))
}

impl Session {
    /// The hint about names in a selector that no node has.
    pub(crate) async fn selector_hints(&self, selector: &str) -> Vec<String> {
        self.name_hints(&Names::of_selector(selector)).await
    }

    /// The hint about pools and groups that a refused request names and that do not exist.
    pub(crate) async fn reference_hints(&self, code: &str, request: &PlaceRequest) -> Vec<String> {
        let (names, known): (BTreeSet<String>, Vec<String>) = match code {
            "unknown_pool" => (request.pools.iter().cloned().collect(), self.keys::<Pool>().await),
            "unknown_group" => {
                let groups = request.instances.iter().flat_map(|spec| spec.groups.iter().cloned());
                (groups.collect(), self.keys::<Group>().await)
            }
            _ => return Vec::new(),
        };
        let missing = names.iter().filter(|name| !known.contains(name));
        missing.filter_map(|name| did_you_mean(name, &known)).collect()
    }

    /// The hint about a tenant that has nothing.
    pub(crate) async fn tenant_hint(&self, tenant: &str) -> Option<String> {
        let known = self.tenants().await;
        (!known.contains(tenant)).then_some(())?;
        did_you_mean(tenant, &known.into_iter().collect::<Vec<_>>())
    }

    /// The tenants that have instances, workloads or a quota, as far as the caller sees them.
    pub(crate) async fn tenants(&self) -> BTreeSet<String> {
        let instances = self.all_of::<Instance>().await.into_iter().map(|one| one.claim.tenant);
        let workloads = self.all_of::<Workload>().await.into_iter().map(|one| one.tenant);
        let quotas = self.all_of::<QuotaUse>().await.into_iter().map(|one| one.key());
        instances.chain(workloads).chain(quotas).collect()
    }

    /// The names of policies, built-in ones included.
    pub(crate) async fn policy_names(&self) -> BTreeSet<String> {
        let stored = self.all_of::<StoredPolicy>().await.into_iter().map(|policy| policy.name);
        stored.chain(BUILTIN_POLICIES.map(str::to_owned)).collect()
    }

    /// What names the resources of a kind in commands.
    pub(crate) async fn keys<R: Resource>(&self) -> Vec<String> {
        self.all_of::<R>().await.iter().map(R::key).collect()
    }

    /// The resources of a kind, at most a thousand; none if they cannot be listed.
    async fn all_of<R: Resource>(&self) -> Vec<R> {
        let page = self.get_list(R::PATH, &[], Some(1000)).await;
        page.ok().and_then(|page| decode_all(&page.items).ok()).unwrap_or_default()
    }

    /// Compares names with those of all nodes. A caller that may not list nodes gets no hints.
    async fn name_hints(&self, wanted: &Names) -> Vec<String> {
        if wanted.is_empty() {
            return Vec::new();
        }
        let Ok(page) = self.get_list(Node::PATH, &[], None).await else { return Vec::new() };
        let Ok(nodes) = decode_all::<Node>(&page.items) else { return Vec::new() };
        let known = Names::of_nodes(nodes.iter().map(|node| &node.facts));
        if nodes.is_empty() { Vec::new() } else { wanted.hints(&known, HintReader::Operator) }
    }
}
