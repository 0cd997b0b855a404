//! The message of a started server: its address, how to sign in, and what to try.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use super::client_file::SavedConfig;
use super::open::ServerResources;
use super::options::variable;
use super::sign_in::SignIn;
use crate::cmdutil::args;

/// Prints the message.
pub(super) fn print(resources: &ServerResources, sign_in: &SignIn, demo: Option<u64>) {
    for line in lines(resources, sign_in, demo, &program()) {
        println!("{line}");
    }
}

fn lines(
    resources: &ServerResources,
    sign_in: &SignIn,
    demo: Option<u64>,
    program: &str,
) -> Vec<String> {
    let mut lines = vec![format!(
        "Berth {} listens on {}",
        env!("CARGO_PKG_VERSION"),
        resources.urls().join(" and ")
    )];
    lines.push(format!("  browser   {}/", resources.local_url()));
    lines.push(format!("  data      {}", resources.database()));
    if !resources.wire.is_empty() {
        let urls = resources.wire_urls().join(" and ");
        lines.push(format!("  wire      {urls}/ for existing agents, versions 3.0 to 5.0"));
    }
    if let Some(hosts) = demo {
        lines.push(format!("  fleet     {hosts} simulated hosts, and simulated tenants"));
    }
    if let Some(own) = &resources.own {
        let ca = own.authority.ca_cert();
        lines.push(format!("  trust     clients need --ca-cert {}", ca.display()));
        let agent = "certificate agent --node NODE";
        let data_dir = shell(&resources.data_dir);
        lines.push(format!(
            "  agents    {program} {agent} --data-dir {data_dir} creates a certificate"
        ));
    }
    let prefix = match &sign_in.file {
        Some(file) => format!("BERTH_CONFIG={} {program}", shell(file)),
        None => program.to_owned(),
    };
    lines.extend(sign_in_lines(resources, sign_in, &prefix));
    lines.push(String::new());
    lines.push("Try next, in another shell:".to_owned());
    for command in commands(demo.is_some()) {
        lines.push(format!("  {prefix} {command}"));
    }
    lines.push(String::new());
    lines.push("Ctrl-C stops it; requests in flight are finished first.".to_owned());
    lines
}

fn sign_in_lines(resources: &ServerResources, sign_in: &SignIn, program: &str) -> Vec<String> {
    let mut lines = Vec::new();
    if resources.no_sign_in {
        lines.push("  sign-in   not needed on this machine".to_owned());
    }
    // Output that is no terminal ends up in a log, which must not contain the token.
    match (&sign_in.token, &sign_in.saved) {
        (Some(token), _) if std::io::stdout().is_terminal() => {
            lines.push(format!("  token     {token}"));
            lines.push("            admin token, shown only once: keep it".to_owned());
        }
        (
            Some(_),
            Some(
                SavedConfig::UserFile(path)
                | SavedConfig::Replaced(path, _)
                | SavedConfig::DataDir { path, .. },
            ),
        ) => {
            lines.push(format!("  token     is in {}", path.display()));
            lines.push("            admin token, readable only by you: keep it".to_owned());
        }
        (Some(_), None) | (None, _) => {}
    }
    match &sign_in.saved {
        Some(SavedConfig::UserFile(path)) => {
            lines.push(format!("  commands  use {}", path.display()));
        }
        Some(SavedConfig::Replaced(path, before)) => {
            lines.push(format!("  commands  use {}", path.display()));
            lines.push(format!("            its previous content is in {}", before.display()));
        }
        Some(SavedConfig::DataDir { path, other }) => {
            lines.push(format!("  commands  use {}", path.display()));
            lines.push(format!(
                "            because your own file is about {other}, and was not changed"
            ));
        }
        None if sign_in.ready => {
            lines.push("  commands  are signed in already".to_owned());
            if let (false, Some(file)) = (resources.no_sign_in, &sign_in.signed_in_by) {
                lines.push(format!(
                    "  sign-in   in the browser, with the token in {}",
                    file.display()
                ));
                let command = "tokens create --role viewer --name browser";
                lines.push(format!("            or one that only reads: {program} {command}"));
            }
        }
        None => {
            let database = shell(Path::new(&resources.database()));
            lines.push(
                "  sign-in   with an existing token; if all are lost, create one:".to_owned(),
            );
            lines.push(format!(
                "            {program} tokens create --role admin --database-url {database}"
            ));
        }
    }
    lines
}

/// Commands to try; each works as printed.
fn commands(demo: bool) -> &'static [&'static str] {
    if demo {
        &[
            "nodes list --limit 5",
            "place --tenant demo --cpu 2 --memory 4GiB --count 50 --explain",
            "place --tenant demo --cpu 16 --memory 2TiB",
        ]
    } else {
        &[
            "nodes register node-1 --cpu 16 --memory 64GiB --disk 1TiB",
            "nodes list",
            "place --tenant demo --cpu 2 --memory 4GiB --explain",
        ]
    }
}

/// How to call this program: by its name if the shell finds it, otherwise by its path.
fn program() -> String {
    let Ok(own) = std::env::current_exe() else { return "berth".to_owned() };
    let path = variable("PATH").unwrap_or_default();
    let is_own = |folder: PathBuf| {
        let found = folder.join("berth");
        found.canonicalize().is_ok_and(|found| Some(found) == own.canonicalize().ok())
    };
    if std::env::split_paths(&path).any(is_own) { "berth".to_owned() } else { shell(&own) }
}

/// A path quoted for a shell.
fn shell(path: &Path) -> String {
    args::shell_quote(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_quoted_for_a_shell() {
        for (path, text) in [("/a/b-1.db", "/a/b-1.db"), ("/a b/it's", r"'/a b/it'\''s'")] {
            assert_eq!(shell(Path::new(path)), text);
        }
    }
}
