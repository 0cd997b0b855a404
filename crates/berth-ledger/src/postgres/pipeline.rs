//! Statements sent together and answered together: many statements, one round trip.
//!
//! They run in the order given, whatever the number. The first error is the one that counts: a
//! failed transaction answers all later statements with errors.

use std::borrow::Cow;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use tokio_postgres::types::ToSql;

/// A value of a statement.
pub(super) type Value = Box<dyn ToSql + Sync + Send>;

/// One statement with its values.
pub(super) struct Call {
    /// The table, or what else an error should name.
    pub(super) what: &'static str,
    pub(super) sql: Cow<'static, str>,
    pub(super) values: Vec<Value>,
}

impl Call {
    pub(super) fn new(
        what: &'static str,
        sql: impl Into<Cow<'static, str>>,
        values: Vec<Value>,
    ) -> Self {
        Self { what, sql: sql.into(), values }
    }

    /// A statement without values.
    pub(super) fn bare(what: &'static str, sql: &'static str) -> Self {
        Self::new(what, sql, Vec::new())
    }

    /// The same statement, made to fail unless it changes exactly so many rows.
    ///
    /// The database itself must refuse, since the commit is sent before its answers are read: a
    /// division by zero undoes the transaction, and the commit that follows with it.
    pub(super) fn counted(mut self, rows: usize) -> Self {
        let place = self.values.len() + 1;
        self.sql = Cow::Owned(format!(
            "WITH done AS ({} RETURNING 1) SELECT 1 / (count(*) = ${place}::bigint)::int FROM done",
            self.sql
        ));
        self.values.push(Box::new(i64::try_from(rows).unwrap_or(i64::MAX)));
        self
    }

    pub(super) fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.values.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect()
    }
}

/// A request to the database and its answer.
pub(super) type Request<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Sends requests in this order without waiting in between, then collects the answers.
///
/// The driver sends a request when its future is first polled, and the database answers in the
/// order of sending. So all are polled once, in order; after that only the oldest can be ready.
pub(super) async fn in_order<T>(mut requests: Vec<Request<'_, T>>) -> Vec<T> {
    let mut answers: Vec<Option<T>> = requests.iter().map(|_| None).collect();
    let mut sent = false;
    poll_fn(|context| {
        for (request, answer) in requests.iter_mut().zip(&mut answers) {
            if answer.is_some() {
                continue;
            }
            match request.as_mut().poll(context) {
                Poll::Ready(ready) => *answer = Some(ready),
                Poll::Pending if sent => return Poll::Pending,
                Poll::Pending => {}
            }
        }
        sent = true;
        if answers.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    answers.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::task::Context;

    #[test]
    fn all_are_sent_in_order_before_any_is_answered() {
        let log = RefCell::new(Vec::new());
        let request = |number: usize| -> Request<'_, usize> {
            let mut polls = 0;
            let log = &log;
            Box::pin(poll_fn(move |context: &mut Context<'_>| {
                log.borrow_mut().push((number, polls));
                polls += 1;
                context.waker().wake_by_ref();
                if polls > 2 { Poll::Ready(number) } else { Poll::Pending }
            }))
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let answers = runtime.block_on(in_order((0..40).map(request).collect()));
        assert_eq!(answers, (0..40).collect::<Vec<_>>());
        let sent: Vec<_> = log.borrow().iter().take(40).copied().collect();
        assert_eq!(sent, (0..40).map(|number| (number, 0)).collect::<Vec<_>>());
    }
}
