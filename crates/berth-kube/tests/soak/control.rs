//! The judge is awake: what did not happen is put into a record, and it must be noticed.

use berth_kube_fake::Binding;
use serde_json::Value;

use crate::run::Record;
use crate::verdict::judge;

/// A way to spoil a record, and a word of what must be said about it.
type Forgery = (&'static str, &'static str, fn(&mut Record));

const FORGERIES: [Forgery; 8] = [
    ("a pod that was bound twice", "breaks bound-once", |record| {
        let again = Binding { seq: u64::MAX, ..record.bindings[0].clone() };
        record.bindings.push(again);
    }),
    ("one more on a full node", "breaks resources: cpu", |record| {
        let full = place_of(record, "tight-0-0");
        move_to(record, elsewhere(record, "tight-", &full), &full);
    }),
    ("two on one port", "breaks ports", |record| {
        let taken = place_of(record, "port-0-0");
        move_to(record, elsewhere(record, "port-", &taken), &taken);
    }),
    ("two that must be apart", "breaks anti-affinity", |record| {
        let taken = place_of(record, "apart-0-0-0");
        move_to(record, elsewhere(record, "apart-0-0-", &taken), &taken);
    }),
    ("an application all in one zone", "breaks spread", |record| {
        for at in 0..24 {
            let pod = index_of(record, &format!("spread-0-0-{at}"));
            move_to(record, pod, "general-0");
        }
    }),
    ("half a gang", "breaks gang", |record| {
        let bound = |pod: &Value| name(pod).starts_with("gang-") && !node(pod).is_empty();
        let pod = record.pods.iter().position(bound).unwrap();
        let uid = record.pods[pod]["metadata"]["uid"].clone();
        record.bindings.retain(|it| uid != it.uid.as_str());
        record.pods[pod]["spec"]["nodeName"] = Value::Null;
    }),
    ("a pod that nobody bound", "nobody has bound it", |record| {
        let pod = index_of(record, "plain-0-0");
        let uid = record.pods[pod]["metadata"]["uid"].clone();
        record.bindings.retain(|it| uid != it.uid.as_str());
    }),
    ("a pod that was told nothing", "has no condition", |record| {
        let pod = index_of(record, "large-0");
        record.pods[pod]["status"]["conditions"] = Value::Null;
    }),
];

fn name(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().unwrap_or_default()
}

fn node(pod: &Value) -> &str {
    pod["spec"]["nodeName"].as_str().unwrap_or_default()
}

fn index_of(record: &Record, wanted: &str) -> usize {
    record.pods.iter().position(|it| name(it) == wanted).unwrap()
}

fn place_of(record: &Record, wanted: &str) -> String {
    node(&record.pods[index_of(record, wanted)]).to_owned()
}

/// A pod whose name begins so and that is on another node.
fn elsewhere(record: &Record, prefix: &str, here: &str) -> usize {
    let other = |pod: &Value| name(pod).starts_with(prefix) && node(pod) != here;
    record.pods.iter().position(other).unwrap()
}

/// Says, everywhere, that a pod was bound to another node.
fn move_to(record: &mut Record, pod: usize, to: &str) {
    let pod = &mut record.pods[pod];
    pod["spec"]["nodeName"] = to.into();
    let uid = pod["metadata"]["uid"].clone();
    let mut bindings = record.bindings.iter_mut();
    bindings.find(|it| uid == it.uid.as_str()).unwrap().node = to.to_owned();
}

/// Every forgery of a record that was right is noticed for what it is.
pub(crate) fn forgeries_are_noticed(record: &Record) {
    for (what, expected, forge) in FORGERIES {
        let mut forged = record.clone();
        forge(&mut forged);
        let found = judge(&forged);
        assert!(found.iter().any(|it| it.contains(expected)), "{what} was not noticed: {found:?}");
    }
}
