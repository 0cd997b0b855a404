//! The manifests, the chart and the alerts: that they can be read, agree, and name what there is.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::stage::{Stage, arguments, documents, files, of_kind, read, yaml};

const PARTS: [&str; 2] = ["webhook", "scheduler"];

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().map(|all| all.iter().filter_map(Value::as_str).collect()).unwrap_or_default()
}

fn manifests(part: &str) -> Vec<Value> {
    let paths = files(&format!("deploy/kubernetes/{part}"), ".yaml");
    paths.iter().flat_map(|path| documents(path)).collect()
}

fn rights(part: &str, kind: &str) -> Vec<Value> {
    let role = of_kind(&documents(&format!("deploy/kubernetes/{part}/10-rbac.yaml")), kind);
    role["rules"].as_array().unwrap().clone()
}

#[test]
fn no_right_is_a_wildcard_and_every_right_says_what_it_is_about() {
    for part in PARTS {
        for kind in ["ClusterRole", "Role"] {
            for rule in rights(part, kind) {
                for field in ["apiGroups", "resources", "verbs"] {
                    let words = strings(&rule[field]);
                    assert!(!words.is_empty(), "{part} {kind}: {field} is missing in {rule}");
                    assert!(words.iter().all(|word| !word.contains('*')), "{part} {kind}: {rule}");
                }
                assert!(strings(&rule["resourceNames"]).iter().all(|name| !name.contains('*')));
            }
        }
    }
}

#[test]
fn secrets_leases_and_the_own_entry_are_changed_by_name_only() {
    let guarded = ["secrets", "leases", "mutatingwebhookconfigurations"];
    for part in PARTS {
        for kind in ["ClusterRole", "Role"] {
            for rule in rights(part, kind) {
                let named = !strings(&rule["resourceNames"]).is_empty();
                let is_guarded = strings(&rule["resources"]).iter().any(|it| guarded.contains(it));
                // A creation cannot be restricted by name.
                let only_creates = strings(&rule["verbs"]) == ["create"];
                assert!(!is_guarded || named || only_creates, "{part} {kind}: {rule}");
                let entry = strings(&rule["resources"]).contains(&"mutatingwebhookconfigurations");
                assert!(!(entry && only_creates), "it may make entries of any name: {rule}");
                let secrets = strings(&rule["resources"]).contains(&"secrets");
                assert!(!secrets || kind == "Role", "secrets of all namespaces: {rule}");
            }
        }
    }
}

#[test]
fn the_chart_gives_the_same_rights_as_the_manifests() {
    let of_chart = |names: &[&str]| -> Vec<Value> {
        let list = |name: &&str| {
            let path = format!("deploy/helm/berth/files/rbac/{name}.yaml");
            documents(&path).remove(0).as_array().unwrap().clone()
        };
        names.iter().flat_map(list).collect()
    };
    assert_eq!(of_chart(&["webhook", "webhook-installs"]), rights("webhook", "ClusterRole"));
    let own = of_chart(&["webhook-namespace-tls", "webhook-namespace"]);
    assert_eq!(own, rights("webhook", "Role"));
    assert_eq!(of_chart(&["scheduler"]), rights("scheduler", "ClusterRole"));
    assert_eq!(of_chart(&["scheduler-namespace"]), rights("scheduler", "Role"));
    let used: String =
        files("deploy/helm/berth/templates", ".yaml").iter().map(|it| read(it)).collect();
    for file in files("deploy/helm/berth/files/rbac", ".yaml") {
        let name = file.rsplit('/').next().unwrap();
        assert!(used.contains(&format!("files/rbac/{name}")), "no template uses {name}");
    }
}

#[test]
fn pods_of_both_parts_have_no_more_power_than_they_need() {
    for part in PARTS {
        let deployment = of_kind(&manifests(part), "Deployment");
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{part}");
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{part}");
        assert_eq!(pod["priorityClassName"], "system-cluster-critical", "{part}");
        assert!(pod["topologySpreadConstraints"].as_array().is_some_and(|it| it.len() == 2));
        let container = &pod["containers"][0];
        let security = &container["securityContext"];
        assert_eq!(security["allowPrivilegeEscalation"], false, "{part}");
        assert_eq!(security["readOnlyRootFilesystem"], true, "{part}");
        assert_eq!(strings(&security["capabilities"]["drop"]), ["ALL"], "{part}");
        assert_eq!(container["livenessProbe"]["httpGet"]["path"], "/livez", "{part}");
        assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/readyz", "{part}");
        let account = of_kind(&manifests(part), "ServiceAccount");
        assert_eq!(account["automountServiceAccountToken"], false, "{part}");
        for kind in ["PodDisruptionBudget", "NetworkPolicy"] {
            let object = of_kind(&manifests(part), kind);
            assert_eq!(object["metadata"]["namespace"], "berth-system", "{part} {kind}");
        }
    }
}

#[test]
fn the_webhooks_own_namespace_and_those_of_the_system_are_left_alone() {
    let entry = of_kind(&manifests("webhook"), "MutatingWebhookConfiguration");
    let webhook = &entry["webhooks"][0];
    let excluded = strings(&webhook["namespaceSelector"]["matchExpressions"][0]["values"]);
    assert_eq!(excluded, ["berth-system", "kube-node-lease", "kube-public", "kube-system"]);
    assert_eq!(webhook["failurePolicy"], "Ignore");
    assert_eq!(webhook["sideEffects"], "NoneOnDryRun");
}

/// Every `--flag` in a text.
fn flags(text: &str) -> BTreeSet<String> {
    let arguments = text.lines().filter_map(|line| line.trim().strip_prefix("- --"));
    let name = |it: &str| it.split(['=', ' ']).next().unwrap_or_default().to_owned();
    arguments.map(name).collect()
}

#[tokio::test]
async fn every_argument_of_the_manifests_is_one_that_the_command_takes() {
    let stage = Stage::new();
    for part in PARTS {
        let mut command: Vec<String> = arguments(part);
        // Whatever stands before it is read first, and refused if it means nothing.
        command.push("--help".to_owned());
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let (code, help, said) = stage.run(&command).await;
        assert_eq!(code, Some(0), "{part}: {said}");
        let template = read(&format!("deploy/helm/berth/templates/{part}-deployment.yaml"));
        let used = flags(&template);
        assert!(used.len() > 5, "{part}: {used:?}");
        for flag in used {
            assert!(help.contains(&format!("--{flag}")), "{part} of the chart: --{flag}");
        }
        let given = flags(&read(&format!("deploy/kubernetes/{part}/30-deployment.yaml")));
        let by_chart = flags(&template);
        assert!(given.is_subset(&by_chart), "{part}: {given:?} but {by_chart:?}");
    }
}

#[test]
fn every_variable_of_the_manifests_is_one_that_the_commands_read() {
    let source: String = files("crates/berth/src/kube", ".rs").iter().map(|it| read(it)).collect();
    for part in PARTS {
        let deployment = of_kind(&manifests(part), "Deployment");
        let env = deployment["spec"]["template"]["spec"]["containers"][0]["env"].clone();
        for variable in env.as_array().unwrap() {
            let name = variable["name"].as_str().unwrap();
            assert!(source.contains(&format!("env = \"{name}\"")), "{part}: {name}");
        }
    }
}

#[test]
fn the_chart_has_a_schema_for_every_value_and_its_version_is_that_of_the_program() {
    let values = documents("deploy/helm/berth/values.yaml").remove(0);
    let schema: Value =
        serde_json::from_str(&read("deploy/helm/berth/values.schema.json")).unwrap();
    fn look(path: &str, values: &Value, schema: &Value) {
        let Some(values) = values.as_object() else { return };
        // What is open is handed on to Kubernetes as it is.
        let Some(known) = schema["properties"].as_object() else { return };
        assert_eq!(schema["additionalProperties"], false, "{path}");
        for (name, value) in values {
            let path = format!("{path}.{name}");
            let of = known.get(name).unwrap_or_else(|| panic!("{path} is not in the schema"));
            look(&path, value, of);
        }
    }
    look("", &values, &schema);
    let chart = documents("deploy/helm/berth/Chart.yaml").remove(0);
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    for part in PARTS {
        let text = read(&format!("deploy/kubernetes/{part}/30-deployment.yaml"));
        assert!(text.contains(concat!("image: berth:", env!("CARGO_PKG_VERSION"))), "{part}");
    }
}

/// Names of metrics in an expression.
fn metrics(expression: &str) -> Vec<String> {
    let letter = |it: char| it.is_ascii_alphanumeric() || it == '_';
    let words = expression.split(|it: char| !letter(it));
    words.filter(|word| word.starts_with("berth_")).map(str::to_owned).collect()
}

#[test]
fn alerts_are_about_metrics_that_there_are() {
    let rules = documents("deploy/helm/berth/files/prometheus-rules.yaml").remove(0);
    let mut checked = 0;
    for group in rules["groups"].as_array().unwrap() {
        for rule in group["rules"].as_array().unwrap() {
            let (alert, expression) = (&rule["alert"], rule["expr"].as_str().unwrap());
            assert!(rule["annotations"]["summary"].is_string(), "{alert}");
            assert!(rule["labels"]["severity"].is_string(), "{alert}");
            for metric in metrics(expression) {
                let part = PARTS.iter().find(|part| metric.starts_with(&format!("berth_{part}_")));
                // What is of neither part, both have from the control plane.
                let (prefix, source) = match part {
                    Some(part) => (
                        format!("berth_{part}_"),
                        format!("crates/berth-kube/src/{part}/metrics.rs"),
                    ),
                    None => (
                        "berth_".to_owned(),
                        "crates/berth-control/src/invariant_metrics.rs".to_owned(),
                    ),
                };
                let (name, source) = (metric.strip_prefix(&prefix).unwrap(), read(&source));
                let is_there = ["", "_total", "_seconds_bucket", "_seconds"]
                    .iter()
                    .filter_map(|end| name.strip_suffix(end))
                    .any(|name| source.contains(&format!("\"{name}\"")));
                assert!(is_there, "{alert}: {metric}");
                checked += 1;
            }
        }
    }
    assert!(checked > 12, "only {checked} metrics were found");
}

#[test]
fn a_manifest_that_is_no_yaml_would_be_noticed() {
    let broken = std::panic::catch_unwind(|| yaml("broken", "a: [1, 2\nb: }"));
    assert!(broken.is_err());
    assert_eq!(yaml("two", "a: 1\n---\nb: 2\n").len(), 2);
}
