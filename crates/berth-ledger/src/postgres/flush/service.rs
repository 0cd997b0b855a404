//! Writing documents and the audit log.

use super::{Batch, Call, Column, Fault, Rows, cells};

pub(super) fn documents(rows: &Rows, calls: &mut Vec<Call>) -> Result<(), Fault> {
    const DOCUMENT: &[Column] = &[
        Column::Text("kind"),
        Column::Text("id"),
        Column::Int("rev"),
        Column::Text("body"),
        Column::Int("at"),
        Column::Int("before"),
    ];
    const GONE: &[Column] = &[Column::Text("kind"), Column::Text("id"), Column::Int("before")];
    let mut added = Batch::of("document");
    let (mut changed, mut gone) = (Batch::new(DOCUMENT), Batch::new(GONE));
    for change in rows.documents.changes() {
        let (kind, id) = (&*change.key.0, &*change.key.1);
        let before = change.before.map(|row| row.rev);
        let Some(row) = change.now else {
            gone.push(cells![kind, id, before])?;
            continue;
        };
        let row = cells![kind, id, row.rev, row.body.as_str(), row.at.0];
        match before {
            None => added.push(row)?,
            Some(before) => changed.push(row.into_iter().chain(cells![before]))?,
        }
    }
    let sql = "DELETE FROM document AS t USING {u} \
         WHERE t.kind = u.kind AND t.id = u.id AND t.rev = u.before";
    calls.extend(gone.guarded("document", sql));
    let sql = "UPDATE document AS t SET rev = u.rev, body = u.body, at = u.at FROM {u} \
         WHERE t.kind = u.kind AND t.id = u.id AND t.rev = u.before";
    calls.extend(changed.guarded("document", sql));
    calls.extend(added.insert("document", ""));
    Ok(())
}

/// What is only ever added, and numbered by the database.
pub(super) fn added(rows: &Rows, calls: &mut Vec<Call>) -> Result<(), Fault> {
    const AUDIT: &[Column] = &[
        Column::Int("at"),
        Column::Text("actor"),
        Column::Text("origin"),
        Column::Text("action"),
        Column::Text("subject"),
        Column::Text("request_id"),
    ];
    let at = rows.now.0;
    let mut history = Batch::new(&[Column::Text("hash"), Column::Int("at")]);
    for hash in &rows.activated {
        history.push(cells![&**hash, at])?;
    }
    calls.extend(history.insert("policy_history", ""));
    let mut audit = Batch::new(AUDIT);
    for row in &rows.audit {
        audit.push(cells![
            at,
            &*row.actor,
            &*row.origin,
            &*row.action,
            &*row.subject,
            row.request_id.as_deref(),
        ])?;
    }
    calls.extend(audit.insert("audit", ""));
    Ok(())
}
