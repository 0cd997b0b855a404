//! Three servers on one PostgreSQL, under load, and one of them is killed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use berth_api::engine::{Amounts, InstanceId, NodeFacts, NodeId};
use berth_api::{Instance, InstanceSpec, PlaceRequest, Placed, Resources};
use berth_client::{Client, ClientError, Connect, PlaceOutcome};
use berth_pgtemp::TempPostgres;

use crate::harness::Home;

/// Where each acknowledged request put its instance.
type Acknowledged = BTreeMap<String, (InstanceId, NodeId)>;

/// How often something that takes a moment is looked for, and the time in between.
const TRIES: u32 = 2400;
const PAUSE: Duration = Duration::from_millis(50);

fn client(url: &str, token: &str) -> Client {
    let (url, token) = (url.to_owned(), Some(token.to_owned()));
    let timeout = Some(Duration::from_secs(60));
    Client::new(Connect { url, token, timeout, ..Connect::default() }).unwrap()
}

fn request(id: &str) -> PlaceRequest {
    let resources = Resources { cpu_milli: 100, memory_mib: 64, ..Resources::default() };
    serde_json::from_value(serde_json::json!({
        "request_id": id,
        "tenant": "acme",
        "lease_s": 3600,
        "instances": [InstanceSpec::new(resources)],
    }))
    .unwrap()
}

fn where_to(placed: &Placed) -> (InstanceId, NodeId) {
    let [instance] = placed.instances.as_slice() else { panic!("one was asked for: {placed:?}") };
    (instance.instance, instance.node.clone().unwrap())
}

/// Places on one server after the other until one acknowledges, always under the same request id.
async fn place(clients: &[Client], first: usize, id: &str) -> (InstanceId, NodeId) {
    for turn in 0..3000 {
        let server = &clients[(first + turn) % clients.len()];
        match server.place(&request(id)).await {
            Ok(PlaceOutcome::Placed(placed)) => return where_to(&placed),
            Ok(PlaceOutcome::Waiting(ticket)) => panic!("nobody asked to wait: {ticket:?}"),
            // A server that is gone, or does not know: ask another, which finds out.
            Err(ClientError::Unreachable { .. } | ClientError::Transport(_)) => {}
            Err(error) => {
                let retry = matches!(&error, ClientError::Problem { problem, .. } if problem.retry == Some(true));
                assert!(retry, "{error:?}");
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("nobody answers request {id}");
}

/// Waits until so many requests have been acknowledged, for two minutes at most.
async fn reaches(counter: &AtomicU64, least: u64) {
    for _ in 0..TRIES {
        if counter.load(Ordering::Relaxed) >= least {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
    panic!("{} of {least} requests were acknowledged", counter.load(Ordering::Relaxed));
}

/// Acknowledged instances that are not where they were said to be.
fn lost(acknowledged: &Acknowledged, there: &[Instance]) -> Vec<String> {
    let there: BTreeMap<InstanceId, &NodeId> = there
        .iter()
        .map(|instance| (instance.claim.instance, instance.claim.node.as_ref().unwrap()))
        .collect();
    let wrong = |(_, (instance, node)): &(&String, &(InstanceId, NodeId))| {
        there.get(instance) != Some(&node)
    };
    acknowledged.iter().filter(wrong).map(|(id, _)| id.clone()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_servers_is_killed_and_no_acknowledged_claim_is_lost() {
    let postgres = TempPostgres::start(berth_pgtemp::Options::quick()).unwrap();
    let url = postgres.create_database("berth").unwrap();
    let homes: Vec<Home> = (0..3).map(|_| Home::new()).collect();
    let first = homes[0].up(&["--database-url", &url]);
    let token = first.token();
    let mut servers = vec![Some(first)];
    servers.extend(homes[1..].iter().map(|home| Some(home.up(&["--database-url", &url]))));
    let urls: Vec<String> = servers.iter().flatten().map(|server| server.url()).collect();
    let clients: Arc<Vec<Client>> = Arc::new(urls.iter().map(|url| client(url, &token)).collect());
    for number in 0..6 {
        let capacity = Amounts::new(1_000_000, 10_000_000).with_disk(100_000_000);
        let mut facts = NodeFacts::new(&format!("n{number}"), capacity);
        facts.instance_limit = 1_000_000;
        clients[0].put_node(&facts).await.unwrap();
    }
    let stop = Arc::new(AtomicBool::new(false));
    let before_the_kill = Arc::new(AtomicU64::new(0));
    let after_the_kill = Arc::new(AtomicU64::new(0));
    let killed = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..9_usize)
        .map(|worker| {
            let (clients, stop) = (Arc::clone(&clients), Arc::clone(&stop));
            let (killed, after) = (Arc::clone(&killed), Arc::clone(&after_the_kill));
            let before = Arc::clone(&before_the_kill);
            tokio::spawn(async move {
                let mut acknowledged = Acknowledged::new();
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    let id = format!("{worker}-{number}");
                    number += 1;
                    // One that began before the kill may have been served by the killed server.
                    let counter = if killed.load(Ordering::Relaxed) { &after } else { &before };
                    let placed = place(&clients, worker, &id).await;
                    counter.fetch_add(1, Ordering::Relaxed);
                    acknowledged.insert(id, placed);
                }
                acknowledged
            })
        })
        .collect();
    reaches(&before_the_kill, 300).await;
    // As a machine that loses its power.
    drop(servers[1].take());
    killed.store(true, Ordering::Relaxed);
    // The others go on serving.
    reaches(&after_the_kill, 300).await;
    stop.store(true, Ordering::Relaxed);
    let mut acknowledged = Acknowledged::new();
    for worker in workers {
        acknowledged.extend(worker.await.unwrap());
    }

    // What one server wrote, the others have read within a moment.
    for survivor in [0, 2] {
        let mut there: Vec<Instance> = Vec::new();
        for _ in 0..TRIES {
            there = clients[survivor].all("/v1/instances", &[("limit", "1000")]).await.unwrap();
            if there.len() >= acknowledged.len() {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        assert_eq!(lost(&acknowledged, &there), Vec::<String>::new(), "server {survivor}");
        assert_eq!(there.len(), acknowledged.len(), "nothing is there that nobody was told of");
    }
    // The control: an acknowledgement that never was is found out.
    let mut forged = acknowledged.clone();
    forged.insert("forged".to_owned(), (InstanceId::from_u128(7), NodeId::new("n0")));
    let there: Vec<Instance> = clients[0].all("/v1/instances", &[("limit", "1000")]).await.unwrap();
    assert_eq!(lost(&forged, &there), ["forged"]);

    // A retry under the same id, on any server, gets the first answer.
    for (number, (id, first)) in acknowledged.iter().step_by(7).take(40).enumerate() {
        let again = clients[[0, 2][number % 2]].place(&request(id)).await.unwrap();
        let PlaceOutcome::Placed(again) = again else { panic!("{again:?}") };
        assert_eq!(where_to(&again), *first, "request {id}");
    }
    for server in servers.into_iter().flatten() {
        server.stop();
    }
}
