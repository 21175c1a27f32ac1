//! The destination of the audit log: standard output, or a file that another program may rotate. Before each
//! write it checks whether the path still names the open file, and reopens it if not, so that a rotation needs
//! no signal.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Readable by owner and group: a log collector usually belongs to the group.
const FILE_MODE: u32 = 0o640;

/// The name of standard output in the settings.
pub(crate) const STDOUT: &str = "stdout";

/// An open destination.
#[derive(Debug)]
pub(super) enum Sink {
    /// Standard output of this process.
    Stdout,
    /// A file, open for appending.
    File {
        path: PathBuf,
        file: File,
        /// Whether the last write ended within a line.
        is_torn: bool,
    },
}

/// The result of a write.
#[derive(Debug)]
pub(super) struct Written {
    /// Number of bytes written.
    pub bytes: usize,
    /// Why not all bytes were written, or the path could not be reopened.
    pub error: Option<io::Error>,
}

impl Sink {
    /// Opens a destination.
    ///
    /// Errors: the file cannot be opened for appending.
    pub(super) fn open(target: &Path) -> io::Result<Self> {
        if target == Path::new(STDOUT) {
            return Ok(Self::Stdout);
        }
        Ok(Self::File { path: target.to_owned(), file: append(target)?, is_torn: false })
    }

    /// Writes lines. Blocks while the disk or the reader of standard output blocks.
    pub(super) fn write(&mut self, lines: &[u8]) -> Written {
        match self {
            Self::Stdout => {
                let mut out = io::stdout().lock();
                let mut written = write(&mut out, lines);
                if written.error.is_none() {
                    written.error = out.flush().err();
                }
                written
            }
            Self::File { path, file, is_torn } => {
                let error = reopen_if_moved(path, file).err();
                if *is_torn && let Err(error) = file.write_all(b"\n") {
                    return Written { bytes: 0, error: Some(error) };
                }
                let mut written = write(file, lines);
                *is_torn = written.bytes > 0 && lines[written.bytes - 1] != b'\n';
                // After a failed reopen the lines are in the moved file, which is better than losing them.
                written.error = written.error.or(error);
                written
            }
        }
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(path)
}

/// Reopens the path if it no longer names the open file.
fn reopen_if_moved(path: &Path, file: &mut File) -> io::Result<()> {
    let open = file.metadata()?;
    let is_same = std::fs::metadata(path).is_ok_and(|at| (at.dev(), at.ino()) == (open.dev(), open.ino()));
    if !is_same {
        *file = append(path)?;
    }
    Ok(())
}

fn write(out: &mut impl Write, lines: &[u8]) -> Written {
    let mut bytes = 0;
    while bytes < lines.len() {
        match out.write(&lines[bytes..]) {
            Ok(0) => return Written { bytes, error: Some(io::ErrorKind::WriteZero.into()) },
            Ok(taken) => bytes += taken,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Written { bytes, error: Some(error) },
        }
    }
    Written { bytes, error: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &Path) -> String {
        std::fs::read_to_string(path).expect("readable")
    }

    #[test]
    fn a_moved_or_deleted_file_is_reopened() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, old) = (dir.path().join("audit.log"), dir.path().join("audit.log.1"));
        let mut sink = Sink::open(&path).expect("opens");
        let mut put = |line: &[u8]| {
            let written = sink.write(line);
            assert!(written.error.is_none() && written.bytes == line.len(), "{written:?}");
        };
        put(b"1\n");
        std::fs::rename(&path, &old).expect("renames");
        put(b"2\n");
        assert_eq!((read(&old).as_str(), read(&path).as_str()), ("1\n", "2\n"));
        std::fs::remove_file(&path).expect("removes");
        put(b"3\n");
        // What logrotate calls copytruncate.
        File::create(&path).expect("truncates");
        put(b"4\n");
        assert_eq!(read(&path), "4\n");
        let mode = std::fs::metadata(&path).expect("there").mode() & 0o777;
        assert_eq!(mode & 0o007, 0, "{mode:o}: others read it");
    }

    #[test]
    fn if_the_path_cannot_be_reopened_the_old_file_is_written_and_the_error_reported() {
        let dir = tempfile::tempdir().expect("a directory");
        let (inner, moved) = (dir.path().join("logs"), dir.path().join("moved"));
        std::fs::create_dir(&inner).expect("a directory");
        let mut sink = Sink::open(&inner.join("audit.log")).expect("opens");
        std::fs::rename(&inner, &moved).expect("renames");
        let written = sink.write(b"1\n");
        assert!(written.error.is_some() && written.bytes == 2, "{written:?}");
        assert_eq!(read(&moved.join("audit.log")), "1\n");
    }

    #[test]
    fn an_incomplete_line_is_ended_before_the_next_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit.log");
        let mut sink = Sink::open(&path).expect("opens");
        sink.write(b"{\"cut");
        sink.write(b"{}\n");
        assert_eq!(read(&path), "{\"cut\n{}\n");
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_an_error_at_the_start() {
        assert!(Sink::open(Path::new("/no/such/directory/audit.log")).is_err());
        assert!(matches!(Sink::open(Path::new(STDOUT)), Ok(Sink::Stdout)));
    }
}
