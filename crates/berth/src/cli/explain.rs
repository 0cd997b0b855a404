//! `berth explain`: why this node and not another, for a request, an instance or a pod.

use berth_api::{Decision, ExplainLevel, Instance, NodeExplanation};
use berth_client::{ClientError, PlaceOutcome, escape};
use clap::{Args, Subcommand};

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
            Some(subject) => explain_placed(session, subject).await,
            None if !has_request => Err(Failure::usage("nothing to explain is given")
                .accepted("an instance, a decision, or a request such as --cpu 2 --memory 4GiB")),
            None => self.dry_run(session).await,
        }
    }

    async fn dry_run(&self, session: &Session) -> CmdResult {
        let out = &session.out;
        let mut request = self.request.request()?;
        (request.dry_run, request.explain) = (true, ExplainLevel::Full);
        let answer: Result<RawJson, ClientError> =
            session.client.post("/v1/placements", &request).await;
        let raw = answer
            .map_err(|error| draw_failure(error.into(), &self.request, Vec::new(), &request))?;
        let PlaceOutcome::Placed(placed) = decode(&raw)? else {
            return out.data(&raw);
        };
        out.response(&raw, |_: serde::de::IgnoredAny| {
            if let Some(explanation) = &placed.explanation {
                out.line(explanation::winner(explanation));
                out.line("");
                out.line(explanation::table(explanation, out.is_wide(), self.limit));
            }
        })
    }
}

/// Explains why an instance is where it is, or shows a decision.
async fn explain_placed(session: &Session, subject: &str) -> CmdResult {
    let instance = match session.instance(subject).await {
        Ok(id) => session.get(&format!("/v1/instances/{id}"), &[]).await,
        Err(failure) => Err(failure),
    };
    let raw = match instance {
        Ok(raw) => raw,
        Err(failure) if failure.is_not_found() => {
            let decision = session.get(&format!("/v1/decisions/{}", escape(subject)), &[]).await;
            let raw =
                decision.map_err(|other| if other.is_not_found() { failure } else { other })?;
            return session.print::<Decision>(&raw);
        }
        Err(failure) => return Err(failure),
    };
    let instance: Instance = decode(&raw)?;
    let reason = reason(session, &instance).await;
    if session.out.is_data() {
        return match reason {
            Some((_, Some(decision))) => session.out.data(&decision),
            _ => session.out.data(&raw),
        };
    }
    instance.print(&session.out);
    match reason {
        Some((why, decision)) => {
            session.out.line(format!("\n{why}"));
            if let Some(decision) = decision {
                session.out.line("");
                let decision: Decision = decode(&decision)?;
                decisions::print(&session.out, &decision, Some(instance.claim.instance));
            }
        }
        None => {
            session.out.note("\nOperators can see why it is there with: berth nodes explain NODE")
        }
    }
    Ok(())
}

/// Why an instance is on its node, and the decision that placed it.
async fn reason(session: &Session, instance: &Instance) -> Option<(String, Option<RawJson>)> {
    let node = instance.claim.node.as_ref()?;
    let path = format!("/v1/nodes/{}/explain", escape(node.as_str()));
    // A tenant may not read it; then only the instance is shown.
    let raw = session.get(&path, &[]).await.ok()?;
    let explanation: NodeExplanation = decode(&raw).ok()?;
    let mut instances = explanation.guests.into_iter();
    let found = instances.find(|found| found.claim.instance == instance.claim.instance)?;
    let decision = match &found.decision {
        Some(id) => session.get(&format!("/v1/decisions/{}", escape(id)), &[]).await.ok(),
        None => None,
    };
    Some((found.why, decision))
}
