//! Rules about a node's lifecycle: state, heartbeat, health and planned reboots.

use super::{Filter, FilterTest, Verdict};
use crate::example::ExampleSetup;
use crate::fleet::NodeRow;
use crate::model::{BootOutcome, Evidence, NodeState, Timestamp};
use crate::policy::Policy;

pub(super) static NODE_ACTIVE: Filter = Filter {
    name: "node-active",
    rule: "its state is active, or degraded with `admit_degraded`",
    means: "the last nodes were joining, cordoned, draining, degraded or lost; or there is no node at all",
    settings: &["filters.admit_degraded"],
    example: |setup| setup.node("a", |facts| facts.state = NodeState::Draining),
    code: "no_nodes_active",
    remedy: "activate or uncordon a node, or add one",
    transient: true,
    test: FilterTest::Node(node_active),
};

fn node_active(row: &NodeRow, policy: &Policy, _: Timestamp) -> Verdict {
    let admitted = match row.state {
        NodeState::Active => true,
        NodeState::Degraded => policy.filters.admit_degraded,
        NodeState::Joining | NodeState::Cordoned | NodeState::Draining | NodeState::Lost => false,
    };
    if admitted { Ok(()) } else { Err(Evidence::State { found: row.state }) }
}

pub(super) static HEARTBEAT_FRESH: Filter = Filter {
    name: "heartbeat-fresh",
    rule: "its last heartbeat is at most `heartbeat_grace_s` old",
    means: "the last nodes have been silent for too long",
    settings: &["filters.heartbeat_grace_s"],
    example: |setup| setup.node("a", |facts| facts.heartbeat_at = ExampleSetup::NOW.plus(-600)),
    code: "no_nodes_fresh",
    remedy: "check the agents that are silent, or raise heartbeat_grace_s",
    transient: true,
    test: FilterTest::Node(heartbeat_fresh),
};

fn heartbeat_fresh(row: &NodeRow, policy: &Policy, now: Timestamp) -> Verdict {
    let limit = i64::from(policy.filters.heartbeat_grace_s);
    let seconds = now.0.saturating_sub(row.heartbeat_at.0);
    if seconds <= limit {
        return Ok(());
    }
    Err(Evidence::Time { what: "age of the last heartbeat".into(), seconds, limit })
}

pub(super) static NOT_SICK: Filter = Filter {
    name: "not-sick",
    rule: "its boots since the last success have not failed twice by the node's own fault, nor for three tenants; the failure that makes it so counts for `sick_window_s`",
    means: "instances of several tenants failed to boot on the last nodes, or the nodes themselves failed twice in a row",
    settings: &["filters.sick_window_s"],
    example: |setup| {
        let failed = |ago: i64| BootOutcome::new(ExampleSetup::NOW.plus(-ago), true);
        setup.node("a", |facts| facts.boots = vec![failed(600), failed(300)]);
    },
    code: "no_nodes_healthy",
    remedy: "find out why instances failed to boot there; the node is used again after sick_window_s",
    transient: true,
    test: FilterTest::Node(not_sick),
};

fn not_sick(row: &NodeRow, policy: &Policy, now: Timestamp) -> Verdict {
    let until = row.sick_until(i64::from(policy.filters.sick_window_s));
    match until.filter(|until| now < *until) {
        None => Ok(()),
        Some(until) => Err(Evidence::Time {
            what: "time until the newest boot failures have aged".into(),
            seconds: until.0.saturating_sub(now.0),
            limit: 0,
        }),
    }
}

pub(super) static NO_REBOOT_SOON: Filter = Filter {
    name: "no-reboot-soon",
    rule: "no reboot is planned there within `no_reboot_within_days`; a missed date is ignored",
    means: "the last nodes reboot too soon",
    settings: &["filters.no_reboot_within_days"],
    example: |setup| {
        setup.settings = "[filters]\nno_reboot_within_days = 7";
        let soon = ExampleSetup::NOW.plus(2 * Timestamp::DAY);
        setup.node("a", |facts| facts.next_reboot = Some(soon));
    },
    code: "no_nodes_before_reboot",
    remedy: "move the planned reboots, or lower no_reboot_within_days",
    transient: true,
    test: FilterTest::Node(no_reboot_soon),
};

fn no_reboot_soon(row: &NodeRow, policy: &Policy, now: Timestamp) -> Verdict {
    let Some(days) = policy.filters.no_reboot_within_days else {
        return Ok(());
    };
    let limit = i64::from(days) * Timestamp::DAY;
    match row.pending_reboot().map(|at| at.0.saturating_sub(now.0)) {
        // A missed date says nothing about the future.
        Some(seconds) if (0..limit).contains(&seconds) => {
            Err(Evidence::Time { what: "time until the planned reboot".into(), seconds, limit })
        }
        Some(_) | None => Ok(()),
    }
}
