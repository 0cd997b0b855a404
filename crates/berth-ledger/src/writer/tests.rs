//! The queue of a writer: its limit, its failures and its end.

use super::*;

#[test]
fn what_exceeds_the_queue_of_a_writer_is_refused_and_the_rest_is_kept() {
    let queue = Queue::default();
    let (answers, answered) = mpsc::channel();
    let jobs = (0..WAITING_MAX + 3).map(|_| {
        let answers = answers.clone();
        let reply = Box::new(move |answer| drop(answers.send(answer)));
        Job { op: Op::Reap(berth_engine::NodeId::new("n1")), reply }
    });
    queue.submit(jobs);
    assert_eq!(queue.waiting(), WAITING_MAX);
    let refused: Vec<_> = answered.try_iter().collect();
    assert_eq!(refused.len(), 3);
    let overloaded = |answer: &Result<Answer, LedgerError>| {
        matches!(answer, Err(LedgerError::Overloaded { waiting: WAITING_MAX, .. }))
    };
    assert!(refused.iter().all(overloaded), "{refused:?}");
    // There is room again for as many as the writer has taken.
    let Some(Task::Group(group)) = queue.next_task(10) else { panic!("no group") };
    assert_eq!(group.len(), 10);
    assert_eq!(queue.waiting(), WAITING_MAX - 10);
}

#[test]
fn a_failure_is_remembered_between_groups_until_something_is_committed() {
    let queue = Queue::default();
    let job = || Job { op: Op::Reap(berth_engine::NodeId::new("n1")), reply: Box::new(drop) };
    queue.submit([job()]);
    assert!(matches!(queue.next_task(10), Some(Task::Group(_))));
    queue.note_outcome(Err(&LedgerError::Unreachable("gone".to_owned())));
    std::thread::sleep(Duration::from_millis(20));
    queue.submit([job()]);
    assert!(matches!(queue.next_task(10), Some(Task::Group(_))));
    assert!(queue.unanswered_for().is_some_and(|time| time >= Duration::from_millis(20)));
    assert!(!queue.has_committed_within(Duration::from_secs(60)));
    // Without anything to do it tries again by itself, however often it is woken for nothing, and
    // answers those who ask.
    std::thread::scope(|scope| {
        let next = scope.spawn(|| queue.next_task(10));
        let woken = (0..1000).take_while(|_| {
            std::thread::sleep(Duration::from_millis(10));
            queue.submit([]);
            !next.is_finished()
        });
        assert!(woken.count() < 1000);
        let task = next.join().ok().flatten();
        assert!(matches!(task, Some(Task::Probe { is_failing: true })));
    });
    let (answers, answered) = mpsc::channel();
    queue.probe(Box::new(move |answer| drop(answers.send(answer))));
    queue.note_outcome(Ok(()));
    assert!(matches!(answered.try_recv(), Ok(Ok(()))));
    assert!(queue.has_committed_within(Duration::from_secs(60)));
    queue.probe(Box::new(drop));
    assert!(matches!(queue.next_task(10), Some(Task::Probe { is_failing: false })));
}

#[test]
fn a_writer_that_ends_too_early_is_reported_and_leaves_nobody_waiting() {
    let queue = Queue::default();
    let (reports, reported) = mpsc::channel();
    let reports = Mutex::new(reports);
    let ended = Arc::new(move || {
        let _ = lock(&reports).send(());
    });
    let hooks = WriterHooks { observer: None, ended: Some(ended) };
    let (answers, answered) = mpsc::channel();
    let job = |answers: &mpsc::Sender<_>| {
        let answers = answers.clone();
        let reply = Box::new(move |answer| drop(answers.send(answer)));
        Job { op: Op::Reap(berth_engine::NodeId::new("n1")), reply }
    };
    queue.submit([job(&answers)]);
    drop(EndReport { queue: &queue, hooks: &hooks });
    assert!(reported.try_recv().is_ok());
    assert!(matches!(answered.try_recv(), Ok(Err(LedgerError::Closed))));
    queue.submit([job(&answers)]);
    assert!(matches!(answered.try_recv(), Ok(Err(LedgerError::Closed))));
    // The end of a writer whose queue was closed is as it should be.
    drop(EndReport { queue: &queue, hooks: &hooks });
    assert!(reported.try_recv().is_err());
}
