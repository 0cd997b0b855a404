//! Chores of the repository that a shell script would do worse: `cargo xtask <chore>`.
//!
//! Nothing here is shipped, and no other crate may depend on it.

mod docs;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask tidy    check the house rules that compilers do not
       cargo xtask docs    write the documents that are made of the code";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy::run(),
        ["docs"] => docs::run(),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
