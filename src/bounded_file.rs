//! Files that the service shares with the rest of the machine. Those that it reads again while it runs: one that never ends, or
//! that waits for a writer, must cost neither memory nor the thread that reads it. Those that it makes for itself, and who could
//! replace them.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// The text of a file; `None` if it has more than `max` bytes. Blocks on the disk.
///
/// Errors: it is not a regular file (a device or a pipe has no size to check), cannot be read, or is not UTF-8.
pub(crate) fn read(path: &Path, max: u64) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    // It may grow while it is read.
    open_regular(path)?.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|len| len <= max) {
        return String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"));
    }
    Ok(None)
}

/// Opens a file to read it.
///
/// Errors: it is not a regular file, or cannot be opened.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    // Before it is opened: to open a pipe waits for its writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    File::open(path)
}

/// Opens a file, or makes it, for this user only: whoever may open a lock file can lock it, and the service then does not start.
/// A link is not followed, or who can put one there would choose which file is overwritten; and a pipe is not waited for.
///
/// Errors: those of the file system: `ELOOP` for a link, `ENXIO` for a pipe that nobody reads.
pub(crate) fn open_private(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    const MODE: u32 = 0o600;
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = options.create(true).mode(MODE).custom_flags(flags).open(path)?;
    // Made by an earlier version, or by hand.
    if file.metadata()?.permissions().mode() & 0o777 != MODE {
        file.set_permissions(Permissions::from_mode(MODE))?;
    }
    Ok(file)
}

/// This directory and those above it, also behind links, in which somebody else than root or this user may replace entries, each
/// with the reason. Groups are trusted: an administrator chooses their members.
pub(crate) fn replaceable(dir: &Path, user: u32) -> Vec<String> {
    // What does not exist yet is made below the nearest one that does.
    let real = dir.ancestors().find_map(|above| std::fs::canonicalize(above).ok());
    let both: Vec<PathBuf> = std::path::absolute(dir).into_iter().chain(real).collect();
    let mut paths: Vec<&Path> = both.iter().flat_map(|path| path.ancestors()).collect();
    paths.sort_unstable();
    paths.dedup();
    let reason = |path: &&Path| {
        let reason = why_replaceable(&std::fs::symlink_metadata(path).ok()?, user)?;
        Some(format!("{}: {reason}", path.display()))
    };
    paths.iter().filter_map(reason).collect()
}

fn why_replaceable(entry: &Metadata, user: u32) -> Option<String> {
    const WRITABLE_BY_ALL: u32 = 0o002;
    const STICKY: u32 = 0o1000;
    if ![0, user].contains(&entry.uid()) {
        return Some(format!("it belongs to the user {}", entry.uid()));
    }
    let is_open_to_all = entry.is_dir() && entry.mode() & (WRITABLE_BY_ALL | STICKY) == WRITABLE_BY_ALL;
    is_open_to_all.then(|| "all users may write there".to_owned())
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

    /// U3 of the neighbour: a link or a pipe where the service makes a file.
    #[test]
    fn u3_no_link_is_followed_and_no_pipe_waited_for_where_a_file_is_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        std::fs::write(&target, "as before").expect("writable");
        std::os::unix::fs::symlink(&target, &link).expect("a link");
        let opened = open_private(OpenOptions::new().write(true).truncate(true), &link);
        assert_eq!(opened.expect_err("a link").raw_os_error(), Some(rustix::io::Errno::LOOP.raw_os_error()));
        assert_eq!(std::fs::read(&target).expect("readable"), b"as before");
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).expect("a pipe");
        let opened = open_private(OpenOptions::new().write(true).truncate(true), &pipe);
        assert_eq!(opened.expect_err("a pipe").raw_os_error(), Some(rustix::io::Errno::NXIO.raw_os_error()));
        assert_eq!(open_regular(&pipe).expect_err("a pipe").kind(), io::ErrorKind::InvalidInput);
    }

    /// U3 of the neighbour: a directory that another user made, or may change.
    #[test]
    fn u3_directories_that_others_may_change_are_named() {
        let root = tempfile::tempdir().expect("a directory");
        let user = root.path().metadata().expect("made").uid();
        let (open, link) = (root.path().join("open"), root.path().join("link"));
        let data = open.join("data");
        std::fs::create_dir_all(&data).expect("writable");
        std::os::unix::fs::symlink(&data, &link).expect("a link");
        let found = |dir: &Path, user| replaceable(dir, user);
        assert_eq!(found(&data, user), [""; 0], "nobody else: is the directory of the tests one for everybody?");
        std::fs::set_permissions(&open, Permissions::from_mode(0o777)).expect("own directory");
        let expected = [format!("{}: all users may write there", open.display())];
        assert_eq!(found(&data, user), expected);
        for behind_a_link in [link.clone(), link.join("not/made/yet")] {
            assert_eq!(found(&behind_a_link, user), expected, "{}", behind_a_link.display());
        }
        std::fs::set_permissions(&open, Permissions::from_mode(0o1777)).expect("own directory");
        assert_eq!(found(&data, user), [""; 0], "nobody removes what belongs to others");
        let to_another = found(&data, user + 1);
        let is_named = |dir: &Path| to_another.contains(&format!("{}: it belongs to the user {user}", dir.display()));
        assert!(user == 0 || (is_named(&data) && is_named(root.path())), "{to_another:?}");
    }
}
