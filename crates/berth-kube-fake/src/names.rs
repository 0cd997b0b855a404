//! Valid names of objects, and generated names.

use serde_json::{Value, json};

use crate::failure::Cause;
use crate::resource::Resource;

/// Consonants and digits that form no words and are not confused.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The maximum length of a generated name.
const GENERATED_MAX: usize = 63;

/// A short random suffix.
pub(crate) fn random_word(length: usize) -> String {
    (0..length)
        .map(|_| {
            char::from(ALPHABET.get(fastrand::usize(..ALPHABET.len())).copied().unwrap_or(b'x'))
        })
        .collect()
}

/// A suffix that encodes a number, in the same characters.
pub(crate) fn suffix_for(mut number: u64) -> String {
    let mut word = String::new();
    for _ in 0..10 {
        let base = ALPHABET.len() as u64;
        let at = usize::try_from(number % base).unwrap_or_default();
        word.push(char::from(ALPHABET.get(at).copied().unwrap_or(b'x')));
        number /= base;
    }
    word
}

/// A prefix with five random characters.
pub(crate) fn generate(prefix: &str) -> String {
    let kept = prefix.get(..GENERATED_MAX - 5).unwrap_or(prefix);
    format!("{kept}{}", random_word(5))
}

/// A DNS label: lower case letters, digits, hyphens.
pub(crate) fn is_label(text: &str) -> bool {
    let edge = |byte: Option<&u8>| {
        byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    text.len() <= 63
        && edge(text.as_bytes().first())
        && edge(text.as_bytes().last())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// A DNS subdomain: labels separated by dots.
pub(crate) fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label_of_subdomain)
}

fn is_label_of_subdomain(text: &str) -> bool {
    let edge = |byte: Option<&u8>| {
        byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    edge(text.as_bytes().first())
        && edge(text.as_bytes().last())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// What is invalid about an object's name.
pub(crate) fn check(resource: &Resource, name: &str) -> Option<Cause> {
    let value: Value = json!(name);
    match resource.plural.as_str() {
        "namespaces" if resource.group.is_empty() => (!is_label(name)).then(|| {
            let text = "a lowercase RFC 1123 label must consist of lower case alphanumeric \
                        characters or '-', and must start and end with an alphanumeric character";
            Cause::invalid("metadata.name", &value, text)
        }),
        _ => (!is_subdomain(name)).then(|| {
            let text = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
                        characters, '-' or '.', and must start and end with an alphanumeric \
                        character";
            Cause::invalid("metadata.name", &value, text)
        }),
    }
}
