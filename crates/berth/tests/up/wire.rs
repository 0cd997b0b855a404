//! The protocol of existing agents: on a port of its own when it is asked for, with the server's
//! certificate, and stopped with it.

use berth_client::{Client, Connect};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::{Home, Running};

/// Where a server says that it speaks it.
fn wire_url(server: &Running) -> Option<String> {
    let (url, _) = server.told("wire ")?.split_once("/ ")?;
    Some(url.to_owned())
}

fn body(name: &str, size: u32) -> Value {
    json!({
        "protoVersion": 7,
        "pod": {"name": name, "namespace": "acme"},
        "computeUnit": {"vCPUs": 1, "mem": "1Gi"},
        "resources": {"vCPUs": size, "mem": format!("{size}Gi")},
        "lastPermit": null,
        "metrics": null,
    })
}

/// Sends one request as plain bytes. Returns all that came back.
async fn raw(url: &str, token: Option<&str>) -> String {
    let at = url.trim_start_matches("http://");
    let body = body("nobody", 1).to_string();
    let sign_in = token.map(|token| format!("authorization: Bearer {token}\r\n"));
    let (sign_in, length) = (sign_in.unwrap_or_default(), body.len());
    let request = format!(
        "POST / HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\n{sign_in}\
         content-length: {length}\r\n\r\n{body}"
    );
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn it_is_off_unless_it_has_an_address_and_ends_with_the_server() {
    let home = Home::new();
    let server = home.up(&[]);
    assert_eq!(wire_url(&server), None);
    server.stop();

    let server = home.up(&["--wire-listen", "127.0.0.1:0"]);
    let url = wire_url(&server).unwrap();
    let answer = raw(&url, None).await;
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    assert!(answer.contains("content-type: text/plain\r\n"), "{answer}");
    server.stop();
    assert!(TcpStream::connect(url.trim_start_matches("http://")).await.is_err());

    let trusting = ["--wire-listen", "127.0.0.1:0", "--set", "wire.sign_in=none"];
    let server = home.up(&trusting);
    let answer = raw(&wire_url(&server).unwrap(), None).await;
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    server.stop();
}

#[test]
fn an_address_that_others_can_reach_needs_sign_in() {
    let open = ["up", "--wire-listen", "0.0.0.0:0", "--set", "wire.sign_in=none"];
    let (code, said) = Home::new().refused(&open);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("--wire-listen: wire.listen has 0.0.0.0:0"), "{said}");
}

#[tokio::test]
async fn an_agent_signs_in_with_the_certificate_of_its_node() {
    let home = Home::new();
    let server = home.up(&["--tls", "self", "--wire-listen", "127.0.0.1:0"]);
    let ca_pem = std::fs::read(home.path().join("data/berth/tls/ca.pem")).unwrap();
    let client = |url: String, token: Option<String>, identity_pem: Option<Vec<u8>>| {
        let ca_pem = Some(ca_pem.clone());
        Client::new(Connect { url, token, ca_pem, identity_pem, ..Connect::default() }).unwrap()
    };
    let admin = client(server.url(), Some(server.token()), None);
    let amounts = |size: u32| {
        json!({"cpu_milli": 1000 * size, "memory_mib": 1024 * size, "disk_mib": 0,
            "bandwidth_mbps": 0})
    };
    let facts = json!({"id": "node-7", "vmm_overhead_mib": 0, "ratios": {"cpu_permille": 1000,
        "memory_permille": 1000}, "capacity": amounts(4)});
    admin.put::<_, Value>("/v1/nodes/node-7", &facts).await.unwrap();
    let vm = json!({"name": "vm", "resources": amounts(1),
        "elastic": {"min": amounts(1), "max": amounts(8)}});
    let placement = json!({"tenant": "acme", "instances": [vm]});
    let placed: Value = admin.post("/v1/placements", &placement).await.unwrap();
    let placed = &placed["instances"][0];
    let running = json!({"running": [
        {"instance": placed["instance"], "fence": placed["fence"], "state": "running"}
    ]});
    admin.post::<_, Value>("/v1/nodes/node-7/heartbeat", &running).await.unwrap();

    let url = wire_url(&server).unwrap();
    assert!(url.starts_with("https://"), "{url}");
    let pem = |node: &str| home.run(&["certificate", "agent", "--node", node]).stdout;
    let agent = client(url.clone(), None, Some(pem("node-7")));
    let told: Value = agent.post("/", &body("vm", 6)).await.unwrap();
    assert_eq!(told, json!({"permit": {"vCPUs": 4, "mem": "4Gi"}}));
    for (other, why) in [(Some(pem("node-8")), "node-8"), (None, "no certificate")] {
        let other = client(url.clone(), None, other);
        assert!(other.post::<_, Value>("/", &body("vm", 4)).await.is_err(), "{why}");
    }
    server.stop();
}
