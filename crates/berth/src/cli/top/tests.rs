//! Screens of all sizes.

use berth_api::engine::NodeState;
use jiff::Timestamp;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::data::{Fleet, NodeCell, RecentDecision, Snapshot, Usage, WaitingRequest};
use super::draw::{View, draw};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn snapshot(nodes: usize) -> Snapshot {
    let mut fleet = Fleet {
        instances: 4321,
        cpu: Usage { used: 600_000, total: 800_000 },
        cores: 200_000,
        over_promised: 2,
        memory: Usage { used: 1_900_000, total: 2_000_000 },
        disk: Usage { used: 10, total: 100 },
        ..Fleet::default()
    };
    for number in 0..nodes {
        let state = match number % 29 {
            3 => NodeState::Cordoned,
            7 => NodeState::Lost,
            _ => NodeState::Active,
        };
        let cell = NodeCell { full: u64::try_from(number * 7 % 101).unwrap(), state };
        fleet.zones.entry(format!("z{}", number % 3)).or_default().push(cell);
        *fleet.states.entry(state).or_default() += 1;
    }
    let decided = |number: i64| {
        let granted = number % 4 != 0;
        RecentDecision {
            id: number.to_string(),
            at: at(1_000_000 - number),
            tenant: "acme".to_owned(),
            granted,
            requested: 3,
            result: if granted { "node-1" } else { "no_capacity_memory" }.to_owned(),
            code: (!granted).then(|| "no_capacity_memory".to_owned()),
        }
    };
    Snapshot {
        url: "http://127.0.0.1:7070".to_owned(),
        fleet,
        waiting: vec![WaitingRequest {
            tenant: "acme".to_owned(),
            requested: "2 CPU, 4 GiB".to_owned(),
            since: at(999_940),
            tries: 7,
        }],
        decisions: (0..12).map(decided).collect(),
        at: at(1_000_000),
        error: None,
    }
}

fn screen(snapshot: &Snapshot, width: u16, height: u16, view: &mut View) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, snapshot, view)).unwrap();
    terminal.backend().to_string()
}

#[test]
fn a_usual_screen_shows_all_of_it() {
    insta::assert_snapshot!(screen(&snapshot(90), 90, 30, &mut View::default()));
}

#[test]
fn many_nodes_share_cells() {
    let text = screen(&snapshot(5000), 60, 40, &mut View::default());
    assert!(text.contains("each cell is 10 nodes"), "{text}");
}

#[test]
fn a_small_screen_shows_sums_and_decisions() {
    insta::assert_snapshot!(screen(&snapshot(90), 40, 9, &mut View::default()));
}

#[test]
fn no_screen_is_too_small_to_draw() {
    for (width, height) in [(1, 1), (5, 2), (20, 3), (300, 1)] {
        screen(&snapshot(10), width, height, &mut View::default());
        screen(&Snapshot::default(), width, height, &mut View::default());
    }
}

#[test]
fn scrolling_ends_at_the_last_line() {
    let mut view = View { above: 1000, paused: true };
    let text = screen(&snapshot(90), 90, 20, &mut view);
    assert!(view.above < 30, "{}", view.above);
    assert!(text.contains("PAUSED"), "{text}");
}

#[test]
fn the_rate_is_that_of_the_last_seconds() {
    // Ten of the twelve happened in the last ten seconds.
    assert_eq!(snapshot(1).rate_tenths(), 10);
}
