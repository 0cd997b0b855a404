//! The event loop: handle all pending messages, schedule a batch, hand the actions out.

use std::ops::ControlFlow;
use std::time::Duration;

use tokio::sync::mpsc;

use super::SchedulerCore;
use crate::scheduler::messages::{Action, Message};
use crate::scheduler::queue::Moment;

/// Most messages that are handled before a batch of pods is scheduled.
const MESSAGES_MAX: usize = 8_192;
/// Most queue entries that are tried before messages are handled again: it bounds how stale the
/// state is that a decision is based on.
const BATCH_MAX: usize = 256;
/// The longest sleep, so that a change of the clock or a missed wake-up is noticed.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Runs the core until it receives [`Message::Stop`]. `clock` returns the time; `submit` takes an action
/// and must not block.
pub(crate) async fn run_event_loop(
    core: &mut SchedulerCore,
    inbox: &mut mpsc::Receiver<Message>,
    clock: impl Fn() -> Moment,
    mut submit: impl FnMut(Action),
) {
    let (mut messages, mut actions) = (Vec::with_capacity(1_024), Vec::new());
    loop {
        if !core.has_active_entries() && inbox.is_empty() {
            let wakeup = core.next_wakeup().map(|at| at.saturating_sub(clock().millis));
            let sleep = wakeup.map_or(SLEEP_MAX, Duration::from_millis).min(SLEEP_MAX);
            tokio::select! {
                count = inbox.recv_many(&mut messages, MESSAGES_MAX) => if count == 0 { return },
                () = tokio::time::sleep(sleep) => {}
            }
        }
        while messages.len() < MESSAGES_MAX {
            let Ok(message) = inbox.try_recv() else { break };
            messages.push(message);
        }
        let now = clock();
        for message in messages.drain(..) {
            if let ControlFlow::Break(()) = core.handle_message(message, now, &mut actions) {
                actions.drain(..).for_each(submit);
                return;
            }
        }
        core.refresh_queue(now);
        core.schedule_batch(now, BATCH_MAX, &mut actions);
        actions.drain(..).for_each(&mut submit);
    }
}
