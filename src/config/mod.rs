//! The configuration: one checked [`Config`], made of four layers, defaults < file < environment <
//! flags. Whatever is wrong is a value ([`ConfigError`], [`Warning`]) that is rendered at the edge.
//! Knows the domain's types and nothing of what the settings are used for.

mod environment;
mod error;
mod file;
mod keys;
mod layers;
mod load;
mod nodes;
mod password;
mod raw;
mod rules;
mod secret;
mod settings;
mod value;

pub use environment::{Environment, ProcessEnvironment};
pub use error::{ConfigError, ConfigErrors, Origin, Warning};
pub use file::DEFAULTS;
pub use keys::{Form, KEYS, Key, VARIABLE_PREFIX};
pub use load::{Inputs, Loaded};
pub use nodes::{MAX_NODES, NodeSpec};
pub use password::PasswordFileError;
pub use secret::{Secret, redact};
pub use settings::{Config, Identity, LogFormat, LogLevel};
