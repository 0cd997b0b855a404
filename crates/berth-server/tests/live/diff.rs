//! Two policies compared on the fleet as it is now.

use serde_json::{Value, json};

use crate::stage::{Stage, elastic};

const PACKED: &str = "name = \"packed\"\n[scores]\nmemory-pack = 5\n\
    [elastic.classes.db]\novercommit_permille = 1000\n";
const SPREAD: &str = "name = \"wide\"\n[scores]\nmemory-spread = 5\n\
    [elastic]\ncompute_unit = { cpu_milli = 500, memory_mib = 1024 }\n\
    watermark = { cpu_permille = 100, memory_permille = 900 }\n\
    [[elastic.nodes]]\nsystem = { cpu_milli = 15000, memory_mib = 1024 }\n";

async fn compare(stage: &Stage, body: Value) -> Value {
    let reply = stage.server.post(&stage.operator, "/v1/policies/diff", &body).await;
    reply.expect(200).json()["live"].clone()
}

/// Three instances on n1, one of them of a class, and an empty n2.
async fn fleet() -> (Stage, Vec<String>) {
    let stage = Stage::new(&["n1"]).await;
    stage.activate(PACKED).await;
    let mut ids = Vec::new();
    for class in [None, None, Some("db")] {
        let mut instance = elastic((1000, 2048), (2000, 4096));
        if let Some(class) = class {
            instance["elastic"]["class"] = json!(class);
        }
        ids.push(stage.run(instance).await.0);
    }
    stage.add_node("n2").await;
    ids.sort();
    (stage, ids)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_policy_would_change_is_told_by_instance_node_and_class() {
    let (stage, ids) = fleet().await;
    let asked = json!({"from": "active", "to": {"toml": SPREAD}, "live": true});
    let live = compare(&stage, asked.clone()).await;
    let counts = &live["counts"];
    assert_eq!(counts["looked_at"], 3, "{live}");
    // Two would go to the empty node; the class of the third is not known to the second policy.
    assert_eq!((&counts["other_node"], &counts["only_from"]), (&json!(2), &json!(1)), "{live}");
    let summary = live["summary"].as_str().unwrap();
    assert!(summary.starts_with("3 of 3 decisions would change"), "{summary}");
    let decisions = live["decisions"].as_array().unwrap();
    let listed: Vec<&str> = decisions.iter().map(|it| it["instance"].as_str().unwrap()).collect();
    assert_eq!(listed, ids);
    for decision in decisions {
        assert_eq!((&decision["node"], &decision["from"]), (&json!("n1"), &json!("n1")));
        let placed = decision["to"] == "n2" && decision.get("code").is_none();
        assert!(placed || decision["code"] == "unknown_class", "{decision}");
    }

    // n1 has 3,000 reserved of 1,000 that it could give then.
    let nodes = live["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 2, "{live}");
    assert_eq!(
        (&nodes[0]["from"]["over_limit"], &nodes[0]["to"]["over_limit"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(
        (&nodes[0]["from"]["must_shed"], &nodes[0]["to"]["must_shed"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(nodes[0]["to"]["compute_unit"]["cpu_milli"], 500);
    assert_eq!(nodes[1]["to"]["over_limit"], false);
    let class = &live["classes"][0];
    assert_eq!((&class["class"], &class["instances"]), (&json!("db"), &json!(1)));
    assert!(class.get("to").is_none() && class["from"]["charged_cpu_milli"] == 1000, "{class}");

    // The same again is the same, and nothing was changed by asking.
    let mut again = compare(&stage, asked).await;
    again["at"] = live["at"].clone();
    assert_eq!(again, live);
    let account = stage.account("n1").await;
    assert_eq!((&account["cpu"]["reserved"], &account["cpu"]["system"]), (&json!(3000), &json!(0)));
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_compared_with_itself_changes_nothing() {
    let (stage, _) = fleet().await;
    let path = "/v1/policies/diff?from=active&to=packed&live=true";
    let diff = stage.server.get(&stage.operator, path).await.expect(200).json();
    assert_eq!(diff["changes"], json!([]));
    assert_eq!(diff["live"]["counts"]["same"], 3);
    assert_eq!(diff["live"]["summary"], "0 of 3 decisions would change");
    assert_eq!((&diff["live"]["nodes"], &diff["live"]["classes"]), (&json!([]), &json!([])));
    let plain = "/v1/policies/diff?from=active&to=spread";
    let plain = stage.server.get(&stage.operator, plain).await.expect(200).json();
    assert!(plain.get("live").is_none(), "{plain}");
    // A higher overcommit charges less, and says so.
    let cheaper = PACKED.replace("1000", "2000");
    let asked = json!({"from": "active", "to": {"toml": cheaper}, "live": true});
    let live = compare(&stage, asked).await;
    let class = &live["classes"][0];
    assert_eq!(
        (&class["from"]["charged_memory_mib"], &class["to"]["charged_memory_mib"]),
        (&json!(2048), &json!(1024))
    );
    let wrong = stage.server.get(&stage.operator, &format!("{path}&limit=0")).await;
    assert_eq!(wrong.problem(400, "invalid_request").json()["fields"][0]["field"], "limit");
    stage.server.stop().await;
}
