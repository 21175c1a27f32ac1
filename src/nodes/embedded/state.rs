//! The state file of an embedded node: until when leases may be held, and the highest fence that may have been granted. All disk
//! access of embedded nodes is here.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::bounded_file::{open_private, open_regular};
use crate::types::NodeId;

/// Version of the file's layout; a newer one is refused.
const FORMAT: u32 = 1;
/// Maximum size of a state file.
const MAX_BYTES: u64 = 4_096;
/// Extension of state files.
const EXTENSION: &str = "state";
/// Content of the lock file once a state file was written.
const USED: &[u8] = b"The .state file beside this one is needed: without it this node does not start.\n";

/// Why an embedded node does not start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The data directory cannot be created or read.
    #[error("the data directory {path} cannot be used: {source}")]
    Directory { path: PathBuf, source: std::io::Error },
    /// A process (possibly this one) already runs this node.
    #[error("{path} is locked: this node is already running, here or in another process")]
    Locked { path: PathBuf },
    /// The lock file cannot be created or locked.
    #[error("{path} cannot be locked: {source}")]
    Lock { path: PathBuf, source: std::io::Error },
    /// The state file cannot be read.
    #[error("{path} cannot be read: {source}")]
    Unreadable { path: PathBuf, source: std::io::Error },
    /// The state file cannot be written.
    #[error("{path} cannot be written: {source}")]
    Unwritable { path: PathBuf, source: std::io::Error },
    /// The state file is damaged, or belongs to another node or a newer release.
    #[error(
        "{path} is not this node's state ({detail}); restore it, or, when every lease that this node granted \
         has certainly ended, remove it together with its .lock file"
    )]
    Corrupt { path: PathBuf, detail: String },
    /// The node has run here before, but its state file is missing.
    #[error(
        "{path} is missing, though this node has run here; restore it, or, when every lease that this node granted \
         has certainly ended, remove its .lock file too"
    )]
    Missing { path: PathBuf },
}

/// One boot of the machine. Readings of `CLOCK_BOOTTIME` can be compared only within one boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootId(Option<String>);

impl BootId {
    /// Linux' boot id and time namespace, since `CLOCK_BOOTTIME` differs between these. Unknown if the system does not provide
    /// it.
    pub fn of_this_system() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        let namespace = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
        Self(boot.map(|boot| format!("{} {}", boot.trim(), namespace.display())))
    }

    /// A boot by name, for tests.
    pub fn named(name: &str) -> Self {
        Self(Some(name.to_owned()))
    }

    /// Whether this is certainly the same boot; an unknown boot never is.
    fn is_same(&self, other: &Self) -> bool {
        self.0.is_some() && self == other
    }

    /// Part of the run id; `unknown` if the system provides no boot id.
    pub(super) fn text(&self) -> &str {
        self.0.as_deref().unwrap_or("unknown")
    }
}

/// Content of a state file. `boot_us` are readings of `CLOCK_BOOTTIME` in microseconds, valid within
/// `boot`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    pub(super) format: u32,
    /// Name of the node.
    pub(super) node: String,
    pub(super) boot: BootId,
    /// Written by a clean stop: the ends are exact, not ahead.
    pub(super) clean: bool,
    /// When the record was written, on both of the node's clocks.
    pub(super) written_boot_us: u64,
    pub(super) written_node_us: u64,
    /// End of the last lease; 0: none.
    pub(super) leases_until_boot_us: u64,
    /// Highest fence that may have been granted.
    pub(super) fence: u64,
}

impl Record {
    /// The first record of a node that never ran.
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

    /// How long from now leases may still be held. Exact within one boot; after a reboot the whole recorded time counts from now,
    /// which needs no clock. Microseconds.
    pub(super) fn leases_left_us(&self, boot: &BootId, boot_us: u64) -> u64 {
        if self.is_comparable(boot, boot_us) {
            return self.leases_until_boot_us.saturating_sub(boot_us);
        }
        self.leases_until_boot_us.saturating_sub(self.written_boot_us)
    }

    /// Minimum of the node's clock now, so that it never runs backwards. Microseconds.
    pub(super) fn min_node_us(&self, boot: &BootId, boot_us: u64) -> u64 {
        if self.is_comparable(boot, boot_us) {
            return self.written_node_us.saturating_add(boot_us - self.written_boot_us);
        }
        self.written_node_us
    }

    /// The second condition detects a boot id that is older than its clock, as in a restored snapshot.
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
    HEXLOWER.encode(&Sha256::digest(body.as_bytes()))
}

/// A node's state file, locked until dropped.
#[derive(Debug)]
pub(super) struct StateFile {
    dir: PathBuf,
    path: PathBuf,
    temp: PathBuf,
    lock: File,
}

impl StateFile {
    /// Locks and reads the file: `None` on the node's first start.
    ///
    /// Errors: all of [`OpenError`] but `Unwritable`.
    pub(super) fn open(dir: &Path, node: &NodeId) -> Result<(Self, Option<Record>), OpenError> {
        let dir_error = |source| OpenError::Directory { path: dir.to_owned(), source };
        // For this user only, whatever the umask: a user who may write there can remove the state.
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(dir_error)?;
        let lock_path = file_of(dir, node, "lock");
        let lock_error = |source| OpenError::Lock { path: lock_path.clone(), source };
        let mut lock = open_private(OpenOptions::new().read(true).append(true), &lock_path).map_err(lock_error)?;
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

    /// The highest clock that any node of this directory can have now, so that nodes opened one after the other agree on the
    /// time. Unreadable files are ignored here; their own node reports them. Microseconds.
    pub(super) fn min_node_us(&self, boot: &BootId, boot_us: u64) -> Result<u64, OpenError> {
        let dir_error = |source| OpenError::Directory { path: self.dir.clone(), source };
        let mut min = 0;
        for entry in std::fs::read_dir(&self.dir).map_err(dir_error)? {
            let path = entry.map_err(dir_error)?.path();
            if path.extension().is_none_or(|e| e != EXTENSION) {
                continue;
            }
            let sibling = path.file_stem().and_then(|s| s.to_str()).and_then(node_of);
            if let Some(Ok(Some(record))) = sibling.map(|node| read(&path, &node)) {
                min = min.max(record.min_node_us(boot, boot_us));
            }
        }
        Ok(min)
    }

    /// Replaces the record atomically: written to a temporary file, synced, renamed, and the directory
    /// synced. Blocks on the disk.
    ///
    /// Errors: those of the file system. The file then has the old record or the new one.
    pub(super) fn write(&mut self, record: &Record) -> std::io::Result<()> {
        let mut temp = open_private(OpenOptions::new().write(true).truncate(true), &self.temp)?;
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

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Node names may contain `/` and never `%`, so no two names have the same file.
fn file_of(dir: &Path, node: &NodeId, extension: &str) -> PathBuf {
    dir.join(format!("node-{}.{extension}", node.as_str().replace('/', "%2F")))
}

fn node_of(stem: &str) -> Option<NodeId> {
    NodeId::parse(&stem.strip_prefix("node-")?.replace("%2F", "/")).ok()
}

fn read(path: &Path, node: &NodeId) -> Result<Option<Record>, OpenError> {
    let unreadable = |source| OpenError::Unreadable { path: path.to_owned(), source };
    let corrupt = |detail: String| OpenError::Corrupt { path: path.to_owned(), detail };
    let file = match open_regular(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(unreadable(e)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(unreadable)?;
    let text = String::from_utf8(bytes).map_err(|_| corrupt("it is not text".to_owned()))?;
    Record::decode(&text, node).map(Some).map_err(corrupt)
}
