//! The configuration: one checked [`Config`], made of four layers: defaults < file < environment < command line. `settings.rs`
//! declares the settings; everything that is wrong is a value ([`ConfigError`], [`Warning`]).

mod environment;
mod error;
mod file;
mod load;
mod nodes;
mod password;
mod raw;
mod rules;
mod secret;
mod setting_macro;
mod settings;
mod terms;
mod value_types;

pub use environment::{Environment, ProcessEnvironment};
pub use error::{ConfigError, ConfigErrors, Origin, Warning};
pub use file::DEFAULTS;
pub use load::{Inputs, Loaded};
pub use nodes::{MAX_NODES, NodeSpec};
pub use password::PasswordFileError;
pub use secret::{Secret, redact};
pub use setting_macro::{Setting, VARIABLE_PREFIX};
pub use settings::{Config, SETTINGS};
pub use terms::TermsRules;
pub use value_types::{LogFormat, LogLevel};
