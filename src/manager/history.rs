//! Where incidents are kept over restarts: a file of JSON lines in the data directory, if that exists. It informs people;
//! nothing depends on it, so a disk that fails or is slow loses incidents and delays nothing.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::api::Event;

/// Incidents that are kept in memory and read back at a start: some megabytes.
pub(crate) const HISTORY_MAX: usize = 10_000;
/// Incidents that wait to be written; further ones stay in memory only.
const UNWRITTEN_MAX: usize = 1_024;
/// Longest line that is read back, in bytes.
const LINE_MAX: usize = 32_768;

const FILE: &str = "incidents.jsonl";
const LOCK: &str = "incidents.lock";

/// The incidents of former runs, and what writes those of this one.
pub struct HistoryFile {
    /// The oldest first.
    pub past: Vec<Arc<Event>>,
    path: PathBuf,
    file: File,
    lines: usize,
    /// Held by the one process that writes.
    _lock: File,
}

impl HistoryFile {
    /// Opens the file of a directory and reads the last [`HISTORY_MAX`] incidents; `None` where the directory does not exist
    /// or another process writes there. Blocks on the disk.
    ///
    /// Errors: those of the file system.
    pub fn open(dir: &Path) -> io::Result<Option<Self>> {
        if !dir.is_dir() {
            return Ok(None);
        }
        let lock = OpenOptions::new().create(true).append(true).open(dir.join(LOCK))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Ok(None),
            Err(fs::TryLockError::Error(error)) => return Err(error),
        }
        let path = dir.join(FILE);
        let mut past = match File::open(&path) {
            Ok(file) => read(file)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        past.drain(..past.len().saturating_sub(HISTORY_MAX));
        let file = rewrite(&path, past.iter().map(AsRef::as_ref))?;
        Ok(Some(Self { lines: past.len(), past, path, file, _lock: lock }))
    }

    /// Writes what it is sent until the sender is dropped. Cancel: what waits is not written.
    pub(super) async fn write(mut self, mut unwritten: mpsc::Receiver<Arc<Event>>) {
        let mut recent = std::mem::take(&mut self.past);
        while let Some(event) = unwritten.recv().await {
            let mut batch = vec![event];
            while let Ok(event) = unwritten.try_recv() {
                batch.push(event);
            }
            recent.extend(batch.iter().cloned());
            recent.drain(..recent.len().saturating_sub(HISTORY_MAX));
            // Twice as many lines as are kept: only the kept ones stay.
            let kept = (self.lines + batch.len() > 2 * HISTORY_MAX).then(|| recent.clone());
            let written = tokio::task::spawn_blocking(move || {
                let result = match kept {
                    Some(kept) => rewrite(&self.path, kept.iter().map(AsRef::as_ref)).map(|file| {
                        (self.file, self.lines) = (file, kept.len());
                    }),
                    None => self.file.write_all(lines(batch.iter().map(AsRef::as_ref)).as_bytes()).map(|()| {
                        self.lines += batch.len();
                    }),
                };
                (self, result)
            })
            .await;
            let Ok((this, result)) = written else { return };
            self = this;
            if let Err(error) = result {
                tracing::warn!(%error, path = %self.path.display(), "incidents could not be written");
            }
        }
    }
}

/// The queue to the writer.
pub(super) fn queue() -> (mpsc::Sender<Arc<Event>>, mpsc::Receiver<Arc<Event>>) {
    mpsc::channel(UNWRITTEN_MAX)
}

fn lines<'a>(events: impl Iterator<Item = &'a Event>) -> String {
    events.filter_map(|event| serde_json::to_string(event).ok()).map(|line| line + "\n").collect()
}

/// The events of a file; lines that are none are skipped, such as one that a crash cut off.
fn read(file: File) -> io::Result<Vec<Arc<Event>>> {
    let mut events = Vec::new();
    for line in BufReader::new(file).split(b'\n') {
        let line = line?;
        events.extend(
            Some(line)
                .filter(|line| line.len() <= LINE_MAX)
                .and_then(|line| serde_json::from_slice(&line).ok())
                .map(Arc::new),
        );
    }
    Ok(events)
}

/// Replaces the file by one with these events, and opens it for appending.
fn rewrite<'a>(path: &Path, events: impl Iterator<Item = &'a Event>) -> io::Result<File> {
    let new = path.with_extension("new");
    fs::write(&new, lines(events))?;
    fs::rename(&new, path)?;
    OpenOptions::new().append(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at_ms: u64) -> Event {
        Event { event: "node_down".to_owned(), at_ms, ..Event::default() }
    }

    #[tokio::test]
    async fn incidents_are_read_back_after_a_restart_and_only_the_last_are_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let open = || HistoryFile::open(dir.path()).expect("readable");
        let file = open().expect("free");
        assert!(file.past.is_empty() && open().is_none(), "another process writes there");
        let (sender, receiver) = queue();
        let writer = tokio::spawn(file.write(receiver));
        for at_ms in 1..=3 * HISTORY_MAX as u64 {
            sender.send(Arc::new(event(at_ms))).await.expect("it writes");
        }
        drop(sender);
        writer.await.expect("no panic");
        let path = dir.path().join(FILE);
        let mut text = fs::read_to_string(&path).expect("readable");
        assert!(text.lines().count() <= 2 * HISTORY_MAX, "{}", text.lines().count());
        text.push_str("{\"event\":\"cut of");
        fs::write(&path, text).expect("writable");
        let past = open().expect("free").past;
        assert_eq!((past.len(), past[0].at_ms, past[HISTORY_MAX - 1].at_ms), (10_000, 20_001, 30_000));
        assert_eq!(fs::read_to_string(&path).expect("readable").lines().count(), HISTORY_MAX, "rewritten at the start");
    }

    #[test]
    fn without_a_directory_there_is_no_file() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(HistoryFile::open(&dir.path().join("missing")).expect("no error").is_none());
    }
}
