//! How a person on this machine signs in: the first token of a new ledger, and the file that the
//! commands read it from.

use std::path::{Path, PathBuf};

use berth_api::{NewToken, Role};
use berth_control::clock::now;
use berth_server::{AccessControl, AppState, TokenRecord};

use super::client_file::{self, Entry, Saved};
use super::open::Opened;
use super::options::variable;

/// How a person on this machine signs in.
pub(super) struct SignIn {
    /// A token that was just made.
    pub(super) token: Option<String>,
    /// What became of the file for commands, when one was written.
    pub(super) saved: Option<Saved>,
    /// Whether commands on this machine work as they are.
    pub(super) ready: bool,
    /// The file that commands must be told of, when it is not the user's.
    pub(super) file: Option<PathBuf>,
}

/// Makes the first token, and sees to it that the commands on this machine know it.
pub(super) async fn arrange(
    opened: &Opened,
    state: &AppState,
    demo: bool,
) -> anyhow::Result<SignIn> {
    let known = state.clone();
    let first = move || known.access.first_token(&known.control.ledger);
    let mut token = tokio::task::spawn_blocking(first).await??;
    let (url, user) = (opened.local_url(), client_file::path());
    let beside = opened.data_dir.join("client.toml");
    let mut places = user.iter().chain([&beside]);
    let works = |path: &&PathBuf| {
        client_file::load(path).is_some_and(|entry| {
            let by = |token: &str| state.access.tokens.caller(token, None, now()).is_some();
            let allowed = entry.token.as_deref().map_or(opened.no_sign_in, by);
            entry.url.trim_end_matches('/') == url && allowed
        })
    };
    let found = places.find(works).cloned();
    if let (Some(found), None) = (&found, &token) {
        let file = must_be_named(found, user.as_deref());
        return Ok(SignIn { token: None, saved: None, ready: true, file });
    }
    if token.is_none() && demo && !opened.no_sign_in {
        // Nobody should have to look for the token of a demonstration.
        let known = state.clone();
        let make = move || known.access.admin_token(&known.control.ledger, "demo");
        token = Some(tokio::task::spawn_blocking(make).await??);
    }
    if token.is_none() && !opened.no_sign_in {
        return Ok(SignIn { token, saved: None, ready: false, file: None });
    }
    let ca_cert = opened.own.as_ref().map(|own| own.authority.ca_cert());
    let entry = Entry { url, token: token.clone(), ca_cert };
    let saved = match client_file::save(user.as_deref(), &opened.data_dir, &entry) {
        Ok(saved) => saved,
        Err(error) => {
            tracing::warn!(%error, "the file for commands could not be written");
            return Ok(SignIn { token, saved: None, ready: false, file: None });
        }
    };
    let (Saved::Here(path) | Saved::Replaced(path, _) | Saved::Beside { path, .. }) = &saved;
    let file = must_be_named(path, user.as_deref());
    Ok(SignIn { token, saved: Some(saved), ready: true, file })
}

/// The file, unless commands in any shell find it by themselves.
fn must_be_named(path: &Path, user: Option<&Path>) -> Option<PathBuf> {
    let is_found = user == Some(path) && variable("BERTH_CONFIG").is_none();
    (!is_found).then(|| path.to_owned())
}

/// A token that only this process knows: it is never stored, and ends with it.
pub(super) fn token_of_this_process(access: &AccessControl) -> anyhow::Result<String> {
    let name = "simulated fleet".to_owned();
    let role = Role::Admin;
    let new = NewToken { name, role, namespaces: Vec::new(), node: None, expires_in_s: None };
    let (record, secret) = TokenRecord::make(&new, now())?;
    access.tokens.put_local(record);
    Ok(secret)
}
