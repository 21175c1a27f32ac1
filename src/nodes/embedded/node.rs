//! The embedded node: a [`ReferenceNode`] on the boot clock, whose granted leases and fences are
//! remembered across restarts of the process.
//!
//! Before a request takes effect that may grant a lease (or a fence) beyond the bounds in the state file, the file is rewritten
//! with bounds ten seconds further (`write_ahead.rs`). Usually that happens in the background, when half of that time is used up;
//! a request waits for it only if it exceeds the bounds (the first lease after a quiet time, or a much longer one). Writes run on
//! `spawn_blocking`, so a slow disk delays no other work. Requests that arrive during a write queue in the order of their first
//! poll, which keeps the order that [`Node`] requires. A release needs no write and waits only if such a queue exists.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use data_encoding::HEXLOWER;
use parking_lot::{Mutex, MutexGuard};
use sha2::{Digest, Sha256};

use super::state::{BootId, OpenError, Record, StateFile};
use super::write_ahead::WriteBound;
use crate::protocol::reference::{KeyCounts, ReferenceNode, Resumed};
use crate::protocol::{ClusterParams, NodeResult, Request, RequestStamp, Unreachable, UnreachableKind};
use crate::redlock::clock::{BootTime, Clock, SystemClock};
use crate::redlock::node::Node;
use crate::redlock::notifications::NotificationSource;
use crate::types::NodeId;

/// Time between attempts to write the state file after a failure, so that not every request tries to
/// write to a full disk.
const WRITE_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Interval of log lines about a lasting failure.
const FAILURE_LOG_INTERVAL: Duration = Duration::from_mins(1);
/// Maximum number of writes that one request waits for: one already in progress, and its own.
const WRITES_PER_REQUEST: usize = 2;

/// Configuration of an [`EmbeddedNode`].
#[derive(Debug, Clone)]
pub struct EmbeddedConfig<C> {
    /// The node's name; also names its file.
    pub id: NodeId,
    /// The data directory. Several nodes may share one.
    pub dir: PathBuf,
    /// Parameters of the cluster.
    pub params: ClusterParams,
    /// The boot clock. Its wall clock is read once, at the start.
    pub clock: C,
}

/// A node in this process. Leases are in memory; after a crash it has no vote until they have ended.
#[derive(Debug)]
pub struct EmbeddedNode<C = SystemClock> {
    id: NodeId,
    params: ClusterParams,
    clock: C,
    boot: BootId,
    /// Node time minus boot time, fixed at the start. Microseconds.
    offset_us: u64,
    path: PathBuf,
    /// Taken before `inner` if both are needed; held while the disk works.
    file: Mutex<StateFile>,
    /// Never held over an await or a disk access.
    inner: Mutex<Inner>,
    /// Held by the request that waits for a write; others queue for it, in FIFO order.
    write_queue: tokio::sync::Mutex<()>,
    /// Counts writes that ended, including failed ones.
    written: tokio::sync::watch::Sender<u64>,
}

#[derive(Debug)]
struct Inner {
    reference: ReferenceNode,
    /// The bounds in the file.
    written: WriteBound,
    /// Requests in the queue for a write; while there are any, later ones join the queue.
    queued: usize,
    is_writing: bool,
    is_closed: bool,
    /// Whether the file records a clean stop.
    is_clean: bool,
    failure: Option<WriteFailure>,
    writes: u64,
}

/// The failure of the last write.
#[derive(Debug)]
struct WriteFailure {
    at: BootTime,
    /// The error of the operating system.
    why: Arc<str>,
    logged_at: BootTime,
}

/// State of an embedded node, for pages and logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddedReport {
    pub id: NodeId,
    pub path: PathBuf,
    /// Maximum quarantine after a crash at this moment.
    pub reserved_for: Duration,
    /// Time until the node votes; zero if it does.
    pub quarantine_left: Duration,
    /// Number of writes of the file since the start.
    pub writes: u64,
    /// Why the last write failed, if it did: the error of the operating system, without a path.
    pub failure: Option<Arc<str>>,
    /// Number of entries in memory.
    pub key_counts: KeyCounts,
}

/// Result of trying to execute a request.
enum Step {
    Done(NodeResult),
    /// These bounds must be written first; `None`: other requests already wait.
    Wait(Option<WriteBound>),
}

impl<C: Clock> EmbeddedNode<C> {
    /// Opens (or creates) the node's state in the data directory. Blocks on the disk.
    ///
    /// The node votes at once on its first start, and after a clean stop without leases; otherwise when
    /// the last lease that it may have granted has ended.
    ///
    /// Errors: [`OpenError`].
    pub fn open(config: EmbeddedConfig<C>) -> Result<Arc<Self>, OpenError> {
        Self::open_in(config, BootId::of_this_system())
    }

    /// As [`Self::open`], for a given boot, to test reboots.
    ///
    /// Errors: as [`Self::open`].
    pub fn open_in(config: EmbeddedConfig<C>, boot: BootId) -> Result<Arc<Self>, OpenError> {
        let EmbeddedConfig { id, dir, params, clock } = config;
        let (mut file, found) = StateFile::open(&dir, &id)?;
        let boot_us = clock.now().as_micros();
        let node_us = clock.wall_ms().saturating_mul(1_000).max(file.min_node_us(&boot, boot_us)?).max(boot_us);
        let (record, resumed) = resume_from(&id, &boot, found, boot_us, node_us);
        let path = file.path().to_owned();
        let unwritable = |source| OpenError::Unwritable { path: path.clone(), source };
        file.write(&record).map_err(unwritable)?;
        file.mark_used().map_err(unwritable)?;

        let mut reference = ReferenceNode::new(&run_id(&id, &boot, boot_us));
        reference.resume(node_us, &params, resumed);
        let inner = Inner {
            reference,
            written: WriteBound { until_boot_us: record.leases_until_boot_us, fence: record.fence },
            queued: 0,
            is_writing: false,
            is_closed: false,
            is_clean: false,
            failure: None,
            writes: 1,
        };
        Ok(Arc::new(Self {
            id,
            params,
            clock,
            boot,
            offset_us: node_us - boot_us,
            path: path.clone(),
            file: Mutex::new(file),
            inner: Mutex::new(inner),
            write_queue: tokio::sync::Mutex::new(()),
            written: tokio::sync::watch::Sender::new(0),
        }))
    }

    /// Clean stop: writes the exact end of the last lease. Afterwards the node answers no request. After a success, closing again
    /// does nothing. Blocks on the disk. Dropping a node without closing it is a crash.
    ///
    /// Errors: those of the file system; the next start then counts as one after a crash.
    pub fn close(&self) -> std::io::Result<()> {
        let mut file = self.file.lock();
        let record = {
            let mut inner = self.inner.lock();
            if inner.is_clean {
                return Ok(());
            }
            inner.is_closed = true;
            let boot_us = self.clock.now().as_micros();
            let reference = &inner.reference;
            let until_us = reference.last_lease_end_us().max(reference.quarantined_until_us().unwrap_or(0));
            let until_boot_us = until_us.saturating_sub(self.offset_us);
            let leases = if until_boot_us > boot_us { until_boot_us } else { 0 };
            self.record(boot_us, WriteBound { until_boot_us: leases, fence: reference.highest_fence() }, true)
        };
        file.write(&record)?;
        self.inner.lock().is_clean = true;
        Ok(())
    }

    /// The node's present state.
    pub fn report(&self) -> EmbeddedReport {
        let inner = self.inner.lock();
        let boot_us = self.clock.now().as_micros();
        let left = |until_us: u64| Duration::from_micros(until_us.saturating_sub(boot_us));
        let quarantined = inner.reference.quarantined_until_us().unwrap_or(0).saturating_sub(self.offset_us);
        EmbeddedReport {
            id: self.id.clone(),
            path: self.path.clone(),
            reserved_for: left(inner.written.until_boot_us),
            quarantine_left: left(quarantined),
            writes: inner.writes,
            failure: inner.failure.as_ref().map(|failure| Arc::clone(&failure.why)),
            key_counts: inner.reference.key_counts(),
        }
    }

    /// Path of the node's state file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Executes the request if no write is required first. `is_in_order`: the request has waited in the queue.
    fn step(self: &Arc<Self>, stamp: &RequestStamp, request: &Request, is_in_order: bool) -> Step {
        let mut inner = self.inner.lock();
        if inner.is_closed {
            return Step::Done(Err(Unreachable::new(UnreachableKind::Disconnected, "the node is closed")));
        }
        if let (Request::Probe(_), Some(failure)) = (request, &inner.failure) {
            // No other request may write meanwhile: a node that is not ready receives no acquires.
            let refusal = full(Arc::clone(&failure.why));
            if inner.still_failing(self.clock.now()).is_none() {
                self.start_write(inner, WriteBound::default());
            }
            return Step::Done(Err(refusal));
        }
        if inner.queued > 0 && !is_in_order {
            inner.queued += 1;
            return Step::Wait(None);
        }
        let now = self.clock.now();
        let now_us = now.as_micros().saturating_add(self.offset_us);
        let bound = inner.reference.effect_bound(now_us, stamp.sent_at, &self.params, request);
        let changes_no_bound = bound.end_us.is_none() && bound.fence <= inner.reference.highest_fence();
        let until_boot_us = bound.end_us.map_or(0, |end| end.saturating_sub(self.offset_us));
        let required = WriteBound { until_boot_us, fence: bound.fence };
        if !changes_no_bound && !inner.written.covers(required) {
            if let Some(full) = inner.still_failing(now) {
                return Step::Done(Err(full));
            }
            if !is_in_order {
                inner.queued += 1;
            }
            return Step::Wait(Some(required));
        }
        let answer = inner.reference.apply(now_us, "", stamp.clone(), &self.params, request);
        if inner.written.is_short_for(required) && inner.still_failing(now).is_none() {
            self.start_write(inner, required);
        }
        Step::Done(answer)
    }

    /// Executes the request in the order of the queue, after a write of the file.
    async fn step_in_order(self: &Arc<Self>, stamp: &RequestStamp, request: &Request) -> NodeResult {
        let _queued = QueuedGuard(self); // counted by `step`
        let _first = self.write_queue.lock().await;
        for _ in 0..WRITES_PER_REQUEST {
            let mut written = self.written.subscribe();
            match self.step(stamp, request, true) {
                Step::Done(answer) => return answer,
                Step::Wait(required) => self.start_write(self.inner.lock(), required.unwrap_or_default()),
            }
            if written.changed().await.is_err() {
                break;
            }
        }
        match self.step(stamp, request, true) {
            Step::Done(answer) => answer,
            Step::Wait(_) => Err(full("writing the state file takes longer than the written bounds last")),
        }
    }

    /// Starts writing bounds that cover `required`, unless a write is in progress. One write at a time,
    /// independent of the request's future, so a disk that hangs blocks one thread.
    fn start_write(self: &Arc<Self>, mut inner: MutexGuard<'_, Inner>, required: WriteBound) {
        if inner.is_writing {
            return;
        }
        inner.is_writing = true;
        drop(inner);
        let write = WriteGuard(Arc::clone(self));
        tokio::task::spawn_blocking(move || write.0.write_ahead(required));
    }

    /// Writes bounds that cover `required`. A failure is kept in `failure`. Blocks on the disk.
    fn write_ahead(&self, required: WriteBound) {
        let mut file = self.file.lock();
        let (record, bound) = {
            let inner = self.inner.lock();
            if inner.is_closed {
                return;
            }
            let bound = inner.written.extended_for(required);
            (self.record(self.clock.now().as_micros(), bound, false), bound)
        };
        let outcome = file.write(&record);
        let mut inner = self.inner.lock();
        match outcome {
            Ok(()) => {
                inner.written = bound;
                inner.writes += 1;
                if inner.failure.take().is_some() {
                    tracing::info!(node = %self.id, "the state file was written again");
                }
            }
            Err(error) => {
                let (at, known) = (self.clock.now(), inner.failure.as_ref().map(|failure| failure.logged_at));
                let logged_at = known.filter(|known| at.since(*known) < FAILURE_LOG_INTERVAL);
                if logged_at.is_none() {
                    let path = self.path.display();
                    tracing::error!(node = %self.id, %path, %error, "the state file cannot be written: the node grants nothing");
                }
                inner.failure =
                    Some(WriteFailure { at, why: error.to_string().into(), logged_at: logged_at.unwrap_or(at) });
            }
        }
    }

    fn record(&self, boot_us: u64, bound: WriteBound, clean: bool) -> Record {
        let node_us = boot_us.saturating_add(self.offset_us);
        Record {
            clean,
            leases_until_boot_us: bound.until_boot_us,
            fence: bound.fence,
            ..Record::first(&self.id, self.boot.clone(), boot_us, node_us)
        }
    }
}

impl Inner {
    /// The refusal until a failed write is retried.
    fn still_failing(&self, now: BootTime) -> Option<Unreachable> {
        let WriteFailure { at, why, .. } = self.failure.as_ref()?;
        (now.since(*at) < WRITE_RETRY_AFTER).then(|| full(Arc::clone(why)))
    }
}

/// Counts a request in the queue, until dropped.
struct QueuedGuard<'a, C: Clock>(&'a EmbeddedNode<C>);

impl<C: Clock> Drop for QueuedGuard<'_, C> {
    fn drop(&mut self) {
        self.0.inner.lock().queued -= 1;
    }
}

/// A write in progress; its end is signalled even if the task never runs.
struct WriteGuard<C: Clock>(Arc<EmbeddedNode<C>>);

impl<C: Clock> Drop for WriteGuard<C> {
    fn drop(&mut self) {
        self.0.inner.lock().is_writing = false;
        self.0.written.send_modify(|count| *count += 1);
    }
}

impl<C: Clock> Node for EmbeddedNode<C> {
    fn id(&self) -> &NodeId {
        &self.id
    }

    /// Only this process ends leases here.
    fn notifications(&self) -> NotificationSource<'_> {
        NotificationSource::Local
    }

    /// Must run on tokio. Answers within the first poll unless a write is required first.
    ///
    /// Errors: `Full` if the state file cannot be written (releases still succeed, probes try to write it), `Disconnected`
    /// after [`EmbeddedNode::close`].
    async fn call(self: Arc<Self>, stamp: RequestStamp, request: Arc<Request>) -> NodeResult {
        match self.step(&stamp, &request, false) {
            Step::Done(answer) => answer,
            Step::Wait(_) => self.step_in_order(&stamp, &request).await,
        }
    }
}

/// The record to write at the start, and the state in which the node resumes.
fn resume_from(id: &NodeId, boot: &BootId, found: Option<Record>, boot_us: u64, node_us: u64) -> (Record, Resumed) {
    let mut record = Record::first(id, boot.clone(), boot_us, node_us);
    let Some(old) = found else {
        return (record, Resumed { fence: node_us, until_us: 0, why: "init" });
    };
    let left_us = old.leases_left_us(boot, boot_us);
    record.leases_until_boot_us = if left_us > 0 { boot_us.saturating_add(left_us) } else { 0 };
    record.fence = old.fence;
    let until_us = if left_us > 0 { node_us.saturating_add(left_us) } else { 0 };
    (record, Resumed { fence: old.fence, until_us, why: "restart" })
}

/// A different id for every start, as with Redis.
fn run_id(id: &NodeId, boot: &BootId, boot_us: u64) -> String {
    let digest = Sha256::digest(format!("{id} {} {boot_us}", boot.text()).as_bytes());
    HEXLOWER.encode(&digest[..20])
}

fn full(why: impl Into<Arc<str>>) -> Unreachable {
    Unreachable::new(UnreachableKind::Full, why)
}
