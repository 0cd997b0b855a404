//! Ids of instances that were given none, and of tickets: derived from the request, so that a retry
//! means the same instances and the same ticket at every server, and keyed with a secret of the
//! ledger, so that other tenants cannot compute them.

use berth_engine::InstanceId;
use berth_ledger::Ledger;
use uuid::Uuid;

use super::load_secret;
use crate::error::StartError;

/// The secret that ids are derived with; all servers of a ledger share it.
pub(crate) struct InstanceIdKey([u8; 32]);

/// One instance of a request: whose it is, and where in the request it is.
#[derive(Clone, Copy)]
pub(crate) struct InstancePosition<'a> {
    /// The tenant.
    pub(crate) tenant: &'a str,
    /// The id of the request.
    pub(crate) request_id: &'a str,
    /// The place of its spec in the list.
    pub(crate) place: usize,
    /// Its number within the count of its spec.
    pub(crate) number: u32,
}

impl InstanceIdKey {
    /// The key of a ledger; the first server makes it.
    ///
    /// # Errors
    /// When the ledger cannot be used, or what it holds is no secret.
    pub(crate) fn load(ledger: &Ledger) -> Result<Self, StartError> {
        load_secret(ledger, "instance-ids").map(Self)
    }

    /// The id of an instance. It begins with the time of the request id where that is a UUID of
    /// version 7, so that the ids of one moment lie together in the ledger's index.
    pub(crate) fn derive(&self, of: InstancePosition<'_>) -> InstanceId {
        derive_with(blake3::Hasher::new_keyed(&self.0), of)
    }

    /// The id of the ticket that a request waits under.
    pub(crate) fn derive_ticket(&self, tenant: &str, request_id: &str) -> String {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hash_request(&mut hasher, tenant, request_id);
        // Shorter than the position of an instance, so that no input of one is one of the other.
        hasher.update(b"ticket");
        uuid_of(&hasher, request_id).to_string()
    }
}

/// The id that releases before the key derived. Answers that they stored are known by it.
pub(crate) fn derive_unkeyed(of: InstancePosition<'_>) -> InstanceId {
    derive_with(blake3::Hasher::new(), of)
}

fn derive_with(mut hasher: blake3::Hasher, of: InstancePosition<'_>) -> InstanceId {
    let InstancePosition { tenant, request_id, place, number } = of;
    hash_request(&mut hasher, tenant, request_id);
    hasher.update(&u64::try_from(place).unwrap_or(u64::MAX).to_le_bytes());
    hasher.update(&number.to_le_bytes());
    InstanceId::from_u128(uuid_of(&hasher, request_id).as_u128())
}

fn hash_request(hasher: &mut blake3::Hasher, tenant: &str, request_id: &str) {
    hasher.update(tenant.as_bytes()).update(&[0]).update(request_id.as_bytes()).update(&[0]);
}

fn uuid_of(hasher: &blake3::Hasher, request_id: &str) -> Uuid {
    let mut bytes = [0_u8; 16];
    bytes.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    if let Ok(id) = Uuid::parse_str(request_id)
        && id.get_version_num() == 7
    {
        bytes[..6].copy_from_slice(&id.as_bytes()[..6]);
    }
    Uuid::new_v8(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &str = "0196d3c4-7a10-7000-8000-000000000001";

    fn position(request_id: &str, number: u32) -> InstancePosition<'_> {
        InstancePosition { tenant: "acme", request_id, place: 0, number }
    }

    #[test]
    fn ids_depend_on_the_key_and_start_with_the_time_of_the_request() {
        let (one, other) = (InstanceIdKey([1; 32]), InstanceIdKey([2; 32]));
        let id = one.derive(position(REQUEST, 0));
        assert_eq!(id, one.derive(position(REQUEST, 0)));
        assert_ne!(id, one.derive(position(REQUEST, 1)));
        assert_ne!(id, other.derive(position(REQUEST, 0)));
        assert_ne!(id, derive_unkeyed(position(REQUEST, 0)));
        assert!(id.to_string().starts_with("0196d3c4-7a10-8"), "{id}");
        assert_ne!(one.derive(position("a", 0)), other.derive(position("a", 0)));
    }

    #[test]
    fn a_ticket_has_one_id_for_each_request_and_tenant() {
        let key = InstanceIdKey([1; 32]);
        let id = key.derive_ticket("acme", REQUEST);
        assert_eq!(id, key.derive_ticket("acme", REQUEST));
        assert!(id.starts_with("0196d3c4-7a10-8"), "{id}");
        assert_ne!(id, key.derive_ticket("acme", "a"));
        assert_ne!(id, key.derive_ticket("other", REQUEST));
        assert_ne!(id, key.derive(position(REQUEST, 0)).to_string());
    }

    #[test]
    fn unkeyed_ids_are_those_of_earlier_releases() {
        // Computed by the release before the key.
        let id = derive_unkeyed(position("a", 0)).to_string();
        assert_eq!(id, "5442e174-bac8-8221-8b63-9aa0d76d6b13");
    }
}
