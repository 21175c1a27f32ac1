//! Temporary directories for what the service writes while it is asked.

use std::path::Path;

use tempfile::TempDir;

/// A directory in memory where the system has one. An embedded node syncs its state file before it answers, and a disk
/// that is busy with the results of a build can take longer for that than any node timeout.
pub fn in_memory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let created = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    created.or_else(|_| tempfile::tempdir()).expect("a temporary directory")
}
