//! `berth explain pod`: why a pod of Kubernetes is where it is, or nowhere, node by node.
//!
//! A running scheduler is asked when its address is given; else everything is listed once and explained
//! here, by the same code.

use berth_client::escape;
use berth_kube::cluster::pod::Key;
use berth_kube::scheduler::{ExplainError, as_json, explain_once};
use clap::Args;
use serde::Deserialize;
use serde_json::Value;

use super::failure::{Done, Exit, Failure, chain};
use super::output::Output;
use super::output::style::{BOLD, paint};
use super::table::{Cell, Table, Tone};
use super::why::{points, rest};
use super::words::many;
use crate::kube::{ClusterArgs, SchedulingArgs, settings};

const EXAMPLES: &str = "\
Examples:
  berth explain pod shop/web-7d4b9c-x2x4q          every node, and what it says of the pod
  berth explain pod shop/web-0 -o wide             every rule of every node
  berth explain pod shop/web-0 --scheduler http://127.0.0.1:8081
      asks a running scheduler, as after: kubectl -n berth-system port-forward deploy/berth-scheduler 8081";

/// Say why a pod of Kubernetes is where it is, or why it has no node.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExplainPod {
    /// The pod.
    #[arg(value_name = "NAMESPACE/NAME", value_parser = pod)]
    pod: (String, String),
    /// A running scheduler to ask, by where its probes are; when not given, the API server is asked and
    /// the scheduler's code runs here.
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

/// What is told of a pod.
#[derive(Debug, Deserialize)]
struct Told {
    namespace: String,
    pod: String,
    node: Option<String>,
    best: Option<String>,
    refusal: Option<Refusal>,
    table: Vec<Verdict>,
}

#[derive(Debug, Deserialize)]
struct Refusal {
    code: String,
    line: String,
    help: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Verdict {
    node: String,
    removed_by: Vec<Removed>,
    total: Option<i64>,
}

#[derive(Debug, Deserialize)]
struct Removed {
    rule: String,
    why: String,
}

impl ExplainPod {
    pub(crate) async fn run(self, out: &Output) -> Done {
        let found = match &self.scheduler {
            Some(url) => self.ask(url).await?,
            None => self.compute().await?,
        };
        let told: Told = serde_json::from_value(found.clone())?;
        if out.is_data() {
            out.data(&found)?;
        } else {
            out.line(text(&told, out.is_wide(), self.limit));
        }
        refused(&told).map_or(Ok(()), Err)
    }

    /// Asks a running scheduler.
    async fn ask(&self, url: &str) -> Done<Value> {
        let (namespace, name) = &self.pod;
        let base = url.trim_end_matches('/');
        let path = format!("{base}/v1/pods/{}/{}/explain", escape(namespace), escape(name));
        if !base.starts_with("http://") && !base.starts_with("https://") {
            return Err(Failure::usage(format!("--scheduler is {url:?}"))
                .accepted("an address such as http://127.0.0.1:8081"));
        }
        // Whoever comes first sets it for the process; all of Berth uses the same.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let asked = reqwest::Client::new().get(path).header("accept", "application/json").send();
        let answer = asked.await.map_err(|error| {
            Failure::new(Exit::Unreachable, format!("no scheduler answers at {url}"))
                .remedy("leave out --scheduler, and the API server is asked")
                .remedy(chain(&error))
        })?;
        let status = answer.status();
        let body = answer.bytes().await.unwrap_or_default();
        if status.is_success() {
            return Ok(serde_json::from_slice(&body)?);
        }
        let said = String::from_utf8_lossy(&body).trim().to_owned();
        Err(match status.as_u16() {
            404 => self.nowhere(),
            502..=504 => Failure::new(Exit::Unreachable, said),
            code => Failure::new(Exit::Failed, format!("{url} answers {code}: {said}")),
        })
    }

    /// Lists everything once, and runs the scheduler's own code on it.
    async fn compute(&self) -> Done<Value> {
        let client = self.cluster.client().await?;
        let key = Key::new(&self.pod.0, &self.pod.1);
        let found = explain_once(&client, settings(&self.scheduling)?, &key).await;
        match found {
            Ok(found) => Ok(as_json(&found)),
            Err(ExplainError::NoPod(_)) => Err(self.nowhere()),
            Err(ExplainError::List { kind, source }) => Err(unlisted(&kind, &source)),
        }
    }

    fn nowhere(&self) -> Failure {
        let (namespace, name) = &self.pod;
        Failure::new(Exit::NotFound, format!("there is no pod {namespace}/{name}"))
            .remedy(format!("kubectl -n {namespace} get pods lists them"))
    }
}

fn unlisted(kind: &str, error: &kube::Error) -> Failure {
    let line = format!("the {kind} could not be listed: {}", chain(error));
    match error {
        kube::Error::Api(status) if matches!(status.code, 401 | 403) => {
            Failure::new(Exit::Denied, line)
                .remedy("ask a running scheduler with --scheduler, which has the right")
        }
        kube::Error::Api(_) => Failure::new(Exit::Failed, line),
        _ => Failure::new(Exit::Unreachable, line),
    }
}

/// A pod that has no node and would get none.
fn refused(told: &Told) -> Option<Failure> {
    let refusal = told.refusal.as_ref().filter(|_| told.node.is_none())?;
    let (namespace, pod) = (&told.namespace, &told.pod);
    let line = format!("{namespace}/{pod} has no place: {} ({})", refusal.line, refusal.code);
    let failure = Failure::new(Exit::Refused, line);
    Some(refusal.help.iter().fold(failure, |failure, help| failure.remedy(help)))
}

/// The answer first, then every node.
fn text(told: &Told, wide: bool, limit: usize) -> String {
    let (can, cannot): (Vec<&Verdict>, Vec<&Verdict>) =
        told.table.iter().partition(|verdict| verdict.removed_by.is_empty());
    let mut parts = Vec::new();
    parts.extend(answer(told));
    if !can.is_empty() {
        parts.push(scored(can, limit));
    }
    if !cannot.is_empty() {
        parts.push(removed(&cannot, wide, limit));
    }
    parts.join("\n\n")
}

/// Where it is or would be. A pod that is refused is told of at the end, as an error.
fn answer(told: &Told) -> Option<String> {
    let pod = format!("{}/{}", told.namespace, told.pod);
    let line = match (&told.node, &told.best, &told.refusal) {
        (Some(node), Some(best), _) if node == best => {
            format!("{pod} is on {node}, which would be chosen again")
        }
        (Some(node), Some(best), _) => {
            format!("{pod} is on {node}; were it placed now, it would go to {best}")
        }
        (Some(node), None, Some(refusal)) => {
            format!("{pod} is on {node}; were it placed now: {}", refusal.line)
        }
        (Some(node), None, None) => format!("{pod} is on {node}"),
        (None, Some(best), _) => format!("{pod} would go to {best}"),
        (None, None, _) => return None,
    };
    Some(paint(BOLD, &line))
}

fn scored(mut can: Vec<&Verdict>, limit: usize) -> String {
    // Stable, and the nodes come in order of name: of equals the smallest name stays first.
    can.sort_by_key(|verdict| std::cmp::Reverse(verdict.total));
    let mut table = Table::new(&["NODE", ">TOTAL"]);
    for verdict in can.iter().take(limit) {
        let total = verdict.total.map_or_else(|| "-".to_owned(), points);
        table.row([verdict.node.as_str().into(), total.into()]);
    }
    let title = paint(BOLD, &format!("{} can take it", many(can.len(), "node")));
    format!("{title}\n{}{}", table.text(), rest(can.len(), limit))
}

fn removed(cannot: &[&Verdict], wide: bool, limit: usize) -> String {
    let mut table = Table::new(&["NODE", "RULE", "WHY", "ALSO"]);
    for verdict in cannot.iter().take(limit) {
        let Some((first, others)) = verdict.removed_by.split_first() else { continue };
        let others: Vec<String> = others
            .iter()
            .map(|it| if wide { format!("{} ({})", it.rule, it.why) } else { it.rule.clone() })
            .collect();
        table.row([
            verdict.node.as_str().into(),
            first.rule.as_str().into(),
            first.why.as_str().into(),
            Cell::toned(others.join(", "), Tone::Dim),
        ]);
    }
    let title = paint(BOLD, &format!("{} cannot", many(cannot.len(), "node")));
    format!("{title}\n{}{}", table.text(), rest(cannot.len(), limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(value: Value) -> Told {
        serde_json::from_value(value).unwrap()
    }

    fn plain(told: &Told, wide: bool) -> String {
        anstream::adapter::strip_str(&text(told, wide, 2)).to_string()
    }

    fn waiting() -> Told {
        let cpu = json!({ "rule": "cpu", "why": "2 free of 8 asked" });
        let taint = json!({ "rule": "taints", "why": "taint gpu:NoSchedule is not tolerated" });
        told(json!({
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
    fn a_pod_without_a_place_shows_every_node_and_ends_as_refused() {
        let waiting = waiting();
        assert_eq!(
            plain(&waiting, false),
            "3 nodes cannot\n\
             NODE  RULE    WHY                                    ALSO\n\
             a     cpu     2 free of 8 asked\n\
             b     taints  taint gpu:NoSchedule is not tolerated  cpu\n\
             and 1 more; --limit says how many to show"
        );
        assert!(plain(&waiting, true).contains("cpu (2 free of 8 asked)"));
        let failure = refused(&waiting).unwrap();
        assert_eq!(failure.exit, Exit::Refused);
        let said = anstream::adapter::strip_str(&failure.text()).to_string();
        assert_eq!(
            said,
            "error: shop/web-0 has no place: 0/3 nodes can take it: 3 short of cpu (no_capacity_cpu)\n  \
             remedy: Ask for less cpu, or add a node."
        );
    }

    #[test]
    fn a_pod_that_runs_is_no_failure_even_where_nothing_else_would_take_it() {
        let mut running = waiting();
        running.node = Some("a".to_owned());
        assert!(refused(&running).is_none());
        assert!(plain(&running, false).starts_with("shop/web-0 is on a; were it placed now: 0/3"));
    }

    #[test]
    fn the_best_node_comes_first_and_of_equals_the_smallest_name() {
        let row =
            |node: &str, total: i64| json!({ "node": node, "removed_by": [], "total": total });
        let found = told(json!({
            "namespace": "shop", "pod": "web-0", "node": null, "best": "b", "refusal": null,
            "table": [row("a", 1_000_000), row("b", 2_500_000), row("c", 2_500_000)],
        }));
        let said = anstream::adapter::strip_str(&text(&found, false, 25)).to_string();
        assert_eq!(
            said,
            "shop/web-0 would go to b\n\n3 nodes can take it\n\
             NODE   TOTAL\nb     2.5000\nc     2.5000\na     1.0000"
        );
        assert!(refused(&found).is_none());
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
