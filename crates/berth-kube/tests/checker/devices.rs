//! Claims of devices.

use serde_json::{Value, json};

use crate::checker::check_final;
use crate::objects::{node, patched, pod_on};

fn claim(name: &str, device: &str, node: &str, pod: &str) -> Value {
    let results = [json!({"request": "r", "driver": "d", "pool": "p", "device": device})];
    let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "status": {
            "allocation": {
                "devices": {"results": results},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
            },
            "reservedFor": [{"resource": "pods", "name": pod, "uid": format!("uid-{pod}")}],
        },
    })
}

fn user(name: &str, node: &str, claim: &str) -> Value {
    let claims = json!([{"name": "c", "resourceClaimName": claim}]);
    patched(pod_on(node, name, &json!({})), &json!({"spec": {"resourceClaims": claims}}))
}

#[test]
fn broken_states_of_claims_are_noticed() {
    let nodes = [node("n1", &json!({})), node("n2", &json!({}))];
    let found = |pods: &[Value], claims: &[Value]| -> Vec<String> {
        check_final(&nodes, pods, claims).into_iter().map(|it| it.text).collect()
    };
    let (a, b) = (user("a", "n1", "one"), user("b", "n1", "two"));
    let good = [claim("one", "x", "n1", "a"), claim("two", "y", "n1", "b")];
    assert_eq!(found(&[a.clone(), b.clone()], &good), Vec::<String>::new());
    let twice = [claim("one", "x", "n1", "a"), claim("two", "x", "n1", "b")];
    assert_eq!(found(&[a.clone(), b], &twice), ["device d/p/x is allocated to one and two"]);
    let elsewhere = [claim("one", "x", "n2", "a")];
    let text = "the devices of claim one are not available on the node";
    assert_eq!(found(std::slice::from_ref(&a), &elsewhere), [text]);
    let others = [claim("one", "x", "n1", "b")];
    assert_eq!(found(std::slice::from_ref(&a), &others), ["claim one is not reserved for the pod"]);
    assert_eq!(found(std::slice::from_ref(&a), &[]), ["claim \"one\" does not exist"]);
    let mut empty = claim("one", "x", "n1", "a");
    empty["status"]["allocation"] = Value::Null;
    assert_eq!(found(&[a], &[empty]), ["claim one has no devices"]);
}
