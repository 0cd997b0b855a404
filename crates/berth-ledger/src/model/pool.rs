//! Pools of discrete values: addresses, ports, network ids, licences.
//!
//! A pool is a range of numbers. Free values have no row anywhere, so a /64 costs nothing.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::claim::Text;

/// What the numbers of a pool stand for, and so how they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolKind {
    /// IPv6 addresses.
    Ipv6,
    /// IPv4 addresses.
    Ipv4,
    /// Plain numbers: ports, VXLAN ids, licences.
    Number,
}

impl PoolKind {
    /// The kind's name as it stands in data.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ipv6 => "ipv6",
            Self::Ipv4 => "ipv4",
            Self::Number => "number",
        }
    }

    /// The kind of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Ipv6, Self::Ipv4, Self::Number].into_iter().find(|kind| kind.name() == name)
    }

    /// A value as people write it.
    #[must_use]
    pub fn write(self, value: u128) -> String {
        match self {
            Self::Ipv6 => Ipv6Addr::from(value).to_string(),
            Self::Ipv4 => Ipv4Addr::from(u32::try_from(value).unwrap_or(u32::MAX)).to_string(),
            Self::Number => value.to_string(),
        }
    }

    /// Reads a value as people write it.
    #[must_use]
    pub fn read(self, text: &str) -> Option<u128> {
        match self {
            Self::Ipv6 => text.parse::<Ipv6Addr>().ok().map(u128::from),
            Self::Ipv4 => text.parse::<Ipv4Addr>().ok().map(|address| u32::from(address).into()),
            Self::Number => text.parse().ok(),
        }
    }
}

/// A range of values that claims may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its name.
    pub id: Text,
    /// What its numbers stand for.
    pub kind: PoolKind,
    /// The first value.
    pub first: u128,
    /// The last value.
    pub last: u128,
    /// Seconds that a released value rests before it is given out again.
    pub quarantine_s: u32,
    /// The only tenant whose instances may take values; absent: it is open to all.
    pub tenant: Option<Text>,
}

/// A pool that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("pool {pool:?}: range {range:?} is not valid; accepted is {accepted}")]
pub struct InvalidPool {
    /// The pool.
    pub pool: String,
    /// What was given.
    pub range: String,
    /// What would do.
    pub accepted: &'static str,
}

impl Pool {
    /// Default quarantine of a released value, in seconds.
    pub const DEFAULT_QUARANTINE_S: u32 = 600;

    /// Pools up to this size are searched under their row's lock; larger ones from a place of the
    /// writer's own position, where it practically never collides with another.
    pub const SEARCHED: u128 = 1 << 16;

    /// A pool from a range as people write it: `fd00:7::/64`, `10.0.0.0/24` or `1000-4999`.
    ///
    /// Of an IPv4 network of more than two addresses, the first and the last are left out.
    ///
    /// # Errors
    /// Names the range and what would be accepted.
    pub fn parse(id: &str, range: &str) -> Result<Self, InvalidPool> {
        let invalid = || InvalidPool {
            pool: id.to_owned(),
            range: range.to_owned(),
            accepted: "an IPv6 or IPv4 network (fd00:7::/64, 10.0.0.0/24) or numbers (1000-4999)",
        };
        let (kind, first, last) = match range.split_once('/') {
            Some((address, bits)) => network(address, bits).ok_or_else(invalid)?,
            None => {
                let (first, last) = range.split_once('-').ok_or_else(invalid)?;
                let number = |text: &str| text.trim().parse::<u128>().map_err(|_| invalid());
                (PoolKind::Number, number(first)?, number(last)?)
            }
        };
        if first > last || id.is_empty() {
            return Err(invalid());
        }
        let quarantine_s = Self::DEFAULT_QUARANTINE_S;
        Ok(Self { id: Text::from(id), kind, first, last, quarantine_s, tenant: None })
    }

    /// The key of values that are free if the pool is assumed to be like this. No pool is named so.
    pub(crate) fn assumed_key(&self) -> Text {
        Text::from(format!("{}\0{}-{}", self.id, self.first, self.last))
    }

    /// How many values it has; one less for the whole of all numbers.
    #[must_use]
    pub const fn size(&self) -> u128 {
        (self.last - self.first).saturating_add(1)
    }

    /// Whether instances of a tenant may take values.
    #[must_use]
    pub fn is_open_to(&self, tenant: &str) -> bool {
        self.tenant.as_deref().is_none_or(|owner| owner == tenant)
    }

    /// Whether it is small enough to be searched.
    #[must_use]
    pub const fn is_searched(&self) -> bool {
        self.size() <= Self::SEARCHED
    }
}

fn network(address: &str, bits: &str) -> Option<(PoolKind, u128, u128)> {
    let bits: u32 = bits.parse().ok()?;
    if let Some(address) = PoolKind::Ipv6.read(address) {
        let mask = u128::MAX.checked_shr(bits).unwrap_or(0);
        // The first address of an IPv6 network is the routers' anycast address.
        let first = (address & !mask) + u128::from(mask > 0);
        return (bits <= 128).then_some((PoolKind::Ipv6, first, address | mask));
    }
    let address = PoolKind::Ipv4.read(address)?;
    let mask = u128::from(u32::MAX.checked_shr(bits).unwrap_or(0));
    let (first, last) = (address & !mask, address | mask);
    let skip = u128::from(mask > 1);
    (bits <= 32).then_some((PoolKind::Ipv4, first + skip, last - skip))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_people_write_them() {
        for (range, first, last, size) in [
            ("fd00:7::/64", "fd00:7::1", "fd00:7::ffff:ffff:ffff:ffff", u128::from(u64::MAX)),
            ("10.0.0.0/24", "10.0.0.1", "10.0.0.254", 254),
            ("10.0.0.4/32", "10.0.0.4", "10.0.0.4", 1),
            ("1000-4999", "1000", "4999", 4000),
        ] {
            let pool = Pool::parse("p", range).unwrap();
            assert_eq!(pool.kind.write(pool.first), first, "{range}");
            assert_eq!(pool.kind.write(pool.last), last, "{range}");
            assert_eq!(pool.size(), size, "{range}");
        }
    }

    #[test]
    fn a_range_that_is_none_is_named_in_the_error() {
        for range in ["fd00::/129", "10.0.0.0/33", "9-1", "x", "10.0.0.0", ""] {
            let error = Pool::parse("p", range).unwrap_err().to_string();
            assert!(error.contains(&format!("{range:?}")), "{error}");
        }
    }
}
