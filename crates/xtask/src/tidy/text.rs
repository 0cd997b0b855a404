//! Rules about lines of text: length of a file, its opening comment, paths of one machine.

use super::Violation;

const FILE_LINES_MAX: usize = 600;

/// First folders of paths that exist on one machine only, spelt so that this file passes.
const MACHINE_FOLDERS: [&str; 3] =
    [concat!("/", "root/"), concat!("/", "work/"), concat!("/", "home/")];

/// A file longer than one can hold in the head has two subjects.
pub(super) fn length(content: &str) -> Option<Violation> {
    let lines = content.lines().count();
    (lines > FILE_LINES_MAX).then(|| {
        Violation::new(
            FILE_LINES_MAX + 1,
            format!("file has {lines} lines, limit {FILE_LINES_MAX}"),
        )
    })
}

/// A module opens with what it is for.
pub(super) fn module_comment(content: &str) -> Option<Violation> {
    (!content.starts_with("//!"))
        .then(|| Violation::new(1, "file does not begin with a `//!` module comment"))
}

/// A path of somebody's machine is of no use to anybody else.
pub(super) fn machine_paths(content: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (index, line) in content.lines().enumerate() {
        for folder in MACHINE_FOLDERS {
            if line.match_indices(folder).any(|(at, _)| begins_a_path(&line[..at])) {
                violations.push(Violation::new(index + 1, format!("absolute path below {folder}")));
            }
        }
    }
    violations
}

/// Whether a slash after `before` starts an absolute path, rather than going on with a longer one.
fn begins_a_path(before: &str) -> bool {
    before
        .chars()
        .next_back()
        .is_none_or(|last| !last.is_alphanumeric() && !"_-./~*})".contains(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_have_600_lines_and_no_more() {
        assert_eq!(length(&"\n".repeat(600)), None);
        let violation = length(&"\n".repeat(601));
        assert_eq!(violation, Some(Violation::new(601, "file has 601 lines, limit 600")));
    }

    #[test]
    fn the_module_comment_must_come_first() {
        assert_eq!(module_comment("//! What it is for.\n"), None);
        for content in ["", "\n//! Late.\n", "// Plain.\n", "/// Of an item.\nfn f() {}\n"] {
            assert!(module_comment(content).is_some(), "{content:?}");
        }
    }

    #[test]
    fn machine_paths_are_found_where_a_path_begins() {
        let [root, work, home] = MACHINE_FOLDERS;
        let cases = [
            (format!("{root}x"), 1),
            (format!("see \"{work}x\" and ({home}y)"), 2),
            (format!("PATH={home}me/bin"), 1),
            (format!("docs{work}x"), 0),
            (format!("https://example.com{home}page"), 0),
            (format!("../..{root}x"), 0),
            ("no path here".to_owned(), 0),
        ];
        for (line, expected) in cases {
            assert_eq!(machine_paths(&line).len(), expected, "{line}");
        }
    }
}
