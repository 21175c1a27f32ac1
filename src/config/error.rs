//! Errors and warnings of the configuration. Each renders as one sentence that names the key; none repeats a secret.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::secret::redact;

/// Maximum number of characters of a refused value in a message.
const SHOWN_MAX_CHARS: usize = 80;

/// The layer that set a value; later ones override earlier ones. Renders with its preposition: "in the environment".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// The declared default.
    Default,
    /// The file given with `--config`.
    File,
    /// A variable `REDLOCKD_…`.
    Environment,
    /// The command line.
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "in the defaults",
            Self::File => "in the configuration file",
            Self::Environment => "in the environment",
            Self::Flag => "on the command line",
        })
    }
}

/// An error in the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigError {
    /// The file cannot be read, or is not TOML.
    File {
        path: PathBuf,
        /// The reason, with the line.
        reason: String,
    },
    /// A setting that does not exist.
    UnknownKey {
        /// The key as written.
        key: String,
        /// The layer that has the key.
        origin: Origin,
        /// The setting that was probably meant.
        nearest: Option<&'static str>,
    },
    /// A former name of a setting.
    Renamed {
        key: String,
        /// The layer that has the key.
        origin: Origin,
        /// The present name.
        present: &'static str,
    },
    /// A value of the wrong type or out of its range.
    Value {
        key: String,
        /// The layer that has the value.
        origin: Origin,
        /// The value, shortened and without passwords; empty if it must not be shown.
        shown: String,
        /// "must be …", with the range and perhaps a hint.
        must: String,
    },
    /// Values that contradict each other.
    Rule {
        /// The setting to change.
        key: &'static str,
        /// The whole sentence.
        sentence: String,
    },
}

impl ConfigError {
    /// A refused value; `value` is shortened and URLs in it lose their passwords.
    pub(super) fn value(key: &str, origin: Origin, value: &str, must: impl Into<String>) -> Self {
        Self::Value { key: key.into(), origin, shown: shorten(value), must: must.into() }
    }

    /// A refused value that is not shown.
    pub(super) fn hidden(key: &str, origin: Origin, must: impl Into<String>) -> Self {
        Self::Value { key: key.into(), origin, shown: String::new(), must: must.into() }
    }

    /// A violated rule. `sentence` begins with the key.
    pub(super) fn rule(key: &'static str, sentence: String) -> Self {
        Self::Rule { key, sentence }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, reason } => write!(f, "the configuration file {} {reason}", path.display()),
            Self::UnknownKey { key, origin, nearest } => {
                write!(f, "`{}` {origin} is not a setting", shorten(key))?;
                nearest.map_or(Ok(()), |nearest| write!(f, ": did you mean `{nearest}`?"))
            }
            Self::Renamed { key, origin, present } => {
                write!(f, "`{key}` {origin} is called `{present}` since 0.1.0: write `{present}`")
            }
            Self::Value { key, origin, shown, must } if shown.is_empty() => write!(f, "`{key}` {origin} {must}"),
            Self::Value { key, origin, shown, must } => write!(f, "`{key}` {origin} is {shown}, but {must}"),
            Self::Rule { sentence, .. } => f.write_str(sentence),
        }
    }
}

impl std::error::Error for ConfigError {}

/// All errors of a configuration, at least one, so that they can be fixed at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if i == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// A configuration that is valid but probably not intended. Renders as one sentence that names the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warning {
    /// A variable with the prefix that is not a setting.
    UnknownVariable {
        name: String,
        /// The setting that was probably meant.
        nearest: Option<String>,
    },
    /// One Redis node, whose failure stops all acquires.
    OneNode,
    /// An even number of nodes.
    EvenNodes { nodes: usize },
    /// One slow node can use up much of a default lease.
    SlowNodeTimeout {
        /// The setting `node_timeout`.
        node_timeout: String,
        /// The setting `default_ttl`.
        default_ttl: String,
    },
    /// Other machines can connect without authentication, as `insecure_no_auth` allows.
    OpenListen { listen: SocketAddr },
    /// `insecure_no_auth` has no effect.
    NeedlessInsecure,
    /// Keys are sent unencrypted.
    PlainKeys { listen: SocketAddr },
    /// A password file that no node needs.
    UnusedPasswordFile,
    /// TLS settings that no node needs.
    UnusedTls {
        /// The first of these settings.
        key: &'static str,
    },
    /// `RUST_LOG` is not a log filter.
    LogFilter { reason: String },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownVariable { name, nearest } => {
                write!(f, "the environment variable {name} is not a setting and is ignored")?;
                nearest.as_ref().map_or(Ok(()), |nearest| write!(f, ": did you mean {nearest}?"))
            }
            Self::OneNode => f.write_str(
                "`nodes` names one node: while it is down or in quarantine no lock can be acquired; use 3 or 5",
            ),
            Self::EvenNodes { nodes: 2 } => f.write_str(
                "`nodes` names 2 nodes, and both must answer every request: that tolerates no failure at all and \
                 fails twice as often as one node; use 3",
            ),
            Self::EvenNodes { nodes } => write!(
                f,
                "`nodes` names {nodes} nodes, an even number, which tolerates no more failures than {}",
                nodes - 1
            ),
            Self::SlowNodeTimeout { node_timeout, default_ttl } => write!(
                f,
                "`node_timeout` is {node_timeout}, more than a fifth of default_ttl ({default_ttl}): one slow node \
                 uses up much of a lease"
            ),
            Self::OpenListen { listen } => write!(
                f,
                "NO AUTHENTICATION: `listen` is {listen}, which other machines can reach, and `insecure_no_auth` is set: \
                 everybody who can connect can acquire and force every lock"
            ),
            Self::NeedlessInsecure => f.write_str(
                "`insecure_no_auth` is set, but has no effect, because there is an access_file or `listen` is a loopback address",
            ),
            Self::PlainKeys { listen } => write!(
                f,
                "`listen` is {listen} without TLS: keys and tokens are sent unencrypted, unless a proxy in front of it \
                 terminates TLS"
            ),
            Self::UnusedPasswordFile => f.write_str(
                "`node_password_file` is set, but each node has a password of its own, or there is none, so it is not used",
            ),
            Self::UnusedTls { key } => {
                write!(f, "`{key}` is set, but no node URL begins with rediss://, so it is not used")
            }
            Self::LogFilter { reason } => {
                write!(f, "the environment variable RUST_LOG is not a log filter ({reason}) and is ignored")
            }
        }
    }
}

fn flatten(c: char) -> String {
    if c.is_control() { c.escape_debug().to_string() } else { c.to_string() }
}

/// A value for a message: without passwords, short, on one line.
fn shorten(value: &str) -> String {
    let value = redact(value);
    let mut text: String = value.chars().take(SHOWN_MAX_CHARS).map(flatten).collect();
    if value.chars().nth(SHOWN_MAX_CHARS).is_some() {
        text.push('…');
    }
    text
}
