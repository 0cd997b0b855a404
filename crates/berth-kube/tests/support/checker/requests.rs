//! What a pod asks for, counted as the documentation says: the sum over containers and sidecars, or
//! the largest step of its initialisation, or what is stated for the whole pod; then the overhead.

use std::collections::BTreeMap;

use serde_json::Value;

use super::quantity::{ONE, billionths, ceil};
use super::selector::{list, text};

/// Amounts by resource: CPU in thousandths, everything else in whole units.
pub(crate) type Amounts = BTreeMap<String, i128>;

/// Adds to amounts.
pub(crate) fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        *to.entry(name.clone()).or_default() += amount;
    }
}

fn raise(to: &mut Amounts, least: &Amounts) {
    for (name, amount) in least {
        let entry = to.entry(name.clone()).or_default();
        *entry = (*entry).max(*amount);
    }
}

/// Rounds exact amounts up to the units in which the scheduler counts.
fn rounded(exact: Amounts) -> Amounts {
    let unit = |name: &str| if name == "cpu" { ONE / 1000 } else { ONE };
    exact.into_iter().map(|(name, amount)| (name.clone(), ceil(amount, unit(&name)))).collect()
}

fn read(value: Option<&Value>) -> Result<Amounts, String> {
    let pairs = value.and_then(Value::as_object).into_iter().flatten();
    pairs.map(|(name, amount)| Ok((name.clone(), billionths(amount)?))).collect()
}

/// What a node has for pods.
pub(crate) fn allocatable(node: &Value) -> Result<Amounts, String> {
    let stated = node.pointer("/status/allocatable").or(node.pointer("/status/capacity"));
    read(stated).map(rounded)
}

/// Requests; where there is none, the limit.
fn stated(resources: Option<&Value>) -> Result<Amounts, String> {
    let mut all = read(resources.and_then(|it| it.get("limits")))?;
    all.extend(read(resources.and_then(|it| it.get("requests")))?);
    Ok(all)
}

/// What a container asks for. While it is resized in place, what it still has counts too; if the
/// node can never do it, only that.
fn of_container(pod: &Value, container: &Value) -> Result<Amounts, String> {
    let asked = stated(container.get("resources"))?;
    let name = text(container, "/name");
    let statuses = list(pod, "/status/containerStatuses").iter();
    let mut statuses = statuses.chain(list(pod, "/status/initContainerStatuses"));
    let Some(status) = statuses.find(|it| text(it, "/name") == name) else { return Ok(asked) };
    if status.get("resources").is_none() {
        return Ok(asked);
    }
    let never = list(pod, "/status/conditions")
        .iter()
        .any(|it| text(it, "/type") == "PodResizePending" && text(it, "/reason") == "Infeasible");
    let mut held = if never { Amounts::new() } else { asked };
    raise(&mut held, &read(status.pointer("/resources/requests"))?);
    raise(&mut held, &read(status.get("allocatedResources"))?);
    Ok(held)
}

/// What a pod asks for.
pub(crate) fn of_pod(pod: &Value) -> Result<Amounts, String> {
    let mut running = Amounts::new();
    for container in list(pod, "/spec/containers") {
        add(&mut running, &of_container(pod, container)?);
    }
    let (mut sidecars, mut largest) = (Amounts::new(), Amounts::new());
    for container in list(pod, "/spec/initContainers") {
        let mut step = of_container(pod, container)?;
        if text(container, "/restartPolicy") == "Always" {
            add(&mut running, &step);
            add(&mut sidecars, &step);
            step = sidecars.clone();
        } else {
            add(&mut step, &sidecars);
        }
        raise(&mut largest, &step);
    }
    raise(&mut running, &largest);
    let of_whole = |name: &str| matches!(name, "cpu" | "memory") || name.starts_with("hugepages-");
    let whole = stated(pod.pointer("/spec/resources"))?;
    running.extend(whole.into_iter().filter(|(name, _)| of_whole(name)));
    add(&mut running, &read(pod.pointer("/spec/overhead"))?);
    Ok(rounded(running))
}
