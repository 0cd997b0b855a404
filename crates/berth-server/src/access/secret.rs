//! A token's secret: 256 random bits behind the token's id. Only its hash is ever stored.

use std::fmt::Write as _;

use subtle::ConstantTimeEq;

/// How every token begins, so that a leaked one is recognised.
const PREFIX: &str = "berth";

/// What a caller presents: `berth_ID_SECRET`.
pub struct Secret {
    /// The token's id.
    pub id: String,
    /// The hash of what follows.
    pub hash: [u8; 32],
}

impl Secret {
    /// A new secret, and the text that is shown once.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn make() -> Result<(Self, String), getrandom::Error> {
        let mut bytes = [0_u8; 40];
        getrandom::fill(&mut bytes)?;
        let (id, secret) = (hex(&bytes[..8]), hex(&bytes[8..]));
        let hash = *blake3::hash(secret.as_bytes()).as_bytes();
        let text = format!("{PREFIX}_{id}_{secret}");
        Ok((Self { id, hash }, text))
    }

    /// Reads what a caller presents; absent when it cannot be a token.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let mut parts = text.trim().splitn(3, '_');
        let (prefix, id, secret) = (parts.next()?, parts.next()?, parts.next()?);
        let well_formed = prefix == PREFIX && id.len() == 16 && secret.len() == 64;
        let hash = || *blake3::hash(secret.as_bytes()).as_bytes();
        well_formed.then(|| Self { id: id.to_owned(), hash: hash() })
    }

    /// Whether it is the secret with this stored hash. Takes the same time whatever differs.
    #[must_use]
    pub fn is(&self, stored: &str) -> bool {
        bool::from(hex(&self.hash).as_bytes().ct_eq(stored.as_bytes()))
    }

    /// The hash as stored.
    #[must_use]
    pub fn stored(&self) -> String {
        hex(&self.hash)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_known_again_by_its_hash_alone() {
        let (secret, text) = Secret::make().unwrap();
        let read = Secret::read(&text).unwrap();
        assert_eq!(read.id, secret.id);
        assert!(read.is(&secret.stored()));
        assert!(!secret.stored().contains(text.rsplit('_').next().unwrap()));
        let other = Secret::make().unwrap().0;
        assert!(!read.is(&other.stored()));
    }

    #[test]
    fn what_is_no_token_is_not_read() {
        for text in ["", "berth", "berth_x_y", "other_0123456789abcdef_0", "Bearer x"] {
            assert!(Secret::read(text).is_none(), "{text}");
        }
    }
}
