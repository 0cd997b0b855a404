//! `berth explain pod`: why a Kubernetes pod is on its node or on none, node by node.
//!
//! With an address, a running scheduler explains it. Otherwise the cluster is listed once and the same
//! code runs here.

use berth_client::escape;
use berth_kube::cluster::pod::Key;
use berth_kube::scheduler::{ExplainError, as_json, explain_once};
use clap::Args;
use serde::Deserialize;
use serde_json::Value;

use super::explanation::{RemovedNode, eligible_nodes, points, removed_nodes};
use crate::cmdutil::style::{BOLD, paint};
use crate::cmdutil::{CmdResult, Exit, Failure, Output, Table, chain};
use crate::kube::{ClusterArgs, SchedulingArgs, settings};

const EXAMPLES: &str = "\
Examples:
  berth explain pod shop/web-7d4b9c-x2x4q          every node, and whether it fits
  berth explain pod shop/web-0 -o wide             every rule on every node
  berth explain pod shop/web-0 --scheduler http://127.0.0.1:8081
      ask a running scheduler, for example after: kubectl -n berth-system port-forward deploy/berth-scheduler 8081";

/// Explain why a Kubernetes pod is on its node, or why it has none.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExplainPod {
    /// Name of the pod.
    #[arg(value_name = "NAMESPACE/NAME", value_parser = pod)]
    pod: (String, String),
    /// URL of a running scheduler's probes, to ask it; by default the API server is asked and the
    /// scheduler's code runs here.
    #[arg(long, env = "BERTH_KUBE_SCHEDULER", value_name = "URL")]
    scheduler: Option<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    scheduling: SchedulingArgs,
    /// How many nodes to show of each kind.
    #[arg(long, default_value_t = 25, value_name = "N")]
    limit: usize,
}

fn pod(text: &str) -> Result<(String, String), String> {
    let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
    if namespace.is_empty() || name.is_empty() || name.contains('/') {
        return Err("accepted is NAMESPACE/NAME, or NAME in the namespace default".to_owned());
    }
    Ok((namespace.to_owned(), name.to_owned()))
}

/// The explanation of a pod.
#[derive(Debug, Deserialize)]
struct PodExplanation {
    namespace: String,
    pod: String,
    node: Option<String>,
    best: Option<String>,
    refusal: Option<PodRefusal>,
    table: Vec<NodeVerdict>,
}

#[derive(Debug, Deserialize)]
struct PodRefusal {
    code: String,
    line: String,
    help: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct NodeVerdict {
    node: String,
    removed_by: Vec<FailedRule>,
    total: Option<i64>,
}

#[derive(Debug, Deserialize)]
struct FailedRule {
    rule: String,
    why: String,
}

impl ExplainPod {
    pub(crate) async fn run(self, out: &Output) -> CmdResult {
        let found = match &self.scheduler {
            Some(url) => self.ask_scheduler(url).await?,
            None => self.explain_here().await?,
        };
        let explanation: PodExplanation = serde_json::from_value(found.clone())?;
        if out.is_data() {
            out.data(&found)?;
        } else {
            out.line(text(&explanation, out.is_wide(), self.limit));
        }
        refusal_failure(&explanation).map_or(Ok(()), Err)
    }

    /// Asks a running scheduler.
    async fn ask_scheduler(&self, url: &str) -> CmdResult<Value> {
        let (namespace, name) = &self.pod;
        let base = url.trim_end_matches('/');
        let path = format!("{base}/v1/pods/{}/{}/explain", escape(namespace), escape(name));
        if !base.starts_with("http://") && !base.starts_with("https://") {
            return Err(Failure::usage(format!("--scheduler is {url:?}"))
                .accepted("an address such as http://127.0.0.1:8081"));
        }
        // Only the first call sets the provider for the process; all of Berth uses the same one.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let request = reqwest::Client::new().get(path).header("accept", "application/json").send();
        let answer = request.await.map_err(|error| {
            Failure::new(Exit::Unreachable, format!("no scheduler answers at {url}"))
                .remedy("omit --scheduler to ask the API server")
                .remedy(chain(&error))
        })?;
        let status = answer.status();
        let body = answer.bytes().await.unwrap_or_default();
        if status.is_success() {
            return Ok(serde_json::from_slice(&body)?);
        }
        let message = String::from_utf8_lossy(&body).trim().to_owned();
        Err(match status.as_u16() {
            404 => self.not_found(),
            502..=504 => Failure::new(Exit::Unreachable, message),
            code => Failure::new(Exit::Failed, format!("{url} answers {code}: {message}")),
        })
    }

    /// Lists everything once, and runs the scheduler's own code on it.
    async fn explain_here(&self) -> CmdResult<Value> {
        let client = self.cluster.client().await?;
        let key = Key::new(&self.pod.0, &self.pod.1);
        let found = explain_once(&client, settings(&self.scheduling)?, &key).await;
        match found {
            Ok(found) => Ok(as_json(&found)),
            Err(ExplainError::NoPod(_)) => Err(self.not_found()),
            Err(ExplainError::List { kind, source }) => Err(list_failure(&kind, &source)),
        }
    }

    fn not_found(&self) -> Failure {
        let (namespace, name) = &self.pod;
        Failure::new(Exit::NotFound, format!("pod {namespace}/{name} not found"))
            .remedy(format!("list pods with: kubectl -n {namespace} get pods"))
    }
}

fn list_failure(kind: &str, error: &kube::Error) -> Failure {
    let line = format!("failed to list {kind}: {}", chain(error));
    match error {
        kube::Error::Api(status) if matches!(status.code, 401 | 403) => {
            Failure::new(Exit::Denied, line)
                .remedy("ask a running scheduler, which has the permission, with --scheduler")
        }
        kube::Error::Api(_) => Failure::new(Exit::Failed, line),
        _ => Failure::new(Exit::Unreachable, line),
    }
}

/// The failure of a pod that has no node and would get none.
fn refusal_failure(explanation: &PodExplanation) -> Option<Failure> {
    let refusal = explanation.refusal.as_ref().filter(|_| explanation.node.is_none())?;
    let (namespace, pod) = (&explanation.namespace, &explanation.pod);
    let line = format!("{namespace}/{pod} cannot be placed: {} ({})", refusal.line, refusal.code);
    let failure = Failure::new(Exit::Refused, line);
    Some(refusal.help.iter().fold(failure, |failure, help| failure.remedy(help)))
}

/// The answer first, then every node.
fn text(explanation: &PodExplanation, wide: bool, limit: usize) -> String {
    let (can, cannot): (Vec<&NodeVerdict>, Vec<&NodeVerdict>) =
        explanation.table.iter().partition(|verdict| verdict.removed_by.is_empty());
    let mut parts = Vec::new();
    parts.extend(headline(explanation));
    if !can.is_empty() {
        parts.push(eligible_section(can, limit));
    }
    if !cannot.is_empty() {
        parts.push(removed_section(&cannot, wide, limit));
    }
    parts.join("\n\n")
}

/// Where the pod is or would be. A refused pod is reported at the end, as an error.
fn headline(explanation: &PodExplanation) -> Option<String> {
    let pod = format!("{}/{}", explanation.namespace, explanation.pod);
    let line = match (&explanation.node, &explanation.best, &explanation.refusal) {
        (Some(node), Some(best), _) if node == best => {
            format!("{pod} is on {node}, which would be chosen again")
        }
        (Some(node), Some(best), _) => {
            format!("{pod} is on {node}; if placed now, it would go to {best}")
        }
        (Some(node), None, Some(refusal)) => {
            format!("{pod} is on {node}; if placed now: {}", refusal.line)
        }
        (Some(node), None, None) => format!("{pod} is on {node}"),
        (None, Some(best), _) => format!("{pod} would go to {best}"),
        (None, None, _) => return None,
    };
    Some(paint(BOLD, &line))
}

fn eligible_section(mut can: Vec<&NodeVerdict>, limit: usize) -> String {
    // The sort is stable and nodes come in order of name, so equal ones stay in order of name.
    can.sort_by_key(|verdict| std::cmp::Reverse(verdict.total));
    let mut table = Table::new(&["NODE", ">TOTAL"]);
    for verdict in can.iter().take(limit) {
        let total = verdict.total.map_or_else(|| "-".to_owned(), points);
        table.row([verdict.node.as_str().into(), total.into()]);
    }
    eligible_nodes(can.len(), &table, limit)
}

fn removed_section(cannot: &[&NodeVerdict], wide: bool, limit: usize) -> String {
    let rows = cannot.iter().filter_map(|verdict| {
        let (first, others) = verdict.removed_by.split_first()?;
        let other = |it: &FailedRule| match wide {
            true => format!("{} ({})", it.rule, it.why),
            false => it.rule.clone(),
        };
        let (node, rule, why) = (&verdict.node, &first.rule, first.why.clone());
        Some(RemovedNode { node, rule, why, others: others.iter().map(other).collect() })
    });
    removed_nodes(cannot.len(), rows, limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn explanation(value: Value) -> PodExplanation {
        serde_json::from_value(value).unwrap()
    }

    fn plain(explanation: &PodExplanation, wide: bool) -> String {
        anstream::adapter::strip_str(&text(explanation, wide, 2)).to_string()
    }

    fn waiting() -> PodExplanation {
        let cpu = json!({ "rule": "cpu", "why": "2 free of 8 asked" });
        let taint = json!({ "rule": "taints", "why": "taint gpu:NoSchedule is not tolerated" });
        explanation(json!({
            "namespace": "shop", "pod": "web-0", "node": null, "best": null,
            "refusal": {
                "code": "no_capacity_cpu", "line": "0/3 nodes can take it: 3 short of cpu",
                "help": ["Ask for less cpu, or add a node."], "nodes": 3, "counts": [],
            },
            "table": [
                { "node": "a", "removed_by": [cpu], "total": null },
                { "node": "b", "removed_by": [taint, cpu], "total": null },
                { "node": "c", "removed_by": [cpu], "total": null },
            ],
        }))
    }

    #[test]
    fn a_pod_that_cannot_be_placed_shows_every_node_and_fails_as_refused() {
        let waiting = waiting();
        assert_eq!(
            plain(&waiting, false),
            "3 nodes cannot\n\
             NODE  RULE    WHY                                    ALSO\n\
             a     cpu     2 free of 8 asked\n\
             b     taints  taint gpu:NoSchedule is not tolerated  cpu\n\
             and 1 more; show more with --limit"
        );
        assert!(plain(&waiting, true).contains("cpu (2 free of 8 asked)"));
        let failure = refusal_failure(&waiting).unwrap();
        assert_eq!(failure.exit, Exit::Refused);
        let said = anstream::adapter::strip_str(&failure.text()).to_string();
        assert_eq!(
            said,
            "error: shop/web-0 cannot be placed: 0/3 nodes can take it: 3 short of cpu (no_capacity_cpu)\n  \
             remedy: Ask for less cpu, or add a node."
        );
    }

    #[test]
    fn a_running_pod_is_no_failure_even_if_no_node_would_take_it() {
        let mut running = waiting();
        running.node = Some("a".to_owned());
        assert!(refusal_failure(&running).is_none());
        assert!(plain(&running, false).starts_with("shop/web-0 is on a; if placed now: 0/3"));
    }

    #[test]
    fn the_best_node_comes_first_and_of_equals_the_smallest_name() {
        let row =
            |node: &str, total: i64| json!({ "node": node, "removed_by": [], "total": total });
        let found = explanation(json!({
            "namespace": "shop", "pod": "web-0", "node": null, "best": "b", "refusal": null,
            "table": [row("a", 1_000_000), row("b", 2_500_000), row("c", 2_500_000)],
        }));
        let said = anstream::adapter::strip_str(&text(&found, false, 25)).to_string();
        assert_eq!(
            said,
            "shop/web-0 would go to b\n\n3 nodes can take it\n\
             NODE   TOTAL\nb     2.5000\nc     2.5000\na     1.0000"
        );
        assert!(refusal_failure(&found).is_none());
    }

    #[test]
    fn a_pod_is_named_with_its_namespace_or_is_in_the_default_one() {
        assert_eq!(pod("shop/web-0"), Ok(("shop".to_owned(), "web-0".to_owned())));
        assert_eq!(pod("web-0"), Ok(("default".to_owned(), "web-0".to_owned())));
        for wrong in ["", "/web", "shop/", "a/b/c"] {
            assert!(pod(wrong).is_err(), "{wrong}");
        }
    }
}
