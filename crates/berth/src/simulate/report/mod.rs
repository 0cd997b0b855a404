//! A report of replays for people: one HTML page that needs nothing else, and its charts as files.

mod chart;

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use berth_sim::packing::{Outcome, Sample};

use super::replay::{TimedOutcome, TraceReport, tenths_of_milli};
use chart::{BarChart, LineChart, STYLE, Series, escape, standalone};

const PAGE_STYLE: &str = "\
:root{color-scheme:light dark}\
body{margin:0 auto;max-width:1000px;padding:32px 20px 64px;background:#fff;color:#1d2530;\
font:15px/1.55 system-ui,sans-serif}\
h1{font-size:26px;margin:0 0 4px}h2{font-size:19px;margin:44px 0 4px;overflow-wrap:anywhere}\
p{margin:4px 0 14px;color:#5b6675}\
.table{overflow-x:auto;margin:14px 0 8px}\
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}\
th,td{padding:5px 10px;text-align:right;border-bottom:1px solid #e2e6eb;white-space:nowrap}\
th{font-weight:600;color:#5b6675;font-size:13px;white-space:normal;vertical-align:bottom}\
th:first-child,td:first-child{text-align:left;padding-left:0}\
tr.best td{font-weight:600}td.bad{color:#b3261e}\
figure{margin:26px 0 0}figcaption{font-weight:600;margin-bottom:6px}\
svg{width:100%;height:auto;display:block}\
@media(prefers-color-scheme:dark){body{background:#14191f;color:#e8ecf1}p,th{color:#9aa5b3}\
th,td{border-color:#2c343f}td.bad{color:#ff8a80}}";

/// Writes the page.
pub(super) fn write_html(path: &Path, reports: &[TraceReport]) -> anyhow::Result<()> {
    std::fs::write(path, html(reports))
        .with_context(|| format!("cannot write the report {}", path.display()))
}

/// Writes each chart into a folder, with the number of the trace and what it shows in its name.
pub(super) fn write_charts(folder: &Path, reports: &[TraceReport]) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create the folder {}", folder.display()))?;
    for (number, report) in (1..).zip(reports) {
        for (name, _, svg) in charts(report) {
            let file = folder.join(format!("{number}-{name}.svg"));
            std::fs::write(&file, standalone(&svg))
                .with_context(|| format!("cannot write the chart {}", file.display()))?;
        }
    }
    Ok(())
}

fn html(reports: &[TraceReport]) -> String {
    let mut body = String::new();
    for report in reports {
        write_trace(&mut body, report);
    }
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>Placement replay</title><style>{PAGE_STYLE}{STYLE}</style></head><body>\
         <h1>Placement replay</h1><p>The same arrivals under several policies and simple rules, the best \
         first: fewest rejected, then fewest nodes in use.</p>{body}</body></html>\n"
    )
}

/// Outcomes from best to worst.
fn ranked(report: &TraceReport) -> Vec<&TimedOutcome> {
    let mut ranked: Vec<&TimedOutcome> = report.outcomes.iter().collect();
    ranked.sort_by_key(|timed| (timed.outcome.rejected, timed.outcome.mean_nodes_milli));
    ranked
}

fn write_trace(body: &mut String, report: &TraceReport) {
    let ranked = ranked(report);
    let Some(first) = ranked.first().map(|timed| &timed.outcome) else { return };
    let _ = write!(
        body,
        "<h2>{}</h2><p>{} instances on {} nodes of {}. By volume alone {} nodes are needed at the peak \
         and {} on average; no policy can use fewer.</p>",
        escape(&report.trace),
        first.arrived,
        report.nodes,
        escape(&report.nodes_file),
        first.bound_peak_nodes,
        tenths_of_milli(first.bound_mean_nodes_milli)
    );
    if report.skipped_lines > 0 {
        let _ = write!(body, "<p>{} malformed lines were left out.</p>", report.skipped_lines);
    }
    write_table(body, &ranked);
    for (_, caption, svg) in charts(report) {
        let _ = write!(body, "<figure><figcaption>{}</figcaption>{svg}</figure>", escape(&caption));
    }
}

fn write_table(body: &mut String, ranked: &[&TimedOutcome]) {
    let titles = [
        "Policy",
        "Rejected",
        "CPU, cores",
        "Memory, GiB",
        "Placed before first rejection",
        "Mean nodes",
        "Peak nodes",
        "Never used",
        "Stranded CPU",
        "Violations",
        "Decisions/s",
    ];
    body.push_str("<div class=\"table\"><table><thead><tr>");
    for title in titles {
        let _ = write!(body, "<th>{title}</th>");
    }
    body.push_str("</tr></thead><tbody>");
    for (number, TimedOutcome { outcome, decisions_per_s }) in ranked.iter().enumerate() {
        let before = outcome.placed_before_first_rejection;
        let cells = [
            escape(&outcome.policy),
            outcome.rejected.to_string(),
            (outcome.rejected_cpu_milli / 1000).to_string(),
            (outcome.rejected_memory_mib / 1024).to_string(),
            before.map_or_else(|| "–".to_owned(), |before| before.to_string()),
            tenths_of_milli(outcome.mean_nodes_milli),
            outcome.peak_nodes.to_string(),
            outcome.never_used_nodes.to_string(),
            percent_of_ppm(outcome.stranded_cpu_ppm),
            outcome.violations.to_string(),
            decisions_per_s.to_string(),
        ];
        body.push_str(if number == 0 { "<tr class=\"best\">" } else { "<tr>" });
        for (title, cell) in titles.iter().zip(cells) {
            let is_bad = *title == "Violations" && outcome.violations > 0;
            let _ = write!(body, "<td{}>{cell}</td>", if is_bad { " class=\"bad\"" } else { "" });
        }
        body.push_str("</tr>");
    }
    body.push_str("</tbody></table></div>");
}

/// Name of the file, title, and SVG.
fn charts(report: &TraceReport) -> Vec<(&'static str, String, String)> {
    let ranked = ranked(report);
    let over_time = |title: &str, value: fn(&Sample) -> u64| {
        let series = ranked.iter().map(|timed| Series {
            name: timed.outcome.policy.clone(),
            points: timed.outcome.samples.iter().map(|it| (it.time, value(it))).collect(),
        });
        LineChart { title: title.to_owned(), series: series.collect() }
    };
    let bars = |title: &str, value: fn(&Outcome) -> u64, text: fn(u64) -> String| BarChart {
        title: title.to_owned(),
        bars: ranked
            .iter()
            .map(|timed| {
                let value = value(&timed.outcome);
                (timed.outcome.policy.clone(), value, text(value))
            })
            .collect(),
        bound: None,
    };
    let mut mean = bars("Nodes in use on average", |it| it.mean_nodes_milli, tenths_of_milli);
    mean.bound = ranked.first().map(|timed| {
        let bound = timed.outcome.bound_mean_nodes_milli;
        (bound, format!("bound by volume: {}", tenths_of_milli(bound)))
    });
    let rejected = bars("Rejected instances", |it| it.rejected, |rejected| rejected.to_string());
    let stranded = bars("Stranded CPU", |it| it.stranded_cpu_ppm, percent_of_ppm);
    let nodes = over_time("Nodes in use over time", |sample| sample.nodes_in_use);
    let cpu = over_time("CPU in use over time, thousandths", |sample| sample.cpu_permille);
    let refused = over_time("Rejected instances over time", |sample| sample.rejected);
    let [rejected, mean, stranded] = [rejected, mean, stranded].map(|it| (it.svg(), it.title));
    let [nodes, refused, cpu] = [nodes, refused, cpu].map(|it| (it.svg(), it.title));
    let names =
        ["rejected", "mean-nodes", "nodes-over-time", "rejected-over-time", "cpu", "stranded"];
    let all = [rejected, mean, nodes, refused, cpu, stranded];
    names.into_iter().zip(all).map(|(name, (svg, title))| (name, title, svg)).collect()
}

fn percent_of_ppm(ppm: u64) -> String {
    format!("{}.{:02} %", ppm / 10_000, ppm / 100 % 100)
}
