//! A certificate in files that another program maintains, such as a mounted Secret of cert-manager. The
//! files are read periodically, and a change takes effect without a restart.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{TlsError, server_config};
use crate::webhook::server::Certificate;

/// How often files are read. The kubelet takes about a minute to update them.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The content of the files.
#[derive(Clone, PartialEq, Eq)]
struct CertificateFiles {
    certificate: Vec<u8>,
    key: Vec<u8>,
    authority: Option<String>,
}

async fn read(folder: &Path, ca_file: Option<&Path>) -> Result<CertificateFiles, TlsError> {
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
    Ok(CertificateFiles { certificate, key: file(folder.join("tls.key")).await?, authority })
}

/// Serves with the certificate in the files until stopped.
pub(in crate::webhook) async fn follow_files(
    folder: PathBuf,
    ca_file: Option<PathBuf>,
    certificate: Certificate,
    trusted: watch::Sender<Option<String>>,
    stop: CancellationToken,
) {
    let mut last: Option<CertificateFiles> = None;
    let place = folder.display().to_string();
    loop {
        match read(&folder, ca_file.as_deref()).await {
            Ok(found) if last.as_ref() != Some(&found) => {
                match server_config(&place, &found.certificate, &found.key) {
                    Ok(config) => {
                        certificate.set(config);
                        trusted.send_replace(found.authority.clone());
                        tracing::info!(place, "certificate loaded");
                        last = Some(found);
                    }
                    // Files may change one after the other: the next pass reads both.
                    Err(error) => tracing::warn!(%error, place, "invalid certificate"),
                }
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "failed to read certificate"),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(CHECK_INTERVAL) => {}
        }
    }
}
