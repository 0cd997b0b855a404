//! `berth explain`: why this node and not another, for a request, an instance or a pod.

use berth_api::engine::{InstanceId, NodeVerdict};
use berth_api::{ExplainLevel, Instance, InstanceExplanation, PlaceRequest, PlacementReason};
use berth_client::{ClientError, PlaceOutcome};
use clap::{Args, Subcommand};
use uuid::Uuid;

use super::decisions;
use super::explain_pod::ExplainPod;
use super::explanation;
use super::place::draw_failure;
use super::place::flags::RequestFlags;
use super::resource::Resource as _;
use crate::cmdutil::{CmdResult, Failure, Global, RawJson, Session, decode};

const EXAMPLES: &str = "\
Examples:
  berth explain --cpu 2 --memory 4GiB --tenant acme    what would be chosen now, and why
  berth explain --memory 512GiB -o wide                every rule on every node
  berth explain web-1                                  why an instance is where it is
  berth explain 01890a5d-ac96-774b-bcce-b302099a8057   by id, or a decision by id
  berth explain pod shop/web-0                         a Kubernetes pod, on every node";

/// Subjects that a Berth server does not know.
#[derive(Subcommand, Debug)]
enum ExternalSubject {
    Pod(Box<ExplainPod>),
}

/// Explain a placement: of a request without making it, of an instance or decision, or of a Kubernetes
/// pod.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Explain {
    #[command(subcommand)]
    external: Option<ExternalSubject>,
    /// Instance (id, unique prefix of it, or name) or decision.
    #[arg(value_name = "INSTANCE|DECISION")]
    subject: Option<String>,
    #[command(flatten)]
    request: RequestFlags,
    /// Show at most this many nodes of each kind.
    #[arg(long, default_value_t = 25, value_name = "N")]
    limit: usize,
}

impl Explain {
    pub(crate) async fn run(self, global: &Global) -> CmdResult {
        if let Some(ExternalSubject::Pod(pod)) = self.external {
            return pod.run(&global.out()).await;
        }
        let session = &global.session()?;
        let has_request = self.request.instance.any() || self.request.file.is_some();
        match &self.subject {
            Some(_) if has_request => Err(Failure::usage("both a name and a request are given")
                .accepted("either an instance or decision, or flags of a request")),
            Some(subject) => explain_placed(session, subject, self.limit).await,
            None if !has_request => Err(Failure::usage("nothing to explain is given")
                .accepted("an instance, a decision, or a request such as --cpu 2 --memory 4GiB")),
            None => self.dry_run(session).await,
        }
    }

    async fn dry_run(&self, session: &Session) -> CmdResult {
        let out = &session.out;
        let mut request = self.request.request()?;
        (request.dry_run, request.explain) = (true, ExplainLevel::Full);
        // Pages of one refusal are about the same instance.
        request.request_id.get_or_insert_with(|| Uuid::now_v7().to_string());
        let answer: Result<RawJson, ClientError> =
            session.client.post("/v1/placements", &request).await;
        let raw = match answer {
            Ok(raw) => raw,
            Err(error) => return Err(self.refused(session, error.into(), &request).await),
        };
        let PlaceOutcome::Placed(mut placed) = decode(&raw)? else {
            return out.data(&raw);
        };
        let instance = placed.instances.first().map(|placed| placed.instance);
        if let (Some(explanation), Some(instance)) = (&mut placed.explanation, instance)
            && !out.is_data()
        {
            let first = std::mem::take(&mut explanation.table);
            let next = explanation.next.take();
            explanation.table =
                self.node_verdicts(session, &request, instance, (first, next)).await?;
        }
        out.response(&raw, |_: serde::de::IgnoredAny| {
            if let Some(explanation) = &placed.explanation {
                out.line(explanation::winner(explanation));
                out.line("");
                out.line(explanation::table(explanation, out.is_wide(), self.limit));
            }
        })
    }

    /// Draws a refusal; in a wide table also every rule on every node.
    async fn refused(
        &self,
        session: &Session,
        failure: Failure,
        request: &PlaceRequest,
    ) -> Failure {
        let out = &session.out;
        let explanation = failure.problem().and_then(|problem| problem.explanation.clone());
        if let Some(explanation) = explanation.filter(|_| out.is_wide()) {
            let InstanceExplanation { instance, page, .. } = &*explanation;
            let first = (page.items.clone(), page.next.clone());
            match self.node_verdicts(session, request, *instance, first).await {
                Ok(items) => {
                    out.line(explanation::nodes(&explanation.page, &items, true, self.limit));
                    out.line("");
                }
                Err(failure) => return failure,
            }
        }
        // What only explains proposes nothing that claims.
        let kept = vec!["--dry-run".to_owned()];
        draw_failure(session, failure, &self.request, kept, request).await
    }

    /// As many nodes as are shown, page by page.
    async fn node_verdicts(
        &self,
        session: &Session,
        request: &PlaceRequest,
        instance: InstanceId,
        (mut items, mut next): (Vec<NodeVerdict>, Option<String>),
    ) -> CmdResult<Vec<NodeVerdict>> {
        while let Some(cursor) = next.filter(|_| items.len() < self.limit) {
            let limit = (self.limit - items.len()).min(1000);
            let path =
                format!("/v1/placements/explain?instance={instance}&limit={limit}&cursor={cursor}");
            let page: InstanceExplanation = session.client.post(&path, request).await?;
            items.extend(page.page.items);
            next = page.page.next;
        }
        Ok(items)
    }
}

/// Explains why an instance is where it is, or shows a decision and why it came out so.
async fn explain_placed(session: &Session, subject: &str, limit: usize) -> CmdResult {
    let instance = match session.instance(subject).await {
        Ok(id) => session.get(&format!("/v1/instances/{id}"), &[]).await,
        Err(failure) => Err(failure),
    };
    let raw = match instance {
        Ok(raw) => raw,
        Err(failure) if failure.is_not_found() => {
            let decision = decisions::show(session, subject, limit).await;
            return decision.map_err(|other| if other.is_not_found() { failure } else { other });
        }
        Err(failure) => return Err(failure),
    };
    let instance: Instance = decode(&raw)?;
    let out = &session.out;
    // Scripts page through the API; people see as many nodes as they asked for.
    let nodes = if out.is_wide() { limit.min(1000) } else { 0 }.to_string();
    let path = format!("/v1/instances/{}/explain", instance.claim.instance);
    let reason = session.get(&path, &[("limit", &nodes)]).await?;
    out.response(&reason, |reason: PlacementReason| {
        instance.print(out);
        out.line(format!("\n{}", sentence(&reason.note)));
        if let Some(decision) = &reason.decision {
            out.line("");
            decisions::print(out, decision, Some(instance.claim.instance));
        }
        if let Some(explained) = &reason.explanation {
            out.line(format!("\n{}", explanation::of_decision(explained, out.is_wide(), limit)));
        }
    })
}

/// A note as a sentence.
fn sentence(note: &str) -> String {
    let mut letters = note.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}
