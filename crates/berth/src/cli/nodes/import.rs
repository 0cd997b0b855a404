//! `berth nodes import`: register many nodes from a file.

use std::path::PathBuf;

use berth_api::ImportReport;
use berth_client::ClientError;
use berth_engine::FactLayer;
use clap::Args;

use crate::cmdutil::{CmdResult, Exit, Failure, RawJson, Session, decode, file, plural};

const EXAMPLES: &str = "\
Examples:
  berth nodes import fleet.csv
  berth nodes import fleet.json

A JSON file is a list of nodes, each as berth nodes register -f reads one. The first line of a CSV file
has the names of its columns.

An import owns the columns of its file: an empty cell takes its value away, and other facts stay. What
was set with berth nodes set wins over an import, unless it is imported --as set.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ImportArgs {
    /// File: .csv or .json.
    file: PathBuf,
    /// Whose word the columns are: reported, which agents may change and operators may override, or
    /// set, which no agent changes.
    #[arg(long = "as", value_name = "LAYER", default_value = "reported",
        value_parser = ["reported", "set"])]
    layer: String,
}

impl ImportArgs {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        let extension = self.file.extension().and_then(|extension| extension.to_str());
        let content_type = match extension {
            Some("csv") => "text/csv",
            Some("json") => "application/json",
            _ => {
                let name = self.file.display();
                return Err(Failure::usage(format!("{name} is neither CSV nor JSON"))
                    .accepted("a file whose name ends in .csv or .json"));
            }
        };
        let text = file::text(&self.file)?;
        let bar = session.out.spinner(&format!("importing {}", self.file.display()));
        let path = format!("/v1/nodes/import?as={}", self.layer);
        let answer = session.client.post_text::<RawJson>(&path, content_type, text).await;
        bar.finish_and_clear();
        let raw = match answer {
            Ok(raw) => raw,
            // Errors of lines come as a report, not as a problem document.
            Err(ClientError::Status { status: 422, text, .. }) => serde_json::from_str(&text)?,
            Err(error) => return Err(error.into()),
        };
        let report: ImportReport = decode(&raw)?;
        if !report.errors.is_empty() {
            return Err(import_failure(&report));
        }
        session.out.response(&raw, |report: ImportReport| {
            session.out.line(format!(
                "{} added, {} changed, {} unchanged",
                report.added, report.changed, report.unchanged
            ));
            if !report.owned.is_empty() {
                let layer = report.layer.map_or("", |layer| match layer {
                    FactLayer::Reported => " of what nodes report",
                    FactLayer::Set => " of what operators set",
                });
                session.out.line(format!(
                    "the file owns{layer}: {}; an empty cell takes a value away, other facts stay",
                    report.owned.join(", ")
                ));
            }
        })
    }
}

fn import_failure(report: &ImportReport) -> Failure {
    const SHOWN: usize = 20;
    let wrong = plural(report.errors.len(), "line");
    let line = format!("{wrong} cannot be accepted; nothing was imported");
    let mut failure = Failure::new(Exit::Usage, line);
    for line in report.errors.iter().take(SHOWN) {
        let node = line.node.as_ref().map(|node| format!(" ({node})")).unwrap_or_default();
        failure = failure.accepted(format!("line {}{node}: {}", line.line, line.error));
    }
    if report.errors.len() > SHOWN {
        let more = report.errors.len() - SHOWN;
        failure = failure.remedy(format!("fix these first; {more} more have errors"));
    }
    failure
}
