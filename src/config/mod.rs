//! The configuration: one checked [`Config`], made of four layers: defaults < file < environment < command line.
//! `settings.rs` declares the settings; whatever is wrong is a value ([`ConfigError`], [`Warning`]).

mod declaration;
mod environment;
mod error;
mod file;
mod load;
mod nodes;
mod password;
mod raw;
mod rules;
mod secret;
mod settings;
mod value_types;

pub use declaration::{Setting, VARIABLE_PREFIX};
pub use environment::{Environment, ProcessEnvironment};
pub use error::{ConfigError, ConfigErrors, Origin, Warning};
pub use file::DEFAULTS;
pub use load::{Inputs, Loaded};
pub use nodes::{MAX_NODES, NodeSpec};
pub use password::PasswordFileError;
pub use secret::{Secret, redact};
pub use settings::{Config, SETTINGS};
pub use value_types::{LogFormat, LogLevel};
