//! Files that the service shares with the rest of the machine. Those that it reads again while it runs: one that never ends, or
//! that waits for a writer, must cost neither memory nor the thread that reads it. Those that it makes for itself.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// The text of a file; `None` if it has more than `max` bytes. Blocks on the disk.
///
/// Errors: it is not a regular file (a device or a pipe has no size to check), cannot be read, or is not UTF-8.
pub(crate) fn read(path: &Path, max: u64) -> io::Result<Option<String>> {
    // Before it is opened: to open a pipe waits for its writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    // It may grow while it is read.
    File::open(path)?.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|len| len <= max) {
        return String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"));
    }
    Ok(None)
}

/// Opens a file, or makes it, for this user only: whoever may open a lock file can lock it, and the service then does not start.
///
/// Errors: those of the file system.
pub(crate) fn open_private(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    const MODE: u32 = 0o600;
    let file = options.create(true).mode(MODE).open(path)?;
    // Made by an earlier version, or by hand.
    if file.metadata()?.permissions().mode() & 0o777 != MODE {
        file.set_permissions(Permissions::from_mode(MODE))?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_bounded_size_are_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("file");
        std::fs::write(&file, "12345").expect("writable");
        assert_eq!(read(&file, 5).expect("readable").as_deref(), Some("12345"));
        assert_eq!(read(&file, 4).expect("readable"), None);
        // More than memory can have, if it were read.
        let endless = File::create(&file).expect("writable");
        endless.set_len(1 << 43).expect("a sparse file");
        assert_eq!(read(&file, 4).expect("readable"), None);
        std::fs::write(&file, [0xff]).expect("writable");
        assert_eq!(read(&file, 4).expect_err("no text").kind(), io::ErrorKind::InvalidData);
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).expect("a pipe");
        for endless in [Path::new("/dev/zero"), &pipe, dir.path()] {
            assert_eq!(read(endless, 4).expect_err("no file").kind(), io::ErrorKind::InvalidInput, "{endless:?}");
        }
    }

    /// U1 of the neighbour: a lock that everybody could take.
    #[test]
    fn u1_files_of_the_service_are_for_its_user_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let (new, old) = (dir.path().join("new"), dir.path().join("old"));
        std::fs::write(&old, "as before").expect("writable");
        std::fs::set_permissions(&old, Permissions::from_mode(0o644)).expect("own file");
        for path in [new, old] {
            let file = open_private(OpenOptions::new().append(true), &path).expect("writable");
            assert_eq!(file.metadata().expect("open").permissions().mode() & 0o777, 0o600, "{}", path.display());
        }
    }
}
