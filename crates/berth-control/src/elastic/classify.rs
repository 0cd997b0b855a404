//! What a request for an elastic instance means under the policy: its class, and how it is charged.

use berth_engine::elastic::{Overcommit, Size};
use berth_engine::{InstanceRequest, Policy};

use crate::error::{ControlError, ControlResult};

/// Looks an elastic instance's class up and charges by it. `at` is where the request says so.
///
/// # Errors
/// When it says what only the policy may, or names a class that the policy does not know.
pub fn classify(
    policy: Option<&Policy>,
    request: &mut InstanceRequest,
    at: &str,
) -> ControlResult<()> {
    let Some(elastic) = request.elastic.as_mut() else { return Ok(()) };
    if elastic.using.is_some() {
        let accepted = "nothing: `resources` says what it uses";
        return Err(ControlError::field(
            &format!("{at}.using"),
            Some("given".to_owned()),
            accepted,
        ));
    }
    if !elastic.overcommit_permille.is_none() {
        let value = Some(elastic.overcommit_permille.permille().to_string());
        let accepted = "nothing: the policy says it by `class`";
        return Err(ControlError::field(&format!("{at}.overcommit_permille"), value, accepted));
    }
    for (field, unit) in elastic.compute_unit.into_iter().flat_map(Size::named) {
        if unit == 0 {
            let field = format!("{at}.compute_unit.{field}");
            return Err(ControlError::field(&field, Some("0".to_owned()), "1 or more"));
        }
    }
    for ((name, min, _), (_, max, _)) in elastic.min.named().into_iter().zip(elastic.max.named()) {
        if max != 0 && min > max {
            let accepted = format!("at least {at}.min.{name}, which is {min}, or 0");
            let field = format!("{at}.max.{name}");
            return Err(ControlError::field(&field, Some(max.to_string()), &accepted));
        }
    }
    let Some(class) = &elastic.class else { return Ok(()) };
    let classes = policy.map(|policy| &policy.elastic().classes);
    let Some(known) = classes.and_then(|classes| classes.get(class)) else {
        let names: Vec<&str> =
            classes.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        let accepted = match names.as_slice() {
            [] => "nothing: the policy in force knows no classes".to_owned(),
            names => format!("a class of the policy in force: {}", names.join(", ")),
        };
        return Err(ControlError::field(
            &format!("{at}.class"),
            Some(format!("{class:?}")),
            &accepted,
        ));
    };
    charge_by(request, known.overcommit_permille);
    Ok(())
}

/// What is asked for is what it uses; what is charged is less, if the class may be oversold.
fn charge_by(request: &mut InstanceRequest, overcommit: Overcommit) {
    let Some(elastic) = request.elastic.as_mut().filter(|_| !overcommit.is_none()) else { return };
    let using = Size::of(&request.resources);
    elastic.overcommit_permille = overcommit;
    elastic.using = Some(using);
    request.resources = overcommit.charge(using).within(request.resources);
}
