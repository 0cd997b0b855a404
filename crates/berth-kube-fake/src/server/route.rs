//! Maps method and path to a route.

use std::collections::HashMap;
use std::sync::Arc;

use http::{Method, Uri};

use crate::api::Api;
use crate::failure::{Cause, Failure};
use crate::list::ListQuery;
use crate::resource::Resource;
use crate::selector::{FieldSelector, LabelSelector, Selection};
use crate::store::TableId;

/// The target of a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestTarget {
    pub(crate) table: TableId,
    pub(crate) resource: Arc<Resource>,
    pub(crate) namespace: Option<String>,
    /// Empty: the whole collection.
    pub(crate) name: String,
    pub(crate) subresource: String,
    pub(crate) verb: &'static str,
}

impl RequestTarget {
    /// `pods/binding`.
    pub(crate) fn resource_path(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.plural.clone()
        } else {
            format!("{}/{}", self.resource.plural, self.subresource)
        }
    }

    /// `deployments.apps/scale`.
    pub(crate) fn with_subresource(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.qualified()
        } else {
            format!("{}/{}", self.resource.qualified(), self.subresource)
        }
    }

    pub(crate) fn is_write(&self) -> bool {
        !["get", "list", "watch"].contains(&self.verb)
    }
}

/// A request without its body.
#[derive(Clone, Debug)]
pub(crate) struct RequestHead {
    /// `None` for discovery.
    pub(crate) target: Option<RequestTarget>,
    pub(crate) query: ListQuery,
    pub(crate) dry_run: bool,
    pub(crate) field_manager: Option<String>,
    pub(crate) parameters: HashMap<String, String>,
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let pair: Vec<u8> = rest.by_ref().take(2).collect();
                let digits = std::str::from_utf8(&pair).ok();
                let value = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                bytes.push(value.unwrap_or(b'%'));
            }
            _ => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn parameters(uri: &Uri) -> HashMap<String, String> {
    let pairs = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key), decode(value))
        })
        .collect()
}

/// Parses the path, the method and the parameters.
pub(crate) fn read(api: &Api, method: &Method, uri: &Uri) -> Result<RequestHead, Failure> {
    let parameters = parameters(uri);
    let flag = |name: &str| parameters.get(name).is_some_and(|v| v == "true" || v == "1");
    let text = |name: &str| parameters.get(name).cloned().unwrap_or_default();
    let dry_run = match text("dryRun").as_str() {
        "" => false,
        "All" => true,
        other => {
            let cause = Cause::unsupported("dryRun", other, &["All"]);
            return Err(Failure::invalid_kind("meta.k8s.io", "CreateOptions", "", &[cause]));
        }
    };
    let steps: Vec<String> =
        uri.path().split('/').filter(|step| !step.is_empty()).map(decode).collect();
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    let mut head = RequestHead {
        target: None,
        query: ListQuery::default(),
        dry_run,
        field_manager: parameters.get("fieldManager").cloned(),
        parameters: parameters.clone(),
    };
    let Some(mut target) = find(api, &steps)? else { return Ok(head) };
    let number = |name: &str| -> Result<Option<u64>, Failure> {
        match text(name) {
            value if value.is_empty() => Ok(None),
            value => value.parse().map(Some).map_err(|_| {
                Failure::bad_request(format!("strconv.ParseInt: parsing {value:?}: invalid syntax"))
            }),
        }
    };
    head.query = ListQuery {
        selection: Selection {
            namespace: target.namespace.clone(),
            labels: LabelSelector::parse(&text("labelSelector"))?,
            fields: FieldSelector::parse(&text("fieldSelector"), &target.resource)?,
        },
        limit: usize::try_from(number("limit")?.unwrap_or(0)).unwrap_or(usize::MAX),
        go_on: text("continue"),
        version: text("resourceVersion"),
        version_match: text("resourceVersionMatch"),
        watch: flag("watch"),
        bookmarks: flag("allowWatchBookmarks"),
        timeout_s: number("timeoutSeconds")?,
        metadata_only: false,
        initial_events: parameters
            .contains_key("sendInitialEvents")
            .then(|| flag("sendInitialEvents")),
    };
    let collection = target.name.is_empty();
    target.verb = verb(method, collection, head.query.watch)?;
    if collection && let Some(name) = head.query.selection.fields.name() {
        // For permissions, a list of one name is a list of that object.
        if target.verb != "create" {
            target.name = name.to_owned();
        }
    }
    head.target = Some(target);
    Ok(head)
}

fn verb(method: &Method, collection: bool, watch: bool) -> Result<&'static str, Failure> {
    match (method.as_str(), collection) {
        ("GET", true) if watch => Ok("watch"),
        ("GET", true) => Ok("list"),
        ("GET", false) => Ok("get"),
        ("POST", _) => Ok("create"),
        ("PUT", false) => Ok("update"),
        ("PATCH", false) => Ok("patch"),
        ("DELETE", false) => Ok("delete"),
        ("DELETE", true) => Ok("deletecollection"),
        _ => Err(Failure::method_not_allowed()),
    }
}

/// The resource of a path; `None` for discovery.
fn find(api: &Api, steps: &[&str]) -> Result<Option<RequestTarget>, Failure> {
    let (group, version, rest) = match steps {
        ["api", version, rest @ ..] if !rest.is_empty() => ("", *version, rest),
        ["apis", group, version, rest @ ..] if !rest.is_empty() => (*group, *version, rest),
        _ => return Ok(None),
    };
    let (namespace, plural, name, subresource) = match rest {
        ["namespaces"] => (None, "namespaces", "", ""),
        ["namespaces", name] => (None, "namespaces", *name, ""),
        ["namespaces", name, below @ ("status" | "finalize")] => {
            (None, "namespaces", *name, *below)
        }
        ["namespaces", namespace, plural] => (Some(*namespace), *plural, "", ""),
        ["namespaces", namespace, plural, name] => (Some(*namespace), *plural, *name, ""),
        ["namespaces", namespace, plural, name, below] => {
            (Some(*namespace), *plural, *name, *below)
        }
        [plural] => (None, *plural, "", ""),
        [plural, name] => (None, *plural, *name, ""),
        [plural, name, below] => (None, *plural, *name, *below),
        _ => return Err(Failure::no_such_path()),
    };
    let table = api.table(group, plural)?;
    let resource = api.resource(table);
    let fits = resource.version == version
        && (resource.namespaced || namespace.is_none())
        && (!resource.namespaced || namespace.is_some() || name.is_empty());
    let below_fits = match subresource {
        "" => true,
        "status" => resource.status,
        "scale" => resource.scale.is_some(),
        "finalize" => resource.kind == "Namespace",
        other => resource.others.contains(&other),
    };
    if !fits || !below_fits {
        return Err(Failure::no_such_path());
    }
    Ok(Some(RequestTarget {
        table,
        resource,
        namespace: namespace.map(str::to_owned),
        name: name.to_owned(),
        subresource: subresource.to_owned(),
        verb: "get",
    }))
}
