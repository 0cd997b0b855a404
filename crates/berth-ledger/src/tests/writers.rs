//! Writers: what one operation or one callback does to the others of its group.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use crate::backend::{Backend, Options};
use crate::ledger::Ledger;
use crate::model::{Answer, Expect, Op, Outcome, Text};
use crate::writer::{Job, Observer, WriterHooks};

use super::{new_database, raw, server};

fn put(id: &str) -> Op {
    Op::PutDocument {
        kind: Text::from("test"),
        id: Text::from(id),
        body: "{}".to_owned(),
        expect: Expect::Any,
    }
}

/// Submits operations as one group, and waits for what becomes of each.
fn submit_together(ledger: &Ledger, ops: Vec<Op>) -> Vec<bool> {
    let count = ops.len();
    let (answers, answered) = mpsc::channel();
    let jobs = ops.into_iter().enumerate().map(|(place, op)| {
        let answers = answers.clone();
        let reply = Box::new(move |answer: Result<Answer, _>| {
            let is_done = matches!(answer, Ok(Answer::Outcome(Outcome::Done)));
            let _ = answers.send((place, is_done));
        });
        Job { op, reply }
    });
    ledger.submit(jobs);
    let mut done = vec![false; count];
    answered.iter().take(count).for_each(|(place, is_done)| done[place] = is_done);
    done
}

#[test]
fn a_connection_that_is_lost_after_the_group_was_rejected_is_counted() {
    let server = server();
    let url = new_database(&server);
    let options = Options { writers: 1, ..Options::default() };
    let ledger = Ledger::open(Backend::Postgres(url.clone()), options).unwrap();
    // One document is rejected; the first time that the other comes after it, its connection ends.
    let script = "CREATE SEQUENCE attempts; CREATE FUNCTION misbehave() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NEW.id = 'a-rejected' THEN RAISE EXCEPTION 'rejected on purpose'; END IF;
            IF NEW.id = 'b-cut' AND nextval('attempts') = 1 THEN
                PERFORM pg_terminate_backend(pg_backend_pid());
                PERFORM pg_sleep(60);
            END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER misbehave BEFORE INSERT ON document FOR EACH ROW EXECUTE FUNCTION misbehave();";
    raw(&url).script("test", script).unwrap();
    let before = ledger.stats();
    assert_eq!(submit_together(&ledger, vec![put("a-rejected"), put("b-cut")]), [false, true]);
    let after = ledger.stats();
    assert_eq!(after.retries.lost - before.retries.lost, 1);
    // What was rejected did not commit.
    assert_eq!(after.transactions - before.transactions, 1);
    assert_eq!(after.operations - before.operations, 1);
}

#[test]
fn a_callback_that_panics_fails_its_own_caller_only() {
    let folder = tempfile::tempdir().unwrap();
    let backend = Backend::Sqlite(folder.path().join("ledger.db"));
    let must_panic = Arc::new(AtomicBool::new(true));
    let armed = Arc::clone(&must_panic);
    let observer: Observer =
        Arc::new(move |_| assert!(!armed.swap(false, Ordering::SeqCst), "on purpose"));
    let hooks = WriterHooks { observer: Some(observer), ended: None };
    let ledger = Ledger::open_with(backend, Options::default(), hooks).unwrap();
    let reply = Box::new(|_| panic!("on purpose"));
    ledger.submit([Job { op: put("panics"), reply }]);
    assert_eq!(submit_together(&ledger, vec![put("one"), put("two")]), [true, true]);
    let stats = ledger.stats();
    assert_eq!(stats.panics, 2, "the observer and the callback");
    assert_eq!(stats.retries.lost, 1, "what the observer missed must be read again");
}
