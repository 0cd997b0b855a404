//! Events. The newer form (with `eventTime`) must state its reporter and action; the older one is accepted
//! unchecked. Both must be in the namespace of their object.

use serde_json::{Value, json};

use crate::failure::Cause;
use crate::object;

/// Maximum lengths of the fields of a newer event, in bytes.
const REASON_MAX: usize = 128;
const NOTE_MAX: usize = 1024;

pub(super) fn check(value: &Value, causes: &mut Vec<Cause>) {
    let about = value["involvedObject"]["namespace"].as_str().unwrap_or_default();
    let here = object::namespace(value);
    let fits = if about.is_empty() { here.is_empty() || here == "default" } else { about == here };
    if !fits {
        let text = "does not match event.namespace";
        causes.push(Cause::invalid("involvedObject.namespace", &json!(about), text));
    }
    if value["eventTime"].is_null() {
        return;
    }
    let text = |field: &str| value[field].as_str().unwrap_or_default();
    for (field, shown) in [
        ("reportingComponent", "reportingController"),
        ("reportingInstance", "reportingInstance"),
        ("action", "action"),
        ("reason", "reason"),
    ] {
        if text(field).is_empty() {
            causes.push(Cause::required(shown, ""));
        }
        if text(field).len() > REASON_MAX {
            let length = format!("can have at most {REASON_MAX} characters");
            causes.push(Cause::invalid(shown, &value[field], &length));
        }
    }
    if !text("reportingComponent").is_empty()
        && !crate::selector::is_label_key(text("reportingComponent"))
    {
        let malformed = "must be a qualified name";
        causes.push(Cause::invalid("reportingController", &value["reportingComponent"], malformed));
    }
    if text("message").len() > NOTE_MAX {
        let length = format!("can have at most {NOTE_MAX} characters");
        causes.push(Cause::invalid("note", &json!(""), &length));
    }
    if !["Normal", "Warning"].contains(&text("type")) {
        causes.push(Cause::invalid("type", &value["type"], "has invalid value"));
    }
}
