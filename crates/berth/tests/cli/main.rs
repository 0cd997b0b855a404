//! The command line against a real server: what it prints, and how it ends.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod elastic;
mod names;
mod overview;
mod preempt;
mod random_refusals;
mod reasons;
mod rebalance;
mod refusals;
mod terminal;
mod workloads;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// A server of the test's own, on a port and a folder of its own. It ends with the test.
struct Server {
    process: Child,
    url: String,
    folder: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn berth(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.env("BERTH_CONFIG", folder.join("client.toml"));
    for name in ["BERTH_URL", "BERTH_TOKEN", "BERTH_CA_CERT"] {
        command.env_remove(name);
    }
    command
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let mut process = berth(folder.path())
            .args(["up", "--no-sign-in", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(&data)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let url = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| {
                line.split_whitespace().find(|word| word.starts_with("http://")).map(str::to_owned)
            })
            .unwrap();
        // What it says later is read, so that it never waits for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, url, folder }
    }

    fn run(&self, words: &[&str]) -> Output {
        berth(self.folder.path()).env("BERTH_URL", &self.url).args(words).output().unwrap()
    }

    /// What a command that must succeed prints.
    fn said(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{words:?}\n{out}{err}");
        out
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.said(&[words, &["-o", "json"]].concat())).unwrap()
    }

    /// What a command that must fail with this exit code says.
    fn fails(&self, code: i32, words: &[&str]) -> String {
        let output = self.run(words);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}\n{}{said}", text(&output.stdout));
        said
    }

    fn with_nodes(self) -> Self {
        for (name, rack, traits) in
            [("node-1", "r1", "ssd"), ("node-2", "r1", "hdd"), ("node-3", "r2", "hdd")]
        {
            self.said(&[
                "nodes", "register", name, "--cpu", "8", "--memory", "32GiB", "--disk", "500GiB",
                "--zone", "z1", "--rack", rack, "--trait", traits,
            ]);
        }
        self
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn nodes_are_listed_selected_changed_and_removed() {
    let server = Server::start();
    assert!(server.fails(0, &["nodes", "list"]).contains("berth nodes register"));
    let server = server.with_nodes();
    assert_eq!(server.said(&["nodes", "list", "-q"]), "node-1\nnode-2\nnode-3\n");
    let table = server.said(&["nodes", "list", "--where", "rack = r1", "--sort=-name"]);
    assert!(table.starts_with("NODE") && table.find("node-2") < table.find("node-1"), "{table}");
    assert!(!table.contains("node-3") && !table.contains('\u{1b}'), "{table}");
    server.said(&["nodes", "cordon", "--where", "rack = r1", "--yes"]);
    let list = server.json(&["nodes", "list", "--where", "state = cordoned"]);
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    assert_eq!(
        server.said(&["nodes", "uncordon", "node-1", "node-2", "--dry-run"]),
        "node-1\nnode-2\n"
    );
    server.said(&["nodes", "uncordon", "node-1", "node-2", "--yes"]);
    server.said(&["nodes", "set", "node-3", "label.team=db", "trait.hdd=null", "trait.ssd=true"]);
    let node = server.json(&["nodes", "show", "node-3"]);
    assert_eq!(node["facts"]["labels"]["team"], "db");
    assert_eq!(node["facts"]["traits"], serde_json::json!({"ssd": true}));
    server.said(&["nodes", "remove", "node-3"]);
    assert!(server.fails(4, &["nodes", "show", "nod-1"]).contains("did you mean node-1?"));
    assert!(server.fails(2, &["nodes", "list", "--where", "racc = r1"]).contains("^^^^"));
}

#[test]
fn a_file_of_nodes_is_taken_whole_or_not_at_all() {
    let server = Server::start();
    let path = server.folder.path().join("fleet.json");
    let node = |id: &str| serde_json::json!({"id": id, "capacity": {"cpu_milli": 8000, "memory_mib": 4096, "disk_mib": 10, "bandwidth_mbps": 0}});
    std::fs::write(&path, serde_json::json!([node("a"), node("b")]).to_string()).unwrap();
    let file = path.to_str().unwrap();
    let imported = server.said(&["nodes", "import", file]);
    let (counts, owned) = imported.split_once('\n').unwrap();
    assert_eq!(counts, "2 added, 0 changed, 0 unchanged");
    assert!(owned.starts_with("the file owns") && owned.contains("capacity.cpu_milli"), "{owned}");
    let mut wrong = node("c");
    wrong["colour"] = "red".into();
    std::fs::write(&path, serde_json::json!([node("d"), wrong]).to_string()).unwrap();
    assert!(server.fails(2, &["nodes", "import", file]).contains("colour"));
    assert_eq!(server.said(&["nodes", "list", "-q"]), "a\nb\n");
}

#[test]
fn a_placement_is_granted_explained_and_released() {
    let server = Server::start().with_nodes();
    let place = ["place", "--cpu", "1", "--memory", "2GiB", "--tenant", "acme", "--trait", "hdd"];
    let dry = server.json(&[&place[..], &["--dry-run"]].concat());
    assert_eq!(dry["dry_run"], true);
    let why =
        server.said(&[&place[..], &["--name", "web", "--count", "2", "--explain=full"]].concat());
    assert!(why.contains("placed 2 instances") && why.contains("Why node-"), "{why}");
    assert!(why.contains("1 node cannot") && why.contains("traits"), "{why}");
    let claim = server.json(&["claims", "show", "web-1"]);
    assert_eq!(claim["state"], "held");
    server.said(&["claims", "renew", "web-1", "--lease", "5m"]);
    server.said(&["claims", "bind", "web-1"]);
    assert!(server.fails(6, &["claims", "activate", "web-1", "--fence", "1"]).contains("fence"));
    server.said(&["claims", "activate", "web-1"]);
    let explained = server.said(&["explain", "web-1"]);
    assert!(explained.contains("It was placed on node-"), "{explained}");
    assert!(server.said(&["claims", "release", "web-1", "--confirmed"]).contains("is gone"));
    assert!(server.fails(4, &["claims", "show", "web-3"]).contains("did you mean web-2?"));
}

#[test]
fn a_refusal_is_a_picture_whose_first_command_works() {
    let server = Server::start().with_nodes();
    let place = ["place", "--memory", "100GiB", "--tenant", "acme", "--trait", "ssd"];
    let picture = server.fails(3, &place);
    assert!(picture.starts_with("error: no room: none of 3 nodes can take it"), "{picture}");
    let command =
        picture.lines().map(str::trim).find(|line| line.starts_with("berth place")).unwrap();
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    server.said(&words);
    let output = server.run(&[&place[..], &["-o", "json"]].concat());
    let problem: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(problem["code"], "no_capacity_memory");
    // No node is that large, but one may be added: what waits is the signal to do so.
    let out = server.fails(3, &[&place[..], &["--wait", "1s"]].concat());
    assert!(out.contains("waiting in the queue"), "{out}");
    assert!(server.said(&["queue", "list"]).contains("expired"));
}

#[test]
fn a_file_is_placed_as_flags_are() {
    let server = Server::start().with_nodes();
    let path = server.folder.path().join("web.yaml");
    std::fs::write(&path, "resources: {memory_mib: 512}\ntraits: {ssd: true}\n").unwrap();
    let file = path.to_str().unwrap();
    let placed = server.json(&["place", "-f", file, "--count", "3", "--tenant", "acme"]);
    assert_eq!(placed["instances"].as_array().unwrap().len(), 3);
    assert_eq!(placed["instances"][0]["node"], "node-1");
}

#[test]
fn exit_codes_tell_failures_apart() {
    let server = Server::start();
    server.fails(2, &["place", "--cpu", "1"]);
    server.fails(2, &["place", "--memory", "4 apples"]);
    server.fails(2, &["nodes", "lst"]);
    server.fails(3, &["place", "--memory", "1GiB", "--tenant", "acme"]);
    server.fails(4, &["queue", "show", "nothing"]);
    server.fails(5, &["whoami", "--token", "berth_0123456789abcdef_0"]);
    let nobody = server.fails(7, &["nodes", "list", "--url", "http://127.0.0.1:1"]);
    assert!(nobody.contains("berth up"), "{nobody}");
}

#[test]
fn events_are_listed_and_a_screen_is_drawn() {
    let server = Server::start().with_nodes();
    let events = server.said(&["events", "--kind", "node"]);
    assert!(events.contains("node.changed") && events.contains("node-2"), "{events}");
    let screen = server.said(&["top", "--once", "--width", "80", "--height", "20"]);
    assert!(screen.contains("3 nodes") && screen.contains("z1 (3)"), "{screen}");
    let context = server.said(&["whoami", "--save", "-o", "yaml"]);
    assert!(context.contains("role: admin"), "{context}");
    assert!(server.folder.path().join("client.toml").exists());
}

#[test]
fn groups_pools_quotas_and_the_like_are_set_shown_and_removed() {
    let server = Server::start().with_nodes();
    server.said(&["groups", "set", "web", "--kind", "apart", "--topology", "rack"]);
    assert!(server.said(&["groups", "list"]).contains("apart"));
    server.said(&["volumes", "set", "data", "--home", "node-1"]);
    server.said(&["volumes", "attachments", "set", "db", "data", "--tenant", "acme"]);
    assert!(server.said(&["volumes", "attachments", "list"]).contains("node-1"));
    server.said(&["pools", "set", "vlan", "10-19", "--quarantine", "1m"]);
    let place =
        ["place", "--memory", "1GiB", "--tenant", "acme", "--trait", "ssd", "--pool", "vlan"];
    let placed = server.json(&place);
    assert_eq!(placed["instances"][0]["values"][0]["value"], "10");
    server.said(&["quotas", "set", "acme", "--instances", "1"]);
    assert!(server.fails(3, &place).contains("uses 1 of its quota of 1 (quota_exceeded)"));
    server.said(&["quotas", "remove", "acme"]);
    server.said(&["secrets", "set", "production", "v1", "--tenant", "acme"]);
    server.said(&["workloads", "set", "acme/web", "--replicas", "2", "--memory", "1GiB"]);
    server.said(&["workloads", "scale", "acme/web", "3"]);
    assert!(server.said(&["workloads", "list"]).contains("0 of 3"));
    server.said(&["workloads", "remove", "acme/web"]);
    server.said(&["groups", "remove", "web"]);
    assert!(server.fails(4, &["groups", "show", "web"]).contains("web"));
    assert!(server.said(&["audit", "--action", "quota.put", "-o", "json"]).contains("items"));
}

#[test]
fn policies_are_checked_compared_and_put_in_force() {
    let server = Server::start();
    let path = server.folder.path().join("mine.toml");
    std::fs::write(&path, "name = \"mine\"\n[scores]\nmemory-pack = 2.0\n").unwrap();
    let file = path.to_str().unwrap();
    assert!(server.said(&["policy", "validate", file]).starts_with("valid: mine"));
    assert!(server.said(&["policy", "diff", "balanced", file]).contains("scores.affinity"));
    assert!(server.said(&["policy", "activate", file]).contains("mine"));
    assert!(server.said(&["policy", "list"]).contains("mine"));
    assert!(server.said(&["policy", "rollback"]).contains("balanced"));
    assert!(server.said(&["policy", "diff", "active", "balanced"]).contains("are the same"));
    assert!(server.fails(4, &["policy", "show", "pakc"]).contains("did you mean pack?"));
    std::fs::write(&path, "name = \"mine\"\n[scores]\nmemori = 1.0\n").unwrap();
    assert!(server.fails(2, &["policy", "validate", file]).contains("memory-pack"));
}

#[test]
fn tokens_are_made_bound_and_revoked_and_one_can_be_made_without_a_server() {
    let server = Server::start().with_nodes();
    let create = ["token", "create", "--role", "tenant", "--tenant", "acme", "-q"];
    // Output that is no terminal gets no secret unless that is what is wanted.
    for format in [&[][..], &["-o", "json"], &["-o", "yaml"]] {
        let refused = server.fails(2, &[&create[..], format].concat());
        assert!(refused.contains("--out") && refused.contains("--show-token"), "{refused}");
    }
    let bound = |token: &Value| token["tenants"][0] == "acme";
    let tokens = server.json(&["token", "list"])["items"].clone();
    assert!(!tokens.as_array().unwrap().iter().any(bound), "none was made: {tokens}");
    let secret = server.said(&[&create[..], &["--show-token"]].concat());
    let tenant = ["--token", secret.trim()];
    let who = server.json(&[&["whoami"][..], &tenant].concat());
    assert_eq!(who["tenants"][0], "acme");
    server.fails(5, &[&["nodes", "list"][..], &tenant].concat());
    let placed =
        server.json(&[&["place", "--memory", "1GiB", "--trait", "ssd"][..], &tenant].concat());
    assert_eq!(placed["tenant"], "acme");
    server.said(&["token", "revoke", who["token"].as_str().unwrap()]);
    server.fails(5, &[&["whoami"][..], &tenant].concat());
    let database = server.folder.path().join("data").join("berth.db");
    let database = database.to_str().unwrap();
    let admin = server.said(&[
        "token",
        "create",
        "--role",
        "admin",
        "--database-url",
        database,
        "-q",
        "--show-token",
    ]);
    assert!(admin.starts_with("berth_"), "{admin}");
    let shown = ["token", "create", "--show-token", "--database-url"];
    server.fails(4, &[&shown[..], &["none.db", "--role", "admin"]].concat());
    server.fails(2, &[&shown[..], &[database, "--role", "agent"]].concat());
}

#[test]
fn what_needs_no_server_needs_none() {
    let folder = tempfile::tempdir().unwrap();
    let said = |words: &[&str]| {
        let output = berth(folder.path()).args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    for shell in ["bash", "zsh", "fish"] {
        let script = said(&["completions", shell]);
        assert!(script.contains("berth") && script.contains("BERTH_COMPLETE"), "{script}");
    }
    assert!(said(&["man"]).contains(".TH"));
    let pages = folder.path().join("man");
    said(&["man", "--out", pages.to_str().unwrap()]);
    assert!(pages.join("berth-nodes-list.1").exists());
    assert!(said(&["policy", "reference"]).contains("no_capacity_memory"));
}

#[test]
fn a_node_says_whether_it_can_be_emptied_and_the_command_ends_accordingly() {
    let server = Server::start().with_nodes();
    let place = ["place", "--memory", "20GiB", "--tenant", "acme", "--trait", "hdd"];
    server.said(&[&place[..], &["--name", "large"]].concat());
    let on = server.json(&["instances", "show", "large"])["node"].as_str().unwrap().to_owned();
    let said = server.said(&["evacuate", "check", "--node", &on]);
    assert!(said.starts_with(&format!("{on} can be emptied: yes: its one instance")), "{said}");
    assert!(said.contains("INSTANCE") && said.contains("acme"), "{said}");
    let found = server.json(&["evacuate", "check", "--node", &on]);
    assert_eq!(found["items"][0]["moves"][0]["state"], "planned");
    let others = ["node-1", "node-2", "node-3"].into_iter().filter(|node| *node != on);
    let others: Vec<&str> = others.collect();
    server.said(&["nodes", "cordon", others[0], others[1], "--yes"]);
    let output = server.run(&["evacuate", "check", "--node", &on]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("can be emptied: no, because 1 of 1 instance"), "{said}");
    assert!(said.contains("no_nodes_active") && said.contains("nowhere"), "{said}");
    let output = server.run(&["evacuate", "check", "--all", "-o", "json"]);
    assert_eq!(output.status.code(), Some(3));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["items"].as_array().unwrap().len(), 3);
    let rack = server.run(&["evacuate", "check", "--rack", "r1"]);
    assert!(text(&rack.stdout).contains("2 nodes together can be emptied"), "{rack:?}");
    assert!(server.fails(2, &["evacuate", "check", "--rack", "r9"]).contains("r9"));
    assert!(server.fails(2, &["evacuate", "check"]).contains("--node"));
    assert!(server.fails(2, &["evacuate", "check", "--all", "--rack", "r1"]).contains("--rack"));
}

#[test]
fn a_reader_that_stops_early_sees_no_complaint() {
    let mut berth = Command::new(env!("CARGO_BIN_EXE_berth"));
    let mut berth = berth
        .args(["policy", "reference"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(berth.stdout.take());
    let ended = berth.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!said.contains("panic"), "{said}");
    assert!(ended.status.success(), "{:?}", ended.status);
}
