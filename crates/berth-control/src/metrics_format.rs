//! The two text formats of metrics, and which one a client asked for.
//!
//! `prometheus-client` writes OpenMetrics. Clients that do not ask for it get Prometheus' older text
//! format, which `promtool` and most scripts read: it differs in the names of counters and in comments.

/// A text format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsFormat {
    /// OpenMetrics 1.0, which Prometheus asks for.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Text,
}

impl MetricsFormat {
    /// The format for a client that sent this `Accept` header.
    #[must_use]
    pub fn accepted(accept: Option<&str>) -> Self {
        let open = accept.is_some_and(|accept| accept.contains("application/openmetrics-text"));
        if open { Self::OpenMetrics } else { Self::Text }
    }

    /// The value of `Content-Type`.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Metrics that were written as OpenMetrics, in this format.
    #[must_use]
    pub fn render(self, open_metrics: String) -> String {
        match self {
            Self::OpenMetrics => open_metrics,
            Self::Text => to_text_format(&open_metrics),
        }
    }
}

/// Comments name a counter as its samples do, and those that only OpenMetrics has are dropped.
fn to_text_format(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.lines() {
        // The help of a family comes before its type, which decides under which name it is written.
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described.split_once(' ');
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|typed| typed.split_once(' '))
        {
            let suffix = if kind == "counter" { "_total" } else { "" };
            let kind = if kind == "unknown" { "untyped" } else { kind };
            if let Some((_, help)) = help.take().filter(|(described, _)| *described == name) {
                text.push_str(&format!("# HELP {name}{suffix} {help}\n"));
            }
            text.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
        } else if !line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::MetricsFormat;

    #[test]
    fn only_clients_that_ask_for_open_metrics_get_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;q=0.5";
        assert_eq!(MetricsFormat::accepted(Some(prometheus)), MetricsFormat::OpenMetrics);
        assert_eq!(MetricsFormat::accepted(Some("*/*")), MetricsFormat::Text);
        assert_eq!(MetricsFormat::accepted(None), MetricsFormat::Text);
    }

    #[test]
    fn the_text_format_names_counters_with_their_suffix() {
        let open = "# HELP berth_placements Placement requests.\n# TYPE berth_placements counter\n\
            berth_placements_total{outcome=\"granted\"} 3\n\
            # HELP berth_wait_seconds Time.\n# TYPE berth_wait_seconds histogram\n\
            # UNIT berth_wait_seconds seconds\nberth_wait_seconds_sum 1.5\n\
            # TYPE berth_thing unknown\nberth_thing 1\n# EOF\n";
        let expected = "# HELP berth_placements_total Placement requests.\n\
            # TYPE berth_placements_total counter\n\
            berth_placements_total{outcome=\"granted\"} 3\n\
            # HELP berth_wait_seconds Time.\n# TYPE berth_wait_seconds histogram\n\
            berth_wait_seconds_sum 1.5\n# TYPE berth_thing untyped\nberth_thing 1\n";
        assert_eq!(MetricsFormat::Text.render(open.to_owned()), expected);
        assert_eq!(MetricsFormat::OpenMetrics.render(open.to_owned()), open);
    }
}
