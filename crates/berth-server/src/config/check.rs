//! What settings must be together.

use tracing_subscriber::EnvFilter;

use super::{BadSetting, LoadedConfig, TlsConfig, TlsMode};
use berth_control::Adoption;

/// What is wrong with the rule for found instances.
fn adopt_problem(adopt: &Adoption) -> Option<&'static str> {
    let names_none = matches!(adopt, Adoption::Listed(tenants) if tenants.is_empty());
    names_none.then_some(
        "nodes.adopt is \"listed\" and nodes.adopt_tenants names no tenant; accepted is a list of \
         tenants, or another nodes.adopt",
    )
}

fn check_tls(tls: &TlsConfig, bad: &mut impl FnMut(&str, String)) {
    for (name, file) in [("tls.cert", &tls.cert), ("tls.key", &tls.key)] {
        if tls.mode == TlsMode::Files && file.is_none() {
            let problem = format!("{name} is missing; tls.mode \"files\" needs the path of a file");
            bad(name, problem);
        }
        if tls.mode != TlsMode::Files && file.is_some() {
            let problem = format!("{name} is set and not used; accepted is tls.mode \"files\"");
            bad(name, problem);
        }
    }
    if tls.mode == TlsMode::Off && tls.client_ca.is_some() {
        let problem = "tls.client_ca is set and connections are not encrypted; accepted is \
                       tls.mode \"self\" or \"files\"";
        bad("tls.client_ca", problem.to_owned());
    }
}

/// Everything that is wrong with settings that are each fine by themselves.
pub(super) fn together(loaded: &LoadedConfig) -> Vec<BadSetting> {
    let config = &loaded.config;
    let mut problems = Vec::new();
    let mut bad = |name: &str, problem: String| {
        problems.push(BadSetting { source: loaded.source(name).clone(), problem });
    };
    if config.server.no_sign_in
        && let Some(open) =
            config.server.listen.iter().find(|a| !a.ip().to_canonical().is_loopback())
    {
        let problem = format!(
            "server.no_sign_in is true and server.listen has {open}, which others can reach; \
             accepted are loopback addresses, as in 127.0.0.1:7070, or sign-in"
        );
        bad("server.no_sign_in", problem);
    }
    let open = config.wire.listen.iter().find(|a| !a.ip().to_canonical().is_loopback());
    if !config.wire_settings().sign_in
        && let Some(open) = open
    {
        let problem = format!(
            "wire.listen has {open}, which others can reach, but sign-in is off there; accepted \
             are loopback addresses, as in 127.0.0.1:10299, or wire.sign_in \"token\""
        );
        bad("wire.listen", problem);
    }
    let (every, lost) = (config.settings.heartbeat_every, config.settings.lost_after);
    if lost <= every {
        let problem = format!(
            "nodes.lost_after is {}s and nodes.heartbeat_every is {}s; accepted is a longer \
             nodes.lost_after, or every node would be lost",
            lost.as_secs(),
            every.as_secs()
        );
        bad("nodes.lost_after", problem);
    }
    if let Some(problem) = adopt_problem(&config.settings.adopt) {
        bad("nodes.adopt", problem.to_owned());
    }
    check_tls(&config.tls, &mut bad);
    let level = &config.telemetry.log_level;
    if let Err(error) = EnvFilter::try_new(level) {
        let problem = format!(
            "telemetry.log_level is {level:?} ({error}); accepted is error, warn, info, debug, \
             trace, or directives as in info,berth_server=debug"
        );
        bad("telemetry.log_level", problem);
    }
    if let Some(url) = &config.telemetry.otlp_endpoint
        && !url.starts_with("http://")
        && !url.starts_with("https://")
    {
        let problem = format!(
            "telemetry.otlp_endpoint is {url:?}; accepted is a URL, as in http://127.0.0.1:4318"
        );
        bad("telemetry.otlp_endpoint", problem);
    }
    problems
}
