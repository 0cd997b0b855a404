//! What the audit log says of Berth's service accounts: what they were forbidden, and which of their permissions
//! they used.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::api::text;
use crate::assets::ControlPlane;
use crate::cluster::manifests;

/// The requests of Berth's service accounts.
#[derive(Default)]
pub(crate) struct Audit {
    /// Bindings that succeeded.
    pub(crate) bindings: usize,
    /// Requests that the roles forbid.
    pub(crate) forbidden: Vec<String>,
    /// Requests that an API server forbade which did not know the roles yet.
    pub(crate) forbidden_at_start: usize,
    /// What was asked for and allowed.
    used: BTreeSet<Permission>,
}

/// An account, a verb, and a resource with its group and subresource.
type Permission = [String; 4];

impl Audit {
    /// Reads the log of a control plane.
    pub(crate) fn read(plane: &ControlPlane) -> Self {
        let mut audit = Self::default();
        for line in std::fs::read_to_string(plane.audit_log()).unwrap_or_default().lines() {
            // A line may be half written when the API server was killed.
            if let Ok(entry) = serde_json::from_str::<Value>(line) {
                audit.add(plane, &entry);
            }
        }
        audit
    }

    fn add(&mut self, plane: &ControlPlane, entry: &Value) {
        let code = entry["responseStatus"]["code"].as_u64().unwrap_or(0);
        let user = text(entry, "/user/username");
        if text(entry, "/annotations/authorization.k8s.io~1decision") == "forbid" {
            let at = text(entry, "/requestReceivedTimestamp").parse();
            match at.is_ok_and(|at| plane.is_recovering(at)) {
                true => self.forbidden_at_start += 1,
                false => {
                    let line = format!("{user} {} {}", entry["verb"], entry["requestURI"]);
                    self.forbidden.push(format!("forbidden: {line}"));
                }
            }
            return;
        }
        let is_dry = text(entry, "/requestURI").contains("dryRun");
        let subresource = text(entry, "/objectRef/subresource");
        self.bindings += usize::from(subresource == "binding" && code == 201 && !is_dry);
        let account = user.rsplit(':').next().unwrap_or_default();
        let resource = text(entry, "/objectRef/resource");
        let group = text(entry, "/objectRef/apiGroup");
        self.used.insert(permission(account, text(entry, "/verb"), group, (resource, subresource)));
    }

    /// What the manifests allow and nobody asked for, and how much they allow.
    pub(crate) fn unused(&self) -> (Vec<String>, usize) {
        let granted = granted();
        let unused = granted.iter().filter(|it| !self.used.contains(*it));
        (unused.map(|it| it.join(" ")).collect(), granted.len())
    }
}

fn permission(
    account: &str,
    verb: &str,
    group: &str,
    (resource, subresource): (&str, &str),
) -> Permission {
    let resource = match subresource {
        "" => resource.to_owned(),
        subresource => format!("{resource}/{subresource}"),
    };
    [account.to_owned(), verb.to_owned(), group.to_owned(), resource]
}

/// The permissions of the roles of the manifests; each role has the name of its account.
fn granted() -> BTreeSet<Permission> {
    let mut found = BTreeSet::new();
    let roles = manifests();
    for role in roles.iter().filter(|it| matches!(text(it, "/kind"), "Role" | "ClusterRole")) {
        let account = text(role, "/metadata/name");
        let rules = role["rules"].as_array().into_iter().flatten();
        let words = |value: &Value| -> Vec<String> {
            let all = value.as_array().into_iter().flatten();
            all.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        for rule in rules {
            for group in words(&rule["apiGroups"]) {
                for resource in words(&rule["resources"]) {
                    for verb in words(&rule["verbs"]) {
                        found.insert(permission(account, &verb, &group, (&resource, "")));
                    }
                }
            }
        }
    }
    found
}
