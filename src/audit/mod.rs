//! The audit log: which principal did what. It has a bounded queue and one writer, so that no request waits for a disk or fails
//! because of one; records that do not fit are dropped and counted. Separate from the program's log, which is for its operators.

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

pub(crate) use record::AuditRecord;

/// Maximum number of queued records: more than a second of a busy instance, some megabytes.
pub(crate) const QUEUE_MAX: usize = 16_384;
/// Maximum number of records per write.
const BATCH: usize = 512;

/// A record and its time, in milliseconds since 1970.
type QueuedRecord = (u64, Box<AuditRecord>);

/// Accepts records; cheap to clone. Without a configured audit log it does nothing.
#[derive(Clone, Default)]
pub struct Audit(Option<Arc<AuditQueue>>);

struct AuditQueue {
    queue: mpsc::Sender<QueuedRecord>,
    counts: Arc<AuditCounters>,
}

#[derive(Debug, Default)]
struct AuditCounters {
    written: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

/// Number of records by outcome, since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AuditCounts {
    /// Written to the log.
    pub written: u64,
    /// Not queued: the queue was full or already closed.
    pub dropped: u64,
    /// Lost by a failed write.
    pub failed: u64,
    /// Waiting to be written.
    pub queued: usize,
}

/// Writes the queued records. Run as a task by `app`.
pub struct Writer {
    queue: mpsc::Receiver<QueuedRecord>,
    sink: Sink,
    counts: Arc<AuditCounters>,
    is_failing: bool,
}

impl Audit {
    /// Opens a log file, or with `stdout`, standard output.
    ///
    /// Errors: the file cannot be opened for appending.
    pub fn open(target: &Path) -> io::Result<(Self, Writer)> {
        Ok(Self::with(Sink::open(target)?, QUEUE_MAX))
    }

    fn with(sink: Sink, bound: usize) -> (Self, Writer) {
        let (sender, queue) = mpsc::channel(bound);
        let counts = Arc::<AuditCounters>::default();
        let inner = AuditQueue { queue: sender, counts: Arc::clone(&counts) };
        (Self(Some(Arc::new(inner))), Writer { queue, sink, counts, is_failing: false })
    }

    /// Whether an audit log is configured.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Queues a record. Never waits and never fails: a record that does not fit is dropped and counted.
    pub fn put(&self, record: AuditRecord) {
        let Some(inner) = &self.0 else { return };
        if inner.queue.try_send((SystemClock.wall_ms(), Box::new(record))).is_err() {
            inner.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The present counts, for metrics.
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
    /// Writes until `stop`, then writes the rest of the queue; later records are dropped and counted.
    ///
    /// Cancel: queued records are lost.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut batch: Vec<QueuedRecord> = Vec::new();
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
            // A full pipe or a hanging disk must not block a worker of the runtime.
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

    fn write(&mut self, batch: &[QueuedRecord]) {
        let mut lines = Vec::new();
        for (wall_ms, record) in batch {
            lines.extend_from_slice(record.line(*wall_ms).as_bytes());
        }
        let Written { bytes, error } = self.sink.write(&lines);
        let complete = lines[..bytes].iter().filter(|b| **b == b'\n').count();
        let as_u64 = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        self.counts.written.fetch_add(as_u64(complete), Ordering::Relaxed);
        self.counts.failed.fetch_add(as_u64(batch.len() - complete), Ordering::Relaxed);
        // Logged once at the beginning and once at the end, not for every failed write.
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
    async fn queued_records_are_written_at_the_end_and_later_ones_are_counted_as_dropped() {
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
    async fn a_full_queue_drops_and_counts_and_never_waits() {
        let (audit, writer) = Audit::with(Sink::Stdout, 3);
        (0..5).for_each(|n| audit.put(record(n)));
        assert_eq!(audit.counts(), AuditCounts { dropped: 2, queued: 3, ..AuditCounts::default() });
        drop(writer);
    }

    #[tokio::test]
    async fn a_full_disk_is_counted_as_failed() {
        let (audit, writer) = Audit::open(Path::new("/dev/full")).expect("opens");
        audit.put(record(1));
        let stop = CancellationToken::new();
        stop.cancel();
        writer.run(stop).await;
        assert_eq!(audit.counts(), AuditCounts { failed: 1, ..AuditCounts::default() });
    }

    #[test]
    fn without_an_audit_log_records_are_ignored() {
        let audit = Audit::default();
        audit.put(record(1));
        assert_eq!((audit.is_on(), audit.counts()), (false, AuditCounts::default()));
    }
}
