//! Logs to standard error, and traces to a collector.

use std::io::IsTerminal as _;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::WithExportConfig as _;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider};
use thiserror::Error;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, filter, fmt, reload};

use crate::config::{LogFormat, TelemetryConfig};

/// The target of spans that are traces: one for every request.
pub const REQUESTS: &str = "berth::request";

/// Spans that wait for the collector.
pub(crate) const SPANS_MAX: usize = 2048;

/// Logs or traces cannot be set up.
#[derive(Debug, Error)]
pub enum TelemetryError {
    /// What is to be logged means nothing.
    #[error(
        "telemetry.log_level is {0:?}; accepted is error, warn, info, debug, trace, or directives as in info,berth_server=debug"
    )]
    Level(String),
    /// Traces cannot be sent.
    #[error("traces cannot be sent to {endpoint}: {why}")]
    Traces {
        /// Where to.
        endpoint: String,
        /// Why not.
        why: String,
    },
    /// Something in this process logs already.
    #[error("the log is set up already")]
    Twice,
}

/// Logs and traces of this process. Traces that wait are sent when it is dropped.
pub struct Telemetry {
    level: reload::Handle<EnvFilter, Registry>,
    traces: Option<SdkTracerProvider>,
}

impl Telemetry {
    /// Starts to log. Must not be called from asynchronous code: what sends traces waits.
    ///
    /// # Errors
    /// When a setting means nothing.
    pub fn start(config: &TelemetryConfig) -> Result<Self, TelemetryError> {
        let (level, handle) = reload::Layer::new(filter_of(&config.log_level)?);
        let traces = config.otlp_endpoint.as_deref().map(exporter).transpose()?;
        let log = fmt::layer().with_writer(std::io::stderr);
        let log = match config.log_format {
            LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).boxed(),
            LogFormat::Json => log.json().with_ansi(false).boxed(),
        };
        // Spans of requests are for traces only: without a collector, none is created.
        let spans = traces.as_ref().map(|provider| {
            let only = filter::filter_fn(|metadata| metadata.target() == REQUESTS);
            tracing_opentelemetry::layer().with_tracer(provider.tracer("berth")).with_filter(only)
        });
        let no_spans = filter::filter_fn(|metadata| metadata.target() != REQUESTS);
        let log = log.with_filter(level).with_filter(no_spans);
        let registry = tracing_subscriber::registry().with(log).with(spans);
        registry.try_init().map_err(|_| TelemetryError::Twice)?;
        Ok(Self { level: handle, traces })
    }

    /// Changes what is logged.
    ///
    /// # Errors
    /// When it means nothing; then everything stays as it was.
    pub fn set_level(&self, level: &str) -> Result<(), TelemetryError> {
        let filter = filter_of(level)?;
        self.level.reload(filter).map_err(|_| TelemetryError::Level(level.to_owned()))
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Some(traces) = self.traces.take() {
            // The collector may be gone first.
            let _ = traces.shutdown();
        }
    }
}

fn filter_of(level: &str) -> Result<EnvFilter, TelemetryError> {
    // By default, only problems of schema migrations are logged.
    let directives = format!("refinery_core=warn,{level}");
    EnvFilter::try_new(directives).map_err(|_| TelemetryError::Level(level.to_owned()))
}

fn exporter(endpoint: &str) -> Result<SdkTracerProvider, TelemetryError> {
    let url = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
    // The first call sets it for the process; all of Berth uses the same.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let exporter = opentelemetry_otlp::SpanExporter::builder().with_http().with_endpoint(url);
    let exporter = exporter.build().map_err(|error| TelemetryError::Traces {
        endpoint: endpoint.to_owned(),
        why: error.to_string(),
    })?;
    let resource = Resource::builder().with_service_name("berth").build();
    let config = BatchConfigBuilder::default().with_max_queue_size(SPANS_MAX).build();
    let spans = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
    let provider = SdkTracerProvider::builder().with_span_processor(spans);
    Ok(provider.with_resource(resource).build())
}
