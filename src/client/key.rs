//! The credential that is sent with each request. A type of its own, so that it cannot be printed;
//! knows no file but the one that it is told to read.

use std::fmt;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use reqwest::header::HeaderValue;

/// A key file holds one line; more than this is another file.
const KEY_MAX_BYTES: u64 = 4_096;
/// Permission bits that let others than the owner read.
const READABLE_BY_OTHERS: u32 = 0o044;

/// An API key, as `Authorization: Bearer`.
#[derive(Clone)]
pub struct Key(HeaderValue);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The operating system's word.
    #[error("the key file {0} cannot be read: {1}")]
    Unreadable(PathBuf, #[source] std::io::Error),
    /// Not one line of printable text.
    #[error("the key file {0} must hold one line with the key and nothing else")]
    NotAKey(PathBuf),
}

/// A key and whether others can read its file.
#[derive(Debug, Clone)]
pub struct KeyFile {
    /// For the client.
    pub key: Key,
    /// Worth a warning.
    pub readable_by_others: bool,
}

impl KeyFile {
    /// Reads a file with one line.
    ///
    /// Errors: [`KeyError`], which never repeats what is in it.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let unreadable = |error| KeyError::Unreadable(path.to_owned(), error);
        let file = std::fs::File::open(path).map_err(unreadable)?;
        let mode = file.metadata().map_err(unreadable)?.mode();
        let mut text = String::new();
        file.take(KEY_MAX_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
        let line = text.trim();
        let plain = !line.is_empty() && line.bytes().all(|b| b.is_ascii_graphic());
        if !plain || u64::try_from(text.len()).unwrap_or(u64::MAX) > KEY_MAX_BYTES {
            return Err(KeyError::NotAKey(path.to_owned()));
        }
        let mut header =
            HeaderValue::try_from(format!("Bearer {line}")).map_err(|_| KeyError::NotAKey(path.to_owned()))?;
        header.set_sensitive(true);
        Ok(Self { key: Key(header), readable_by_others: mode & READABLE_BY_OTHERS != 0 })
    }
}

impl Key {
    /// The value of the `Authorization` header.
    pub(super) fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn file(text: &str, mode: u32) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(text.as_bytes()).expect("writable");
        file.as_file().set_permissions(std::fs::Permissions::from_mode(mode)).expect("own file");
        file
    }

    #[test]
    fn a_key_is_read_and_does_not_print() {
        for (mode, others) in [(0o600, false), (0o640, true), (0o604, true)] {
            let read = KeyFile::read(file("hunter2\n", mode).path()).expect("a key");
            assert_eq!(read.readable_by_others, others);
            assert!(!format!("{read:?} {:?}", read.key.header()).contains("hunter2"));
            assert_eq!(read.key.header().as_bytes(), b"Bearer hunter2");
        }
    }

    #[test]
    fn other_files_are_refused_without_repeating_them() {
        for text in ["", " \n", "hunter2\nhunter3\n", "hunter2 x", "hunter2\u{e9}", &"hunter2".repeat(1_000)] {
            let error = KeyFile::read(file(text, 0o600).path()).expect_err("no key").to_string();
            assert!(error.contains("one line") && !error.contains("hunter"), "{error}");
        }
        assert!(KeyFile::read(Path::new("/nowhere")).expect_err("no file").to_string().contains("/nowhere"));
    }
}
