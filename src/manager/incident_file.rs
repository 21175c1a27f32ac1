//! Stores incidents across restarts, as JSON lines in a file of the data directory, if that directory exists. They
//! are for people only, so a slow or failing disk loses incidents and delays no request.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;

use super::event_buffer::size_of;
use super::gaps::{Gap, Gaps};
use crate::api::Event;
use crate::bounded_file::{open_private, open_regular};

/// Number of the latest incidents that are kept in memory and read back at a start, of any age.
pub(crate) const HISTORY_MAX: usize = 10_000;
/// How long further incidents are kept.
pub(crate) const HISTORY_AGE: Duration = Duration::from_hours(24);
/// Maximum size of all incidents, since any client that can publish on a node can make each as large as the longest
/// deadlock. Ordinary incidents take some three hundred bytes each: a day may have a hundred thousand.
pub(crate) const HISTORY_BYTES_MAX: usize = 32 << 20;
/// Within this time, and among this many of the latest incidents, another instance's report of a node is the same
/// incident: each instance sees it with its own probes.
const SAME_INCIDENT: Duration = Duration::from_secs(10);
const SAME_INCIDENT_EXAMINED: usize = 64;
/// Maximum number of incidents that wait to be written; further ones stay in memory only.
const UNWRITTEN_MAX: usize = 1_024;
/// Maximum length of a line that is read back, in bytes.
const LINE_MAX: usize = 32_768;

const FILE: &str = "incidents.jsonl";
const LOCK: &str = "incidents.lock";

/// Bytes that are written at a time, plus one event.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Incidents larger than this are written only while few wait: an instance makes none, but a client that can publish
/// on a node may.
const LARGE_BYTES: usize = 2_048;
/// Maximum number of waiting incidents at which a large one is still written.
const LARGE_UNWRITTEN_MAX: usize = 64;

/// An entry that waits to be written.
#[derive(Debug)]
pub(super) enum Unwritten {
    /// An incident, or a record of a gap.
    Line(Arc<Event>),
    /// This instance runs: the time of the lock file shows it.
    Alive,
}

/// Whether an incident may wait to be written.
pub(super) fn may_wait(event: &Event, queue: &mpsc::Sender<Unwritten>) -> bool {
    size_of(event) <= LARGE_BYTES || queue.max_capacity() - queue.capacity() < LARGE_UNWRITTEN_MAX
}

/// The last incidents: [`HISTORY_MAX`], and all of the last [`HISTORY_AGE`], but at most [`HISTORY_BYTES_MAX`].
#[derive(Debug, Clone, Default)]
pub struct Incidents {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    /// The times of which the incidents are not known.
    gaps: Gaps,
    /// The end of the time whose incidents were dropped. Milliseconds since 1970.
    dropped_to_ms: u64,
}

impl Incidents {
    /// Adds an incident, and drops the oldest beyond the limits; or takes a line of the file about a gap.
    pub(super) fn push(&mut self, event: Arc<Event>) {
        if self.gaps.take_line(&event) {
            return;
        }
        let day_ago_ms = event.at_ms.saturating_sub(HISTORY_AGE.as_millis().try_into().unwrap_or(u64::MAX));
        self.bytes += size_of(&event);
        self.events.push_back(event);
        let is_old = |events: &VecDeque<Arc<Event>>| {
            events.len() > HISTORY_MAX && events.front().is_some_and(|oldest| oldest.at_ms < day_ago_ms)
        };
        while (is_old(&self.events) || self.bytes > HISTORY_BYTES_MAX)
            && let Some(oldest) = self.events.pop_front()
        {
            self.bytes -= size_of(&oldest);
            self.dropped_to_ms = self.dropped_to_ms.max(oldest.at_ms.saturating_add(1));
        }
    }

    /// The times of which the incidents are not known.
    pub(super) fn gaps(&self) -> &Gaps {
        &self.gaps
    }

    pub(super) fn add_gap(&mut self, gap: Gap) {
        self.gaps.add(gap);
    }

    /// Records that all incidents of this gap are now known.
    pub(super) fn fill_gap(&mut self, gap: &Gap) {
        self.gaps.remove(gap.from_ms, gap.to_ms);
    }

    /// The latest part of a time that is known without a gap; empty if there is none. Units: milliseconds since 1970.
    pub(super) fn known_within(&self, from_ms: u64, to_ms: u64) -> (u64, u64) {
        let (from_ms, to_ms) = self.gaps.known_within(from_ms, to_ms);
        (from_ms.max(self.dropped_to_ms).min(to_ms), to_ms)
    }

    /// Whether this incident, of any time, is there, or another instance's report of the same.
    pub(super) fn has(&self, event: &Event) -> bool {
        let is_near = |known: &&Arc<Event>| Duration::from_millis(known.at_ms.abs_diff(event.at_ms)) <= SAME_INCIDENT;
        self.events.iter().filter(is_near).any(|known| **known == *event || is_same_incident(known, event))
    }

    /// Sorts the incidents by time, after older ones were added.
    pub(super) fn sort(&mut self) {
        self.events.make_contiguous().sort_by_key(|event| event.at_ms);
    }

    /// Whether another instance reported the same of a node. What one instance reports twice happened twice.
    pub(super) fn has_of_another_instance(&self, event: &Event) -> bool {
        // Most events are of no node.
        event.node.is_some()
            && self.events.iter().rev().take(SAME_INCIDENT_EXAMINED).any(|known| is_same_incident(known, event))
    }

    /// The incidents, the oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Event>> {
        self.events.iter()
    }
}

/// Whether two instances reported the same of a node.
fn is_same_incident(one: &Event, other: &Event) -> bool {
    one.node.is_some()
        && one.instance != other.instance
        && Duration::from_millis(one.at_ms.abs_diff(other.at_ms)) <= SAME_INCIDENT
        && (&one.event, &one.node, &one.reason) == (&other.event, &other.node, &other.reason)
}

impl Extend<Arc<Event>> for Incidents {
    fn extend<T: IntoIterator<Item = Arc<Event>>>(&mut self, events: T) {
        events.into_iter().for_each(|event| self.push(event));
    }
}

/// The incidents of former runs, and the writer of those of this run.
pub struct HistoryFile {
    /// The incidents of former runs.
    pub past: Incidents,
    /// When the last run ended, as far as the files show; 0 if there was none. Milliseconds since 1970.
    pub(super) ended_ms: u64,
    path: PathBuf,
    file: File,
    lines: usize,
    bytes: usize,
    /// Held by the only process that writes.
    lock: File,
}

impl HistoryFile {
    /// Opens the file of a directory and reads the last incidents; `None` if the directory does not exist or another
    /// process writes there. Blocks on the disk.
    ///
    /// Errors: those of the file system.
    pub fn open(dir: &Path) -> io::Result<Option<Self>> {
        if !dir.is_dir() {
            return Ok(None);
        }
        let (lock_path, path) = (dir.join(LOCK), dir.join(FILE));
        // Only an earlier version left the lock file empty.
        let ended_ms = written_ms(&lock_path).or_else(|| written_ms(&path)).unwrap_or(0);
        let lock = open_private(OpenOptions::new().write(true).truncate(false), &lock_path)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Ok(None),
            Err(fs::TryLockError::Error(error)) => return Err(error),
        }
        let past = match open_regular(&path) {
            Ok(file) => read(file)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Incidents::default(),
            Err(error) => return Err(error),
        };
        let (file, bytes) = rewrite(&path, &past)?;
        Ok(Some(Self { lines: past.events.len(), past, ended_ms, path, file, bytes, lock }))
    }

    /// Writes the entries that it receives until the sender is dropped. Cancel: waiting entries are not written.
    pub(super) async fn write(mut self, mut unwritten: mpsc::Receiver<Unwritten>) {
        let mut recent = std::mem::take(&mut self.past);
        while let Some(first) = unwritten.recv().await {
            let (mut batch, mut bytes, mut next) = (Vec::new(), 0, Some(first));
            while let Some(one) = next {
                if let Unwritten::Line(event) = one {
                    bytes += size_of(&event);
                    batch.push(event);
                }
                next = if bytes < BATCH_BYTES_MAX { unwritten.try_recv().ok() } else { None };
            }
            recent.extend(batch.iter().cloned());
            let text = lines(batch.iter().map(AsRef::as_ref));
            (self.lines, self.bytes) = (self.lines + batch.len(), self.bytes + text.len());
            // The file has twice as much as is kept: it is rewritten with what is kept.
            let is_full = self.lines > 2 * recent.events.len().max(HISTORY_MAX) || self.bytes > 2 * HISTORY_BYTES_MAX;
            let kept = is_full.then(|| recent.clone());
            let written = tokio::task::spawn_blocking(move || {
                let result = match kept {
                    Some(kept) => rewrite(&self.path, &kept).map(|(file, bytes)| {
                        (self.file, self.lines, self.bytes) = (file, kept.events.len(), bytes);
                    }),
                    None => self.file.write_all(text.as_bytes()),
                };
                // The content does not matter; the time at which it was written does.
                let result = result.and_then(|()| self.lock.write_all_at(b"\n", 0));
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

/// When the file was last written, on the clock of its file system; `None` if it is empty. Milliseconds since 1970.
fn written_ms(path: &Path) -> Option<u64> {
    let modified = fs::symlink_metadata(path).ok().filter(|file| file.len() > 0)?.modified().ok()?;
    u64::try_from(modified.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_millis()).ok()
}

/// The queue to the writer.
pub(super) fn queue() -> (mpsc::Sender<Unwritten>, mpsc::Receiver<Unwritten>) {
    mpsc::channel(UNWRITTEN_MAX)
}

fn lines<'a>(events: impl Iterator<Item = &'a Event>) -> String {
    events.filter_map(|event| serde_json::to_string(event).ok()).map(|line| line + "\n").collect()
}

/// The events of a file; lines that are not events are skipped, such as a line that a crash cut off.
///
/// Errors: those of the input.
pub fn read(input: impl Read) -> io::Result<Incidents> {
    let mut events = Incidents::default();
    for line in BufReader::new(input).split(b'\n') {
        let line = line?;
        events.extend(
            Some(line)
                .filter(|line| line.len() <= LINE_MAX)
                .and_then(|line| serde_json::from_slice(&line).ok())
                .map(Arc::new),
        );
    }
    events.sort();
    // If the file is full, earlier incidents have been dropped.
    let is_full = events.events.len() >= HISTORY_MAX || events.bytes > HISTORY_BYTES_MAX / 2;
    if let Some(oldest) = events.events.front().filter(|_| is_full) {
        events.dropped_to_ms = events.dropped_to_ms.max(oldest.at_ms);
    }
    Ok(events)
}

/// Replaces the file by one with these events, and opens it for appending. Also returns its size in bytes.
fn rewrite(path: &Path, events: &Incidents) -> io::Result<(File, usize)> {
    let (new, mut bytes) = (path.with_extension("new"), 0);
    let mut file = BufWriter::new(open_private(OpenOptions::new().write(true).truncate(true), &new)?);
    let gaps: Vec<Event> = events.gaps.iter().map(Gap::line).collect();
    for event in events.iter().map(AsRef::as_ref).chain(&gaps) {
        let line = lines(std::iter::once(event));
        bytes += line.len();
        file.write_all(line.as_bytes())?;
    }
    file.flush()?;
    drop(file);
    fs::rename(&new, path)?;
    Ok((OpenOptions::new().append(true).open(path)?, bytes))
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
        assert!(file.past.events.is_empty() && open().is_none(), "another process writes there");
        let (sender, receiver) = queue();
        let writer = tokio::spawn(file.write(receiver));
        const MINUTE_MS: u64 = 60_000;
        for minute in 1..=3 * HISTORY_MAX as u64 {
            sender.send(Unwritten::Line(Arc::new(event(minute * MINUTE_MS)))).await.expect("it writes");
        }
        drop(sender);
        writer.await.expect("no panic");
        let path = dir.path().join(FILE);
        let mut text = fs::read_to_string(&path).expect("readable");
        assert!(text.lines().count() <= 2 * HISTORY_MAX, "{}", text.lines().count());
        text.push_str("{\"event\":\"cut of");
        fs::write(&path, text).expect("writable");
        let past = open().expect("free").past;
        assert_eq!(past.known_within(0, u64::MAX), (20_001 * MINUTE_MS, u64::MAX), "what was dropped is not known");
        let past = past.events;
        let minute = |at: usize| past[at].at_ms / MINUTE_MS;
        assert_eq!((past.len(), minute(0), minute(HISTORY_MAX - 1)), (10_000, 20_001, 30_000));
        assert_eq!(fs::read_to_string(&path).expect("readable").lines().count(), HISTORY_MAX, "rewritten at the start");
    }

    #[tokio::test]
    async fn more_than_the_limit_is_kept_for_a_day_and_read_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let open = || HistoryFile::open(dir.path()).expect("readable").expect("free");
        let (sender, receiver) = queue();
        let writer = tokio::spawn(open().write(receiver));
        // One each two seconds: a day has 43,200.
        for number in 0..50_000 {
            sender.send(Unwritten::Line(Arc::new(event(number * 2_000)))).await.expect("it writes");
        }
        drop(sender);
        writer.await.expect("no panic");
        let past = open().past.events;
        assert_eq!((past.len(), past[0].at_ms), (43_201, (50_000 - 43_201) * 2_000), "to the second");
    }

    /// N7: what is kept is bounded in bytes as well, in memory and in the file.
    #[tokio::test]
    async fn n7_large_incidents_of_others_fill_neither_memory_nor_disk() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = HistoryFile::open(dir.path()).expect("readable").expect("free");
        let (sender, receiver) = queue();
        let writer = tokio::spawn(file.write(receiver));
        let large = |at_ms| Event { detail: Some("x".repeat(16_000)), ..event(at_ms) };
        let mut recent = Incidents::default();
        for at_ms in 1..=3 * (HISTORY_BYTES_MAX / 16_000) as u64 {
            recent.push(Arc::new(large(at_ms)));
            sender.send(Unwritten::Line(Arc::new(large(at_ms)))).await.expect("it writes");
        }
        drop(sender);
        writer.await.expect("no panic");
        let size = fs::metadata(dir.path().join(FILE)).expect("a file").len();
        assert!(size <= 2 * HISTORY_BYTES_MAX as u64 && size > HISTORY_BYTES_MAX as u64 / 2, "{size}");
        let kept = HistoryFile::open(dir.path()).expect("readable").expect("free").past;
        for incidents in [&recent, &kept] {
            assert!(incidents.bytes <= HISTORY_BYTES_MAX && incidents.events.len() > 400, "{}", incidents.bytes);
        }
        assert_eq!(kept.events, recent.events);
    }

    #[test]
    fn without_a_directory_there_is_no_file() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(HistoryFile::open(&dir.path().join("missing")).expect("no error").is_none());
    }
}
