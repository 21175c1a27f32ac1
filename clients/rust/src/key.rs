//! The API key that the client sends with each request: a type that cannot be printed, and the file it is read from.

use std::fmt;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use reqwest::header::HeaderValue;

/// Maximum size of a key file, which has one line.
const KEY_MAX_BYTES: u64 = 4_096;
/// Permission bits with which users other than the owner can read the file.
const READABLE_BY_OTHERS: u32 = 0o044;

/// An API key, as `Authorization: Bearer`.
#[derive(Clone)]
pub struct ClientKey(HeaderValue);

impl fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientKey(…)")
    }
}

/// Why a key file was refused.
#[derive(Debug, thiserror::Error)]
pub enum ClientKeyError {
    /// The operating system refused to read the file.
    #[error("the key file {0} cannot be read: {1}")]
    Unreadable(PathBuf, #[source] std::io::Error),
    /// The file is not one line of printable text.
    #[error("the key file {0} must hold one line with the key and nothing else")]
    NotAKey(PathBuf),
}

/// The content of a key file.
#[derive(Debug, Clone)]
pub struct KeyFile {
    pub key: ClientKey,
    /// Whether other users can read the file; worth a warning.
    pub readable_by_others: bool,
}

impl KeyFile {
    /// Reads a key file.
    ///
    /// Errors: [`ClientKeyError`], which never repeats the content.
    pub fn read(path: &Path) -> Result<Self, ClientKeyError> {
        let unreadable = |error| ClientKeyError::Unreadable(path.to_owned(), error);
        let file = std::fs::File::open(path).map_err(unreadable)?;
        let mode = file.metadata().map_err(unreadable)?.mode();
        let mut text = String::new();
        file.take(KEY_MAX_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
        let line = text.trim();
        let plain = !line.is_empty() && line.bytes().all(|b| b.is_ascii_graphic());
        if !plain || u64::try_from(text.len()).unwrap_or(u64::MAX) > KEY_MAX_BYTES {
            return Err(ClientKeyError::NotAKey(path.to_owned()));
        }
        let mut header =
            HeaderValue::try_from(format!("Bearer {line}")).map_err(|_| ClientKeyError::NotAKey(path.to_owned()))?;
        header.set_sensitive(true);
        Ok(Self { key: ClientKey(header), readable_by_others: mode & READABLE_BY_OTHERS != 0 })
    }
}

impl ClientKey {
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
    fn key_is_read_and_does_not_print() {
        for (mode, others) in [(0o600, false), (0o640, true), (0o604, true)] {
            let read = KeyFile::read(file("hunter2\n", mode).path()).expect("a key");
            assert_eq!(read.readable_by_others, others);
            assert!(!format!("{read:?} {:?}", read.key.header()).contains("hunter2"));
            assert_eq!(read.key.header().as_bytes(), b"Bearer hunter2");
        }
    }

    #[test]
    fn invalid_key_file_is_refused_without_repeating_it() {
        for text in ["", " \n", "hunter2\nhunter3\n", "hunter2 x", "hunter2\u{e9}", &"hunter2".repeat(1_000)] {
            let error = KeyFile::read(file(text, 0o600).path()).expect_err("no key").to_string();
            assert!(error.contains("one line") && !error.contains("hunter"), "{error}");
        }
        assert!(KeyFile::read(Path::new("/nowhere")).expect_err("no file").to_string().contains("/nowhere"));
    }
}
