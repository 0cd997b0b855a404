//! Settings of the database under which a failover loses acknowledged commits.

use super::pipeline::Call;
use super::rows::get;
use super::session::Session;
use crate::database::DurabilityWarning;
use crate::error::Fault;

/// What `reset_val` has is the server's own setting, also where this connection uses another. Who may
/// not read the statistics of others sees replicas, but not whether they are synchronous.
const SETTINGS: &str = "\
    SELECT (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'), \
        current_setting('synchronous_standby_names'), \
        pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'), \
        (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum'))";

/// Looks for such settings, on the primary of a URL with this many hosts.
pub(super) fn check(session: &mut Session, hosts: usize) -> Result<Vec<DurabilityWarning>, Fault> {
    let rows = session.rows(Call::bare("durability", SETTINGS))?;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let commit: Option<String> = get(row, 0)?;
    let (names, sees_state, synchronous): (String, bool, i64) =
        (get(row, 1)?, get(row, 2)?, get(row, 3)?);
    let mut warnings = Vec::new();
    match commit.as_deref() {
        Some("off") => warnings.push(DurabilityWarning::SynchronousCommitOff),
        Some("local") => warnings.push(DurabilityWarning::SynchronousCommitLocal),
        _ => {}
    }
    if names.trim().is_empty() {
        if hosts > 1 {
            warnings.push(DurabilityWarning::NoSynchronousStandby { hosts });
        }
    } else if sees_state && synchronous == 0 {
        warnings.push(DurabilityWarning::StandbyNotConnected { names });
    }
    Ok(warnings)
}
