//! Reloads files while the service runs: they are checked every second, and reloaded at once on SIGHUP. If a new file
//! is invalid, the previous content stays in force, and the error is logged.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::tls::Tls;
use crate::auth::access_file;
use crate::auth::authenticator::Authenticator;
use crate::metrics::Metrics;
use crate::metrics::connections::ReloadedFile;
use crate::redlock::clock::{Clock, SystemClock};
use crate::webhooks::ServiceWebhooks;

/// The interval of checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The metadata of a file: some of it changes when the file is written or replaced, also behind a symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified_s: i64,
    modified_ns: i64,
}

fn stamp(path: &Path) -> Option<FileStamp> {
    let meta = std::fs::metadata(path).ok()?;
    Some(FileStamp {
        device: meta.dev(),
        inode: meta.ino(),
        bytes: meta.len(),
        modified_s: meta.mtime(),
        modified_ns: meta.mtime_nsec(),
    })
}

/// Called after each reload, with whether the new content is in force.
pub(crate) trait ReloadReport: Fn(ReloadedFile, bool) + Send + Sync + 'static {}

impl<F: Fn(ReloadedFile, bool) + Send + Sync + 'static> ReloadReport for F {}

/// Files that are reloaded together.
pub(crate) struct WatchedFiles {
    files: Vec<PathBuf>,
    /// Reads the files, puts them in force and logs the result. Returns the files to watch from then on, if they change.
    reload: Box<dyn Fn() -> Option<Vec<PathBuf>> + Send + Sync>,
    /// The stamps at the last reload.
    loaded: Vec<Option<FileStamp>>,
    /// The stamps at the last check.
    checked: Vec<Option<FileStamp>>,
}

impl WatchedFiles {
    /// Files that have just been read.
    pub(crate) fn new(files: Vec<PathBuf>, reload: impl Fn() -> Option<Vec<PathBuf>> + Send + Sync + 'static) -> Self {
        let loaded: Vec<_> = files.iter().map(|path| stamp(path)).collect();
        Self { files, reload: Box::new(reload), checked: loaded.clone(), loaded }
    }

    /// Watches the access file: a valid one replaces the principals.
    pub(crate) fn access(path: PathBuf, authenticator: Arc<Authenticator>, report: impl ReloadReport) -> Self {
        Self::new(vec![path.clone()], move || {
            let read = access_file::read(&path);
            report(ReloadedFile::AccessFile, read.is_ok());
            match read {
                Ok(store) => {
                    tracing::info!(
                        principals = store.principals().len(),
                        "the access file was read again and is in force"
                    );
                    authenticator.replace(store);
                }
                Err(error) => tracing::error!(%error, "the access file is not used: the rules before it stay in force"),
            }
            None
        })
    }

    /// Watches the server's certificate: a valid one is used for new connections. `metrics` get its expiry.
    pub(crate) fn certificates(tls: &Arc<Tls>, report: impl ReloadReport, metrics: Arc<Metrics>) -> Self {
        let tls = Arc::clone(tls);
        metrics.certificate_expires(tls.expires_s());
        Self::new(tls.files().paths(), move || {
            let read = tls.reload();
            report(ReloadedFile::Certificate, read.is_ok());
            metrics.certificate_expires(tls.expires_s());
            match read {
                Ok(()) => tracing::info!("the certificate was read again and is in force"),
                Err(error) => tracing::error!(%error, "the certificate is not used: the one before it stays in force"),
            }
            None
        })
    }

    /// Watches the file of targets and hooks, with the files of their secrets: a valid file replaces all of them.
    pub(crate) fn webhooks(webhooks: Arc<ServiceWebhooks>, report: impl ReloadReport) -> Self {
        Self::new(webhooks.files(), move || {
            let read = webhooks.reload();
            report(ReloadedFile::Webhooks, read.is_ok());
            match read {
                Ok(files) => {
                    tracing::info!("the webhooks file was read again and is in force");
                    Some(files)
                }
                Err(error) => {
                    tracing::error!(%error, "the webhooks file is not used: the one before it stays in force");
                    Some(error.files)
                }
            }
        })
    }

    /// Reloads files that have changed, but not again since the previous check, so that no partly written file is read; with
    /// `now`, reloads them unconditionally.
    fn check(&mut self, now: bool) {
        let stamps: Vec<_> = self.files.iter().map(|path| stamp(path)).collect();
        let settled = stamps == self.checked;
        self.checked.clone_from(&stamps);
        if now || (settled && stamps != self.loaded) {
            self.loaded = stamps;
            if let Some(files) = (self.reload)() {
                // For files that were watched before, the state before they were read.
                let before = |path: &PathBuf| self.files.iter().position(|old| old == path).map(|i| self.loaded[i]);
                let stamps: Vec<_> = files.iter().map(|path| before(path).unwrap_or_else(|| stamp(path))).collect();
                (self.files, self.checked, self.loaded) = (files, stamps.clone(), stamps);
            }
        }
    }
}

/// Checks the files for ever; a notification of `reload_now` reloads all of them at once.
///
/// Cancel: nothing is left behind; the content that was read stays in force.
pub(crate) async fn watch(mut watched: Vec<WatchedFiles>, reload_now: Arc<Notify>) {
    loop {
        let now = tokio::select! {
            biased;
            () = reload_now.notified() => true,
            () = SystemClock.sleep(CHECK_INTERVAL) => false,
        };
        // Disks may be slow.
        let checked = tokio::task::spawn_blocking(move || {
            watched.iter_mut().for_each(|files| files.check(now));
            watched
        });
        let Ok(back) = checked.await else {
            tracing::error!("a check of files panicked: files are no longer reloaded");
            return;
        };
        watched = back;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_change_is_read_once_after_it_has_settled() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("f");
        std::fs::write(&path, "one").expect("writable");
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let mut watched = WatchedFiles::new(vec![path.clone()], move || {
            counted.fetch_add(1, Ordering::Relaxed);
            None
        });
        let mut reads_after = |now| {
            watched.check(now);
            count.load(Ordering::Relaxed)
        };
        assert_eq!((reads_after(false), reads_after(false)), (0, 0));
        std::fs::write(&path, "two.").expect("writable");
        assert_eq!((reads_after(false), reads_after(false), reads_after(false)), (0, 1, 1));
        // Still being written at the second check.
        std::fs::write(&path, "three").expect("writable");
        assert_eq!(reads_after(false), 1);
        std::fs::write(&path, "three and more").expect("writable");
        assert_eq!((reads_after(false), reads_after(false)), (1, 2));
        // Replaced, as editors and configuration tools do it; gone; and asked for.
        std::fs::write(dir.path().join("g"), "three and more").expect("writable");
        std::fs::rename(dir.path().join("g"), &path).expect("renamed");
        assert_eq!((reads_after(false), reads_after(false)), (2, 3));
        std::fs::remove_file(&path).expect("removed");
        assert_eq!((reads_after(false), reads_after(false), reads_after(true)), (3, 4, 5));
    }
}
