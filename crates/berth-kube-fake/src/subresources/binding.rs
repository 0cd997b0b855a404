//! Binding a pod to a node, once. Nothing checks that the node exists: the real server does not
//! either.

use serde_json::{Value, json};

use crate::api::{Api, Writer};
use crate::failure::{Failure, success};
use crate::object::{self, Key};
use crate::store::Binding;

impl Api {
    /// Handles `POST pods/NAME/binding`.
    pub(crate) async fn bind(
        &self,
        writer: &Writer,
        key: &Key,
        body: &Value,
    ) -> Result<Value, Failure> {
        let pods = self.table("", "pods")?;
        let resource = self.resource(pods);
        let wanted = object::name(body);
        if !wanted.is_empty() && wanted != &*key.name {
            return Err(Failure::bad_request("name in URL does not match name in Binding object"));
        }
        let namespace = object::namespace(body);
        if !namespace.is_empty() && namespace != &*key.namespace {
            return Err(Failure::bad_request(
                "the namespace of the provided object does not match the namespace sent on the \
                 request",
            ));
        }
        let node = node_of(body)?;
        let mut store = self.store();
        let old = store.get(pods, key).ok_or_else(|| Failure::not_found(&resource, &key.name))?;
        let pod = &old.value;
        let refuse = |why: String| Err(Failure::conflict_on(&resource, "binding", &key.name, why));
        let (uid, wanted) = (object::uid(pod), object::uid(body));
        if !wanted.is_empty() && wanted != uid {
            return refuse(format!(
                "Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}"
            ));
        }
        let (version, wanted) =
            (object::text(pod, "resourceVersion"), object::text(body, "resourceVersion"));
        if !wanted.is_empty() && wanted != version {
            return refuse(format!(
                "Precondition failed: ResourceVersion in precondition: {wanted}, ResourceVersion \
                 in object meta: {version}"
            ));
        }
        if object::is_terminating(pod) {
            return refuse(format!(
                "pod {} is being deleted, cannot be assigned to a host",
                key.name
            ));
        }
        if let Some(bound) = pod["spec"]["nodeName"].as_str().filter(|bound| !bound.is_empty()) {
            return refuse(format!("pod {} is already assigned to node {bound:?}", key.name));
        }
        if object::items(&pod["spec"]["schedulingGates"]).next().is_some() {
            return refuse(format!("pod {} has non-empty .spec.schedulingGates", key.name));
        }
        if writer.dry_run {
            return Ok(success(201, None));
        }
        let mut new = pod.clone();
        new["spec"]["nodeName"] = json!(node);
        for (name, value) in body["metadata"]["annotations"].as_object().into_iter().flatten() {
            new["metadata"]["annotations"][name] = value.clone();
        }
        object::set_condition(&mut new, "PodScheduled", "True", &Value::Null);
        let uid = uid.to_owned();
        let stored = store.put(pods, new);
        let pod = format!("{}/{}", key.namespace, key.name);
        store.bindings.push(Binding { pod, uid, node, seq: stored.version });
        Ok(success(201, None))
    }
}

fn node_of(body: &Value) -> Result<String, Failure> {
    let kind = body["target"]["kind"].as_str().unwrap_or_default();
    if !["", "Node"].contains(&kind) {
        let text = format!("target.kind: Unsupported value: {kind:?}: supported values: \"Node\"");
        return Err(Failure::internal(text));
    }
    match body["target"]["name"].as_str() {
        Some(name) if !name.is_empty() => Ok(name.to_owned()),
        _ => Err(Failure::internal("target.name: Required value")),
    }
}
