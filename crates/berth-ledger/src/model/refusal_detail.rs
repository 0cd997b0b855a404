//! The explanation of a refusal as it is stored: compressed, as text.
//!
//! Explanations are JSON, kilobytes long, and much alike. They are compressed with a dictionary of what
//! they have in common, since there may be many more refusals than grants. Those that were stored as
//! plain JSON stay readable.

use std::borrow::Cow;
use std::io::{Read as _, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::{Deserialize, Serialize};

/// What explanations are compressed with. It must never change: what was stored is read with it. A better
/// one gets a prefix of its own.
const DICTIONARY: &[u8] = include_bytes!("refusal_dictionary_1.txt");

/// What is in front of an explanation that was compressed with it. Plain ones begin as JSON does.
const PREFIX: &str = "z1:";

const LEVEL: i32 = 3;

/// Longer explanations are not read: none are stored.
const JSON_BYTES_MAX: u64 = 64 << 20;

/// The explanation of a refusal, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RefusalDetail(Box<str>);

impl RefusalDetail {
    /// An explanation in JSON, in its shortest form.
    #[must_use]
    pub fn new(json: &str) -> Self {
        let compressed = crate::invariant_ok!(compress(json.as_bytes()), "refusal_is_compressed");
        let text = compressed.map(|bytes| format!("{PREFIX}{}", STANDARD_NO_PAD.encode(bytes)));
        match text.filter(|text| text.len() < json.len()) {
            Some(text) => Self(text.into_boxed_str()),
            None => Self(Box::from(json)),
        }
    }

    /// The explanation in JSON; absent if what is stored cannot be read.
    #[must_use]
    pub fn json(&self) -> Option<Cow<'_, str>> {
        let Some(text) = self.0.strip_prefix(PREFIX) else { return Some(Cow::Borrowed(&self.0)) };
        let json = decompress(&STANDARD_NO_PAD.decode(text).ok()?).ok()?;
        String::from_utf8(json).ok().map(Cow::Owned)
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn stored_bytes(&self) -> usize {
        self.0.len()
    }
}

fn compress(json: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = zstd::Encoder::with_dictionary(Vec::new(), LEVEL, DICTIONARY)?;
    encoder.write_all(json)?;
    encoder.finish()
}

fn decompress(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let decoder = zstd::Decoder::with_dictionary(bytes, DICTIONARY)?;
    let mut json = Vec::new();
    decoder.take(JSON_BYTES_MAX).read_to_end(&mut json)?;
    Ok(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"[{"instance":"01991234-0000-7000-8000-000000000000","tenant":"acme","code":"no_memory","filter":"memory","remedy":"ask for less memory, release instances, or add a node","nodes":1000,"counts":[{"filter":"memory","removed":1000}]}]"#;

    #[test]
    fn an_explanation_is_stored_in_fewer_bytes_and_read_as_it_was() {
        let stored = RefusalDetail::new(JSON);
        assert!(stored.stored_bytes() * 2 < JSON.len(), "{}", stored.stored_bytes());
        assert_eq!(stored.json().unwrap(), JSON);
        let text = serde_json::to_string(&stored).unwrap();
        assert_eq!(serde_json::from_str::<RefusalDetail>(&text).unwrap(), stored);
    }

    #[test]
    fn what_gains_nothing_is_stored_as_it_is_and_so_is_what_earlier_versions_stored() {
        assert_eq!(RefusalDetail::new("{}").stored_bytes(), 2);
        let text = serde_json::to_string(JSON).unwrap();
        let earlier: RefusalDetail = serde_json::from_str(&text).unwrap();
        assert_eq!((earlier.json().unwrap(), earlier.stored_bytes()), (JSON.into(), JSON.len()));
    }

    #[test]
    fn what_is_stored_today_is_read_for_ever() {
        // Fails if the dictionary changes.
        let hash = blake3::hash(DICTIONARY).to_hex();
        assert_eq!(
            hash.as_str(),
            "03b1262c99388f065e4cb3eada292474fbfa7f7505ee9d37ea6db8a8a34d3f24"
        );
    }

    #[test]
    fn what_cannot_be_read_is_absent() {
        for text in ["z1:", "z1:!", "z1:AAAA"] {
            assert_eq!(RefusalDetail(Box::from(text)).json(), None, "{text}");
        }
    }
}
