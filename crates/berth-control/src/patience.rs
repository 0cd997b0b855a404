//! How long callers wait for the ledger: as long as its retry budget, and never for ever.

use std::time::Duration;

use berth_ledger::{Ledger, LedgerError};

/// Added to the ledger's patience, so that what it finds out itself comes first.
const ANSWER_MARGIN: Duration = Duration::from_secs(2);

/// Waits for an answer of the claim path or the ledger, but not for ever. The thread that answers may be gone:
/// then, too, the outcome is unknown.
pub(crate) async fn within_patience<T, E>(
    ledger: &Ledger,
    answer: impl Future<Output = Result<Result<T, LedgerError>, E>>,
) -> Result<T, LedgerError> {
    wait(ledger, answer, ", outcome unknown").await
}

/// Reads from the ledger on a thread that may wait; its caller waits within the ledger's patience.
pub(crate) async fn read_within_patience<T: Send + 'static>(
    ledger: &Ledger,
    read: impl FnOnce(&Ledger) -> Result<T, LedgerError> + Send + 'static,
) -> Result<T, LedgerError> {
    // Taken before a thread is: those that wait for one are bounded, too.
    let (place, reading) = (ledger.begin_read()?, ledger.clone());
    let read = move || {
        let _place = place;
        read(&reading)
    };
    wait(ledger, tokio::task::spawn_blocking(read), "").await
}

async fn wait<T, E>(
    ledger: &Ledger,
    answer: impl Future<Output = Result<Result<T, LedgerError>, E>>,
    consequence: &str,
) -> Result<T, LedgerError> {
    let patience = ledger.retry_budget() + ANSWER_MARGIN;
    match tokio::time::timeout(patience, answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(LedgerError::Closed),
        Err(_) => {
            let seconds = patience.as_secs();
            Err(LedgerError::Unreachable(format!("no answer within {seconds} s{consequence}")))
        }
    }
}
