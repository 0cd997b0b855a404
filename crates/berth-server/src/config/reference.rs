//! The document of all settings, written from the table.

use std::fmt::Write as _;

use super::keys::{KEYS, Key, SECTIONS};
use super::read::default_of;

/// A file that sets something in many sections, for the document; a test reads it.
pub const EXAMPLE: &str = r#"[server]
listen = ["10.0.0.5:7070", "127.0.0.1:7070"]
database_url = "postgres://berth@db.internal/berth"
stop_delay = "5s"

[http]
body_limit = "4MiB"
max_connections = 20000

[tls]
mode = "files"
cert = "/etc/berth/server.pem"
key = "/etc/berth/server.key"

[nodes]
lost_after = "2m"

[retention]
receipts = "400d"

[telemetry]
log_format = "json"
log_level = "info"
"#;

const HEAD: &str = "\
# Configuration

This page is generated from the table of settings in `crates/berth-server/src/config/keys.rs`; do not edit it.

A server reads its settings from one TOML file (`--config FILE`), then from environment variables, then from flags of
`berth up`; the last one wins. Everything has a default, so no file is needed.

- `berth config check FILE` reports every invalid setting with its line, and exits with code 2.
- `berth config show --config FILE` prints the effective settings and where each value comes from.

Durations are written as `500ms`, `30s`, `5m`, `1h30m` or `7d`, sizes as `2MiB` or `1GiB`. Lists in variables are
separated by commas.

The file is read again when it changes and on `SIGHUP`. Settings marked *live* below take effect at once; a change
of any other is logged and waits for a restart. An invalid file changes nothing and is reported.

An example:

```toml
";

/// All settings as a page of Markdown.
#[must_use]
pub fn reference() -> String {
    let mut page = format!("{HEAD}{EXAMPLE}```\n");
    for (section, about) in SECTIONS {
        let _ = write!(page, "\n## {section}\n\n{about}\n\n");
        page.push_str(
            "| Setting | Value | Default | Changes | Variable |\n|---|---|---|---|---|\n",
        );
        let keys = || KEYS.iter().filter(|key| key.section() == *section);
        for key in keys() {
            let _ = writeln!(page, "{}", row(key));
        }
        page.push('\n');
        for key in keys() {
            let _ = writeln!(
                page,
                "- `{}`: {} Accepted is {}.",
                key.name,
                key.meaning,
                key.kind.accepted()
            );
        }
    }
    page
}

fn row(key: &Key) -> String {
    let changes = if key.live { "live" } else { "at a restart" };
    let (short, kind, variable) = (key.short(), key.kind.name(), key.variable());
    format!("| `{short}` | {kind} | `{}` | {changes} | `{variable}` |", default_of(key))
}
