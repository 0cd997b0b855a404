//! Stored objects: JSON that is encoded once and shared by all readers, with accessors for common fields.

use std::sync::{Arc, OnceLock};

use bytes::{BufMut, Bytes, BytesMut};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};

use crate::resource::Resource;

/// The key of an object in its table. Ordered as in etcd: by namespace, then by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
}

impl Key {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    pub(crate) fn of(value: &Value) -> Self {
        Self::new(namespace(value), name(value))
    }
}

/// One version of an object; immutable.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) value: Value,
    pub(crate) version: u64,
    pub(crate) resource: Arc<Resource>,
    bare: OnceLock<Bytes>,
}

/// An object without `apiVersion` and `kind`, as in the items of a list.
struct WithoutTypeMeta<'a>(&'a Value);

impl Serialize for WithoutTypeMeta<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in self.0.as_object().into_iter().flatten() {
            if key != "apiVersion" && key != "kind" {
                map.serialize_entry(key, value)?;
            }
        }
        map.end()
    }
}

impl Object {
    pub(crate) fn new(resource: Arc<Resource>, value: Value, version: u64) -> Self {
        Self { value, version, resource, bare: OnceLock::new() }
    }

    fn bare(&self) -> &Bytes {
        self.bare.get_or_init(|| {
            // A map of strings to JSON values always encodes.
            Bytes::from(serde_json::to_vec(&WithoutTypeMeta(&self.value)).unwrap_or_default())
        })
    }

    /// Appends the object as an item of a list. Lists of built-in kinds omit the kind of the items, so that
    /// a client that relies on it fails here.
    pub(crate) fn write_item(&self, out: &mut BytesMut) {
        if self.resource.custom {
            self.write_whole(out);
        } else {
            out.put_slice(self.bare());
        }
    }

    /// Appends the object with its kind.
    pub(crate) fn write_whole(&self, out: &mut BytesMut) {
        let bare = self.bare();
        out.put_slice(b"{\"apiVersion\":\"");
        out.put_slice(self.resource.api_version().as_bytes());
        out.put_slice(b"\",\"kind\":\"");
        out.put_slice(self.resource.kind.as_bytes());
        out.put_slice(b"\"");
        if bare.len() > 2 {
            out.put_slice(b",");
        }
        out.put_slice(bare.get(1..).unwrap_or(b"}"));
    }

    pub(crate) fn whole(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.bare().len() + 64);
        self.write_whole(&mut out);
        out.freeze()
    }

    pub(crate) fn key(&self) -> Key {
        Key::of(&self.value)
    }
}

pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value["metadata"][field].as_str().unwrap_or_default()
}

pub(crate) fn name(value: &Value) -> &str {
    text(value, "name")
}

pub(crate) fn namespace(value: &Value) -> &str {
    text(value, "namespace")
}

pub(crate) fn uid(value: &Value) -> &str {
    text(value, "uid")
}

pub(crate) fn is_terminating(value: &Value) -> bool {
    value["metadata"]["deletionTimestamp"].is_string()
}

pub(crate) fn label<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value["metadata"]["labels"].get(key)?.as_str()
}

pub(crate) fn annotation<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value["metadata"]["annotations"].get(key)?.as_str()
}

pub(crate) fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

pub(crate) fn owners(value: &Value) -> impl Iterator<Item = &Value> {
    items(&value["metadata"]["ownerReferences"])
}

/// The uid of the controller of this object.
pub(crate) fn controller_uid(value: &Value) -> Option<&str> {
    owners(value).find(|owner| owner["controller"] == true)?["uid"].as_str()
}

pub(crate) fn finalizers(value: &Value) -> Vec<String> {
    items(&value["metadata"]["finalizers"]).filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The `status` of one condition: `True`, `False`, `Unknown`.
pub(crate) fn condition<'a>(value: &'a Value, kind: &str) -> Option<&'a str> {
    items(&value["status"]["conditions"]).find(|entry| entry["type"] == kind)?["status"].as_str()
}

/// Sets a condition; its transition time changes only with its status.
pub(crate) fn set_condition(value: &mut Value, kind: &str, status: &str, more: &Value) {
    let now = now();
    let mut wanted = json!({ "type": kind, "status": status, "lastTransitionTime": now });
    for (key, field) in more.as_object().into_iter().flatten() {
        wanted[key] = field.clone();
    }
    let conditions = &mut value["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(list) = conditions.as_array_mut() else { return };
    match list.iter_mut().find(|entry| entry["type"] == kind) {
        Some(entry) => {
            if entry["status"] == status {
                wanted["lastTransitionTime"] = entry["lastTransitionTime"].clone();
            }
            *entry = wanted;
        }
        None => list.push(wanted),
    }
}

/// Removes a field, if it exists.
pub(crate) fn remove(value: &mut Value, field: &str) {
    if let Some(map) = value.as_object_mut() {
        map.remove(field);
    }
}

/// Removes nulls, empty maps and empty lists below `metadata`: the real server never sends them.
pub(crate) fn tidy_metadata(value: &mut Value) {
    let Some(metadata) = value["metadata"].as_object_mut() else { return };
    metadata.retain(|_, field| match field {
        Value::Null => false,
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::String(text) => !text.is_empty(),
        _ => true,
    });
}

/// The current time in the format of `metav1.Time`: whole seconds.
pub(crate) fn now() -> String {
    after(0)
}

/// The time a number of seconds from now.
pub(crate) fn after(seconds: i64) -> String {
    let now = jiff::Timestamp::now();
    let moment = now.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap_or(now);
    moment.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
