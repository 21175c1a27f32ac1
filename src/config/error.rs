//! What can be wrong with a configuration, as values. Each renders as one sentence that names the
//! key; none repeats a secret. Knows no key by itself.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::secret::redact;

/// The most characters of a refused value that are repeated in a message.
const SHOWN_MAX_CHARS: usize = 80;

/// Where a value came from; a later one prevails. Renders with its preposition: "in the environment".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// `config/redlockd.toml`, which the program carries.
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

/// Why the program does not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigError {
    /// The file cannot be read, or is not TOML.
    File {
        /// Which.
        path: PathBuf,
        /// Why, with the line.
        reason: String,
    },
    /// A key that does not exist.
    UnknownKey {
        /// As it was written.
        key: String,
        /// Where.
        origin: Origin,
        /// What may have been meant.
        nearest: Option<&'static str>,
    },
    /// A former name of a setting.
    Renamed {
        /// The former name.
        key: String,
        /// Where it was written.
        origin: Origin,
        /// The present name.
        present: &'static str,
    },
    /// A value of the wrong form or out of its range.
    Value {
        /// The key.
        key: String,
        /// Where the value was given.
        origin: Origin,
        /// The value, shortened and free of secrets; empty where it must not be shown.
        shown: String,
        /// "must be …", with the range and perhaps a hint.
        must: String,
    },
    /// Values that do not go together.
    Rule {
        /// The key that the sentence is about.
        key: &'static str,
        /// The whole sentence.
        sentence: String,
    },
}

impl ConfigError {
    /// A value that is refused; `value` is shortened and URLs in it lose their passwords.
    pub(super) fn value(key: &str, origin: Origin, value: &str, must: impl Into<String>) -> Self {
        Self::Value { key: key.into(), origin, shown: shorten(value), must: must.into() }
    }

    /// A value that is refused and not shown.
    pub(super) fn hidden(key: &str, origin: Origin, must: impl Into<String>) -> Self {
        Self::Value { key: key.into(), origin, shown: String::new(), must: must.into() }
    }

    /// A rule that is broken. `sentence` begins with the key.
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

/// Everything that is wrong, at least one error: an operator wants to see it all at once.
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

/// What is allowed and probably not meant. Renders as one sentence that names the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warning {
    /// A variable with our prefix that is not a setting.
    UnknownVariable {
        /// Its name.
        name: String,
        /// What may have been meant.
        nearest: Option<String>,
    },
    /// One Redis node.
    OneNode,
    /// An even number of nodes.
    EvenNodes {
        /// How many.
        nodes: usize,
    },
    /// A node may use up much of an ordinary lease.
    SlowNodeTimeout {
        /// The setting, and the TTL that it is compared with.
        node_timeout: String,
        /// The setting.
        default_ttl: String,
    },
    /// Reachable from elsewhere, without authentication, as somebody insisted.
    OpenListen {
        /// Where.
        listen: SocketAddr,
    },
    /// It has no effect.
    NeedlessInsecure,
    /// Keys would travel in the clear.
    PlainKeys {
        /// Where.
        listen: SocketAddr,
    },
    /// There is a file with a password, and no node without one.
    UnusedPasswordFile,
    /// TLS is set up and no node uses it.
    UnusedTls {
        /// The first of the keys that are set.
        key: &'static str,
    },
    /// `RUST_LOG` cannot be read.
    LogFilter {
        /// Why.
        reason: String,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownVariable { name, nearest } => {
                write!(f, "the environment variable {name} is not a setting and is ignored")?;
                nearest.as_ref().map_or(Ok(()), |nearest| write!(f, ": did you mean {nearest}?"))
            }
            Self::OneNode => f.write_str(
                "`nodes` names one node: while it is down or has lost its memory nobody gets a lock; use 3 or 5",
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
                "NO AUTHENTICATION: `listen` is {listen}, which others can reach, and `insecure_no_auth` is set: \
                 whoever can connect can take and force every lock"
            ),
            Self::NeedlessInsecure => f.write_str(
                "`insecure_no_auth` is set, but has no effect: there is an access_file, or only this machine can connect",
            ),
            Self::PlainKeys { listen } => write!(
                f,
                "`listen` is {listen} without TLS: keys and tokens travel where others can read them, unless a proxy in \
                 front of it speaks TLS"
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

/// A value as a message may repeat it: without passwords, short, on one line.
fn shorten(value: &str) -> String {
    let value = redact(value);
    let mut text: String = value.chars().take(SHOWN_MAX_CHARS).map(flatten).collect();
    if value.chars().nth(SHOWN_MAX_CHARS).is_some() {
        text.push('…');
    }
    text
}
