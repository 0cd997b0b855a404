//! Writes the documents that are made of the code: `cargo xtask docs`.

mod refusals;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Every document that is made of the code, by its path in the repository.
fn documents() -> [(&'static str, String); 3] {
    [
        ("docs/limits.md", berth_api::limits::reference()),
        ("docs/policy-reference.md", berth_engine::policy_reference()),
        ("docs/refusals.md", refusals::page()),
    ]
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Writes them all.
pub(super) fn run() -> ExitCode {
    for (path, text) in documents() {
        if let Err(error) = std::fs::write(root().join(path), text) {
            eprintln!("docs: cannot write {path}: {error}");
            return ExitCode::FAILURE;
        }
        println!("docs: wrote {path}");
    }
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_are_as_the_code_has_them() {
        for (path, text) in documents() {
            let found = std::fs::read_to_string(root().join(path)).unwrap_or_default();
            assert!(found == text, "{path} is not up to date; run `cargo xtask docs`");
        }
    }
}
