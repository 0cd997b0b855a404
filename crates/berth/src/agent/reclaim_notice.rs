//! The notice that this node will be taken away: a file that another program writes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use berth_api::ReclaimNotice;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::cmdutil::args;

/// How often the file is checked: notices leave little time.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The notice in a file, if there is one, with the time that is left if the file has it.
pub(super) fn read(file: Option<&Path>) -> Option<ReclaimNotice> {
    let text = std::fs::read_to_string(file?).ok()?;
    Some(ReclaimNotice { in_s: args::duration(&text).ok() })
}

/// Wakes the sync with the server when the file appears.
pub(super) async fn watch(file: Option<PathBuf>, wake: Arc<Notify>) {
    let Some(file) = file else { return };
    let mut was_there = file.exists();
    loop {
        sleep(CHECK_INTERVAL).await;
        let is_there = file.exists();
        if is_there && !was_there {
            wake.notify_one();
        }
        was_there = is_there;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_say_how_soon_and_need_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("reclaim");
        assert_eq!(read(None), None);
        assert_eq!(read(Some(&file)), None);
        for (text, in_s) in
            [("120", Some(120)), ("30s\n", Some(30)), ("2m", Some(120)), ("", None), ("soon", None)]
        {
            std::fs::write(&file, text).unwrap();
            assert_eq!(read(Some(&file)), Some(ReclaimNotice { in_s }), "{text:?}");
        }
    }
}
