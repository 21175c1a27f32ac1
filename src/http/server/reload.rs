//! What is read again while the service runs: files are looked at every second, and at once when the
//! process is asked to (SIGHUP). A file that cannot be used leaves what was read before in force,
//! and the log says so. Knows files; what is in them is told to whoever wants it.

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

/// Between two looks at a file.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How a file looks from outside: any of these changes when it is written or replaced, also behind
/// a symbolic link.
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

/// Files that belong together, and what is to be done when they change.
pub struct WatchedFiles {
    files: Vec<PathBuf>,
    /// Reads them and puts them in force; says what came of it in the log.
    reload: Box<dyn Fn() + Send + Sync>,
    /// As they were when they were last read.
    read: Vec<Option<FileStamp>>,
    /// As they were at the last look.
    seen: Vec<Option<FileStamp>>,
}

impl WatchedFiles {
    /// These files, as they are now and have just been read.
    pub fn new(files: Vec<PathBuf>, reload: impl Fn() + Send + Sync + 'static) -> Self {
        let read: Vec<_> = files.iter().map(|path| stamp(path)).collect();
        Self { files, reload: Box::new(reload), seen: read.clone(), read }
    }

    /// The access file: a good one replaces the book of the gate.
    pub fn access(path: PathBuf, gate: Arc<Authenticator>, metrics: Arc<Metrics>) -> Self {
        Self::new(vec![path.clone()], move || {
            let read = access_file::read(&path);
            metrics.reloaded(ReloadedFile::AccessFile, read.is_ok());
            match read {
                Ok(book) => {
                    tracing::info!(
                        principals = book.principals().len(),
                        "the access file was read again and is in force"
                    );
                    gate.replace(book);
                }
                Err(error) => tracing::error!(%error, "the access file is not used: the rules before it stay in force"),
            }
        })
    }

    /// The door's certificate: a good one is shown to the next connection.
    pub fn certificates(tls: &Arc<Tls>, metrics: Arc<Metrics>) -> Self {
        let tls = Arc::clone(tls);
        Self::new(tls.files().paths(), move || {
            let read = tls.reload();
            metrics.reloaded(ReloadedFile::Certificate, read.is_ok());
            match read {
                Ok(()) => tracing::info!("the certificate was read again and is in force"),
                Err(error) => tracing::error!(%error, "the certificate is not used: the one before it stays in force"),
            }
        })
    }

    /// Looks, and reads what has changed and then stood still for one look, so that no half of a
    /// file is read; with `now`, whatever is there.
    fn look(&mut self, now: bool) {
        let stamps: Vec<_> = self.files.iter().map(|path| stamp(path)).collect();
        let settled = stamps == self.seen;
        self.seen.clone_from(&stamps);
        if now || (settled && stamps != self.read) {
            self.read = stamps;
            (self.reload)();
        }
    }
}

/// Looks again and again; at once whenever `asked` is rung. Endless.
///
/// Cancel: nothing is left behind; what was read stays in force.
pub async fn watch(mut watched: Vec<WatchedFiles>, asked: Arc<Notify>) {
    loop {
        let now = tokio::select! {
            biased;
            () = asked.notified() => true,
            () = SystemClock.sleep(LOOK_INTERVAL) => false,
        };
        // Disks may be slow, and there is nothing else for this task to do.
        let looked = tokio::task::spawn_blocking(move || {
            watched.iter_mut().for_each(|one| one.look(now));
            watched
        });
        let Ok(back) = looked.await else {
            tracing::error!("files are not read again any more: looking at them met a defect");
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
    fn a_change_is_read_once_it_has_settled_and_once_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("f");
        std::fs::write(&path, "one").expect("writable");
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let mut watched = WatchedFiles::new(vec![path.clone()], move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let mut reads_after = |now| {
            watched.look(now);
            count.load(Ordering::Relaxed)
        };
        assert_eq!((reads_after(false), reads_after(false)), (0, 0));
        std::fs::write(&path, "two.").expect("writable");
        assert_eq!((reads_after(false), reads_after(false), reads_after(false)), (0, 1, 1));
        // Still being written at the second look.
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
