//! One worker of a conformance worker pool: runs the tasks from its standard input.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [settings] = arguments.as_slice() else {
        eprintln!("usage: ledger-worker SETTINGS, as JSON; the conformance tests start it");
        return ExitCode::from(2);
    };
    match berth_conformance::worker::run(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ledger-worker: {error:#}");
            ExitCode::FAILURE
        }
    }
}
