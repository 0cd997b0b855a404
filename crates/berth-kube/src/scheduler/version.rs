//! Which of two states of one object is the newer.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The version of an object as a number that rises. The API server's versions are numbers wherever it
/// keeps its objects in etcd; of others nothing can be said, and the last word counts.
pub(crate) fn of(meta: &ObjectMeta) -> Option<u64> {
    number(meta.resource_version.as_deref()?)
}

/// A version in words as a number.
pub(crate) fn number(version: &str) -> Option<u64> {
    version.parse().ok()
}

/// Whether what is told is not newer than what is known.
pub(crate) fn is_old_news(told: Option<u64>, known: Option<u64>) -> bool {
    matches!((told, known), (Some(told), Some(known)) if told <= known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers_and_not_words() {
        assert!(is_old_news(number("99"), number("100")));
        assert!(is_old_news(number("100"), number("100")));
        assert!(!is_old_news(number("101"), number("100")));
        assert!(!is_old_news(number("zebra"), number("100")));
        assert!(!is_old_news(number("1"), None));
    }
}
