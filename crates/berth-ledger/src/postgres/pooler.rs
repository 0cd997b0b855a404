//! Refusing a connection pooler that gives a connection another session after every transaction.
//!
//! The writer lock, the lock of migrations and prepared statements belong to a session. Behind such a
//! pooler a lock would be held by the client that gets that session next, so two writers could each
//! believe to be alone. A pooler that keeps a session for as long as its client is connected is fine.

use super::session::{Session, Target};
use crate::error::{Fault, LedgerError};

/// Connections that look for the mark, one after the other: a pooler of several processes has a pool in
/// each, and only a connection to the same process can meet our session.
const WITNESSES: u32 = 3;

/// Transactions that each of them tries: other clients of the pooler may take the session in between.
const LOOKS: u32 = 3;

/// Fails if transactions of one connection run in different sessions, or one session serves two
/// connections.
///
/// A session is marked with a random text. Without a pooler, and with one that keeps sessions, the
/// connection always finds its own mark and no other connection does, whatever else happens: a
/// connection that is slow or lost is an error of its own, never a sign of a pooler.
pub(super) fn refuse_transaction_pooling(target: &Target) -> Result<(), Fault> {
    let mut session = Session::connect(target)?;
    for _ in 0..WITNESSES {
        // The pool may be used up, which is a matter for later connections. One that is this session's
        // alone is kept by the pooler as it should be.
        let Ok(mut witness) = Session::connect(target) else { return Ok(()) };
        for _ in 0..LOOKS {
            let mark = format!("{:032x}", fastrand::u128(..));
            let set = format!("SELECT set_config('{MARK}', '{mark}', false)");
            session.unprepared_text("session check", &set)?;
            let Ok(seen_by_witness) = read_mark(&mut witness) else { return Ok(()) };
            let own = read_mark(&mut session)?;
            if seen_by_witness.as_ref() == Some(&mark) || own.as_ref() != Some(&mark) {
                return Err(Fault::Fatal(LedgerError::TransactionPooling));
            }
        }
    }
    Ok(())
}

/// The setting of a session that carries the mark.
const MARK: &str = "berth.session";

fn read_mark(session: &mut Session) -> Result<Option<String>, Fault> {
    let read = format!("SELECT current_setting('{MARK}', true)");
    session.unprepared_text("session check", &read)
}
