//! `berth audit`: who changed what, and from where.

use berth_api::AuditEntry;
use clap::Args;

use super::failure::Done;
use super::session::{Session, given};
use super::table::Table;
use super::words::{moment, or_dash};

/// List changes: who, what, from where.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  berth audit --limit 20\n  berth audit --action node.drain --subject node-0000\n  berth audit -o json | jq '.items[] | select(.action == \"token.create\")'"
)]
pub(crate) struct Audit {
    /// By this actor, as the list names it.
    #[arg(long)]
    actor: Option<String>,
    /// Of this kind: node.cordon.
    #[arg(long)]
    action: Option<String>,
    /// To something whose name has this in it.
    #[arg(long)]
    subject: Option<String>,
    /// How many at most.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

impl Audit {
    pub(crate) async fn run(self, session: &Session) -> Done {
        let out = &session.out;
        let human = |entries: Vec<AuditEntry>| {
            let columns = [">N", "WHEN", "WHO", "FROM", "DID", "TO WHAT", "REQUEST"];
            let mut table = Table::new(&columns[..if out.is_wide() { 7 } else { 6 }]);
            for entry in &entries {
                let mut row = vec![
                    entry.n.to_string().into(),
                    moment(entry.at).into(),
                    entry.actor.as_str().into(),
                    entry.origin.as_str().into(),
                    entry.action.as_str().into(),
                    entry.subject.as_str().into(),
                ];
                if out.is_wide() {
                    row.push(or_dash(entry.request_id.as_deref()));
                }
                table.row(row);
            }
            out.table(&table, "Nothing was changed yet.");
        };
        let query =
            given(&[("actor", &self.actor), ("action", &self.action), ("subject", &self.subject)]);
        session.show_list("/v1/audit", &query, usize::try_from(self.limit).ok(), human).await
    }
}
