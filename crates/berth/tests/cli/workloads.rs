//! Workloads: files of them, roll-outs, and what is said when there is no room.

use crate::Server;

const WEB: &str = r#"
tenant = "acme"
name = "web"
replicas = 3
[template]
env = "production"
image = "web:7"
resources = { cpu = "500m", memory = "1GiB" }
[capacity]
max_on_demand = 2
mode = { fallback-after = "5m" }
"#;

impl Server {
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Two on-demand nodes and one spot node that anything may be on.
    fn with_plain_nodes(self) -> Self {
        for (name, kind) in [("node-1", "on-demand"), ("node-2", "on-demand"), ("spot-1", "spot")] {
            let size = ["--cpu", "8", "--memory", "32GiB", "--disk", "500GiB"];
            let node = ["nodes", "register", name, "--capacity", kind];
            self.said(&[&node[..], &size].concat());
        }
        self
    }

    /// Lets all members of a workload run.
    fn run_members(&self, workload: &str, count: usize) {
        for _ in 0..600 {
            let list = self.json(&["workloads", "members", workload]);
            let members = list["items"].as_array().unwrap();
            let placed = members.iter().filter(|member| member["state"] == "held");
            for member in placed {
                let instance = member["instance"].as_str().unwrap();
                self.said(&["claims", "bind", instance]);
                self.said(&["claims", "activate", instance]);
            }
            if members.iter().filter(|member| member["state"] == "active").count() >= count {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        panic!("{}", self.said(&["workloads", "status", workload]));
    }
}

#[test]
fn a_file_says_what_should_run_and_what_a_change_of_it_would_do() {
    let server = Server::start();
    let file = server.file("web.toml", WEB);
    let apply = ["workloads", "apply", "-f", &file];
    let dry = [&apply[..], &["--dry-run"]].concat();
    assert_eq!(server.said(&dry), "acme/web would be created\n");
    assert_eq!(server.said(&apply), "acme/web created\n");
    assert_eq!(server.said(&apply), "acme/web unchanged\n");
    server.file("web.toml", &WEB.replace("web:7", "web:8").replace("1GiB", "2GiB"));
    assert_eq!(
        server.said(&dry),
        "acme/web would be changed (revision 2)\n  template.image: web:7 → web:8\n  \
         template.resources.memory: 1GiB → 2GiB\n"
    );
    assert_eq!(server.said(&apply), "acme/web changed (revision 2)\n");
    assert_eq!(server.said(&["workloads", "scale", "acme/web", "5"]), "acme/web scaled 3 → 5\n");
    let list = server.json(&["workloads", "list", "--env", "production"]);
    assert_eq!(list["items"][0]["spec"]["replicas"], 5);
    assert_eq!(list["items"][0]["spec"]["template"]["resources"]["memory_mib"], 2048);
    assert_eq!(list["items"][0]["spec"]["capacity"]["mode"]["fallback-after"], 300);
    let history = server.said(&["workloads", "rollout", "history", "acme/web"]);
    assert!(history.contains("image, resources.memory"), "{history}");
    assert_eq!(
        server.said(&["workloads", "rollout", "undo", "acme/web"]),
        "acme/web returns to the previous revision, as revision 3\n"
    );
    let shown = server.said(&["workloads", "show", "acme/web", "-o", "yaml"]);
    let shown = server.file("shown.yaml", &shown);
    assert_eq!(server.said(&["workloads", "apply", "-f", &shown]), "acme/web unchanged\n");
}

#[test]
fn a_file_with_one_wrong_workload_stores_none() {
    let server = Server::start();
    let with = |replicas: &str, resources: &str| {
        let one = |name: &str, replicas: &str, resources: &str| {
            format!("name: {name}\nreplicas: {replicas}\ntemplate: {{resources: {resources}}}\n")
        };
        let first = one("a", "1", "{memory: 1GiB}");
        let text = format!("{first}---\n{}", one("b", replicas, resources));
        server.file("two.yaml", &text)
    };
    let apply = ["workloads", "apply", "--tenant", "acme", "-f"];
    for (replicas, resources, named) in [
        // What the server says, and what is seen before it is asked.
        ("200000", "{memory: 1GiB}", "replicas is 200000"),
        ("2", "{memory: 2 apples}", "template.resources.memory"),
        ("2", "{memory: 1GiB, colour: red}", "template.resources.colour"),
        ("many", "{memory: 1GiB}", "replicas is \"many\"; accepted is a whole number"),
    ] {
        let file = with(replicas, resources);
        let said = server.fails(2, &[&apply[..], &[file.as_str()]].concat());
        assert!(said.contains("two.yaml, document 2") && said.contains(named), "{said}");
        assert!(said.contains("nothing was stored"), "{said}");
        assert_eq!(server.said(&["workloads", "list", "-q"]), "");
    }
    let file = with("2", "{memory: 1GiB}");
    assert!(
        server.fails(2, &["workloads", "apply", "-f", &file]).contains("tenant is missing"),
        "an administrator is bound to no tenant"
    );
    let said = server.said(&[&apply[..], &[file.as_str()]].concat());
    assert_eq!(said, "acme/a created\nacme/b created\n");
    let twice = server.fails(2, &[&apply[..], &[file.as_str(), "-f", &file]].concat());
    assert!(twice.contains("as well"), "{twice}");
}

#[test]
fn a_workload_that_is_not_there_is_told_by_its_exit_code() {
    let server = Server::start();
    server.said(&["workloads", "set", "acme/web", "--replicas", "1", "--memory", "1GiB"]);
    for words in [
        &["workloads", "status", "acme/wbe"][..],
        &["workloads", "scale", "acme/wbe", "3"],
        &["workloads", "rollout", "pause", "acme/wbe"],
        &["workloads", "remove", "acme/wbe"],
    ] {
        assert!(server.fails(4, words).contains("did you mean acme/web?"), "{words:?}");
    }
    assert!(server.fails(2, &["workloads", "show", "web"]).contains("acme/web"));
    server.fails(4, &["environments", "show", "production"]);
    server.fails(6, &["workloads", "rollout", "undo", "acme/web"]);
    let new = server.fails(2, &["workloads", "set", "acme/db", "--memory", "1GiB"]);
    assert!(new.contains("--caller-managed"), "{new}");
}

#[test]
fn members_come_run_and_go() {
    let server = Server::start().with_plain_nodes();
    let file = server.file("web.toml", WEB);
    server.said(&["workloads", "apply", "-f", &file]);
    server.run_members("acme/web", 3);
    let said = server.said(&["workloads", "apply", "-f", &file, "--wait=20s"]);
    assert_eq!(said, "acme/web unchanged\nacme/web revision 1 runs, 3 of 3\n");
    let table = server.said(&["workloads", "list"]);
    assert!(
        table.contains("ready") && table.contains("3 of 3") && table.contains("2/1"),
        "{table}"
    );
    let status = server.said(&["workloads", "status", "acme/web"]);
    assert!(status.contains("spot-1") && status.contains("on-demand"), "{status}");
    let env = server.said(&["envs", "show", "production"]);
    assert!(env.contains("everything runs as it should"), "{env}");
    let remove = server.run(&["workloads", "remove", "acme/web"]);
    let said = String::from_utf8_lossy(&remove.stderr).into_owned();
    assert!(said.contains("acme/web is being removed, 3 members left"), "{said}");
    assert!(server.fails(6, &["workloads", "apply", "-f", &file]).contains("being removed"));
}

#[test]
fn no_room_is_told_with_its_code_and_drawn() {
    let server = Server::start().with_plain_nodes();
    let file = server.file("big.toml", &WEB.replace("1GiB", "64GiB"));
    let said = server.fails(3, &["workloads", "apply", "-f", &file, "--wait=3s"]);
    assert!(said.contains("is degraded after 3s: no_capacity_memory: none of 3"), "{said}");
    assert!(said.contains("What would help"), "{said}");
    let list = server.said(&["workloads", "list"]);
    assert!(list.contains("degraded") && list.contains("no_capacity_memory"), "{list}");
    let status = server.said(&["workloads", "status", "acme/web"]);
    assert!(status.contains("empty") && status.contains("can take it"), "{status}");
    let env = server.said(&["environments", "show", "production", "--tenant", "acme"]);
    assert!(env.contains("degraded") && env.contains("0 of 3"), "{env}");
    assert!(server.said(&["events", "--kind", "env"]).contains("env.scheduling_failed"));
}
