//! The nodes' passwords from files, read before connecting and inserted into the URLs. The rest of the configuration is checked
//! without these files. No message repeats their content.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::nodes::NodeSpec;
use super::secret::Secret;
use super::settings::Config;
use crate::nodes::redis::NodeUrl;

/// Maximum length of a password: percent-encoded, it still fits into the URLs that `nodes/` accepts.
const PASSWORD_MAX_BYTES: u64 = 256;

/// Minimum length: a shorter secret could be guessed from a cookie that it signed.
const SESSION_SECRET_MIN_BYTES: usize = 32;

/// Why a password file was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{key}`: {path} {why}")]
pub struct PasswordFileError {
    /// The setting that names the file.
    pub key: &'static str,
    pub path: PathBuf,
    /// The reason; follows the path in the message.
    pub why: String,
}

impl Config {
    /// The nodes' URLs, each with its password: that of the URL, of its `password_file`, or else of `node_password_file`. In the
    /// order of [`Config::nodes`].
    ///
    /// Errors: [`PasswordFileError`] if a required file cannot be used.
    pub fn node_urls(&self) -> Result<Vec<NodeUrl>, PasswordFileError> {
        self.nodes.iter().map(|node| url(node, self.node_password_file.as_deref())).collect()
    }
}

impl Config {
    /// The secret that signs sessions of the dashboard; `None` if none is set.
    ///
    /// Errors: [`PasswordFileError`].
    pub fn session_secret(&self) -> Result<Option<Secret>, PasswordFileError> {
        let Some(path) = &self.session_secret_file else { return Ok(None) };
        let refuse = |why| PasswordFileError { key: "session_secret_file", path: path.clone(), why };
        let secret = read(path).map_err(refuse)?;
        if secret.reveal().len() < SESSION_SECRET_MIN_BYTES {
            return Err(refuse(format!(
                "has fewer than {SESSION_SECRET_MIN_BYTES} characters: `openssl rand -hex 32` makes a secret"
            )));
        }
        Ok(Some(secret))
    }
}

fn url(node: &NodeSpec, common: Option<&Path>) -> Result<NodeUrl, PasswordFileError> {
    let own = node.password_file.as_deref().map(|path| ("node.password_file", path));
    let common = common.map(|path| ("node_password_file", path));
    match own.or(common).filter(|_| !node.parsed().has_password()) {
        None => Ok(node.parsed().clone()),
        Some((key, path)) => {
            let refuse = |why| PasswordFileError { key, path: path.to_owned(), why };
            Ok(node.parsed().clone().with_password(read(path).map_err(refuse)?.reveal()))
        }
    }
}

/// Reads one line; its newline may be missing. Errors: the reason, which follows the path in the message.
fn read(path: &Path) -> Result<Secret, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let mut text = String::new();
    // One byte more than allowed, and the newline, so that a longer password is detected.
    let mut file = File::open(path).map_err(unreadable)?.take(PASSWORD_MAX_BYTES + 3);
    if file.read_to_string(&mut text).is_err() {
        return Err("cannot be read, or is not text".to_owned());
    }
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    match line {
        "" => Err("is empty, but must have the password in its one line".to_owned()),
        line if line.len() > usize::try_from(PASSWORD_MAX_BYTES).unwrap_or(usize::MAX) => {
            Err(format!("has a password of more than {PASSWORD_MAX_BYTES} bytes"))
        }
        line if line.contains(char::is_control) => Err("must have one line, and the password in it".to_owned()),
        line => Ok(Secret::new(line)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::load::Inputs;
    use super::*;

    fn file(text: &[u8]) -> tempfile::TempPath {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), text).expect("writable");
        file.into_temp_path()
    }

    fn load(nodes: &[&str], common: &Path) -> Config {
        let flags = vec![("node_password_file".to_owned(), common.display().to_string())];
        let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
        Inputs { flags, nodes, ..Inputs::default() }.load(&BTreeMap::<String, String>::new()).expect("good").config
    }

    #[test]
    fn a_url_without_a_password_gets_that_of_the_file_and_any_other_keeps_its_own() {
        for text in ["p@ss/w:rd #%?é", "p@ss/w:rd #%?é\n", "p@ss/w:rd #%?é\r\n"] {
            let path = file(text.as_bytes());
            let nodes =
                ["redis://a", "redis://bob@b:1/2", "rediss://c", "unix:///d", "unix:///e?db=2", "redis://:own@f"];
            let config = load(&nodes, &path);
            let urls = config.node_urls().expect("readable");
            let encoded = "p%40ss%2Fw%3Ard%20%23%25%3F%C3%A9";
            let expected = [
                format!("redis://:{encoded}@a"),
                format!("redis://bob:{encoded}@b:1/2"),
                format!("rediss://:{encoded}@c"),
                format!("unix:///d?pass={encoded}"),
                format!("unix:///e?db=2&pass={encoded}"),
                "redis://:own@f".to_owned(),
            ];
            for (url, expected) in urls.iter().zip(expected) {
                assert_eq!(*url, NodeUrl::parse(&expected).expect("valid"));
            }
            let shown = format!("{config:?} {urls:?}");
            assert!(!shown.contains("p@ss") && !shown.contains(encoded), "{shown}");
        }
    }

    #[test]
    fn the_file_of_a_node_prevails_and_one_that_nobody_needs_is_not_read() {
        let (own, common) = (file(b"own"), file(b"common"));
        let mut config = load(&["redis://a", "redis://b"], &common);
        config.nodes[0].password_file = Some(own.to_path_buf());
        let urls = config.node_urls().expect("readable");
        assert_eq!(urls, ["redis://:own@a", "redis://:common@b"].map(|url| NodeUrl::parse(url).expect("valid")));
        let own = ["redis://:own@a", "unix:///b?pass=own"];
        let urls = load(&own, Path::new("/nowhere")).node_urls().expect("no file is read");
        assert_eq!(urls, own.map(|url| NodeUrl::parse(url).expect("valid")));
    }

    #[test]
    fn a_file_that_does_not_do_is_named_without_what_is_in_it() {
        let long = "SECRET".repeat(50);
        for (text, why) in [
            (&b""[..], "is empty"),
            (b"\n", "is empty"),
            (b"SECRET\nSECRET\n", "one line"),
            (b"SECRET\0", "one line"),
            (b"SECRET\xff", "is not text"),
            (long.as_bytes(), "more than 256 bytes"),
        ] {
            let path = file(text);
            let error = load(&["redis://a"], &path).node_urls().expect_err(why).to_string();
            assert!(error.starts_with("`node_password_file`: /") && error.contains(why), "{error}");
            assert!(!error.contains("SECRET"), "{error}");
        }
        let error = load(&["redis://a"], Path::new("/nowhere/x")).node_urls().expect_err("not there").to_string();
        assert!(error.starts_with("`node_password_file`: /nowhere/x cannot be read: "), "{error}");
    }
}
