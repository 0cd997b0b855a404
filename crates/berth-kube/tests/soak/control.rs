//! The judge is awake: what did not happen is put into a record, and it must be noticed.

use berth_kube_fake::Binding;
use serde_json::Value;

use crate::invariants::judge;
use crate::run::Record;

/// A way to spoil a record, of whom something must be said then, and what.
type Forgery = (&'static str, [&'static str; 2], fn(&mut Record));

const FORGERIES: [Forgery; 8] = [
    ("a pod that was bound twice", ["", "breaks bound-once"], |record| {
        let again = Binding { seq: u64::MAX, ..record.bindings[0].clone() };
        record.bindings.push(again);
    }),
    ("one more on a full node", ["default/tight-", "breaks resources: cpu"], |record| {
        let full = place_of(record, "tight-0-0");
        move_to(record, elsewhere(record, "tight-", &full), &full);
    }),
    ("two on one port", ["default/port-", "breaks ports"], |record| {
        let taken = place_of(record, "port-0-0");
        move_to(record, elsewhere(record, "port-", &taken), &taken);
    }),
    ("two that must be apart", ["default/apart-0-0-", "breaks anti-affinity"], |record| {
        let taken = place_of(record, "apart-0-0-0");
        move_to(record, elsewhere(record, "apart-0-0-", &taken), &taken);
    }),
    ("an application all in one zone", ["default/spread-0-0-", "breaks spread"], |record| {
        for at in 0..24 {
            let pod = index_of(record, &format!("spread-0-0-{at}"));
            move_to(record, pod, "general-0");
        }
    }),
    ("half a gang", ["default/gang-", "breaks gang"], |record| {
        let bound = |pod: &Value| name(pod).starts_with("gang-") && !node(pod).is_empty();
        let pod = record.pods.iter().position(bound).unwrap();
        let uid = record.pods[pod]["metadata"]["uid"].clone();
        record.bindings.retain(|it| uid != it.uid.as_str());
        record.pods[pod]["spec"]["nodeName"] = Value::Null;
    }),
    ("a pod that nobody bound", ["default/plain-0-0 ", "nobody has bound it"], |record| {
        let pod = index_of(record, "plain-0-0");
        let uid = record.pods[pod]["metadata"]["uid"].clone();
        record.bindings.retain(|it| uid != it.uid.as_str());
    }),
    ("a pod that was told nothing", ["large-0 ", "has no condition"], |record| {
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

/// All forgeries of a record that was right, at once, are noticed each for what it is.
pub(crate) fn forgeries_are_noticed(record: &Record) {
    let mut forged = record.clone();
    FORGERIES.iter().for_each(|(_, _, forge)| forge(&mut forged));
    let found = judge(&forged);
    for (what, words, _) in FORGERIES {
        let noticed = found.iter().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(noticed, "{what} was not noticed: {found:?}");
    }
}
