//! Rules that depend on the request alone: they pass for every node or for none.

use super::{Filter, FilterTest, Verdict};
use crate::model::{Evidence, InstanceId};
use crate::prepared_request::PreparedRequest;

/// All filters of this file at once, without the evidence. No policy may switch these off.
pub(super) fn admits(prepared: &PreparedRequest<'_>) -> bool {
    secrets_present(prepared).is_ok()
        && address_available(prepared).is_ok()
        && volume_exclusive(prepared).is_ok()
}

pub(super) static SECRETS_PRESENT: Filter = Filter {
    name: "secrets-present",
    rule: "the request needs no secrets, or its `env` has a bundle of them",
    means: "the environment has no secrets, or the request names no environment",
    settings: &[],
    example: |setup| {
        setup.request.needs_secrets = true;
        setup.request.env = Some("prod".to_owned());
    },
    code: "secrets_missing",
    remedy: "store secrets for the environment, or drop needs_secrets",
    transient: false,
    test: FilterTest::Request(secrets_present),
};

fn secrets_present(prepared: &PreparedRequest<'_>) -> Verdict {
    let env = prepared.request.env.as_deref();
    let tenant = &prepared.request.tenant;
    if !prepared.request.needs_secrets || prepared.fleet.has_secrets(tenant, env) {
        return Ok(());
    }
    Err(Evidence::fact("secrets of the environment", env.unwrap_or("not named"), "present"))
}

pub(super) static ADDRESS_AVAILABLE: Filter = Filter {
    name: "address-available",
    rule: "an overlay address is left, or addresses are not counted",
    means: "no overlay address is left",
    settings: &[],
    example: |setup| setup.free_addresses = Some(0),
    code: "ipam_exhausted",
    remedy: "widen the range of the address pool, or release instances",
    transient: true,
    test: FilterTest::Request(address_available),
};

fn address_available(prepared: &PreparedRequest<'_>) -> Verdict {
    match prepared.fleet.free_addresses() {
        Some(0) => Err(Evidence::fact("free overlay addresses", 0, "at least 1")),
        Some(_) | None => Ok(()),
    }
}

pub(super) static VOLUME_EXCLUSIVE: Filter = Filter {
    name: "volume-exclusive",
    rule: "none of the request's volumes is attached to another instance",
    means: "a volume is attached to another instance",
    settings: &[],
    example: |setup| {
        setup.volume("data", "a", Some(InstanceId::from_u128(9)));
        setup.request.volumes = vec!["data".to_owned()];
    },
    code: "volume_in_use",
    remedy: "detach the volume from the instance that uses it, or use another volume",
    transient: true,
    test: FilterTest::Request(volume_exclusive),
};

fn volume_exclusive(prepared: &PreparedRequest<'_>) -> Verdict {
    for volume in prepared.request.volumes.iter().filter_map(|id| prepared.fleet.volume(id)) {
        if let Some(user) = volume.attached_to.filter(|user| *user != prepared.request.id) {
            let name = prepared.fleet.instance_name(user);
            let found = match name {
                Some(name) => format!("attached to {name} ({user})"),
                None => format!("attached to {user}"),
            };
            let fact = format!("volume {}", volume.id);
            return Err(Evidence::about_others(&fact, found, "free"));
        }
    }
    Ok(())
}
