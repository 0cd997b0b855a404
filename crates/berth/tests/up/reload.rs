//! Settings that change while a server runs.

use crate::harness::{Home, status};

#[tokio::test]
async fn what_can_change_does_what_cannot_is_named_and_a_broken_file_changes_nothing() {
    let home = Home::new();
    let file = home.path().join("settings/berth.toml");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "").unwrap();
    let server = home.up(&["--config", file.to_str().unwrap()]);
    let metrics = format!("{}/metrics", server.url());
    assert_eq!(status(&metrics).await, 401);

    // A new file in the old one's place, as editors write them.
    let new = file.with_extension("new");
    std::fs::write(&new, "[telemetry]\nopen_metrics = true\n[http]\nbody_limit = \"9MiB\"\n")
        .unwrap();
    std::fs::rename(&new, &file).unwrap();
    server.wait_for_log("settings changed settings=\"telemetry.open_metrics\"");
    server.wait_for_log("changed settings require a restart settings=\"http.body_limit\"");
    assert_eq!(status(&metrics).await, 200);

    std::fs::write(&file, "[telemetry]\nopen_metrics = maybe\n").unwrap();
    server.wait_for_log("invalid configuration; keeping the old one");
    // Another file changes, and then a third one, which is what says that both were seen.
    std::fs::write(file.with_file_name("unrelated"), "1").unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    server.signal("-HUP");
    let count = || server.log().matches("invalid configuration").count();
    while count() < 2 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(count(), 2, "once for the file, once for the signal:\n{}", server.log());
    std::fs::write(&file, "[telemetry]\nopen_metrics = \"maybe\"\n").unwrap();
    server.wait_for_log("line 2: telemetry.open_metrics is \"maybe\"; accepted is true or false");
    assert_eq!(status(&metrics).await, 200);

    std::fs::write(&file, "[telemetry]\nlog_level = \"debug\"\n").unwrap();
    server
        .wait_for_log("settings changed settings=\"telemetry.log_level, telemetry.open_metrics\"");
    assert_eq!(status(&metrics).await, 401);
    server.stop();
}

#[test]
fn a_signal_reads_the_file_again() {
    let home = Home::new();
    let server = home.up(&[]);
    server.signal("-HUP");
    server.wait_for_log("configuration unchanged");
    server.stop();
}
