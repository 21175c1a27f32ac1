//! The embedded node: a [`ReferenceNode`] on the boot clock, and the promise that its leases and
//! fences outlive the process. Stands apart from the machine, which knows no disk, and from the
//! file, which knows no lease. Must not know Redis.
//!
//! Written ahead: before a request takes effect that may give a lease (or a fence) beyond what the
//! state file says, the file is rewritten ten seconds further (`ledger.rs`). Where the disk is met: usually
//! in the background, when half of that is used up; in the request itself only where the reservation
//! is used up (the first lease after a quiet time, or a much longer one). Both go through
//! `spawn_blocking`, so a slow disk stalls no other work of the runtime, and the requests that arrive
//! meanwhile queue behind it in the order of their first poll, which keeps the order that
//! [`Node`] promises. A release needs no reservation and waits only where such a queue stands.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::state::{BootId, OpenError, Record, StateFile};
use super::write_bound::Span;
use crate::protocol::reference::{ReferenceNode, Resumed, Sizes};
use crate::protocol::{ClusterParams, NodeResult, Request, RequestTime, Unreachable, UnreachableKind};
use crate::redlock::clock::{BootTime, Clock, SystemClock};
use crate::redlock::node::Node;
use crate::redlock::notifications::NotificationSource;
use crate::types::NodeId;

/// After the state file could not be written, the next attempt waits this long: a full disk must not
/// be met by every request.
const WRITE_RETRY_AFTER: Duration = Duration::from_secs(1);
/// One request waits for this many writes: one that was already under way for a smaller need, and its own.
const WRITES_PER_REQUEST: usize = 2;

/// What an embedded node is made of.
#[derive(Debug, Clone)]
pub struct EmbeddedConfig<C> {
    /// Its name; also names its file.
    pub id: NodeId,
    /// The data directory. Several nodes may share one.
    pub dir: PathBuf,
    /// What all instances must agree on (there is one).
    pub params: ClusterParams,
    /// The boot clock. Its wall clock is read once, at the start.
    pub clock: C,
}

/// A node in this process. Leases are in memory; after a crash it has no vote until they are over.
#[derive(Debug)]
pub struct EmbeddedNode<C = SystemClock> {
    id: NodeId,
    params: ClusterParams,
    clock: C,
    boot: BootId,
    /// Node time minus boot time, fixed at the start. Microseconds.
    offset_us: u64,
    path: PathBuf,
    /// Taken before `inner` where both are needed; held while the disk works.
    file: Mutex<StateFile>,
    /// Never held over an await or a disk access.
    inner: Mutex<Inner>,
    /// Where requests wait while a reservation is written. Fair: first come, first served.
    turns: tokio::sync::Mutex<()>,
    /// Counts writes that ended, well or not.
    written: tokio::sync::watch::Sender<u64>,
}

#[derive(Debug)]
struct Inner {
    machine: ReferenceNode,
    /// What the file says.
    reserved: Span,
    /// Requests that wait for their turn or hold it; while there are any, later ones queue up.
    queued: usize,
    is_writing: bool,
    is_closed: bool,
    /// The file says so.
    is_clean: bool,
    failure: Option<(BootTime, Arc<str>)>,
    writes: u64,
}

/// What an embedded node says of itself, for pages and logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddedReport {
    /// Its name.
    pub id: NodeId,
    /// Its state file.
    pub path: PathBuf,
    /// How long a start after a crash now would wait at most.
    pub reserved_for: Duration,
    /// How long it has no vote yet, zero where it votes.
    pub quarantine_left: Duration,
    /// How often the file was written since the start.
    pub writes: u64,
    /// Why the last write failed, if it did. For the log: names paths.
    pub failure: Option<Arc<str>>,
    /// What it remembers.
    pub sizes: Sizes,
}

/// What becomes of a request right now.
enum Step {
    Done(NodeResult),
    /// The file must say this much first; or, with `None`, others wait already.
    Wait(Option<Span>),
}

impl<C: Clock> EmbeddedNode<C> {
    /// Opens (or makes) the node's state in the data directory. Blocks on the disk.
    ///
    /// A first start declares the node; after a clean stop without leases it votes at once; else it
    /// has no vote until the last lease that it may have given is over.
    ///
    /// Errors: [`OpenError`], each with what to do.
    pub fn open(config: EmbeddedConfig<C>) -> Result<Arc<Self>, OpenError> {
        Self::open_in(config, BootId::of_this_system())
    }

    /// The same with the boot given: for tests of what a reboot means.
    ///
    /// Errors: as [`Self::open`].
    pub fn open_in(config: EmbeddedConfig<C>, boot: BootId) -> Result<Arc<Self>, OpenError> {
        let EmbeddedConfig { id, dir, params, clock } = config;
        let (mut file, found) = StateFile::open(&dir, &id)?;
        let boot_us = clock.now().as_micros();
        let node_us = clock.wall_ms().saturating_mul(1_000).max(file.least_node_us(&boot, boot_us)?).max(boot_us);
        let (record, resumed) = begin(&id, &boot, found, boot_us, node_us);
        let path = file.path().to_owned();
        let unwritable = |source| OpenError::Unwritable { path: path.clone(), source };
        file.write(&record).map_err(unwritable)?;
        file.mark_used().map_err(unwritable)?;

        let mut machine = ReferenceNode::new(&run_id(&id, &boot, boot_us));
        machine.resume(node_us, &params, resumed);
        let inner = Inner {
            machine,
            reserved: Span { until_boot_us: record.leases_until_boot_us, fence: record.fence },
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
            turns: tokio::sync::Mutex::new(()),
            written: tokio::sync::watch::Sender::new(0),
        }))
    }

    /// Stops in good order: the file says exactly until when leases are out, and the node answers
    /// nothing more. After a success, closing again does nothing. Blocks on the disk. A node that is dropped without
    /// it is one that crashed.
    ///
    /// Errors: of the file system; the next start then waits as after a crash.
    pub fn close(&self) -> std::io::Result<()> {
        let mut file = self.file();
        let record = {
            let mut inner = self.inner();
            if inner.is_clean {
                return Ok(());
            }
            inner.is_closed = true;
            let boot_us = self.clock.now().as_micros();
            let machine = &inner.machine;
            let until_us = machine.last_lease_end_us().max(machine.quarantined_until_us().unwrap_or(0));
            let until_boot_us = until_us.saturating_sub(self.offset_us);
            let leases = if until_boot_us > boot_us { until_boot_us } else { 0 };
            self.record(boot_us, Span { until_boot_us: leases, fence: machine.highest_fence() }, true)
        };
        file.write(&record)?;
        self.inner().is_clean = true;
        Ok(())
    }

    /// What it says of itself.
    pub fn report(&self) -> EmbeddedReport {
        let inner = self.inner();
        let boot_us = self.clock.now().as_micros();
        let left = |until_us: u64| Duration::from_micros(until_us.saturating_sub(boot_us));
        let quarantined = inner.machine.quarantined_until_us().unwrap_or(0).saturating_sub(self.offset_us);
        EmbeddedReport {
            id: self.id.clone(),
            path: self.path.clone(),
            reserved_for: left(inner.reserved.until_boot_us),
            quarantine_left: left(quarantined),
            writes: inner.writes,
            failure: inner.failure.as_ref().map(|(_, why)| Arc::clone(why)),
            sizes: inner.machine.sizes(),
        }
    }

    /// Where its state file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Answers if it can be done at once. `is_in_turn`: it has waited, and none may go before it.
    fn step(self: &Arc<Self>, sent_at: RequestTime, request: &Request, is_in_turn: bool) -> Step {
        let mut inner = self.inner();
        if inner.is_closed {
            return Step::Done(Err(Unreachable::new(UnreachableKind::Disconnected, "the node is closed")));
        }
        if inner.queued > 0 && !is_in_turn {
            inner.queued += 1;
            return Step::Wait(None);
        }
        let now = self.clock.now();
        let now_us = now.as_micros().saturating_add(self.offset_us);
        let bound = inner.machine.effect_bound(now_us, sent_at, &self.params, request);
        let moves_nothing = bound.end_us.is_none() && bound.fence <= inner.machine.highest_fence();
        let until_boot_us = bound.end_us.map_or(0, |end| end.saturating_sub(self.offset_us));
        let need = Span { until_boot_us, fence: bound.fence };
        if !moves_nothing && !inner.reserved.covers(need) {
            if let Some(full) = inner.still_failing(now) {
                return Step::Done(Err(full));
            }
            if !is_in_turn {
                inner.queued += 1;
            }
            return Step::Wait(Some(need));
        }
        let answer = inner.machine.apply(now_us, "", sent_at, &self.params, request);
        if inner.reserved.is_short_for(need) && inner.still_failing(now).is_none() {
            self.start_write(inner, need);
        }
        Step::Done(answer)
    }

    /// The slow path: in turn, behind a write of the file.
    async fn step_in_turn(self: &Arc<Self>, sent_at: RequestTime, request: &Request) -> NodeResult {
        let _place = Place(self); // counted by `step`
        let _turn = self.turns.lock().await;
        for _ in 0..WRITES_PER_REQUEST {
            let mut written = self.written.subscribe();
            match self.step(sent_at, request, true) {
                Step::Done(answer) => return answer,
                Step::Wait(need) => self.start_write(self.inner(), need.unwrap_or_default()),
            }
            if written.changed().await.is_err() {
                break;
            }
        }
        match self.step(sent_at, request, true) {
            Step::Done(answer) => answer,
            Step::Wait(_) => Err(full("writing the state file takes longer than a reservation lasts")),
        }
    }

    /// Has the file cover `need`, and more, unless it is being written already. One write at a time,
    /// whatever becomes of who asked, so a disk that hangs holds up one thread.
    fn start_write(self: &Arc<Self>, mut inner: MutexGuard<'_, Inner>, need: Span) {
        if inner.is_writing {
            return;
        }
        inner.is_writing = true;
        drop(inner);
        let writing = Writing(Arc::clone(self));
        tokio::task::spawn_blocking(move || writing.0.write_ahead(need));
    }

    /// Makes the file cover `need`, and more. A failure is kept in `failure`. Blocks on the disk.
    fn write_ahead(&self, need: Span) {
        let mut file = self.file();
        let (record, span) = {
            let inner = self.inner();
            if inner.is_closed {
                return;
            }
            let span = inner.reserved.reserve(need);
            (self.record(self.clock.now().as_micros(), span, false), span)
        };
        let written = file.write(&record);
        let mut inner = self.inner();
        match written {
            Ok(()) => {
                inner.reserved = span;
                inner.writes += 1;
                inner.failure = None;
            }
            Err(e) => inner.failure = Some((self.clock.now(), format!("{}: {e}", self.path.display()).into())),
        }
    }

    fn record(&self, boot_us: u64, span: Span, clean: bool) -> Record {
        let node_us = boot_us.saturating_add(self.offset_us);
        Record {
            clean,
            leases_until_boot_us: span.until_boot_us,
            fence: span.fence,
            ..Record::first(&self.id, self.boot.clone(), boot_us, node_us)
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("nothing panics while it holds the node")
    }

    fn file(&self) -> MutexGuard<'_, StateFile> {
        self.file.lock().expect("nothing panics while it holds the file")
    }
}

impl Inner {
    /// The answer while a failed write is not to be tried again yet.
    fn still_failing(&self, now: BootTime) -> Option<Unreachable> {
        let (at, why) = self.failure.as_ref()?;
        (now.since(*at) < WRITE_RETRY_AFTER).then(|| full(Arc::clone(why)))
    }
}

/// A place in the queue, given up however the request ends.
struct Place<'a, C: Clock>(&'a EmbeddedNode<C>);

impl<C: Clock> Drop for Place<'_, C> {
    fn drop(&mut self) {
        self.0.inner().queued -= 1;
    }
}

/// A write under way; its end is told even where it is never run.
struct Writing<C: Clock>(Arc<EmbeddedNode<C>>);

impl<C: Clock> Drop for Writing<C> {
    fn drop(&mut self) {
        self.0.inner().is_writing = false;
        self.0.written.send_modify(|count| *count += 1);
    }
}

impl<C: Clock> Node for EmbeddedNode<C> {
    fn id(&self) -> &NodeId {
        &self.id
    }

    /// Its leases live in this process, so each end of one is this process' own doing.
    fn notifications(&self) -> NotificationSource<'_> {
        NotificationSource::Local
    }

    /// Runs on tokio. Where nothing has to be written it answers within its first poll.
    ///
    /// Errors: `Full` where the state file cannot be written (releases still pass), `Disconnected`
    /// after [`EmbeddedNode::close`].
    async fn call(self: Arc<Self>, sent_at: RequestTime, request: Arc<Request>) -> NodeResult {
        match self.step(sent_at, &request, false) {
            Step::Done(answer) => answer,
            Step::Wait(_) => self.step_in_turn(sent_at, &request).await,
        }
    }
}

/// What the file says from this start on, and how the machine comes back.
fn begin(id: &NodeId, boot: &BootId, found: Option<Record>, boot_us: u64, node_us: u64) -> (Record, Resumed) {
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

/// Another one for every start, as Redis has it.
fn run_id(id: &NodeId, boot: &BootId, boot_us: u64) -> String {
    let digest = Sha256::digest(format!("{id} {} {boot_us}", boot.text()).as_bytes());
    digest.iter().take(20).map(|b| format!("{b:02x}")).collect()
}

fn full(why: impl Into<Arc<str>>) -> Unreachable {
    Unreachable::new(UnreachableKind::Full, why)
}
