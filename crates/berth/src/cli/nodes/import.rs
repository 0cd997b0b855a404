//! `berth nodes import`: many nodes from a file.

use std::path::PathBuf;

use berth_api::ImportReport;
use berth_client::ClientError;
use clap::Args;

use crate::cli::failure::{Done, Exit, Failure};
use crate::cli::place::file;
use crate::cli::session::{Raw, Session, read_as};
use crate::cli::words::many;

const EXAMPLES: &str = "\
Examples:
  berth nodes import fleet.csv
  berth nodes import fleet.json

A JSON file is a list of nodes, each as berth nodes register -f takes one. A CSV file has the names of
its columns in its first line.";

/// What is imported.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Import {
    /// The file: .csv or .json.
    file: PathBuf,
}

impl Import {
    pub(crate) async fn run(self, session: &Session) -> Done {
        let extension = self.file.extension().and_then(|extension| extension.to_str());
        let content_type = match extension {
            Some("csv") => "text/csv",
            Some("json") => "application/json",
            _ => {
                let name = self.file.display();
                return Err(Failure::usage(format!("{name} is of an unknown kind"))
                    .accepted("a file whose name ends in .csv or .json"));
            }
        };
        let text = file::text(&self.file)?;
        let bar = session.out.spinner(&format!("importing {}", self.file.display()));
        let answer = session.client.post_text::<Raw>("/v1/nodes/import", content_type, text).await;
        bar.finish_and_clear();
        let raw = match answer {
            Ok(raw) => raw,
            // What is wrong with the lines comes as a report, not as a problem.
            Err(ClientError::Status { status: 422, text }) => serde_json::from_str(&text)?,
            Err(error) => return Err(error.into()),
        };
        let report: ImportReport = read_as(&raw)?;
        if !report.errors.is_empty() {
            return Err(refused(&report));
        }
        session.out.answer(&raw, |report: ImportReport| {
            session.out.line(format!(
                "{} added, {} changed, {} unchanged",
                report.added, report.changed, report.unchanged
            ));
            Ok(())
        })
    }
}

fn refused(report: &ImportReport) -> Failure {
    const SHOWN: usize = 20;
    let wrong = many(report.errors.len(), "line");
    let line = format!("{wrong} cannot be accepted; nothing was imported");
    let mut failure = Failure::new(Exit::Usage, line);
    for line in report.errors.iter().take(SHOWN) {
        let node = line.node.as_ref().map(|node| format!(" ({node})")).unwrap_or_default();
        failure = failure.accepted(format!("line {}{node}: {}", line.line, line.error));
    }
    if report.errors.len() > SHOWN {
        let more = report.errors.len() - SHOWN;
        failure = failure.remedy(format!("mend these first; {more} more follow"));
    }
    failure
}
