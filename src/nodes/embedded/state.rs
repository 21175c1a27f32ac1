//! What an embedded node must not forget over a restart, and the file that keeps it: until when
//! leases may be out, and the highest fence that may have been given. Stands apart because it is all
//! that touches the disk. Knows no request and reads no clock.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::types::NodeId;

/// Names the layout of the file; a newer one is refused, not guessed at.
const FORMAT: u32 = 1;
/// A state file is below this; more is not one. Bounds what a start reads.
const MAX_BYTES: u64 = 4_096;
/// How state files end, so that a node finds its siblings.
const EXTENSION: &str = "state";
/// What the lock file says once a state file was written.
const USED: &[u8] = b"The .state file beside this one is needed: without it this node does not start.\n";

/// Why an embedded node does not start. The texts are for the operator.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The data directory cannot be made or read.
    #[error("the data directory {path} cannot be used: {source}")]
    Directory { path: PathBuf, source: std::io::Error },
    /// A process (this one included) runs this node already.
    #[error("{path} is locked: this node is already running, here or in another process")]
    Locked { path: PathBuf },
    /// The lock file cannot be made or locked.
    #[error("{path} cannot be locked: {source}")]
    Lock { path: PathBuf, source: std::io::Error },
    /// The state file cannot be read.
    #[error("{path} cannot be read: {source}")]
    Unreadable { path: PathBuf, source: std::io::Error },
    /// The state file cannot be written.
    #[error("{path} cannot be written: {source}")]
    Unwritable { path: PathBuf, source: std::io::Error },
    /// The state file is damaged, of another node, or of a newer release.
    #[error(
        "{path} is not this node's state ({detail}); restore it, or, when every lease that this node gave \
         is surely over, remove it together with its .lock file"
    )]
    Corrupt { path: PathBuf, detail: String },
    /// The node has run here before, and its state file is gone.
    #[error(
        "{path} is missing, though this node has run here; restore it, or, when every lease that this node gave \
         is surely over, remove its .lock file too"
    )]
    Missing { path: PathBuf },
}

/// One boot of the machine: two readings of `CLOCK_BOOTTIME` can be compared only within it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootId(Option<String>);

impl BootId {
    /// Linux' boot id, with the time namespace, in which `CLOCK_BOOTTIME` has an offset of its own.
    /// Unknown where the system does not tell.
    pub fn of_this_system() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        let namespace = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
        Self(boot.map(|boot| format!("{} {}", boot.trim(), namespace.display())))
    }

    /// A boot by name, for tests.
    pub fn named(name: &str) -> Self {
        Self(Some(name.to_owned()))
    }

    /// Surely the same boot: an unknown one is never the same.
    fn is_same(&self, other: &Self) -> bool {
        self.0.is_some() && self == other
    }

    /// For the run id.
    pub(super) fn text(&self) -> &str {
        self.0.as_deref().unwrap_or("unknown")
    }
}

/// The contents of a state file. Readings of `CLOCK_BOOTTIME` in microseconds (`boot_us`) mean
/// something only beside `boot`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    pub(super) format: u32,
    /// Whose state this is.
    pub(super) node: String,
    pub(super) boot: BootId,
    /// Written by a stop in good order: the ends are exact, not reserved ahead.
    pub(super) clean: bool,
    /// When it was written, on both of the node's clocks.
    pub(super) written_boot_us: u64,
    pub(super) written_node_us: u64,
    /// No lease is out after this; 0 for none at all.
    pub(super) leases_until_boot_us: u64,
    /// No fence above this was given.
    pub(super) fence: u64,
}

impl Record {
    /// The clean slate of a node that never ran.
    pub(super) fn first(node: &NodeId, boot: BootId, boot_us: u64, node_us: u64) -> Self {
        Self {
            format: FORMAT,
            node: node.as_str().to_owned(),
            boot,
            clean: false,
            written_boot_us: boot_us,
            written_node_us: node_us,
            leases_until_boot_us: 0,
            fence: node_us,
        }
    }

    /// For how long from now leases may still be out. Within one boot this is exact; after another
    /// one the whole recorded span counts from now, which needs no clock. Microseconds.
    pub(super) fn leases_left_us(&self, boot: &BootId, boot_us: u64) -> u64 {
        if self.is_comparable(boot, boot_us) {
            return self.leases_until_boot_us.saturating_sub(boot_us);
        }
        self.leases_until_boot_us.saturating_sub(self.written_boot_us)
    }

    /// The least that the node's clock can be now, so that it never runs backwards. Microseconds.
    pub(super) fn least_node_us(&self, boot: &BootId, boot_us: u64) -> u64 {
        if self.is_comparable(boot, boot_us) {
            return self.written_node_us.saturating_add(boot_us - self.written_boot_us);
        }
        self.written_node_us
    }

    /// The second half guards against a boot id that outlived its clock, as in a restored snapshot.
    fn is_comparable(&self, boot: &BootId, boot_us: u64) -> bool {
        self.boot.is_same(boot) && boot_us >= self.written_boot_us
    }

    fn encode(&self) -> String {
        let body = serde_json::to_string(self).expect("numbers and plain strings");
        format!("{body}\n{}\n", check_sum(&body))
    }

    fn decode(text: &str, node: &NodeId) -> Result<Self, String> {
        let (body, sum) = text.split_once('\n').ok_or("it is cut short")?;
        if sum.trim_end() != check_sum(body) {
            return Err("its check sum does not match".to_owned());
        }
        let record: Self = serde_json::from_str(body).map_err(|e| e.to_string())?;
        if record.format != FORMAT {
            return Err(format!("format {}, this release reads {FORMAT}", record.format));
        }
        if record.node != node.as_str() {
            return Err(format!("it belongs to node {}", record.node));
        }
        Ok(record)
    }
}

fn check_sum(body: &str) -> String {
    Sha256::digest(body.as_bytes()).iter().map(|b| format!("{b:02x}")).collect()
}

/// A node's file, locked for as long as this lives.
#[derive(Debug)]
pub(super) struct StateFile {
    dir: PathBuf,
    path: PathBuf,
    temp: PathBuf,
    lock: File,
}

impl StateFile {
    /// Takes the lock and reads what is there: `None` on the node's first start.
    ///
    /// Errors: all of [`OpenError`] but `Unwritable`.
    pub(super) fn open(dir: &Path, node: &NodeId) -> Result<(Self, Option<Record>), OpenError> {
        let dir_error = |source| OpenError::Directory { path: dir.to_owned(), source };
        std::fs::create_dir_all(dir).map_err(dir_error)?;
        let lock_path = file_of(dir, node, "lock");
        let lock_error = |source| OpenError::Lock { path: lock_path.clone(), source };
        let mut lock = OpenOptions::new().read(true).append(true).create(true).open(&lock_path).map_err(lock_error)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(OpenError::Locked { path: lock_path }),
            Err(errno) => return Err(lock_error(errno.into())),
        }
        let path = file_of(dir, node, EXTENSION);
        let record = read(&path, node)?;
        if record.is_none() {
            let mut first = [0; 1];
            if lock.read(&mut first).map_err(lock_error)? > 0 {
                return Err(OpenError::Missing { path });
            }
        }
        let temp = file_of(dir, node, "tmp");
        Ok((Self { dir: dir.to_owned(), path, temp, lock }, record))
    }

    /// The highest reading that any node of this directory can have on its clock now, so that nodes
    /// opened one after the other agree on the time. Files that cannot be read are their own node's
    /// trouble. Microseconds.
    pub(super) fn least_node_us(&self, boot: &BootId, boot_us: u64) -> Result<u64, OpenError> {
        let dir_error = |source| OpenError::Directory { path: self.dir.clone(), source };
        let mut least = 0;
        for entry in std::fs::read_dir(&self.dir).map_err(dir_error)? {
            let path = entry.map_err(dir_error)?.path();
            if path.extension().is_none_or(|e| e != EXTENSION) {
                continue;
            }
            let sibling = path.file_stem().and_then(|s| s.to_str()).and_then(node_of);
            if let Some(Ok(Some(record))) = sibling.map(|node| read(&path, &node)) {
                least = least.max(record.least_node_us(boot, boot_us));
            }
        }
        Ok(least)
    }

    /// Replaces the record as a whole or not at all: written beside it, flushed, renamed, and the
    /// directory flushed. Blocks for as long as the disk takes.
    ///
    /// Errors: of the file system. The old record, or the new one, then stands.
    pub(super) fn write(&mut self, record: &Record) -> std::io::Result<()> {
        let mut temp = File::create(&self.temp)?;
        temp.write_all(record.encode().as_bytes())?;
        temp.sync_all()?;
        drop(temp);
        std::fs::rename(&self.temp, &self.path)?;
        File::open(&self.dir)?.sync_all()
    }

    /// From now on a missing state file is an error and not a first start.
    pub(super) fn mark_used(&mut self) -> std::io::Result<()> {
        if self.lock.metadata()?.len() == 0 {
            self.lock.write_all(USED)?;
            self.lock.sync_all()?;
        }
        Ok(())
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Node names may contain `/`; `%` they may not, so no two names share a file.
fn file_of(dir: &Path, node: &NodeId, extension: &str) -> PathBuf {
    dir.join(format!("node-{}.{extension}", node.as_str().replace('/', "%2F")))
}

fn node_of(stem: &str) -> Option<NodeId> {
    NodeId::parse(&stem.strip_prefix("node-")?.replace("%2F", "/")).ok()
}

fn read(path: &Path, node: &NodeId) -> Result<Option<Record>, OpenError> {
    let unreadable = |source| OpenError::Unreadable { path: path.to_owned(), source };
    let corrupt = |detail: String| OpenError::Corrupt { path: path.to_owned(), detail };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(unreadable(e)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(unreadable)?;
    let text = String::from_utf8(bytes).map_err(|_| corrupt("it is not text".to_owned()))?;
    Record::decode(&text, node).map(Some).map_err(corrupt)
}
