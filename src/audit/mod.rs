//! The audit log: a bounded queue before a writer of its own, so that a release never waits for a
//! disk and never fails for one. What does not fit is dropped and counted. Apart from the log of the
//! program: that one is for its operators, this one for whoever asks who did what. `record` is what
//! is said, `sink` where it goes. Knows no HTTP, and never a token.

mod record;
mod sink;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::redlock::clock::{Clock, SystemClock};
use sink::{Sink, Written};

pub use record::AuditRecord;
pub use sink::STDOUT;

/// Records that wait to be written: more than a second of a busy instance, some megabytes.
pub const QUEUE_MAX: usize = 16_384;
/// Records written at once.
const BATCH: usize = 512;

/// A record with the time at which it was made.
type Entry = (u64, Box<AuditRecord>);

/// Takes records; cheap to clone. Where no audit log is configured it does nothing.
#[derive(Clone, Default)]
pub struct Audit(Option<Arc<Inner>>);

struct Inner {
    queue: mpsc::Sender<Entry>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

/// What became of all records so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AuditCounts {
    /// They are written.
    pub written: u64,
    /// The queue was full, or closed at the end.
    pub dropped: u64,
    /// The writing failed.
    pub failed: u64,
    /// They wait.
    pub queued: usize,
}

/// The other end of the queue: to be run by whoever owns long-lived tasks.
pub struct Writer {
    queue: mpsc::Receiver<Entry>,
    sink: Sink,
    counts: Arc<Counts>,
    is_failing: bool,
}

impl Audit {
    /// To a file, or with [`STDOUT`] to standard output.
    ///
    /// Errors: where the file cannot be opened for appending.
    pub fn open(target: &Path) -> io::Result<(Self, Writer)> {
        Ok(Self::with(Sink::open(target)?, QUEUE_MAX))
    }

    fn with(sink: Sink, bound: usize) -> (Self, Writer) {
        let (sender, queue) = mpsc::channel(bound);
        let counts = Arc::<Counts>::default();
        let inner = Inner { queue: sender, counts: Arc::clone(&counts) };
        (Self(Some(Arc::new(inner))), Writer { queue, sink, counts, is_failing: false })
    }

    /// Whether there is an audit log.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Puts it on its way. Never waits and never fails: what does not fit is dropped and counted.
    pub fn put(&self, record: AuditRecord) {
        let Some(inner) = &self.0 else { return };
        if inner.queue.try_send((SystemClock.wall_ms(), Box::new(record))).is_err() {
            inner.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// For metrics.
    pub fn counts(&self) -> AuditCounts {
        let Some(inner) = &self.0 else { return AuditCounts::default() };
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        AuditCounts {
            written: read(&inner.counts.written),
            dropped: read(&inner.counts.dropped),
            failed: read(&inner.counts.failed),
            queued: inner.queue.max_capacity() - inner.queue.capacity(),
        }
    }
}

impl Writer {
    /// Writes until `stop`, and then what is still queued; what comes later is dropped and counted.
    ///
    /// Cancel: what is queued is lost.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut batch: Vec<Entry> = Vec::new();
        let mut is_open = true;
        loop {
            let count = tokio::select! {
                biased;
                count = self.queue.recv_many(&mut batch, BATCH) => count,
                () = stop.cancelled(), if is_open => {
                    self.queue.close();
                    is_open = false;
                    continue;
                }
            };
            if count == 0 {
                return;
            }
            let lines = std::mem::take(&mut batch);
            // A full pipe or a hung disk blocks a thread of its own, and no request.
            let written = tokio::task::spawn_blocking(move || {
                self.write(&lines);
                self
            });
            match written.await {
                Ok(this) => self = this,
                Err(_) => return,
            }
        }
    }

    fn write(&mut self, batch: &[Entry]) {
        let mut lines = Vec::new();
        for (wall_ms, record) in batch {
            lines.extend_from_slice(record.line(*wall_ms).as_bytes());
        }
        let Written { bytes, error } = self.sink.write(&lines);
        let whole = lines[..bytes].iter().filter(|b| **b == b'\n').count();
        let as_u64 = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        self.counts.written.fetch_add(as_u64(whole), Ordering::Relaxed);
        self.counts.failed.fetch_add(as_u64(batch.len() - whole), Ordering::Relaxed);
        // Told when it begins and when it is over: a full disk is not to fill the log as well.
        match (&error, self.is_failing) {
            (Some(error), false) => tracing::error!(%error, "the audit log cannot be written as configured"),
            (None, true) => tracing::info!("the audit log is written again"),
            _ => {}
        }
        self.is_failing = error.is_some();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(n: usize) -> AuditRecord {
        AuditRecord { action: "acquire".to_owned(), outcome: n.to_string(), ..AuditRecord::default() }
    }

    #[tokio::test]
    async fn what_is_queued_at_the_end_is_written_and_what_comes_later_is_counted() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit.log");
        let (audit, writer) = Audit::open(&path).expect("opens");
        (0..1_500).for_each(|n| audit.put(record(n)));
        assert_eq!(audit.counts().queued, 1_500);
        let stop = CancellationToken::new();
        stop.cancel();
        writer.run(stop).await;
        let text = std::fs::read_to_string(&path).expect("readable");
        let outcome = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            line["outcome"].as_str().expect("a word").to_owned()
        };
        let expected: Vec<String> = (0..1_500).map(|n| n.to_string()).collect();
        assert_eq!(text.lines().map(outcome).collect::<Vec<_>>(), expected, "each once, in order");
        audit.put(record(0));
        let counts = AuditCounts { written: 1_500, dropped: 1, ..AuditCounts::default() };
        assert_eq!(audit.counts(), counts);
    }

    #[tokio::test]
    async fn beyond_the_bound_it_drops_and_counts_and_never_waits() {
        let (audit, writer) = Audit::with(Sink::Stdout, 3);
        (0..5).for_each(|n| audit.put(record(n)));
        assert_eq!(audit.counts(), AuditCounts { dropped: 2, queued: 3, ..AuditCounts::default() });
        drop(writer);
    }

    #[tokio::test]
    async fn a_disk_that_is_full_is_counted() {
        let (audit, writer) = Audit::open(Path::new("/dev/full")).expect("opens");
        audit.put(record(1));
        let stop = CancellationToken::new();
        stop.cancel();
        writer.run(stop).await;
        assert_eq!(audit.counts(), AuditCounts { failed: 1, ..AuditCounts::default() });
    }

    #[test]
    fn without_a_target_nothing_happens() {
        let audit = Audit::default();
        audit.put(record(1));
        assert_eq!((audit.is_on(), audit.counts()), (false, AuditCounts::default()));
    }
}
