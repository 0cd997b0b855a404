//! Whether the webhook is ready, and what is missing otherwise, by part.
//!
//! Every part reports for itself; the webhook is ready while no part has a problem. Decides nothing else:
//! reviews are answered whether it is ready or not.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

/// A part that has to be in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// The process is not about to stop.
    Process,
    /// The slots are reconciled with the existing pods.
    Slots,
    /// There is a certificate.
    Certificate,
    /// The API server has the registration.
    Registration,
    /// The database of the slots answers.
    Database,
}

/// See the module.
pub(super) struct Readiness {
    problems: Mutex<BTreeMap<Part, String>>,
    ready: watch::Sender<bool>,
}

impl Readiness {
    /// Of a webhook that starts. Without a registration of its own, it has none to wait for.
    pub(super) fn starting(registers: bool, ready: watch::Sender<bool>) -> Self {
        let mut problems = BTreeMap::from([
            (Part::Slots, "starting: the slots are not reconciled with the pods yet".to_owned()),
            (Part::Certificate, "there is no serving certificate yet".to_owned()),
        ]);
        if registers {
            let waits = "the MutatingWebhookConfiguration was not checked yet".to_owned();
            problems.insert(Part::Registration, waits);
        }
        Self { problems: Mutex::new(problems), ready }
    }

    /// Records the state of a part.
    pub(super) fn set(&self, part: Part, state: Result<(), String>) {
        let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = match state {
            Ok(()) => problems.remove(&part).is_some(),
            Err(problem) => {
                let before = problems.insert(part, problem.clone());
                before.as_ref() != Some(&problem)
            }
        };
        let is_ready = problems.is_empty();
        let lines = join(&problems);
        drop(problems);
        let was_ready = self.ready.send_replace(is_ready);
        match (was_ready, is_ready) {
            (false, true) => tracing::info!("ready"),
            (true, false) => tracing::warn!(missing = lines, "not ready any more"),
            (false, false) if changed => tracing::info!(missing = lines, "not ready yet"),
            (true, true) | (false, false) => {}
        }
    }

    /// What is missing, one problem per line.
    pub(super) fn check(&self) -> Result<(), String> {
        let problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        if problems.is_empty() { Ok(()) } else { Err(join(&problems)) }
    }

    /// Whether nothing is missing.
    pub(super) fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }
}

fn join(problems: &BTreeMap<Part, String>) -> String {
    problems.values().map(String::as_str).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_ready_while_no_part_has_a_problem_and_says_which_have() {
        let (sender, ready) = watch::channel(false);
        let readiness = Readiness::starting(true, sender);
        readiness.set(Part::Slots, Ok(()));
        readiness.set(Part::Certificate, Ok(()));
        let missing = readiness.check().unwrap_err();
        assert_eq!(missing, "the MutatingWebhookConfiguration was not checked yet");
        readiness.set(Part::Registration, Ok(()));
        assert!(*ready.borrow() && readiness.check().is_ok());
        readiness.set(Part::Database, Err("no database".to_owned()));
        readiness.set(Part::Registration, Err("no registration".to_owned()));
        assert_eq!(readiness.check().unwrap_err(), "no registration\nno database");
        readiness.set(Part::Registration, Ok(()));
        assert!(!*ready.borrow());
        readiness.set(Part::Database, Ok(()));
        assert!(*ready.borrow());
    }

    #[test]
    fn without_a_registration_of_its_own_it_waits_for_none() {
        let (sender, ready) = watch::channel(false);
        let readiness = Readiness::starting(false, sender);
        readiness.set(Part::Slots, Ok(()));
        readiness.set(Part::Certificate, Ok(()));
        assert!(*ready.borrow());
    }
}
