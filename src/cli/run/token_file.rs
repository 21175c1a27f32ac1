//! The file that carries a token to the command: only its owner can read it, it is written before
//! anything is acquired, and it is gone at the end. Knows nothing of leases.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::redlock::entropy::{Entropy, SystemEntropy};
use crate::types::Token;

/// Only the owner.
const MODE: u32 = 0o600;

/// A file with a token; removed when dropped.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
}

/// Why there is no file.
#[derive(Debug, thiserror::Error)]
#[error("the token file {path} cannot be written: {source}")]
pub struct TokenFileError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl TokenFile {
    /// Writes a new file with a name of its own in `dir`.
    ///
    /// Errors: [`TokenFileError`]; nothing is left behind then.
    pub fn create_in(dir: &Path, token: &Token) -> Result<Self, TokenFileError> {
        let path = dir.join(format!("redlockd-token-{:016x}", SystemEntropy.bits()));
        let file = Self { path };
        match write_new(&file.path, token) {
            Ok(()) => Ok(file),
            // Dropping `file` removes what was begun.
            Err(source) => Err(TokenFileError { path: file.path.clone(), source }),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        // Its command may have removed it.
        let _ = fs::remove_file(&self.path);
    }
}

/// Writes the token and a newline into a file that must not exist yet.
///
/// Errors: the operating system's; an incomplete file may be left behind.
pub fn write_new(path: &Path, token: &Token) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path)?;
    // A full disk shows here: local file systems reserve the space as they take the bytes. The file need not outlive
    // a crash, so nothing waits for the disk.
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
    fn only_the_owner_can_read_it_and_it_is_gone_at_the_end() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = TokenFile::create_in(dir.path(), &token()).expect("written");
        let path = file.path().to_owned();
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&path).expect("readable"), "hunter2hunter2hunter2hunter2\n");
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn no_room_is_an_error_that_names_the_file_and_not_the_token() {
        let error = TokenFile::create_in(Path::new("/nowhere"), &token()).expect_err("no directory").to_string();
        assert!(error.contains("/nowhere/redlockd-token-") && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn a_file_that_is_there_is_not_written_over() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert_eq!(write_new(file.path(), &token()).expect_err("there").kind(), io::ErrorKind::AlreadyExists);
    }
}
