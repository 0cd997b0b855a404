//! Random policies, built-in ones among them.

use std::fmt::Write as _;

use berth_engine::filter::FILTERS;
use berth_engine::score::SCORERS;
use berth_engine::{BUILTIN_POLICIES, Policy};

use super::random::Rng;

/// A policy drawn from a seed.
pub fn policy(seed: u64) -> Policy {
    let mut rng = Rng::new(seed);
    if rng.chance(40) {
        return Policy::builtin(rng.pick(&BUILTIN_POLICIES)).expect("a built-in policy");
    }
    let text = text(&mut rng);
    Policy::from_toml(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn text(rng: &mut Rng) -> String {
    let mut text = String::from("name = \"random\"\n");
    if rng.chance(15) {
        text.push_str("combine = \"product\"\n");
    }
    filters(rng, &mut text);
    options(rng, &mut text);
    if rng.chance(20) {
        text.push_str("[[shapes]]\ncpu_milli = 700\nmemory_mib = 3000\nweight = 5\n");
        text.push_str("[[shapes]]\ncpu_milli = 2000\nmemory_mib = 1024\n");
    }
    text.push_str("[scores]\n");
    // Scores of survivors and of node and request together take another path: not too often.
    let slow = rng.chance(30);
    for scorer in SCORERS {
        let is_slow = ["fragmentation", "random", "spare-largest"].contains(&scorer.name)
            || scorer.name.ends_with("-rank");
        if rng.chance(40) && (slow || !is_slow) {
            let weight = rng.pick(&["0.001", "0.333", "0.5", "1", "2", "7.25", "26", "60"]);
            let steps = rng.chance(15).then(|| rng.pick(&["0.1", "0.3", "0.55"]));
            let weight = match steps {
                Some(from) => {
                    format!("[{{ weight = {weight} }}, {{ weight = 3, from_load = {from} }}]")
                }
                None => weight.to_owned(),
            };
            let _ = writeln!(text, "{} = {weight}", scorer.name);
        }
    }
    text
}

fn filters(rng: &mut Rng, text: &mut String) {
    let grace = rng.pick(&[60, 90, 3600, 86_400 * 30]);
    let _ = writeln!(text, "[filters]\nheartbeat_grace_s = {grace}");
    let _ = writeln!(text, "admit_degraded = {}", rng.chance(30));
    let settings = [
        "cpu = \"hard\"",
        "traits = \"subset\"",
        "no_reboot_within_days = 3",
        "min_scratch_mib = 500",
        "max_overlay_loss_ppm = 1000",
        "disk_headroom_mib = 1000",
        "sick_window_s = 4000",
    ];
    for setting in settings.iter().filter(|_| rng.chance(35)) {
        let _ = writeln!(text, "{setting}");
    }
    if !text.contains("cpu = \"hard\"") && rng.chance(25) {
        let _ = writeln!(text, "cpu_ceiling_permille = {}", rng.pick(&[1000, 1250, 2000]));
    }
    let optional = FILTERS.iter().filter(|filter| filter.is_optional());
    let off: Vec<String> =
        optional.filter(|_| rng.chance(10)).map(|filter| format!("{:?}", filter.name)).collect();
    let _ = writeln!(text, "off = [{}]", off.join(", "));
}

fn options(rng: &mut Rng, text: &mut String) {
    text.push_str("[options]\n");
    let settings = [
        "prefer_capacity = \"spot\"",
        "missed_reboot = \"soonest\"",
        "owner_spread = true",
        "failure_half_life_s = 300",
        "load_max_age_s = 30",
        "shapes = [{ cpu_milli = 500, memory_mib = 700 }, { cpu_milli = 3000, memory_mib = 900 }]",
        "tent = { idle_ppm = 300000, full_ppm = 100000, peak_ppm = 600000 }",
    ];
    for setting in settings.iter().filter(|_| rng.chance(35)) {
        let _ = writeln!(text, "{setting}");
    }
}
