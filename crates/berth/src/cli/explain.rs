//! `berth explain`: why a node, why not the others, for a request or for something that is placed.

use berth_api::{Decision, ExplainLevel, Instance, NodeExplanation};
use berth_client::{ClientError, PlaceOutcome, escape};
use clap::{Args, Subcommand};

use super::decisions;
use super::explain_pod::ExplainPod;
use super::failure::{Done, Failure};
use super::instances;
use super::place::explained;
use super::place::flags::RequestFlags;
use super::session::{Global, Raw, Session, read_as};
use super::why;

const EXAMPLES: &str = "\
Examples:
  berth explain --cpu 2 --memory 4GiB --owner acme     what would be chosen now, and why
  berth explain --memory 512GiB -o wide                every rule of every node
  berth explain web-1                                  why an instance is where it is
  berth explain 01890a5d-ac96-774b-bcce-b302099a8057   the same by id, or a decision by id
  berth explain pod shop/web-0                         a pod of Kubernetes, and every node";

/// What is explained that no server of Berth knows.
#[derive(Subcommand, Debug)]
enum Other {
    Pod(Box<ExplainPod>),
}

/// Say why: for a request that is not made, for an instance or a decision, or for a pod of Kubernetes.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Explain {
    #[command(subcommand)]
    other: Option<Other>,
    /// An instance (id, beginning of it, or name) or a decision.
    #[arg(value_name = "INSTANCE|DECISION")]
    what: Option<String>,
    #[command(flatten)]
    request: RequestFlags,
    /// How many nodes to show of each kind.
    #[arg(long, default_value_t = 25, value_name = "N")]
    limit: usize,
}

impl Explain {
    pub(crate) async fn run(self, global: &Global) -> Done {
        if let Some(Other::Pod(pod)) = self.other {
            return pod.run(&global.out()).await;
        }
        let session = &global.session()?;
        let asks = self.request.instance.any() || self.request.file.is_some();
        match &self.what {
            Some(_) if asks => Err(Failure::usage("a name and a request are given")
                .accepted("either an instance or decision, or flags of a request")),
            Some(what) => placed(session, what).await,
            None if !asks => Err(Failure::usage("nothing to explain is given")
                .accepted("an instance, a decision, or a request such as --cpu 2 --memory 4GiB")),
            None => self.dry_run(session).await,
        }
    }

    async fn dry_run(&self, session: &Session) -> Done {
        let out = &session.out;
        let mut request = self.request.request()?;
        (request.dry_run, request.explain) = (true, ExplainLevel::Full);
        let answer: Result<Raw, ClientError> =
            session.client.post("/v1/placements", &request).await;
        let raw =
            answer.map_err(|error| explained(error.into(), &self.request, Vec::new(), &request))?;
        let PlaceOutcome::Placed(placed) = read_as(&raw)? else {
            return out.data(&raw);
        };
        out.answer(&raw, |_: serde::de::IgnoredAny| {
            if let Some(explanation) = &placed.explanation {
                out.line(why::winner(explanation));
                out.line("");
                out.line(why::table(explanation, out.is_wide(), self.limit));
            }
            Ok(())
        })
    }
}

/// Why an instance is where it is, or what a decision was.
async fn placed(session: &Session, what: &str) -> Done {
    let instance = match session.instance(what).await {
        Ok(id) => session.get(&format!("/v1/instances/{id}"), &[]).await,
        Err(failure) => Err(failure),
    };
    let raw = match instance {
        Ok(raw) => raw,
        Err(failure) if failure.is_not_found() => {
            let decision = session.get(&format!("/v1/decisions/{}", escape(what)), &[]).await;
            let raw =
                decision.map_err(|other| if other.is_not_found() { failure } else { other })?;
            return decisions::show(session, &raw);
        }
        Err(failure) => return Err(failure),
    };
    let instance: Instance = read_as(&raw)?;
    let reason = reason(session, &instance).await;
    if session.out.is_data() {
        return match reason {
            Some((_, Some(decision))) => session.out.data(&decision),
            _ => session.out.data(&raw),
        };
    }
    instances::print(&session.out, &instance);
    match reason {
        Some((why, decision)) => {
            session.out.line(format!("\n{why}"));
            if let Some(decision) = decision {
                session.out.line("");
                let decision: Decision = read_as(&decision)?;
                decisions::print(&session.out, &decision, Some(instance.claim.instance));
            }
        }
        None => {
            session.out.note("\nWhy it is there is told to operators: berth nodes explain NODE.")
        }
    }
    Ok(())
}

/// What the node's explanation says of an instance, and the decision that put it there.
async fn reason(session: &Session, instance: &Instance) -> Option<(String, Option<Raw>)> {
    let node = instance.claim.node.as_ref()?;
    let path = format!("/v1/nodes/{}/explain", escape(node.as_str()));
    // A tenant may not see it; then the instance alone is shown.
    let raw = session.get(&path, &[]).await.ok()?;
    let explanation: NodeExplanation = read_as(&raw).ok()?;
    let mut guests = explanation.guests.into_iter();
    let guest = guests.find(|guest| guest.claim.instance == instance.claim.instance)?;
    let decision = match &guest.decision {
        Some(id) => session.get(&format!("/v1/decisions/{}", escape(id)), &[]).await.ok(),
        None => None,
    };
    Some((guest.why, decision))
}
