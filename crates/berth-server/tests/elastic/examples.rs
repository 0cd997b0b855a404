//! The worked examples of the arithmetic, by their numbers, each in every way to ask.

use berth_engine::elastic::{ResourceAccount, Size};
use serde_json::json;

use crate::scene::{NODE, Scene, Setup, WAYS, Way, fine, whole};

/// A node of 10, of which so much is reserved, so much of it by the elastic instance `vm`.
async fn ten(way: Way, unit: u32, reserved: u32, has: u32) -> (Scene, String) {
    let scene = Scene::new(Setup::new(way, whole(unit)), whole(10)).await;
    scene.filler(whole(reserved - has)).await;
    let vm = scene.elastic("vm", whole(has)).await;
    assert_eq!(scene.reserved().await, whole(reserved));
    (scene, vm)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn examples_1_and_2_grow_and_shrink() {
    for way in WAYS {
        let (scene, vm) = ten(way, 1, 5, 2).await;
        assert_eq!(scene.ask(&vm, whole(3)).await, whole(3), "1 {way:?}");
        assert_eq!(scene.reserved().await, whole(6), "1 {way:?}");
        assert_eq!(scene.ask(&vm, whole(2)).await, whole(2), "2 {way:?}");
        assert_eq!(scene.reserved().await, whole(5), "2 {way:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn examples_3_and_4_what_is_left_is_granted_and_the_rest_when_another_shrinks() {
    for way in WAYS {
        let scene = Scene::new(Setup::new(way, whole(1)), whole(10)).await;
        scene.filler(whole(5)).await;
        let other = scene.elastic("other", whole(2)).await;
        let vm = scene.elastic("vm", whole(1)).await;
        assert_eq!(scene.ask(&vm, whole(5)).await, whole(3), "3 {way:?}");
        assert_eq!(scene.denied(&vm).await, whole(2), "3 {way:?}");
        assert_eq!((scene.pressure().await, scene.reserved().await), (whole(2), whole(10)), "3");
        scene.stopped(&other).await;
        assert_eq!(scene.reserved().await, whole(8), "4 {way:?}");
        assert_eq!(scene.ask(&vm, whole(5)).await, whole(5), "4 {way:?}");
        assert_eq!(scene.denied(&vm).await, Size::ZERO, "4 {way:?}");
        assert_eq!((scene.pressure().await, scene.reserved().await), (Size::ZERO, whole(10)), "4");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_5_what_is_less_than_a_unit_is_not_granted() {
    for way in WAYS {
        let (scene, vm) = ten(way, 2, 7, 4).await;
        assert_eq!(scene.ask(&vm, whole(8)).await, whole(6), "{way:?}");
        assert_eq!((scene.denied(&vm).await, scene.reserved().await), (whole(2), whole(9)));
        assert_eq!(scene.pressure().await, whole(2), "{way:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_6_an_over_full_node_lets_nothing_grow_but_what_its_agent_holds_is_so() {
    for way in WAYS {
        for (last, permit, reserved, denied) in [(2, 2, 12, 1), (3, 3, 13, 0)] {
            let scene = Scene::new(Setup::new(way, whole(1)), whole(10)).await;
            let vm = scene.elastic("vm", whole(2)).await;
            scene.found(whole(10)).await;
            assert_eq!(scene.reserved().await, whole(12), "{way:?}");
            let given = scene.ask_holding(&vm, whole(3), Some(whole(last))).await;
            assert_eq!(given, whole(permit), "{way:?}, holding {last}");
            assert_eq!(scene.reserved().await, whole(reserved), "{way:?}, holding {last}");
            assert_eq!(scene.denied(&vm).await, whole(denied), "{way:?}, holding {last}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_7_who_is_on_an_over_full_node_can_shrink() {
    for way in WAYS {
        let scene = Scene::new(Setup::new(way, whole(1)), whole(20)).await;
        scene.filler(whole(11)).await;
        let vm = scene.elastic("vm", whole(4)).await;
        // The host now keeps half of the node, which leaves 10.
        scene.keep(whole(10)).await;
        assert_eq!(scene.reserved().await, whole(15), "{way:?}");
        assert_eq!(scene.ask(&vm, whole(5)).await, whole(4), "{way:?}: nothing grows");
        assert_eq!(scene.reserved().await, whole(15), "{way:?}");
        assert_eq!(scene.ask(&vm, whole(2)).await, whole(2), "{way:?}");
        assert_eq!(scene.reserved().await, whole(13), "{way:?}");
        assert_eq!(scene.pressure().await, Size::ZERO, "{way:?}: it is content");
        assert_eq!(scene.ask(&vm, whole(3)).await, whole(2), "{way:?}: it is over-full still");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_8_who_was_found_counts_with_its_maximum_until_it_speaks() {
    for way in WAYS {
        let scene = Scene::new(Setup::new(way, whole(1)), whole(10)).await;
        scene.filler(whole(3)).await;
        let vm = scene.found_elastic(whole(2), whole(4)).await;
        assert_eq!((scene.reserved().await, scene.buffer().await), (whole(7), whole(2)));
        assert_eq!(scene.ask(&vm, whole(2)).await, whole(2), "{way:?}");
        assert_eq!((scene.reserved().await, scene.buffer().await), (whole(5), Size::ZERO));
        let silent = scene.found_elastic(whole(2), whole(4)).await;
        assert_eq!((scene.reserved().await, scene.buffer().await), (whole(9), whole(2)));
        scene.stopped(&silent).await;
        scene.stopped(&vm).await;
        assert_eq!((scene.reserved().await, scene.buffer().await), (whole(3), Size::ZERO));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_9_what_was_only_set_aside_is_not_granted_on_an_over_full_node() {
    for way in WAYS {
        let scene = Scene::new(Setup::new(way, whole(1)), whole(10)).await;
        scene.found_elastic(whole(4), whole(8)).await;
        let vm = scene.found_elastic(whole(2), whole(4)).await;
        assert_eq!((scene.reserved().await, scene.buffer().await), (whole(12), whole(6)));
        assert_eq!(scene.ask_holding(&vm, whole(4), Some(whole(2))).await, whole(2), "{way:?}");
        assert_eq!(scene.denied(&vm).await, whole(2), "{way:?}");
        assert_eq!((scene.reserved().await, scene.buffer().await), (whole(10), whole(4)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_10_thousandths() {
    for way in WAYS {
        let scene = Scene::new(Setup::new(way, fine(250)), fine(10_000)).await;
        scene.filler(fine(8600)).await;
        let vm = scene.elastic("vm", fine(1000)).await;
        assert_eq!(scene.ask(&vm, fine(2000)).await, fine(1250), "{way:?}");
        assert_eq!((scene.denied(&vm).await, scene.reserved().await), (fine(750), fine(9850)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn examples_11_and_12_the_host_and_others_are_charged_in_whole_units() {
    let setup = Setup::new(WAYS[0], whole(1)).watermark(700);
    let scene = Scene::new(setup, Size::new(7910, 30_976)).await;
    let facts = |cpu_milli: u32, memory_kib: u64| {
        json!({
            "system_reserve": {"cpu_milli": 500, "memory_mib": 512, "disk_mib": 0,
                "bandwidth_mbps": 0},
            "other": {"cpu_milli": cpu_milli, "memory_kib": memory_kib, "cpu_unit_milli": 1000,
                "memory_unit_mib": 1024},
        })
    };
    scene.node(NODE, Size::new(7910, 30_976), facts(0, 0)).await;
    let account = scene.account().await;
    let numbers =
        |of: &ResourceAccount, unit| [of.total / unit, of.system / unit, of.watermark / unit];
    assert_eq!(numbers(&account.cpu, 1000), [7, 0, 4], "11");
    assert_eq!(numbers(&account.memory, 1024), [30, 1, 20], "11");
    assert_eq!(account.memory.reservable(), 29 * 1024, "11");
    scene.node(NODE, Size::new(7300, 30_976), facts(0, 0)).await;
    let account = scene.account().await;
    assert_eq!((account.cpu.system, account.cpu.reservable()), (1000, 6000), "11");
    // A margin of 420 mCPU, and of 925 MiB (theirs is 947252 KiB, a little more).
    for (cpu_milli, memory_mib, charged) in [(810, 3132, [1, 3]), (1080, 4176, [1, 4])] {
        let total = Size::new(7920, 30_720 + 925 + 512);
        scene.node(NODE, total, facts(cpu_milli, memory_mib << 10)).await;
        let account = scene.account().await;
        assert_eq!([account.cpu.other / 1000, account.memory.other / 1024], charged, "12");
        assert_eq!(account.cpu.reserved, account.cpu.other, "12: and nothing else is there");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_13_pressure_until_those_who_leave_account_for_it() {
    for way in WAYS {
        let scene = Scene::new(Setup::new(way, whole(2)).watermark(700), whole(10)).await;
        let vms = [
            scene.elastic("four", whole(4)).await,
            scene.elastic("three", whole(3)).await,
            scene.elastic("two", whole(2)).await,
        ];
        // One unit is two, and one is left: all of the wish is denied.
        assert_eq!(scene.ask(&vms[0], whole(6)).await, whole(4), "{way:?}");
        assert_eq!((scene.reserved().await, scene.pressure().await), (whole(9), whole(2)));
        let sides = async || {
            let cpu = scene.account().await.cpu;
            let logical = cpu.reserved - cpu.watermark;
            ((logical + cpu.capacity_pressure) / 1000, cpu.pressure_accounted_for / 1000)
        };
        assert_eq!((scene.account().await.must_shed(), sides().await), (true, (4, 0)), "{way:?}");
        scene.node("n2", whole(10), json!({})).await;
        for (vm, sheds, expected) in [(&vms[1], true, (4, 3)), (&vms[2], false, (4, 5))] {
            let path = format!("/v1/instances/{vm}/migrate");
            scene.post(&path, &json!({"to": "n2"})).await.expect(200);
            scene.server.control.wait_for_read_your_writes().await;
            let found = (scene.account().await.must_shed(), sides().await);
            assert_eq!(found, (sheds, expected), "{way:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_13_what_is_only_set_aside_makes_nobody_leave() {
    for way in WAYS {
        let scene = Scene::new(Setup::new(way, whole(2)).watermark(700), whole(10)).await;
        scene.found_elastic(whole(1), whole(5)).await;
        let vm = scene.elastic("vm", whole(4)).await;
        assert_eq!(scene.ask(&vm, whole(6)).await, whole(4), "{way:?}");
        let account = scene.account().await;
        let cpu = &account.cpu;
        let numbers = (cpu.reserved, cpu.capacity_pressure, cpu.buffer, cpu.watermark);
        assert_eq!(numbers, (9000, 2000, 4000, 7000), "{way:?}");
        assert!(!account.must_shed(), "{way:?}: 4 > 4 is false");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_14_what_fits_exactly_is_placed_and_what_does_not_is_refused() {
    for way in WAYS {
        for (there, fits) in [(4, true), (7, false)] {
            let scene = Scene::new(Setup::new(way, whole(1)), whole(12)).await;
            scene.filler(whole(there)).await;
            let size = crate::scene::resources(whole(8));
            let reply = scene.place(&json!({"resources": size})).await;
            let reserved = if fits { 12 } else { 7 };
            assert_eq!(reply.status.as_u16(), if fits { 201 } else { 409 }, "{}", reply.text);
            assert_eq!(scene.reserved().await, whole(reserved), "{way:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_15_a_class_is_oversold_and_its_charges_round_up() {
    for way in WAYS {
        let classes = "[elastic.classes.double]\novercommit_permille = 2000\n\
                       [elastic.classes.more]\novercommit_permille = 1500\n";
        let scene = Scene::new(Setup::new(way, whole(1)).more(classes), whole(10)).await;
        scene.filler(Size::new(6500, 6656)).await;
        let vm = scene.elastic_of("vm", whole(3), "double").await;
        assert_eq!(scene.reserved().await, whole(8), "{way:?}");
        assert_eq!(scene.ask(&vm, whole(7)).await, whole(7), "{way:?}");
        assert_eq!(scene.reserved().await, whole(10), "{way:?}");

        let scene = Scene::new(Setup::new(way, fine(250)).more(classes), fine(10_000)).await;
        // 667 for 1000: two thirds, rounded up.
        scene.filler(fine(9400 - 667)).await;
        let vm = scene.elastic_of("vm", fine(1000), "more").await;
        assert_eq!(scene.reserved().await, fine(9400), "{way:?}");
        assert_eq!(scene.ask(&vm, fine(4000)).await, fine(1750), "{way:?}");
        assert_eq!(scene.reserved().await, fine(9900), "{way:?}");
        assert_eq!(scene.denied(&vm).await, fine(2250), "{way:?}");
    }
}
