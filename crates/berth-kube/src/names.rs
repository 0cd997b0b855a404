//! The syntax of names in Kubernetes, to reject an invalid one before a request does. Knows no objects.

/// A DNS label: the name of a namespace or a Service.
#[must_use]
pub fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_dns_part(text)
}

fn is_dns_part(text: &str) -> bool {
    let inner = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '-';
    let is_inner = !text.is_empty() && text.chars().all(inner);
    is_inner && !text.starts_with('-') && !text.ends_with('-')
}

/// A DNS name: the name of most objects, and the prefix of a label.
#[must_use]
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_part)
}

/// The name part of a label's key, and its value unless empty.
#[must_use]
pub fn is_label_name(text: &str) -> bool {
    let inner = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
    let outer = |it: Option<char>| it.is_some_and(|it| it.is_ascii_alphanumeric());
    (1..=63).contains(&text.len())
        && text.chars().all(inner)
        && outer(text.chars().next())
        && outer(text.chars().next_back())
}

/// The key of a label: a name, with or without a prefix.
#[must_use]
pub fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_label_name(name),
        None => is_label_name(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_as_by_the_api_server() {
        assert!(is_label("a") && is_label("a-1") && is_label(&"a".repeat(63)));
        for odd in ["", "-a", "a-", "a.b", "A", "a_b", &"a".repeat(64)] {
            assert!(!is_label(odd), "{odd}");
        }
        assert!(is_subdomain("a.b-c.d1"));
        for odd in ["", ".", "a.", "a..b", "A.b", &"a.".repeat(127)] {
            assert!(!is_subdomain(odd), "{odd}");
        }
        assert!(is_qualified_name("a.b/C_d.e") && is_qualified_name("zone"));
        for odd in ["", "/a", "a/", "a/b/c", "A/b", "a/-b", "a b"] {
            assert!(!is_qualified_name(odd), "{odd}");
        }
    }
}
