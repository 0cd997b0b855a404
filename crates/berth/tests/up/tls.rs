//! Encryption: an own authority, certificates of agents, and certificates that change.

use std::path::Path;

use berth_api::{Role, WhoAmI};
use berth_client::{Client, Connect};

use crate::harness::{Home, Running};

fn client(server: &Running, ca: &Path, token: Option<String>, identity: Option<&str>) -> Client {
    let connect = Connect {
        url: server.url(),
        token,
        ca_pem: Some(std::fs::read(ca).unwrap()),
        identity_pem: identity.map(|pem| pem.as_bytes().to_vec()),
        ..Connect::default()
    };
    Client::new(connect).unwrap()
}

#[tokio::test]
async fn an_own_authority_encrypts_and_vouches_for_agents() {
    let home = Home::new();
    let server = home.up(&["--tls", "self"]);
    assert!(server.url().starts_with("https://127.0.0.1:"), "{}", server.url());
    let ca = home.path().join("data/berth/tls/ca.pem");
    assert!(server.said.join("\n").contains(&format!("--ca-cert {}", ca.display())));
    assert!(std::fs::read_to_string(home.client_file()).unwrap().contains("ca_cert = "));
    let admin = client(&server, &ca, Some(server.token()), None);
    let me: WhoAmI = admin.get("/v1/whoami", &[]).await.unwrap();
    assert_eq!(me.role, Role::Admin);

    let made = home.run(&["certificate", "agent", "--node", "node-7"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let pem = String::from_utf8(made.stdout).unwrap();
    let agent = client(&server, &ca, None, Some(&pem));
    let me: WhoAmI = agent.get("/v1/whoami", &[]).await.unwrap();
    assert_eq!((me.role, me.node.unwrap().as_str()), (Role::Agent, "node-7"));
    let stranger = client(&server, &ca, None, None);
    assert!(stranger.get::<WhoAmI>("/v1/whoami", &[]).await.is_err());
    server.stop();

    // The authority stays the same.
    let server = home.up(&["--tls", "self"]);
    let agent = client(&server, &ca, None, Some(&pem));
    agent.get::<WhoAmI>("/v1/whoami", &[]).await.unwrap();
    server.stop();
}

#[tokio::test]
async fn certificates_from_files_are_read_again_when_they_change() {
    let home = Home::new();
    let (one, two) = (home.path().join("one"), home.path().join("two"));
    for folder in [&one, &two] {
        home.up(&["--tls", "self", "--data-dir", folder.to_str().unwrap()]).stop();
    }
    let folder = home.path().join("certificates");
    std::fs::create_dir_all(&folder).unwrap();
    let pem = folder.join("server.pem");
    std::fs::copy(one.join("tls/server.pem"), &pem).unwrap();
    let path = pem.to_str().unwrap();
    let server = home.up(&["--tls", "files", "--tls-cert", path, "--tls-key", path]);
    let works = async |folder: &Path| {
        let client = client(&server, &folder.join("tls/ca.pem"), Some(server.token()), None);
        client.get::<WhoAmI>("/v1/whoami", &[]).await.is_ok()
    };
    assert!(works(&one).await && !works(&two).await);
    std::fs::write(&pem, "nothing").unwrap();
    server.wait_for_log("failed to reload certificates; keeping the old ones");
    assert!(works(&one).await);
    std::fs::copy(two.join("tls/server.pem"), &pem).unwrap();
    server.wait_for_log("certificates reloaded");
    assert!(works(&two).await && !works(&one).await);
    server.stop();
}
