//! Permissions, read from the same manifests that are applied to a cluster.

use serde_json::Value;

use crate::object;

/// One rule of a `ClusterRole` or `Role`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The namespace that it applies to; `None`: all, and cluster-scoped resources.
    pub namespace: Option<String>,
    /// API groups; the core group is empty.
    pub groups: Vec<String>,
    /// Resources, `pods` or `pods/binding`.
    pub resources: Vec<String>,
    /// The only names that it applies to; empty: all.
    pub names: Vec<String>,
    /// `get`, `list` and so on.
    pub verbs: Vec<String>,
}

/// The attributes of a request for authorization.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AccessRequest<'a> {
    pub(crate) verb: &'a str,
    pub(crate) group: &'a str,
    pub(crate) resource: String,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

impl Rule {
    /// Reads the rules of all `ClusterRole`s and `Role`s in YAML documents. A role without a namespace is
    /// taken as one of `namespace`.
    ///
    /// # Errors
    ///
    /// When a document is not YAML, or a rule has no verbs.
    pub fn from_yaml(text: &str, namespace: &str) -> Result<Vec<Self>, String> {
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(text).map_err(|error| error.to_string())?;
        let mut rules = Vec::new();
        for document in &documents {
            let scope = match document["kind"].as_str() {
                Some("ClusterRole") => None,
                Some("Role") => {
                    let own = object::namespace(document);
                    Some(if own.is_empty() { namespace } else { own }.to_owned())
                }
                _ => continue,
            };
            for rule in object::items(&document["rules"]) {
                rules.push(Self::read(rule, scope.clone())?);
            }
        }
        Ok(rules)
    }

    fn read(rule: &Value, namespace: Option<String>) -> Result<Self, String> {
        let words = |field: &str| -> Vec<String> {
            object::items(&rule[field]).filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let verbs = words("verbs");
        if verbs.is_empty() {
            return Err(format!("a rule needs verbs: {rule}"));
        }
        Ok(Self {
            namespace,
            groups: words("apiGroups"),
            resources: words("resources"),
            names: words("resourceNames"),
            verbs,
        })
    }

    pub(crate) fn allows(&self, request: &AccessRequest<'_>) -> bool {
        let has = |list: &[String], word: &str| list.iter().any(|one| one == "*" || one == word);
        let resource_fits = self.resources.iter().any(|one| {
            let all_below = request.resource.split_once('/').map(|(_, below)| format!("*/{below}"));
            one == "*" || *one == request.resource || Some(one) == all_below.as_ref()
        });
        let namespace_fits =
            self.namespace.as_ref().is_none_or(|namespace| namespace == request.namespace);
        // A rule with names covers neither creations nor lists.
        let name_fits = self.names.is_empty() || self.names.iter().any(|name| name == request.name);
        namespace_fits
            && name_fits
            && resource_fits
            && has(&self.groups, request.group)
            && has(&self.verbs, request.verb)
    }
}
