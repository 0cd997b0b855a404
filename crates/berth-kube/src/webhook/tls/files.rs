//! A certificate that somebody else keeps in files, such as a Secret of cert-manager that is mounted
//! as a folder. It is read again now and then, and taken up when it changed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{TlsError, server_config};
use crate::webhook::server::Certificate;

/// How often files are read. The kubelet takes about a minute to show what changed.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What was read.
#[derive(Clone, PartialEq, Eq)]
struct Read {
    certificate: Vec<u8>,
    key: Vec<u8>,
    authority: Option<String>,
}

async fn read(folder: &Path, ca_file: Option<&Path>) -> Result<Read, TlsError> {
    let file = async |path: PathBuf| {
        tokio::fs::read(&path).await.map_err(|source| {
            let path = path.display().to_string();
            TlsError::File { path, source }
        })
    };
    let authority = match ca_file {
        Some(path) => {
            let bytes = file(path.to_owned()).await?;
            let place = path.display().to_string();
            let text = String::from_utf8(bytes);
            Some(text.map_err(|_| TlsError::Content { place, what: "certificate" })?)
        }
        None => None,
    };
    let certificate = file(folder.join("tls.crt")).await?;
    Ok(Read { certificate, key: file(folder.join("tls.key")).await?, authority })
}

/// Serves with what is in the files until it is told to stop.
pub(in crate::webhook) async fn follow_files(
    folder: PathBuf,
    ca_file: Option<PathBuf>,
    certificate: Certificate,
    trusted: watch::Sender<Option<String>>,
    stop: CancellationToken,
) {
    let mut last: Option<Read> = None;
    let place = folder.display().to_string();
    loop {
        match read(&folder, ca_file.as_deref()).await {
            Ok(found) if last.as_ref() != Some(&found) => {
                match server_config(&place, &found.certificate, &found.key) {
                    Ok(config) => {
                        certificate.set(config);
                        trusted.send_replace(found.authority.clone());
                        tracing::info!(place, "the certificate was read");
                        last = Some(found);
                    }
                    // Files may change one after the other: the next look finds both.
                    Err(error) => tracing::warn!(%error, place, "the certificate cannot be used"),
                }
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "the certificate cannot be read"),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}
