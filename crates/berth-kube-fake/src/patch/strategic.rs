//! Strategic merges: lists whose entries have a merge key are merged entry by entry, all others
//! are replaced.

use serde_json::{Value, json};

use crate::failure::Failure;
use crate::object;

/// The merge key of a list; `None`: the list is replaced.
fn merge_key(path: &[&str], field: &str) -> Option<&'static str> {
    let parent = path.last().copied().unwrap_or_default();
    match field {
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "env"
        | "imagePullSecrets"
        | "schedulingGates"
        | "resourceClaims"
        | "webhooks" => Some("name"),
        "conditions" => Some("type"),
        "ownerReferences" => Some("uid"),
        "volumeMounts" => Some("mountPath"),
        "volumeDevices" => Some("devicePath"),
        "hostAliases" => Some("ip"),
        "ports" if parent == "containers" || parent == "initContainers" => Some("containerPort"),
        "ports" if parent == "spec" => Some("port"),
        "topologySpreadConstraints" => Some("topologyKey"),
        "taints" => Some("key"),
        "addresses" if parent == "status" => Some("type"),
        "podIPs" | "hostIPs" => Some("ip"),
        _ => None,
    }
}

/// Lists of plain values that are merged as sets.
fn is_set(field: &str) -> bool {
    field == "finalizers"
}

/// The object with the patch merged into it.
pub(super) fn merge(old: &Value, patch: &Value) -> Result<Value, Failure> {
    if !patch.is_object() {
        return Err(Failure::bad_request("cannot unmarshal a patch that is no object"));
    }
    let mut new = old.clone();
    maps(&mut new, patch, &mut Vec::new())?;
    Ok(new)
}

fn maps<'a>(target: &mut Value, patch: &'a Value, path: &mut Vec<&'a str>) -> Result<(), Failure> {
    if patch["$patch"] == "replace" {
        *target = patch.clone();
        object::remove(target, "$patch");
        return Ok(());
    }
    if !target.is_object() {
        *target = json!({});
    }
    for (field, wanted) in patch.as_object().into_iter().flatten() {
        if field == "$retainKeys" || field.starts_with("$setElementOrder/") {
            continue;
        }
        if let Some(list) = field.strip_prefix("$deleteFromPrimitiveList/") {
            let gone: Vec<&Value> = object::items(wanted).collect();
            if let Some(entries) = target[list].as_array_mut() {
                entries.retain(|entry| !gone.contains(&entry));
            }
            continue;
        }
        match wanted {
            Value::Null => object::remove(target, field),
            Value::Object(_) => {
                path.push(field);
                maps(&mut target[field.as_str()], wanted, path)?;
                path.pop();
            }
            Value::Array(entries) => match merge_key(path, field) {
                Some(key) => lists(&mut target[field.as_str()], entries, key, field, path)?,
                None if is_set(field) => {
                    let mut all = target[field.as_str()].as_array().cloned().unwrap_or_default();
                    all.extend(
                        entries
                            .iter()
                            .filter(|entry| !all.contains(entry))
                            .cloned()
                            .collect::<Vec<_>>(),
                    );
                    target[field.as_str()] = Value::Array(all);
                }
                None => target[field.as_str()] = wanted.clone(),
            },
            _ => target[field.as_str()] = wanted.clone(),
        }
    }
    Ok(())
}

fn lists<'a>(
    target: &mut Value,
    entries: &'a [Value],
    key: &str,
    field: &'a str,
    path: &mut Vec<&'a str>,
) -> Result<(), Failure> {
    if entries.iter().any(|entry| entry["$patch"] == "replace") {
        let kept = entries.iter().filter(|entry| entry["$patch"].is_null()).cloned();
        *target = Value::Array(kept.collect());
        return Ok(());
    }
    let mut all = target.as_array().cloned().unwrap_or_default();
    for entry in entries {
        let name = &entry[key];
        if name.is_null() {
            return Err(Failure::bad_request(format!(
                "map: {entry} does not contain declared merge key: {key}"
            )));
        }
        if entry["$patch"] == "delete" {
            all.retain(|one| one[key] != *name);
            continue;
        }
        match all.iter_mut().find(|one| one[key] == *name) {
            Some(one) => {
                path.push(field);
                maps(one, entry, path)?;
                path.pop();
            }
            None => all.push(entry.clone()),
        }
    }
    *target = Value::Array(all);
    Ok(())
}
