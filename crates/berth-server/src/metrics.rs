//! What the server counts.

use std::time::Duration;

use http::{Method, StatusCode};

use crate::placer::PlaceAnswer;
use crate::service::Service;

/// What the server counts.
#[derive(Default)]
pub struct Metrics {}

impl Metrics {
    /// Nothing counted yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A loop did its round.
    pub fn loop_ran(&self, _name: &'static str) {}

    /// A request was answered.
    pub fn answered(&self, _: &Method, _path: &str, _: StatusCode, _: Duration) {}

    /// A placement was decided.
    pub fn placed(&self, _: &PlaceAnswer, _: Duration) {}

    /// All of it as text.
    #[must_use]
    pub fn text(&self, _service: &Service) -> String {
        String::new()
    }
}
