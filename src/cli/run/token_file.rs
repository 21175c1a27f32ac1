//! The file that passes the token to the command: private to its owner, written before anything is acquired, removed at the end.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::redlock::random::{Entropy, SystemEntropy};
use crate::types::Token;

/// Permissions: only the owner.
const MODE: u32 = 0o600;

/// A file with a token; removed when dropped.
#[derive(Debug)]
pub(super) struct TokenFile {
    path: PathBuf,
}

/// The file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("the token file {path} cannot be written: {source}")]
pub(super) struct TokenFileError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl TokenFile {
    /// Writes a new file with a random name in `dir`.
    ///
    /// Errors: [`TokenFileError`]; no file is left.
    pub(super) fn create_in(dir: &Path, token: &Token) -> Result<Self, TokenFileError> {
        let path = dir.join(format!("redlockd-token-{:016x}", SystemEntropy.bits()));
        let file = Self { path };
        match write_new(&file.path, token) {
            Ok(()) => Ok(file),
            // Dropping `file` removes an incomplete file.
            Err(source) => Err(TokenFileError { path: file.path.clone(), source }),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        // The command may have removed the file.
        let _ = fs::remove_file(&self.path);
    }
}

/// Writes the token and a newline into a file that must not exist yet.
///
/// Errors: the operating system's; an incomplete file may be left.
pub(crate) fn write_new(path: &Path, token: &Token) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path)?;
    // A full disk is reported here, because local file systems reserve space on write. The file need not survive a crash,
    // so there is no fsync.
    file.write_all(format!("{}\n", token.reveal()).as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn token() -> Token {
        Token::parse("hunter2hunter2hunter2hunter2").expect("a token")
    }

    #[test]
    fn file_is_private_and_removed_at_the_end() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = TokenFile::create_in(dir.path(), &token()).expect("written");
        let path = file.path().to_owned();
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&path).expect("readable"), "hunter2hunter2hunter2hunter2\n");
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn error_names_the_file_and_not_the_token() {
        let error = TokenFile::create_in(Path::new("/nowhere"), &token()).expect_err("no directory").to_string();
        assert!(error.contains("/nowhere/redlockd-token-") && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn existing_file_is_not_overwritten() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert_eq!(write_new(file.path(), &token()).expect_err("there").kind(), io::ErrorKind::AlreadyExists);
    }
}
