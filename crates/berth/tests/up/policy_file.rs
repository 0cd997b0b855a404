//! A policy that is kept in a file next to the server, and the inside of that server.

use std::path::Path;
use std::time::{Duration, Instant};

use berth_api::StoredPolicy;

use crate::harness::{Home, Running, node, small};

fn policy(name: &str, weight: u32) -> String {
    format!("name = \"{name}\"\n[scores]\nmemory-pack = {weight}\n")
}

/// A new file in the old one's place, as editors write them.
fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, file).unwrap();
}

async fn in_force(server: &Running, token: &str) -> String {
    let connect = berth_client::Connect {
        url: server.url(),
        token: Some(token.to_owned()),
        ..Default::default()
    };
    let client = berth_client::Client::new(connect).unwrap();
    let policy: StoredPolicy = client.get("/v1/policies/active", &[]).await.unwrap();
    policy.name
}

async fn wait_for(server: &Running, token: &str, name: &str) {
    let began = Instant::now();
    while in_force(server, token).await != name {
        assert!(began.elapsed() < Duration::from_secs(60), "{name}\n{}", server.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_policy_in_a_file_is_in_force_when_it_changes_and_a_command_outlasts_it_until_then() {
    let home = Home::new();
    let folder = home.path().join("settings");
    std::fs::create_dir_all(&folder).unwrap();
    let (file, config) = (folder.join("policy.toml"), folder.join("berth.toml"));
    std::fs::write(&file, policy("first", 1)).unwrap();
    std::fs::write(&config, format!("[policy]\nfile = {file:?}\n")).unwrap();
    let arguments = ["--config", config.to_str().unwrap()];
    let server = home.up(&arguments);
    let token = server.token();
    assert_eq!(in_force(&server, &token).await, "first");

    replace(&file, &policy("second", 2));
    wait_for(&server, &token, "second").await;

    // A file that is no policy changes nothing, and the log says which key, value and range.
    replace(&file, &policy("third", 5000));
    server.wait_for_log("policy.file rejected, keeping the active policy");
    server.wait_for_log("memory-pack is 5000; accepted is");
    replace(&file, "name = \n");
    server.wait_for_log("policy is not valid TOML");
    assert_eq!(in_force(&server, &token).await, "second");
    replace(&file, &policy("second", 2));

    // By command it is taken back; a signal reads the same file again and leaves it at that.
    let url = server.url();
    let back = home.run(&["policy", "rollback", "--url", &url, "--token", &token]);
    assert!(back.status.success(), "{back:?}");
    assert_eq!(in_force(&server, &token).await, "first");
    server.signal("-HUP");
    server.wait_for_log("policy from file was activated before");
    assert_eq!(in_force(&server, &token).await, "first");
    server.stop();

    // So does a restart. A file that changed is a new word.
    let server = home.up(&arguments);
    assert_eq!(in_force(&server, &token).await, "first");
    replace(&file, &policy("fourth", 4));
    wait_for(&server, &token, "fourth").await;
    let audit = home.run(&["audit", "--url", &server.url(), "--token", &token, "-o", "json"]);
    let audit = String::from_utf8(audit.stdout).unwrap();
    assert!(audit.contains("policy.file") && audit.contains("policy.activate"), "{audit}");
    server.stop();
}

#[tokio::test]
async fn a_server_is_dumped_checked_and_asked_what_another_policy_would_change() {
    let home = Home::new();
    let server = home.up(&[]);
    let client = server.client();
    for id in ["n1", "n2"] {
        client.put_node(&node(id)).await.unwrap();
    }
    client.place(&small("one")).await.unwrap();
    let (url, token) = (server.url(), server.token());
    let berth = |arguments: &[&str]| {
        let mut all = arguments.to_vec();
        all.extend(["--url", &url, "--token", &token]);
        let output = home.run(&all);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let file = home.path().join("dump.json");
    let path = file.to_str().unwrap();
    assert_eq!(berth(&["debug", "dump", "--out", path]).0, Some(0));
    let (code, said, errors) = berth(&["debug", "check", path]);
    assert_eq!(code, Some(0), "{said}{errors}");
    assert!(said.contains("2 nodes, 1 claim; all invariants hold"), "{said}");
    assert_eq!(berth(&["debug", "check", "--live"]).0, Some(0));

    let dump = std::fs::read_to_string(&file).unwrap();
    let forged = dump.replacen("\"cpu\":10,", "\"cpu\":11,", 1);
    assert_ne!(forged, dump);
    std::fs::write(&file, forged).unwrap();
    let (code, said, _) = berth(&["debug", "check", path]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("is 11, must be 10, the sum of its claims"), "{said}");
    std::fs::write(&file, "{}").unwrap();
    assert_eq!(berth(&["debug", "check", path]).0, Some(2));

    let (code, said, errors) = berth(&["policy", "diff", "active", "active", "--on-live"]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(said.contains("0 of 1 decisions would change"), "{said}");
    let mine = home.path().join("mine.toml");
    std::fs::write(&mine, policy("mine", 3)).unwrap();
    let (code, said, errors) =
        berth(&["policy", "diff", "active", mine.to_str().unwrap(), "--on-live"]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(said.contains("of 1 decisions would change") && said.contains("scores."), "{said}");
    server.stop();
}
