//! Rules that depend on the request alone: they hold for every node or for none.

use super::{Evidence, Filter, Test, Verdict};
use crate::plan::Ask;

/// All filters of this file at once, without the evidence. No policy may switch these off.
pub(super) fn admits(ask: &Ask<'_>) -> bool {
    secrets_present(ask).is_ok() && address_available(ask).is_ok() && volume_exclusive(ask).is_ok()
}

pub(super) static SECRETS_PRESENT: Filter = Filter {
    name: "secrets-present",
    code: "secrets_missing",
    remedy: "give the environment a bundle of secrets, or drop needs_secrets",
    transient: false,
    optional: false,
    test: Test::Request(secrets_present),
};

fn secrets_present(ask: &Ask<'_>) -> Verdict {
    let env = ask.request.env.as_deref();
    if !ask.request.needs_secrets || ask.fleet.has_secrets(env) {
        return Ok(());
    }
    Err(Evidence::fact("secrets of the environment", env.unwrap_or("not named"), "present"))
}

pub(super) static ADDRESS_AVAILABLE: Filter = Filter {
    name: "address-available",
    code: "ipam_exhausted",
    remedy: "widen the overlay prefix, or release instances",
    transient: true,
    optional: false,
    test: Test::Request(address_available),
};

fn address_available(ask: &Ask<'_>) -> Verdict {
    match ask.fleet.free_addresses() {
        Some(0) => Err(Evidence::fact("free overlay addresses", 0, "at least 1")),
        Some(_) | None => Ok(()),
    }
}

pub(super) static VOLUME_EXCLUSIVE: Filter = Filter {
    name: "volume-exclusive",
    code: "volume_in_use",
    remedy: "detach the volume from the instance that uses it, or use another volume",
    transient: true,
    optional: false,
    test: Test::Request(volume_exclusive),
};

fn volume_exclusive(ask: &Ask<'_>) -> Verdict {
    for volume in ask.request.volumes.iter().filter_map(|id| ask.fleet.volume(id)) {
        if let Some(user) = volume.attached_to.filter(|user| *user != ask.request.id) {
            let found = format!("attached to {user}");
            let fact = format!("volume {}", volume.id);
            return Err(Evidence::about_others(&fact, found, "free"));
        }
    }
    Ok(())
}
