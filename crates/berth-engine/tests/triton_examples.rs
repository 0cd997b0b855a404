//! Worked examples of Triton's designation API, D1 to D20 of `research/dapi-spot.md`: filters on
//! room and equipment, and scores. D21 to D30 are in `triton_locality_examples.rs`.
//!
//! Units: Triton's CPU caps are percent of a core, ours are thousandths of one. The hypervisor's
//! overhead is 0 on every node, since the examples state free room without it. Where our design
//! decides otherwise than Triton, the test says so.

mod common;

use std::collections::BTreeMap;

use berth_engine::{
    Amounts, CpuCapMode, InstanceId, NodeFacts, Platform, PlatformVersion, Policy, Timestamp,
    TraitValue,
};
use common::{
    NOW, builtin, claim, engine, node, node_with, place, policy, refusal, removal, request, scores,
    survivors, totals, values,
};

const DAY: i64 = Timestamp::DAY;
const HOUR: i64 = 3600;

/// Midnight UTC of the platform builds in D13 and D17.
const BUILD_2016_01_01: Timestamp = Timestamp(1_451_606_400);
const BUILD_2016_04_01: Timestamp = Timestamp(1_459_468_800);
const BUILD_2017_01_01: Timestamp = Timestamp(1_483_228_800);

fn with_platform(facts: NodeFacts, version: (u16, u16), built_at: Timestamp) -> NodeFacts {
    let version = PlatformVersion::new(version.0, version.1);
    NodeFacts { platform: Some(Platform { version, built_at }), ..facts }
}

/// A node that is to reboot some seconds from now and booted some seconds before it.
fn rebooting(id: &str, in_s: Option<i64>, booted_before_s: Option<i64>) -> NodeFacts {
    node_with(id, 1000, 1024, |facts| {
        facts.next_reboot = in_s.map(|seconds| NOW.plus(seconds));
        facts.last_boot = booted_before_s.map(|seconds| NOW.plus(-seconds));
    })
}

fn traits(pairs: &[(&str, TraitValue)]) -> BTreeMap<String, TraitValue> {
    let owned = pairs.iter().map(|(k, v)| ((*k).to_owned(), v.clone()));
    owned.collect()
}

fn list(words: &[&str]) -> TraitValue {
    TraitValue::List(words.iter().map(|word| (*word).to_owned()).collect())
}

#[test]
fn d01_a_node_one_mib_short_is_removed_with_both_numbers() {
    let nodes = [node("a", 1000, 1024), node("b", 1000, 1023)];
    let mut engine = engine(builtin("triton"), &nodes);
    let wanted = request(1, 0, 1024);
    assert_eq!(survivors(&mut engine, &wanted), ["a"]);
    let reason = "memory: needs 1 GiB, has 1023 MiB free: short by 1 MiB";
    assert_eq!(removal(&mut engine, &wanted, "b"), ("memory".into(), reason.into()));
}

#[test]
fn d02_a_cap_of_two_cores_at_ratio_four_needs_half_a_core() {
    // Triton divides the need by the ratio: 200 / 4 = 50. We multiply the limit: 500 * 4 = 2000.
    // Of four cores each, so that the instance fits into its host.
    let keeps = |id, cpu_milli| {
        node_with(id, 4000, 1024, |facts| facts.system_reserve = Amounts::new(cpu_milli, 0))
    };
    let nodes = [keeps("a", 3500), keeps("b", 3510)];
    let mut engine = engine(builtin("triton"), &nodes);
    let wanted = request(1, 2000, 512);
    assert_eq!(survivors(&mut engine, &wanted), ["a"]);
    let reason = "CPU: needs 2 CPU, has 1.96 CPU free: short by 0.04 CPU";
    assert_eq!(removal(&mut engine, &wanted, "b"), ("cpu".into(), reason.into()));
}

#[test]
fn d03_disk_must_hold_quota_image_and_headroom() {
    let with_disk = |id, disk_mib| {
        node_with(id, 1000, 1024, |facts| {
            facts.capacity = Some(Amounts::new(1000, 1024).with_disk(disk_mib));
        })
    };
    let nodes = [with_disk("a", 20_586), with_disk("b", 20_585)];
    let mut engine = engine(builtin("triton"), &nodes);
    let mut wanted = request(1, 0, 512);
    wanted.resources.disk_mib = 10_240;
    // The image's files, rounded up to whole MiB; the policy `triton` adds its headroom of 10 GiB.
    wanted.image_mib = 110_958_470_u32.div_ceil(1 << 20);
    assert_eq!(wanted.image_mib, 106);
    assert_eq!(survivors(&mut engine, &wanted), ["a"]);
    let reason = "disk: needs 20.1 GiB, has just 1 MiB less than that free";
    assert_eq!(removal(&mut engine, &wanted, "b"), ("disk".into(), reason.into()));
}

#[test]
fn d04_a_node_takes_its_224th_instance_and_no_more() {
    let nodes = [node("a", 1000, 65_536), node("b", 1000, 65_536)];
    let mut engine = engine(builtin("triton"), &nodes);
    for number in 0..223 {
        claim(&mut engine, &request(1000 + number, 0, 1), "a");
        claim(&mut engine, &request(2000 + number, 0, 1), "b");
    }
    let last = request(2999, 0, 1);
    claim(&mut engine, &last, "b");
    let wanted = request(1, 0, 1);
    assert_eq!(survivors(&mut engine, &wanted), ["a"]);
    let reason = "holds as many instances as it may";
    let removed = removal(&mut engine, &wanted, "b");
    assert_eq!(removed, ("instance-count".into(), reason.into()));
}

#[test]
fn d05_what_is_free_beside_two_virtual_machines_and_a_reservation() {
    // 2 942 881 792 bytes are 2806 MiB, rounded down; 15 % of that, rounded up, is reserved.
    let memory_mib = u32::try_from(2_942_881_792_u64 >> 20).unwrap();
    let host = node_with("host", 16_000, memory_mib, |facts| {
        facts.system_reserve = Amounts::new(0, (memory_mib * 15).div_ceil(100));
    });
    let mut engine = engine(builtin("triton"), &[host]);
    for (number, memory_mib) in [(1, 2048), (2, 128)] {
        let mut kvm = request(number, 3500, memory_mib);
        kvm.cpu_capped = true;
        claim(&mut engine, &kvm, "host");
    }
    // Free CPU 1425 percent of a core, at ratio 4: 57 cores may still be promised. Free RAM 209.
    // Three more take 48 of them: none may have more than the 16 cores of the host.
    for number in 11..=13 {
        let mut large = request(number, 16_000, 0);
        large.cpu_capped = true;
        claim(&mut engine, &large, "host");
    }
    let mut wanted = request(3, 9000, 209);
    wanted.cpu_capped = true;
    assert_eq!(place(&mut engine, &wanted), "host");
    wanted.resources = Amounts::new(9001, 209);
    let (filter, reason) = removal(&mut engine, &wanted, "host");
    assert_eq!(filter, "cpu");
    assert_eq!(reason, "CPU: needs 9.001 CPU, has 9 CPU free: short by 0.001 CPU");
    wanted.resources = Amounts::new(9000, 210);
    let (filter, reason) = removal(&mut engine, &wanted, "host");
    assert_eq!(filter, "memory");
    assert_eq!(reason, "memory: needs 210 MiB, has 209 MiB free: short by 1 MiB");
}

#[test]
fn d06_a_least_platform_counts_per_version() {
    let least = Timestamp(1_355_184_000);
    let mut nodes = Vec::new();
    for (name, version) in [("6.5", (6, 5)), ("7.0", (7, 0)), ("7.1", (7, 1))] {
        for (age, built_at) in [("older", least.plus(-1)), ("newer", least)] {
            let facts = node(&format!("{name}-{age}"), 1000, 1024);
            nodes.push(with_platform(facts, version, built_at));
        }
    }
    let mut engine = engine(builtin("triton"), &nodes);
    let mut wanted = request(1, 0, 512);
    wanted.platform.min = BTreeMap::from([(PlatformVersion::new(7, 0), least)]);
    assert_eq!(survivors(&mut engine, &wanted), ["7.0-newer", "7.1-newer", "7.1-older"]);
    assert_eq!(removal(&mut engine, &wanted, "6.5-newer").0, "platform");
    assert_eq!(removal(&mut engine, &wanted, "7.0-older").0, "platform");
}

#[test]
fn d07_traits_must_be_the_same_names_with_a_value_in_common() {
    let ssd = ("ssd", TraitValue::Bool(true));
    let text = |word: &str| TraitValue::Text(word.to_owned());
    let tables = [
        ("a", traits(&[ssd.clone(), ("hw", list(&["x", "y"]))])),
        ("b", traits(std::slice::from_ref(&ssd))),
        ("c", traits(&[])),
        ("e", traits(&[ssd.clone(), ("hw", text("z"))])),
    ];
    let nodes = tables.map(|(id, has)| node_with(id, 1000, 1024, |facts| facts.traits = has));
    let mut engine = engine(builtin("triton"), &nodes);
    let mut wanted = request(1, 0, 512);
    // Triton overlays the image's traits on the VM's; the caller hands us the result.
    wanted.traits = traits(&[ssd, ("hw", list(&["y", "q"]))]);
    assert_eq!(survivors(&mut engine, &wanted), ["a"]);
    let reasons = ["b", "c", "e"].map(|id| removal(&mut engine, &wanted, id).1);
    assert_eq!(reasons[0], "lacks trait hw; the request wants y|q");
    assert_eq!(reasons[1], "lacks trait hw; the request wants y|q");
    assert_eq!(reasons[2], "has trait hw as z; the request wants y|q");
}

#[test]
fn d08_a_node_with_a_trait_is_kept_for_those_who_ask_for_it() {
    let special = node_with("special", 1000, 1024, |facts| {
        facts.traits = traits(&[("ssd", TraitValue::Bool(true))]);
    });
    let mut engine = engine(builtin("triton"), &[special]);
    let plain = request(1, 0, 512);
    let reason = "has trait ssd, and is kept for requests that ask for it";
    let removed = removal(&mut engine, &plain, "special");
    assert_eq!(removed, ("traits".into(), reason.into()));
    assert_eq!(refusal(&mut engine, &plain).code, "traits_no_node");
}

#[test]
fn d09_capped_and_uncapped_do_not_mix_unless_switched_off() {
    let mut engine = engine(builtin("triton"), &[node("a", 1000, 1024)]);
    claim(&mut engine, &request(1, 0, 128), "a");
    let mut capped = request(2, 100, 128);
    capped.cpu_capped = true;
    let reason = "runs 1 uncapped instance; this one is capped, and they may not mix";
    let removed = removal(&mut engine, &capped, "a");
    assert_eq!(removed, ("cpu-cap-mixing".into(), reason.into()));

    // The off-switch, for the fleet.
    engine.set_policy(policy("name = 'mixing'\n[filters]\noff = ['cpu-cap-mixing']"));
    assert_eq!(survivors(&mut engine, &capped), ["a"]);

    // RFD 90 asks for it per node.
    engine.set_policy(builtin("triton"));
    let mixed = node_with("a", 1000, 1024, |facts| {
        facts.cpu_cap_mode = CpuCapMode::Mixed;
    });
    engine.fleet_mut().add_node(&mixed).unwrap();
    assert_eq!(survivors(&mut engine, &capped), ["a"]);
}

#[test]
fn d10_the_largest_fifteen_percent_are_spared_from_seven_nodes_on() {
    // Triton drops them; ours score 0 where the rest score 1, so they stay a last resort.
    for (count, spared) in [(6, 0), (7, 1), (13, 1), (14, 2), (20, 3), (50, 7)] {
        let each = |n: u32| node(&format!("n{n:02}"), 1000, 1024 + n);
        let nodes: Vec<NodeFacts> = (0..count).map(each).collect();
        let mut engine = engine(scores("spare-largest = 1"), &nodes);
        let values = values(&mut engine, &request(1, 0, 512), "spare-largest");
        let kept = usize::try_from(count - spared).unwrap();
        assert!(values[..kept].iter().all(|value| *value == 1_000_000));
        assert!(values[kept..].iter().all(|value| *value == 0), "{count}");
        assert_eq!(values.len() - kept, usize::try_from(spared).unwrap());
    }
}

#[test]
fn d11_the_reservoir_is_used_when_nothing_else_is_left() {
    let kept = |id| node_with(id, 1000, 1024, |facts| facts.reservoir = true);
    let mut engine = engine(builtin("triton"), &[kept("a"), kept("b")]);
    let wanted = request(1, 0, 512);
    assert_eq!(survivors(&mut engine, &wanted), ["a", "b"]);
    assert_eq!(values(&mut engine, &wanted, "reservoir"), [0, 0]);
    // One node outside it wins, though it is emptiest and so the worst for packing.
    engine.fleet_mut().add_node(&node("z", 1000, 4096)).unwrap();
    assert_eq!(values(&mut engine, &wanted, "reservoir"), [0, 0, 1_000_000]);
    assert_eq!(place(&mut engine, &wanted), "z");
}

#[test]
fn d12_packing_ranks_least_free_memory_first_and_spreading_is_its_own_name() {
    let nodes = [node("a", 1000, 256), node("b", 1000, 768), node("c", 1000, 512)];
    let wanted = request(1, 0, 1);
    let mut packing = engine(scores("memory-pack-rank = 4"), &nodes);
    assert_eq!(totals(&mut packing, &wanted), [4_000_000, 0, 2_000_000]);

    // Weight -4 reverses the order in Triton. We name the direction instead and refuse the sign;
    // `memory-spread` measures the free share, here of 1024 MiB, instead of ranking.
    let negative = Policy::from_toml("name = 'x'\n[scores]\nmemory-pack-rank = -4");
    let complaint = negative.unwrap_err().to_string();
    assert!(complaint.contains("scores.memory-pack-rank is -4"), "{complaint}");
    let nodes = ["a", "b", "c"].map(|id| node(id, 1000, 1024));
    let mut spreading = engine(scores("memory-spread = 4"), &nodes);
    for (number, (id, used)) in [("a", 768), ("b", 256), ("c", 512)].iter().enumerate() {
        let number = 10 + u128::try_from(number).unwrap();
        claim(&mut spreading, &request(number, 0, *used), id);
    }
    assert_eq!(totals(&mut spreading, &wanted), [1_000_000, 3_000_000, 2_000_000]);
    assert_eq!(place(&mut spreading, &wanted), "b");
}

#[test]
fn d13_the_newest_platform_scores_by_its_place_between_oldest_and_newest() {
    let built = [BUILD_2016_01_01, BUILD_2016_04_01, BUILD_2017_01_01];
    let nodes: Vec<NodeFacts> = ["a", "b", "c"]
        .into_iter()
        .zip(built)
        .map(|(id, built_at)| with_platform(node(id, 1000, 1024), (7, 0), built_at))
        .collect();
    let mut engine = engine(scores("newest-platform = 1"), &nodes);
    let values = values(&mut engine, &request(1, 0, 1), "newest-platform");
    assert_eq!(values, [0, 248_633, 1_000_000]);
}

#[test]
fn d14_later_reboots_score_higher_in_buckets_of_seven_days() {
    // Triton's own sort put dated nodes into the wrong buckets on newer runtimes; ours is sorted
    // right. A negative weight, which would prefer nodes about to reboot, is not accepted.
    let nodes = [
        rebooting("a", Some(75 * DAY), None),
        rebooting("b", Some(70 * DAY), None),
        rebooting("c", Some(10 * DAY), None),
        rebooting("d", None, None),
        rebooting("e", Some(-35 * DAY), Some(30 * DAY)),
        rebooting("f", Some(0), Some(30 * DAY)),
    ];
    let mut engine = engine(scores("next-reboot = 3"), &nodes);
    let wanted = request(1, 0, 1);
    // 2/2/1/3/3/0 of 3, in parts per million rounded down.
    let (two, one) = (666_666, 333_333);
    assert_eq!(
        values(&mut engine, &wanted, "next-reboot"),
        [two, two, one, 1_000_000, 1_000_000, 0]
    );
    assert_eq!(
        totals(&mut engine, &wanted),
        [1_999_998, 1_999_998, 999_999, 3_000_000, 3_000_000, 0]
    );
}

#[test]
fn d15_seven_days_apart_are_two_buckets_and_an_hour_less_is_one() {
    let wanted = request(1, 0, 1);
    let apart = |seconds| {
        let nodes =
            [rebooting("a", Some(30 * DAY), None), rebooting("b", Some(30 * DAY - seconds), None)];
        values(&mut engine(scores("next-reboot = 1"), &nodes), &wanted, "next-reboot")
    };
    assert_eq!(apart(7 * DAY), [1_000_000, 0]);
    assert_eq!(apart(7 * DAY - HOUR), [1_000_000, 1_000_000]);
}

#[test]
fn d16_a_missed_reboot_is_ignored_or_soonest_by_switch() {
    // RFD 24 ignores it, Triton shipped "soonest"; we ignore it unless the policy says otherwise.
    let nodes = [
        rebooting("due", Some(10 * DAY), None),
        rebooting("missed", Some(-2 * DAY), Some(30 * DAY)),
    ];
    let wanted = request(1, 0, 1);
    let mut engine = engine(scores("next-reboot = 1"), &nodes);
    assert_eq!(values(&mut engine, &wanted, "next-reboot"), [0, 1_000_000]);
    engine.set_policy(policy(
        "name = 'shipped'\n[options]\nmissed_reboot = 'soonest'\n[scores]\nnext-reboot = 1",
    ));
    assert_eq!(values(&mut engine, &wanted, "next-reboot"), [1_000_000, 0]);
}

#[test]
fn d17_the_default_weights_add_up_to_the_worked_totals() {
    let host = |id, memory_mib, disk_gib: u32, built_at, reboot_days: Option<i64>| {
        let facts = node_with(id, 1000, memory_mib, |facts| {
            facts.capacity = Some(Amounts::new(1000, memory_mib).with_disk(disk_gib << 10));
            facts.next_reboot = reboot_days.map(|days| NOW.plus(days * DAY));
        });
        with_platform(facts, (7, 0), built_at)
    };
    let nodes = [
        host("s1", 4096, 100, BUILD_2017_01_01, None),
        host("s2", 8192, 50, BUILD_2016_04_01, Some(10)),
        host("s3", 16_384, 200, BUILD_2016_01_01, Some(60)),
    ];
    let weights =
        "memory-pack-rank = 2\ndisk-pack-rank = 1\nnewest-platform = 1\nnext-reboot = 0.5";
    let mut engine = engine(scores(weights), &nodes);
    let wanted = request(1, 0, 1024);
    assert_eq!(totals(&mut engine, &wanted), [4_000_000, 2_248_633, 250_000]);
    assert_eq!(place(&mut engine, &wanted), "s1");
}

#[test]
fn d17_the_builtin_policy_has_tritons_weights() {
    let triton = builtin("triton");
    let expected = [
        ("memory-pack-rank", 2000),
        ("disk-pack-rank", 1000),
        ("newest-platform", 1000),
        ("next-reboot", 500),
        ("random", 500),
    ];
    for (scorer, permille) in expected {
        assert_eq!(triton.weight(scorer), permille, "{scorer}");
    }
}

#[test]
fn d18_a_sum_prefers_one_strength_and_a_product_no_weakness() {
    // X: memory empty, disk full. Y: two fifths of each left. The request takes no disk.
    let sized = |id| {
        node_with(id, 1000, 1000, |facts| {
            facts.capacity = Some(Amounts::new(1000, 1000).with_disk(1000));
        })
    };
    let weights = "memory-spread = 1\ndisk-spread = 1";
    let mut engine = engine(scores(weights), &[sized("x"), sized("y")]);
    let mut on_x = request(10, 0, 1);
    on_x.resources = Amounts::new(0, 0).with_disk(1000);
    let mut on_y = request(11, 0, 600);
    on_y.resources.disk_mib = 600;
    claim(&mut engine, &on_x, "x");
    claim(&mut engine, &on_y, "y");
    let mut wanted = request(1, 0, 1);
    wanted.resources.disk_mib = 0;

    assert_eq!(values(&mut engine, &wanted, "memory-spread"), [1_000_000, 400_000]);
    assert_eq!(values(&mut engine, &wanted, "disk-spread"), [0, 400_000]);
    assert_eq!(totals(&mut engine, &wanted), [1_000_000, 800_000]);
    assert_eq!(place(&mut engine, &wanted), "x");

    let product = format!("name = 'product'\ncombine = 'product'\n[scores]\n{weights}");
    engine.set_policy(policy(&product));
    assert_eq!(totals(&mut engine, &wanted), [0, 160_000]);
    assert_eq!(place(&mut engine, &wanted), "y");
}

#[test]
fn d19_equal_scores_go_to_the_smallest_id() {
    // Triton gave the last in its list, c.
    let nodes = ["c", "a", "b"].map(|id| node(id, 1000, 1024));
    let mut engine = engine(scores("memory-pack-rank = 2\ndisk-pack-rank = 1"), &nodes);
    let wanted = request(1, 0, 512);
    assert_eq!(totals(&mut engine, &wanted), [3_000_000; 3]);
    assert_eq!(place(&mut engine, &wanted), "a");
}

#[test]
fn d20_one_node_gets_the_full_weight_and_equal_nodes_get_the_same() {
    // Triton gave three equal nodes 2, 1 and 0 by their order in its list.
    let weights = "memory-pack-rank = 2";
    let wanted = request(1, 0, 512);
    let mut alone = engine(scores(weights), &[node("a", 1000, 1024)]);
    assert_eq!(totals(&mut alone, &wanted), [2_000_000]);
    let nodes = ["a", "b", "c"].map(|id| node(id, 1000, 1024));
    let mut three = engine(scores(weights), &nodes);
    assert_eq!(totals(&mut three, &wanted), [2_000_000; 3]);
}

#[test]
fn random_placement_is_drawn_from_the_request_and_repeats() {
    // Triton's uniform-random shuffles; ours is seeded by the request's id, and so explainable.
    let nodes: Vec<NodeFacts> = (0..20).map(|n| node(&format!("n{n:02}"), 1000, 1024)).collect();
    let mut engine = engine(scores("random = 1"), &nodes);
    let mut chosen = std::collections::BTreeSet::new();
    for number in 1..=40 {
        let wanted = request(number, 0, 1);
        let first = place(&mut engine, &wanted);
        assert_eq!(place(&mut engine, &wanted), first, "{number}");
        chosen.insert(first);
    }
    assert!(chosen.len() > 10, "{chosen:?}");
    assert!(engine.fleet().node_of(InstanceId::from_u128(1)).is_none());
}
