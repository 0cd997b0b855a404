//! RFC 6902: a list of operations, applied in order, all or none.

use serde_json::Value;

use crate::failure::Failure;

/// The document with all operations applied.
pub(crate) fn apply(document: &Value, patch: &Value) -> Result<Value, Failure> {
    let operations = patch.as_array().ok_or_else(|| {
        Failure::bad_request("error decoding patch: json: a JSON patch is a list of operations")
    })?;
    let mut result = document.clone();
    for operation in operations {
        apply_operation(&mut result, operation).map_err(Failure::patch_does_not_apply)?;
    }
    Ok(result)
}

fn apply_operation(document: &mut Value, operation: &Value) -> Result<(), String> {
    let text = |field: &str| operation[field].as_str();
    let path = text("path").ok_or_else(|| "an operation needs a path".to_owned())?;
    let value = || {
        operation
            .get("value")
            .cloned()
            .ok_or_else(|| format!("{path}: the operation needs a value"))
    };
    match text("op").unwrap_or_default() {
        "add" => add(document, path, value()?),
        "remove" => remove(document, path).map(drop),
        "replace" => {
            let place = find(document, path)?;
            *place = value()?;
            Ok(())
        }
        "test" => {
            // The library of the real server treats a missing member as null.
            let found = document.pointer(path).cloned().unwrap_or(Value::Null);
            if found == operation["value"] {
                return Ok(());
            }
            Err(format!("testing value {path} failed: test failed"))
        }
        "move" => {
            let from = text("from").ok_or_else(|| "a move needs a from".to_owned())?;
            let moved = remove(document, from)?;
            add(document, path, moved)
        }
        "copy" => {
            let from = text("from").ok_or_else(|| "a copy needs a from".to_owned())?;
            let copied = find(document, from)?.clone();
            add(document, path, copied)
        }
        other => Err(format!("unexpected kind of operation: {other:?}")),
    }
}

fn find<'a>(document: &'a mut Value, path: &str) -> Result<&'a mut Value, String> {
    document.pointer_mut(path).ok_or_else(|| format!("{path}: doc is missing path: missing value"))
}

/// The parent's path and the last step, unescaped.
fn split(path: &str) -> Result<(&str, String), String> {
    let (parent, last) = path
        .rsplit_once('/')
        .ok_or_else(|| format!("{path:?}: a path must be empty or start with a slash"))?;
    Ok((parent, last.replace("~1", "/").replace("~0", "~")))
}

fn add(document: &mut Value, path: &str, value: Value) -> Result<(), String> {
    if path.is_empty() {
        *document = value;
        return Ok(());
    }
    let (parent, last) = split(path)?;
    match find(document, parent)? {
        Value::Object(map) => {
            map.insert(last, value);
            Ok(())
        }
        Value::Array(list) => {
            if last == "-" {
                list.push(value);
                return Ok(());
            }
            let at: usize = last.parse().map_err(|_| format!("{path}: not an index"))?;
            if at > list.len() {
                return Err(format!("{path}: the index is past the end of the list"));
            }
            list.insert(at, value);
            Ok(())
        }
        _ => Err(format!("{path}: the parent is neither a map nor a list")),
    }
}

fn remove(document: &mut Value, path: &str) -> Result<Value, String> {
    let (parent, last) = split(path)?;
    let missing = || format!("{path}: unable to remove nonexistent key: missing value");
    match find(document, parent)? {
        Value::Object(map) => map.remove(&last).ok_or_else(missing),
        Value::Array(list) => {
            let at: usize = last.parse().map_err(|_| missing())?;
            if at >= list.len() {
                return Err(missing());
            }
            Ok(list.remove(at))
        }
        _ => Err(missing()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::apply;

    #[test]
    fn operations_apply_in_order_or_not_at_all() {
        let document = json!({ "a": { "b/c": 1 }, "list": [1, 2] });
        let table: [(Value, Option<Value>); 7] = [
            (
                json!([{ "op": "add", "path": "/a/x~1y", "value": 2 }]),
                Some(json!({ "a": { "b/c": 1, "x/y": 2 }, "list": [1, 2] })),
            ),
            (
                json!([{ "op": "add", "path": "/list/1", "value": 9 }]),
                Some(json!({ "a": { "b/c": 1 }, "list": [1, 9, 2] })),
            ),
            (
                json!([{ "op": "add", "path": "/list/-", "value": 9 }]),
                Some(json!({ "a": { "b/c": 1 }, "list": [1, 2, 9] })),
            ),
            (
                json!([{ "op": "test", "path": "/a/b~1c", "value": 1 },
                       { "op": "remove", "path": "/a" }]),
                Some(json!({ "list": [1, 2] })),
            ),
            (json!([{ "op": "test", "path": "/a/b~1c", "value": 2 }]), None),
            (json!([{ "op": "add", "path": "/no/x", "value": 2 }]), None),
            (json!([{ "op": "replace", "path": "/none", "value": 2 }]), None),
        ];
        for (patch, expected) in table {
            assert_eq!(apply(&document, &patch).ok(), expected, "{patch}");
        }
    }
}
