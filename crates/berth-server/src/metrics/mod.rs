//! What the HTTP layer counts, for Prometheus, and the whole text that `/metrics` serves.
//!
//! Paths are those of the router, so that no caller can make the set of series grow.

mod process;

use std::sync::Arc;
use std::time::Duration;

use berth_control::ControlPlane;
use berth_control::exposition::metrics_text;
use berth_control::metrics::seconds_histogram;
use http::{Method, StatusCode};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RouteLabels {
    method: &'static str,
    path: String,
    status: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StageLabel {
    stage: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StatusLabel {
    code: u16,
}

/// What the HTTP layer counts.
pub struct HttpMetrics {
    registry: Registry,
    requests: Family<RouteLabels, Counter>,
    request_seconds: Family<StageLabel, Histogram>,
    wire: Family<StatusLabel, Counter>,
}

impl Default for HttpMetrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("berth");
        let requests = Family::<RouteLabels, Counter>::default();
        registry.register("http_requests", "Requests answered", requests.clone());
        let request_seconds =
            Family::<StageLabel, Histogram>::new_with_constructor(seconds_histogram);
        registry.register_with_unit(
            "http_request",
            "How long requests took, by kind: place, read, write, stream",
            Unit::Seconds,
            request_seconds.clone(),
        );
        let wire = Family::<StatusLabel, Counter>::default();
        let help = "Requests of the protocol of existing agents, by the status of their answer";
        registry.register("wire_requests", help, wire.clone());
        Self { registry, requests, request_seconds, wire }
    }
}

impl HttpMetrics {
    /// Counts a request of the protocol of existing agents.
    pub fn count_wire_request(&self, status: StatusCode) {
        self.wire.get_or_create(&StatusLabel { code: status.as_u16() }).inc();
    }

    /// Counts a request that was answered.
    pub fn count_request(&self, method: &Method, path: &str, status: StatusCode, took: Duration) {
        let method = method_name(method);
        let route = RouteLabels { method, path: path.to_owned(), status: status.as_u16() };
        self.requests.get_or_create(&route).inc();
        let stage = match (method, path) {
            (_, "/v1/placements") => "place",
            (_, path) if path.ends_with("/stream") => "stream",
            ("GET" | "HEAD", _) => "read",
            _ => "write",
        };
        self.request_seconds.get_or_create(&StageLabel { stage }).observe(took.as_secs_f64());
    }

    /// All metrics of the server, as OpenMetrics.
    #[must_use]
    pub fn text(&self, control: &Arc<ControlPlane>) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode_registry(&mut text, &self.registry);
        text.push_str(&metrics_text(control));
        text.push_str(&process::text());
        let _ = encode_eof(&mut text);
        text
    }
}

fn method_name(method: &Method) -> &'static str {
    let known = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    known.into_iter().find(|name| *name == method.as_str()).unwrap_or("other")
}
