//! The first token of a new ledger, and the client configuration on this machine.

use std::path::{Path, PathBuf};

use berth_api::{NewToken, Role};
use berth_server::{AccessControl, AppState, TokenRecord};

use super::client_file::{self, SavedConfig};
use super::open::ServerResources;
use super::options::variable;
use crate::cmdutil::client_config::{self, ClientConfig};

/// How a person on this machine signs in.
pub(super) struct SignIn {
    /// A token that was just created.
    pub(super) token: Option<String>,
    /// Where the client configuration was saved, if it was.
    pub(super) saved: Option<SavedConfig>,
    /// Whether commands on this machine can sign in.
    pub(super) ready: bool,
    /// The client configuration, if commands do not find it by themselves.
    pub(super) file: Option<PathBuf>,
    /// An existing client configuration that has a valid token.
    pub(super) signed_in_by: Option<PathBuf>,
}

/// Creates the first token, and saves it for the commands on this machine.
pub(super) async fn set_up(
    resources: &ServerResources,
    state: &AppState,
    demo: bool,
) -> anyhow::Result<SignIn> {
    let known = state.clone();
    let first = move || known.access.first_token(&known.control.ledger);
    let mut token = tokio::task::spawn_blocking(first).await??;
    let (url, user) = (resources.local_url(), client_config::path());
    let in_data_dir = resources.data_dir.join("client.toml");
    let mut places = user.iter().chain([&in_data_dir]);
    let works = |path: &&PathBuf| {
        client_file::load(path).is_some_and(|config| {
            let by = |token: &str| {
                state.access.tokens.caller(token, None, state.access.clock.now()).is_some()
            };
            let allowed = config.token.as_deref().map_or(resources.no_sign_in, by);
            client_file::is_about(&config, &url) && allowed
        })
    };
    let found = places.find(works).cloned();
    if let (Some(found), None) = (&found, &token) {
        let file = explicit_path(found, user.as_deref());
        let signed_in_by = Some(found.clone());
        return Ok(SignIn { token: None, saved: None, ready: true, file, signed_in_by });
    }
    if token.is_none() && demo && !resources.no_sign_in {
        // A demonstration must not require a search for its token.
        let known = state.clone();
        let create = move || known.access.admin_token(&known.control.ledger, "demo");
        token = Some(tokio::task::spawn_blocking(create).await??);
    }
    if token.is_none() && !resources.no_sign_in {
        return Ok(SignIn { token, saved: None, ready: false, file: None, signed_in_by: None });
    }
    let ca_cert = resources.own.as_ref().map(|own| own.authority.ca_cert());
    let config = ClientConfig { url: Some(url.clone()), token: token.clone(), ca_cert };
    let saved = match client_file::save(user.as_deref(), &resources.data_dir, &url, &config) {
        Ok(saved) => saved,
        Err(error) => {
            tracing::warn!(%error, "failed to write the client configuration");
            return Ok(SignIn { token, saved: None, ready: false, file: None, signed_in_by: None });
        }
    };
    let (SavedConfig::UserFile(path)
    | SavedConfig::Replaced(path, _)
    | SavedConfig::DataDir { path, .. }) = &saved;
    let file = explicit_path(path, user.as_deref());
    Ok(SignIn { token, saved: Some(saved), ready: true, file, signed_in_by: None })
}

/// The file, unless commands find it by themselves.
fn explicit_path(path: &Path, user: Option<&Path>) -> Option<PathBuf> {
    let is_found = user == Some(path) && variable("BERTH_CONFIG").is_none();
    (!is_found).then(|| path.to_owned())
}

/// A token that is never stored, and ends with this process.
pub(super) fn token_of_this_process(access: &AccessControl) -> anyhow::Result<String> {
    let name = "simulated fleet".to_owned();
    let role = Role::Admin;
    let new = NewToken { name, role, tenants: Vec::new(), node: None, expires_in_s: None };
    let (record, secret) = TokenRecord::make(&new, access.clock.now())?;
    access.tokens.put_local(record);
    Ok(secret)
}
