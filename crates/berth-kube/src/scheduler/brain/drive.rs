//! The loop: take in all that waits to be told, then place a few, then hand out what is to be done.

use std::ops::ControlFlow;
use std::time::Duration;

use tokio::sync::mpsc;

use super::{Brain, Moment};
use crate::scheduler::messages::{Message, Work};

/// Most messages that are taken in before pods are placed.
const HEAR_MOST: usize = 8_192;
/// Most entries that are tried before messages are taken in again: what they decide by is never older
/// than so many decisions.
const PLACE_MOST: usize = 256;
/// The longest sleep: a clock that was set, or a wake-up that was missed, is found out then.
const SLEEP_MOST: Duration = Duration::from_secs(1);

/// Drives the brain until it is told to stop. `clock` tells the time, `hand_out` takes the work and must
/// not block.
pub(crate) async fn drive(
    brain: &mut Brain,
    inbox: &mut mpsc::Receiver<Message>,
    clock: impl Fn() -> Moment,
    mut hand_out: impl FnMut(Work),
) {
    let (mut heard, mut work) = (Vec::with_capacity(1_024), Vec::new());
    loop {
        if !brain.is_busy() && inbox.is_empty() {
            let wake = brain.next_at().map(|at| at.saturating_sub(clock().millis));
            let sleep = wake.map_or(SLEEP_MOST, Duration::from_millis).min(SLEEP_MOST);
            tokio::select! {
                count = inbox.recv_many(&mut heard, HEAR_MOST) => if count == 0 { return },
                () = tokio::time::sleep(sleep) => {}
            }
        }
        while heard.len() < HEAR_MOST {
            let Ok(message) = inbox.try_recv() else { break };
            heard.push(message);
        }
        let now = clock();
        for message in heard.drain(..) {
            if let ControlFlow::Break(()) = brain.hear(message, now, &mut work) {
                work.drain(..).for_each(hand_out);
                return;
            }
        }
        brain.settle(now);
        brain.step(now, PLACE_MOST, &mut work);
        work.drain(..).for_each(&mut hand_out);
    }
}
