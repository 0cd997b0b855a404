//! What every handler shares: the control plane, and who may use it.

use std::sync::Arc;

use axum::extract::FromRef;
use berth_control::{ControlOptions, ControlPlane, StartError};

use crate::access::AccessControl;
use crate::metrics::HttpMetrics;
use crate::pacing::Pacing;

/// The state of the HTTP server; cheap to clone.
#[derive(Clone)]
pub struct AppState {
    /// The control plane.
    pub control: Arc<ControlPlane>,
    /// Who may call.
    pub access: Arc<AccessControl>,
    /// What the HTTP layer counts.
    pub metrics: Arc<HttpMetrics>,
    /// Who asks again and again though it is turned away.
    pub(crate) pacing: Arc<Pacing>,
}

impl AppState {
    /// Starts a control plane on the runtime it is called on, with tokens that follow the ledger.
    /// With `no_sign_in`, callers on this machine need no token.
    ///
    /// # Errors
    /// When the ledger cannot be opened or read, or a thread cannot be started.
    pub fn start(mut options: ControlOptions, no_sign_in: bool) -> Result<Self, StartError> {
        let clock = Arc::clone(&options.placer.database_clock);
        let access = Arc::new(AccessControl { no_sign_in, clock, ..AccessControl::default() });
        options.followers.extend(access.followers());
        let control = ControlPlane::start(options)?;
        Ok(Self { control, access, metrics: Arc::default(), pacing: Arc::default() })
    }
}

impl FromRef<AppState> for Arc<ControlPlane> {
    fn from_ref(state: &AppState) -> Self {
        Self::clone(&state.control)
    }
}

impl FromRef<AppState> for Arc<AccessControl> {
    fn from_ref(state: &AppState) -> Self {
        Self::clone(&state.access)
    }
}
