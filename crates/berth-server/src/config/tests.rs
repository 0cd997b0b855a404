//! The table of settings, and what a file may say.

use std::path::Path;
use std::time::Duration;

use super::*;

fn load(text: &str) -> Result<LoadedConfig, Vec<BadSetting>> {
    let file = FileText { name: "berth.toml", text };
    Layers { file: Some(file), ..Layers::default() }.load()
}

/// All that is wrong, a line each.
fn wrong(text: &str) -> String {
    let problems = load(text).unwrap_err();
    problems.iter().map(|problem| format!("{problem}\n")).collect()
}

#[test]
fn every_default_can_be_read_and_is_what_the_code_has() {
    for key in KEYS {
        let given = GivenValue::Text(key.default.to_owned());
        assert!(key.kind.read(&given).is_some(), "{}", key.name);
        assert!(SECTIONS.iter().any(|(section, _)| *section == key.section()), "{}", key.name);
    }
    let config = Layers::default().load().unwrap().config;
    // What has a ledger to itself, such as an export, needs no hints.
    assert_eq!(config.ledger, Options { hints: true, ..Options::default() });
    assert_eq!(config.settings, Settings::default());
    assert_eq!(config.maintenance, MaintenanceConfig::default());
    assert_eq!(config.http.limits, HttpLimits::default());
    assert_eq!(config.http.connections, ConnectionLimits::default());
    assert_eq!(config.wire_settings(), crate::wire::WireSettings::default());
    assert_eq!(config.wire.listen, [], "off");
    assert_eq!(config.follow_every, Duration::from_millis(50));
    assert_eq!(config.policy, "balanced");
}

#[test]
fn names_are_unique_and_so_are_variables() {
    let mut names: Vec<String> =
        KEYS.iter().flat_map(|key| [key.name.to_owned(), key.variable()]).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn flags_are_over_variables_over_the_file() {
    let file = FileText {
        name: "f",
        text: "[http]\nbody_limit = \"3MiB\"\nimport_limit = \"3MiB\"\n[queue]\nlimit = 5\n",
    };
    let variables = [
        ("BERTH_HTTP_IMPORT_LIMIT".to_owned(), "4MiB".to_owned()),
        ("BERTH_QUEUE_LIMIT".to_owned(), "6".to_owned()),
        ("BERTH_LISTEN".to_owned(), "127.0.0.1:1,[::1]:2".to_owned()),
    ];
    let flags = [("queue.limit", "--queue-limit", GivenValue::Text("7".to_owned()))];
    let layers = Layers { file: Some(file), variables: &variables, flags: &flags };
    let loaded = layers.load().unwrap();
    assert_eq!(loaded.config.http.limits.body_bytes, 3 << 20);
    assert_eq!(loaded.config.http.limits.import_bytes, 4 << 20);
    assert_eq!(loaded.config.settings.queue_limit, 7);
    assert_eq!(loaded.config.server.listen.len(), 2);
    assert_eq!(loaded.source("http.body_limit").to_string(), "f line 2");
    assert_eq!(loaded.source("http.import_limit").to_string(), "BERTH_HTTP_IMPORT_LIMIT");
    assert_eq!(loaded.source("queue.limit").to_string(), "--queue-limit");
    assert_eq!(loaded.source("tls.mode"), &Source::Default);
}

#[test]
fn everything_that_is_wrong_is_named_with_its_line_and_what_is_accepted() {
    let text = "\
[http]
body_limt = \"2MiB\"
timeout = \"soon\"
max_connections = -1

[quee]
limit = 1

[tls]
mode = \"on\"
hosts = [1]
";
    let expected = "\
berth.toml line 2: http.body_limt is no setting; did you mean http.body_limit?
berth.toml line 6: [quee] is no section; did you mean queue?
berth.toml line 3: http.timeout is \"soon\"; accepted is a duration, 1s to 1h, as in \"500ms\", \"30s\" or \"1h30m\"
berth.toml line 4: http.max_connections is -1; accepted is a whole number, 1 to 1000000
berth.toml line 10: tls.mode is \"on\"; accepted is one of off, self, files
berth.toml line 11: tls.hosts is a list with more than texts in it; accepted is a list of texts, as in [\"a\", \"b\"]
";
    let mut found: Vec<String> = wrong(text).lines().map(str::to_owned).collect();
    let mut wanted: Vec<String> = expected.lines().map(str::to_owned).collect();
    found.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(found, wanted);
}

#[test]
fn likely_mistakes_are_understood() {
    for (text, expected) in [
        ("listen = \"127.0.0.1:1\"", "listen is no section; did you mean listen in [server]?"),
        ("[server", "line 1: it is not TOML"),
        (
            "[server]\nlisten = \"7070\"",
            "server.listen is \"7070\"; accepted is addresses with ports",
        ),
        ("[http]\nbody_limit = \"1500KiB\"", "accepted is a size in whole MiB"),
        ("[http]\nbody_limit = 5", "http.body_limit is 5; accepted is a size"),
        ("[xyz]\na = 1", "[xyz] is no section; accepted are server, http"),
        ("http = 1", "http is a section"),
        (
            "[server]\nno_sign_in = true\nlisten = \"0.0.0.0:1\"",
            "line 2: server.no_sign_in is true and server.listen has 0.0.0.0:1",
        ),
        (
            "[wire]\nsign_in = \"none\"\nlisten = \"0.0.0.0:10299\"",
            "line 3: wire.listen has 0.0.0.0:10299, which others can reach",
        ),
        (
            "[server]\nno_sign_in = true\n[wire]\nlisten = \"0.0.0.0:10299\"",
            "line 4: wire.listen has 0.0.0.0:10299, which others can reach",
        ),
        ("[wire]\nmem_slot = \"0MiB\"", "wire.mem_slot is \"0MiB\"; accepted is a size"),
        (
            "[nodes]\nlost_after = \"5s\"",
            "line 2: nodes.lost_after is 5s and nodes.heartbeat_every is 10s",
        ),
        (
            "[nodes]\nadopt = \"listed\"",
            "line 2: nodes.adopt is \"listed\" and nodes.adopt_tenants names no tenant",
        ),
        ("[tls]\nmode = \"files\"\ncert = \"a\"", "tls.key is missing"),
        ("[tls]\nclient_ca = \"a\"", "tls.client_ca is set and connections are not encrypted"),
        ("[telemetry]\nlog_level = \"a=b=c\"", "telemetry.log_level is \"a=b=c\""),
        ("[telemetry]\notlp_endpoint = \"here\"", "accepted is a URL"),
    ] {
        let found = wrong(text);
        let expected = expected.replace("listen is no", "[listen] is no");
        assert!(found.contains(&expected), "{text}: {found}");
    }
}

#[test]
fn a_variable_that_sets_nothing_is_a_warning() {
    let variables = [
        ("BERTH_HTTP_TIMEOT".to_owned(), "1s".to_owned()),
        ("BERTH_URL".to_owned(), "x".to_owned()),
        ("BERTH_TLS_MODE".to_owned(), String::new()),
    ];
    let loaded = Layers { variables: &variables, ..Layers::default() }.load().unwrap();
    assert_eq!(
        loaded.warnings,
        ["BERTH_HTTP_TIMEOT sets nothing; did you mean BERTH_HTTP_TIMEOUT?"]
    );
}

#[test]
fn what_changed_is_live_or_needs_a_restart() {
    let before = load("").unwrap();
    let after = load("[queue]\nlimit = 5\n[http]\nbody_limit = \"9MiB\"").unwrap();
    let (live, restart) = after.changed(&before);
    assert_eq!(live.iter().map(|key| key.name).collect::<Vec<_>>(), ["queue.limit"]);
    assert_eq!(restart.iter().map(|key| key.name).collect::<Vec<_>>(), ["http.body_limit"]);
}

#[test]
fn what_is_shown_can_be_read_again() {
    let loaded = load(EXAMPLE).unwrap();
    let mut text = String::new();
    let mut section = "";
    for (key, (value, _)) in KEYS.iter().zip(&loaded.values) {
        if key.section() != section {
            section = key.section();
            text.push_str(&format!("[{section}]\n"));
        }
        text.push_str(&format!("{} = {value}\n", key.short()));
    }
    let again = load(&text).unwrap();
    assert!(again.changed(&loaded).0.is_empty() && again.changed(&loaded).1.is_empty());
}

#[test]
#[allow(clippy::disallowed_methods, reason = "set when the table has changed")]
fn the_page_of_settings_is_written_from_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, reference()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == reference(),
        "docs/configuration.md is out of date; \
         regenerate it with: UPDATE_DOCS=1 cargo test -p berth-server --lib config"
    );
}
