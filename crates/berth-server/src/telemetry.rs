//! Logs for people or programs, and traces over OTLP when an endpoint is given.

use std::io::IsTerminal as _;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{Protocol, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use thiserror::Error;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

/// How a log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// What is logged and traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TelemetryOptions {
    /// How the log is written.
    pub format: LogFormat,
    /// What is logged: a level, or levels by module, such as `info,berth_server=debug`.
    pub level: String,
    /// Where traces go: `http://collector:4318/v1/traces`; absent: nowhere.
    pub otlp_endpoint: Option<String>,
}

impl Default for TelemetryOptions {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: "info".to_owned(), otlp_endpoint: None }
    }
}

/// Logs or traces cannot be set up.
#[derive(Debug, Error)]
pub enum TelemetryError {
    /// The level means nothing.
    #[error(
        "log level {level:?} cannot be read; accepted are error, warn, info, debug, trace, or levels by module"
    )]
    Level {
        /// What was given.
        level: String,
        /// Why.
        source: tracing_subscriber::filter::ParseError,
    },
    /// The endpoint cannot be used.
    #[error("traces cannot be sent to {endpoint:?}")]
    Endpoint {
        /// What was given.
        endpoint: String,
        /// Why.
        source: opentelemetry_otlp::ExporterBuildError,
    },
    /// Something else logs already.
    #[error("logging was set up before")]
    Twice(#[from] tracing_subscriber::util::TryInitError),
}

/// Sends what is left when it is dropped.
#[must_use = "traces end when it is dropped"]
pub struct Telemetry {
    traces: Option<SdkTracerProvider>,
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Some(traces) = &self.traces {
            // Whoever collects them may be gone.
            let _ = traces.shutdown();
        }
    }
}

/// The target of spans about requests and decisions.
pub const SPANS: &str = "berth::trace";

/// Starts logging, and tracing if asked for. Once a process.
///
/// # Errors
/// Names what cannot be used.
pub fn start(options: &TelemetryOptions) -> Result<Telemetry, TelemetryError> {
    let level = || {
        EnvFilter::try_new(&options.level)
            .map_err(|source| TelemetryError::Level { level: options.level.clone(), source })
    };
    let text = match options.format {
        LogFormat::Text => Some(
            tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(std::io::stderr().is_terminal())
                .with_target(false)
                .with_filter(level()?),
        ),
        LogFormat::Json => None,
    };
    let json = match options.format {
        LogFormat::Json => Some(
            tracing_subscriber::fmt::layer()
                .json()
                .with_writer(std::io::stderr)
                .with_filter(level()?),
        ),
        LogFormat::Text => None,
    };
    let traces = match &options.otlp_endpoint {
        Some(endpoint) => Some(exporter(endpoint)?),
        None => None,
    };
    // Spans are made only for whoever collects them: the log has no use for one a request.
    let spans = traces.as_ref().map(|traces| {
        let only = Targets::new().with_target(SPANS, LevelFilter::TRACE);
        tracing_opentelemetry::layer().with_tracer(traces.tracer("berth")).with_filter(only)
    });
    tracing_subscriber::registry().with(text).with(json).with(spans).try_init()?;
    Ok(Telemetry { traces })
}

/// An exporter on a thread of its own: the asynchronous client would need a runtime there.
fn exporter(endpoint: &str) -> Result<SdkTracerProvider, TelemetryError> {
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(endpoint)
        .build()
        .map_err(|source| TelemetryError::Endpoint { endpoint: endpoint.to_owned(), source })?;
    let resource = Resource::builder().with_service_name("berth").build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}
