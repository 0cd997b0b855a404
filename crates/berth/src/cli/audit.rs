//! `berth audit`: who changed what, and from where.

use berth_api::AuditEntry;
use clap::Args;

use super::resource::{LatestOptions, Resource};
use crate::cmdutil::{CmdResult, Column, Session, columns, query_params, timestamp};

/// List changes: who made them, what, and from where.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  berth audit --limit 20\n  berth audit --action node.drain --subject node-0000\n  berth audit -o json | jq '.items[] | select(.action == \"token.create\")'"
)]
pub(crate) struct Audit {
    /// Show only changes by this actor, as listed.
    #[arg(long)]
    actor: Option<String>,
    /// Show only this kind of change, such as node.cordon.
    #[arg(long)]
    action: Option<String>,
    /// Show only changes to subjects whose name contains this.
    #[arg(long)]
    subject: Option<String>,
    #[command(flatten)]
    options: LatestOptions,
}

impl Resource for AuditEntry {
    const KIND: &'static str = "change";
    const PATH: &'static str = "/v1/audit";
    const EMPTY: &'static str = "No changes match.";
    const COLUMNS: &'static [Column<Self>] = columns![entry;
        ">N" => entry.n.to_string(),
        "WHEN" => timestamp(entry.at),
        "ACTOR" => entry.actor.as_str(),
        "FROM" => entry.origin.as_str(),
        "ACTION" => entry.action.as_str(),
        "SUBJECT" => entry.subject.as_str(),
        "+REQUEST" => entry.request_id.as_deref(),
    ];
}

impl Audit {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        let query = query_params(&[
            ("actor", &self.actor),
            ("action", &self.action),
            ("subject", &self.subject),
        ]);
        session.list::<AuditEntry>(&query, self.options).await
    }
}
