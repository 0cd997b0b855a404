//! The existing name that a mistyped one was meant to be. Knows nothing of what the names stand for.

/// The name that was most likely meant, if any is close enough; the first of several.
pub fn closest<'a>(text: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // A third of the letters may be wrong; with more, it is another name.
    let limit = (text.chars().count() / 3).clamp(1, 4);
    let near = names.map(|name| (distance(text, name), name)).filter(|(far, _)| *far <= limit);
    near.min().map(|(_, name)| name)
}

/// The edit distance, with a swap of neighbours as one edit.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().abs_diff(b.len()) > 4 {
        return usize::MAX;
    }
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = changed.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = least;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_mistake_is_recognized_and_another_name_is_not() {
        let names = || ["node-000012", "node-000021", "rack-7", "db"].into_iter();
        assert_eq!(closest("ndoe-000012", names()), Some("node-000012"));
        assert_eq!(closest("node-00012", names()), Some("node-000012"));
        assert_eq!(closest("rack7", names()), Some("rack-7"));
        assert_eq!(closest("d", names()), Some("db"));
        assert_eq!(closest("something", names()), None);
    }
}
