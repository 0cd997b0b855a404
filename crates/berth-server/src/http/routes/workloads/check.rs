//! Workloads that could never run are refused when they are stored.

use berth_api::NewWorkload;

use crate::problem::{ApiError, ApiResult};
use berth_control::ControlPlane;
use berth_control::attachments::volumes_of;
use berth_control::caller::is_name;
use berth_control::placement::{apply_default_disk, request_of};
use berth_control::workload::Definition;

/// Most replicas of one workload.
pub(super) const MOST: u32 = 100_000;

/// Refuses a workload whose members could never be placed.
pub(super) async fn new(
    control: &ControlPlane,
    tenant: &str,
    name: &str,
    new: &NewWorkload,
) -> ApiResult<()> {
    for (field, value) in [("tenant", tenant), ("name", name)] {
        if !is_name(value) {
            let value = Some(format!("{value:?}"));
            return Err(ApiError::field(field, value, "1 to 200 characters, none of them control"));
        }
    }
    if let Some(replicas) = new.replicas {
        self::replicas(replicas)?;
    }
    template(name, new)?;
    let texts = new.pools.iter().map(|pool| ("pools", pool));
    let texts = texts.chain(new.process.iter().map(|process| ("process", process)));
    let mut texts = texts.chain(new.release.iter().map(|release| ("release", release)));
    if let Some((field, value)) = texts.find(|(_, value)| !is_name(value)) {
        let value = Some(format!("{value:?}"));
        return Err(ApiError::field(field, value, "1 to 200 characters, none of them control"));
    }
    let rules = new.capacity.map_or(Ok(()), |capacity| capacity.validate());
    rules.and(new.rolling.validate()).map_err(|error| ApiError::invalid(error.to_string()))?;
    let mut request = request_of(tenant, &new.template);
    request.workload = Some(name.to_owned());
    let policy = control.catalog.policy();
    apply_default_disk(policy.as_deref(), &new.template, &mut request);
    berth_control::elastic::classify(policy.as_deref(), &mut request, "template.elastic")?;
    request.validate().map_err(|invalid| ApiError::invalid(format!("template: {invalid}")))?;
    let mut volumes = request.volumes;
    for set in &new.template.attachments {
        volumes.extend(volumes_of(control, tenant, set).await?);
    }
    single_writer(name, new.replicas, !volumes.is_empty())?;
    one_home(control, tenant, &volumes)
}

/// Refuses to change a part of a workload that exceeds a limit: it must be stored again as a whole.
pub(super) fn not_quarantined(now: &Definition) -> ApiResult<()> {
    let Some(excess) = &now.quarantined else { return Ok(()) };
    let why = format!("workload {} is quarantined: {excess}", now.name());
    let remedy = "store the whole workload again within the limit, or remove it";
    Err(ApiError::conflict("quarantined", why).remedy(remedy))
}

/// Refuses more replicas than there may be.
pub(super) fn replicas(replicas: u32) -> ApiResult<()> {
    if replicas > MOST {
        return Err(ApiError::field("replicas", Some(replicas.to_string()), "0 to 100000"));
    }
    Ok(())
}

/// Refuses more than one replica where only one may write.
pub(super) fn single_writer(name: &str, replicas: Option<u32>, has_volumes: bool) -> ApiResult<()> {
    let Some(replicas) = replicas.filter(|replicas| has_volumes && *replicas > 1) else {
        return Ok(());
    };
    let why = format!(
        "workload {name} has a volume, which one instance at a time may write; replicas is \
         {replicas}, accepted is 0 or 1"
    );
    let remedy = "ask for one replica, or take the volumes out of the template";
    Err(ApiError::conflict("volume_single_writer", why).remedy(remedy))
}

/// Refuses volumes on different nodes: no instance could run on the node of all of them.
fn one_home(control: &ControlPlane, tenant: &str, volumes: &[String]) -> ApiResult<()> {
    let catalog = control.catalog.read();
    // Others' volumes are as if they were not there.
    let known = volumes.iter().filter_map(|id| catalog.volumes.get(id));
    let mut known = known.filter(|volume| volume.is_for(tenant));
    let Some(first) = known.next() else { return Ok(()) };
    match known.find(|volume| volume.home != first.home) {
        Some(other) => {
            let why = format!(
                "volumes {} and {} are on different nodes, and an instance must run on the node of both",
                first.id, other.id
            );
            let remedy = "move one of them with `berth volumes move VOLUME --to NODE`";
            Err(ApiError::conflict("volume_homes_differ", why).remedy(remedy))
        }
        None => Ok(()),
    }
}

fn template(name: &str, new: &NewWorkload) -> ApiResult<()> {
    let template = &new.template;
    let wrong = |field: &str, value: String, accepted: &str| {
        Err(ApiError::field(&format!("template.{field}"), Some(value), accepted))
    };
    if let Some(id) = template.id {
        return wrong("id", id.to_string(), "no id: every member gets its own");
    }
    if let Some(count) = template.count {
        return wrong("count", count.to_string(), "nothing: replicas says how many");
    }
    match template.workload.as_deref().filter(|other| *other != name) {
        Some(other) => wrong("workload", format!("{other:?}"), "the name in the path, or nothing"),
        None => Ok(()),
    }
}
