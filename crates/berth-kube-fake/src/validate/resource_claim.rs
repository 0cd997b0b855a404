//! Changes of a claim of devices: what it asks for is fixed, and only an allocated claim can be reserved.

use serde_json::Value;

use crate::failure::Cause;
use crate::object;

/// The most consumers of a claim.
const CONSUMERS_MAX: usize = 256;

/// Checks a new version of a claim against the old one.
pub(super) fn update(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    if old["spec"] != new["spec"] {
        causes.push(Cause::invalid("spec", &new["spec"], "field is immutable"));
    }
    let (before, after) = (&old["status"], &new["status"]);
    let consumers = object::items(&after["reservedFor"]).count();
    if after["allocation"].is_null() && consumers > 0 {
        let text = "may not be specified when `allocation` is not set";
        causes.push(Cause::forbidden("status.reservedFor", text));
    }
    if consumers > CONSUMERS_MAX {
        let text = format!("must have at most {CONSUMERS_MAX} items");
        causes.push(Cause::invalid("status.reservedFor", &after["reservedFor"], &text));
    }
    let is_other = |a: &Value, b: &Value| !a.is_null() && !b.is_null() && a != b;
    if is_other(&before["allocation"], &after["allocation"]) {
        let text = "field is immutable";
        causes.push(Cause::invalid("status.allocation", &after["allocation"], text));
    }
    let finalizer = object::finalizers(new).iter().any(|it| it.ends_with("/delete-protection"));
    if before["allocation"].is_null() && !after["allocation"].is_null() && !finalizer {
        // The real server accepts it; a claim that vanishes while it has devices is a defect of the writer.
        causes.push(Cause::forbidden("status.allocation", "the claim has no finalizer"));
    }
    let grew = consumers > object::items(&before["reservedFor"]).count();
    if object::is_terminating(old) && grew {
        let text = "new entries may not be added to a claim that is being deleted";
        causes.push(Cause::forbidden("status.reservedFor", text));
    }
}
