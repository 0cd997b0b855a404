//! Starting: what a person is told, and what is refused in one sentence.

use std::net::TcpListener;
use std::time::Duration;

use berth_api::{Node, Page, WhoAmI};

use crate::harness::{Home, status};

#[tokio::test]
async fn the_first_start_makes_a_token_and_commands_work_at_once() {
    let home = Home::new();
    let server = home.up(&[]);
    let (url, token) = (server.url(), server.token());
    let me: WhoAmI = server.client().get("/v1/whoami", &[]).await.unwrap();
    assert_eq!(me.role, berth_api::Role::Admin);
    let file = std::fs::read_to_string(home.client_file()).unwrap();
    assert!(file.contains(&url) && file.contains(&token), "{file}");
    let said = server.said.join("\n");
    assert!(said.contains("readable only by you") && said.contains("Try next"), "{said}");
    assert!(!said.contains("berth_"), "the token is in no log: {said}");
    assert!(home.path().join("data/berth/berth.db").exists());
    server.stop();

    // Started again it makes no other. The same port, since the file is about that.
    let port = url.rsplit(':').next().unwrap();
    let again = home.berth(&["up", "--listen", &format!("127.0.0.1:{port}")]);
    let again = crate::harness::Running::start(again, home.path());
    assert_eq!(again.told("token "), None);
    assert_eq!(again.told("commands "), Some("are signed in already"));
    // A browser is not: it is told which token to use, and how to make another.
    let in_file = format!("in the browser, with the token in {}", home.client_file().display());
    assert_eq!(again.told("sign-in "), Some(in_file.as_str()));
    let hint = "tokens create --role viewer --name browser";
    assert!(again.said.iter().any(|line| line.ends_with(hint)), "{:?}", again.said);

    // Another server leaves the file alone, and says so.
    let other = home.up(&["--data-dir", home.path().join("other").to_str().unwrap()]);
    let said = other.said.join("\n");
    assert!(said.contains(&format!("your own file is about {url}")), "{said}");
    let own = home.path().join("other/client.toml");
    assert!(said.contains(&format!("BERTH_CONFIG={}", own.display())), "{said}");
    assert!(std::fs::read_to_string(home.client_file()).unwrap().contains(&token));
    assert!(std::fs::read_to_string(own).unwrap().contains(&other.token()));
}

#[test]
fn a_second_server_on_the_same_data_is_refused_and_a_killed_one_leaves_no_lock() {
    let home = Home::new();
    let data = home.path().join("d");
    let first = home.up(&["--data-dir", data.to_str().unwrap()]);
    let arguments = ["up", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()];
    let (code, said) = home.refused(&arguments);
    assert_eq!(code, Some(1));
    assert!(said.contains("is in use by another server (process "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    first.signal("-KILL");
    first.wait();
    home.up(&["--data-dir", data.to_str().unwrap()]).stop();
}

#[test]
fn a_second_server_is_refused_under_any_name_of_the_database() {
    let home = Home::new();
    let [data, linked, other] = ["data", "linked", "other"].map(|name| home.path().join(name));
    let first = home.up(&["--data-dir", data.to_str().unwrap()]);
    std::os::unix::fs::symlink(&data, &linked).unwrap();
    std::fs::create_dir(&other).unwrap();
    std::fs::hard_link(data.join("berth.db"), other.join("berth.db")).unwrap();
    let table = [(linked, "is in use by another server (process "), (other, "has 2 hard links")];
    for (folder, expected) in table {
        let folder = folder.to_str().unwrap();
        let (code, said) = home.refused(&["up", "--listen", "127.0.0.1:0", "--data-dir", folder]);
        assert!(said.contains(expected), "{said}");
        assert_eq!((code, said.lines().count()), (Some(1), 1), "{said}");
    }
    first.stop();
}

#[test]
fn what_stands_in_the_way_is_said_in_one_sentence() {
    let home = Home::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    let newer = home.path().join("newer.db");
    home.up(&["--database-url", newer.to_str().unwrap()]).stop();
    let database = rusqlite::Connection::open(&newer).unwrap();
    let sql = "INSERT INTO refinery_schema_history (version, name, applied_on, checksum) \
               VALUES (99, 'later', '2026-01-01T00:00:00Z', '1')";
    database.execute(sql, []).unwrap();
    drop(database);
    let free = ["--listen", "127.0.0.1:0"];
    let table: [(&[&str], i32, &str); 8] = [
        (
            &["--listen", &at],
            1,
            "the port is in use; stop the program that uses it, or set another with --listen",
        ),
        (&["--data-dir", "/dev/null/berth"], 1, "failed to create /dev/null/berth"),
        (
            &["--database-url", "postgres://x@127.0.0.1:1/x"],
            1,
            "postgres://x@127.0.0.1:1/x cannot be reached",
        ),
        (
            &["--database-url", newer.to_str().unwrap()],
            1,
            "was created by a newer Berth (schema 99",
        ),
        (&["--database-url", "mysql://x"], 1, "invalid database URL"),
        (&["--no-sign-in", "--listen", "0.0.0.0:0"], 2, "which others can reach"),
        (&["--policy", "packk"], 1, "neither a file nor a built-in policy"),
        (&["--tls", "on"], 2, "--tls: tls.mode is \"on\"; accepted is one of off, self, files"),
    ];
    for (arguments, code, expected) in table {
        let mut all = vec!["up"];
        if !arguments.contains(&"--listen") {
            all.extend(free);
        }
        all.extend(arguments);
        let (found, said) = home.refused(&all);
        assert!(said.contains(expected), "{arguments:?}: {said}");
        assert_eq!(found, Some(code), "{arguments:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
    }
}

#[tokio::test]
async fn the_files_of_a_server_are_private_whatever_the_umask_and_the_folder() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Home::new();
    let data = home.path().join("open");
    std::fs::create_dir(&data).unwrap();
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o777)).unwrap();
    let mode = |name: &str| {
        let found = std::fs::metadata(data.join(name));
        found.map(|found| found.permissions().mode() & 0o777).map_err(|error| error.to_string())
    };
    let run = |arguments: &str| {
        let own = home.berth(&[]);
        let variables = own.get_envs().filter_map(|(name, value)| Some((name, value?)));
        let shell = format!("umask 000; exec {} {arguments}", env!("CARGO_BIN_EXE_berth"));
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &shell]).env_clear().envs(variables);
        command
    };
    let folder = data.display();
    let up = format!("up --listen 127.0.0.1:0 --data-dir {folder} --tls self");
    let server = crate::harness::Running::start(run(&up), home.path());
    for name in ["berth.db", "berth.db-wal", "berth.db-shm"] {
        assert_eq!(mode(name), Ok(0o600), "{name}");
    }
    assert_eq!(mode("tls/server.pem"), Ok(0o600));
    let file = server.told("commands ").unwrap().strip_prefix("use ").unwrap().to_owned();
    let found = std::fs::metadata(file).unwrap().permissions().mode();
    assert_eq!(found & 0o777, 0o600);
    server.stop();

    // What an earlier release left open is closed.
    let database = data.join("berth.db");
    std::fs::set_permissions(&database, std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::write(data.join("ledger.jsonl"), "").unwrap();
    let export = format!("export --database-url {folder}/berth.db --out {folder}/ledger.jsonl");
    let token = format!(
        "tokens create --role viewer --database-url {folder}/berth.db --out {folder}/viewer.token"
    );
    for arguments in [export, token] {
        let done = run(&arguments).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        assert!(!String::from_utf8_lossy(&done.stdout).contains("berth_"));
    }
    for name in ["berth.db", "ledger.jsonl", "viewer.token"] {
        assert_eq!(mode(name), Ok(0o600), "{name}");
    }
    let secret = std::fs::read_to_string(data.join("viewer.token")).unwrap();
    assert!(secret.starts_with("berth_"), "{secret}");
}

#[tokio::test]
async fn without_sign_in_nobody_on_this_machine_needs_a_token() {
    let home = Home::new();
    let server = home.up(&["--no-sign-in", "--listen", "[::1]:0"]);
    let said = server.said.join("\n");
    assert!(said.contains("http://127.0.0.1:") && said.contains(" and http://[::1]:"), "{said}");
    for url in server.said[0].split(' ').filter(|word| word.starts_with("http://")) {
        assert_eq!(status(&format!("{url}/v1/whoami")).await, 200, "{url}");
        // The port belongs to the name of the host.
        let host = url.strip_prefix("http://").unwrap();
        let (name, _) = host.rsplit_once(':').unwrap();
        for (host, expected) in [(host, 200), (name, 403), ("evil.example", 403)] {
            let request = reqwest::Client::new().get(format!("{url}/v1/whoami"));
            let reply = request.header("host", host).send().await.unwrap();
            assert_eq!(reply.status(), expected, "{host}");
        }
    }
}

#[tokio::test]
async fn a_demonstration_has_its_own_data_and_a_fleet_that_plays_itself() {
    let home = Home::new();
    let server = home.up(&["--demo=20"]);
    assert!(home.path().join("data/berth/demo/berth.db").exists());
    let client = server.client();
    for _ in 0..600 {
        let nodes: Page<Node> = client.get("/v1/nodes", &[("limit", "100")]).await.unwrap();
        if nodes.items.len() == 20 {
            server.stop();
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("no hosts came:\n{}", server.log());
}

#[test]
fn a_configuration_is_checked_and_shown_without_a_server() {
    let home = Home::new();
    let file = home.path().join("berth.toml");
    std::fs::write(
        &file,
        "[http]\ntimeot = \"5s\"\nbody_limit = \"5\"\n\n[queue]\nlimit = \"many\"\n",
    )
    .unwrap();
    let path = file.to_str().unwrap();
    let checked = home.run(&["config", "check", path]);
    assert_eq!(checked.status.code(), Some(2));
    let said = String::from_utf8(checked.stderr).unwrap();
    for expected in [
        "2 settings are not accepted",
        "berth.toml line 2: http.timeot is no setting; did you mean http.timeout?",
        "berth.toml line 6: queue.limit is \"many\"; accepted is a whole number",
    ] {
        assert!(said.contains(expected), "{said}");
    }
    std::fs::write(&file, "[queue]\nlimit = 5\n").unwrap();
    assert!(home.run(&["config", "check", path]).status.success());
    let shown = home
        .berth(&["config", "show", "--config", path, "--listen", "127.0.0.1:1"])
        .env("BERTH_NODES_LOST_AFTER", "3m")
        .env("BERTH_DATABASE_URL", "postgres://me:secret@db/x")
        .output()
        .unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    for (start, end) in [
        ("limit = 5 ", "berth.toml line 2"),
        ("listen = [\"127.0.0.1:1\"] ", "# --listen"),
        ("lost_after = \"3m\" ", "# BERTH_NODES_LOST_AFTER"),
        ("patience = \"10s\" ", "# default"),
    ] {
        let found = text.lines().any(|line| line.starts_with(start) && line.ends_with(end));
        assert!(found, "{start}: {text}");
    }
    assert!(!text.contains("secret"), "{text}");
}
