//! Sets up logging, on standard error: standard output is for answers of the command line.

use std::io::IsTerminal;

use tracing_subscriber::filter::{EnvFilter, ParseError};
use tracing_subscriber::fmt::format::{Format, Json, JsonFields};
use tracing_subscriber::prelude::*;
use tracing_subscriber::util::TryInitError;
use tracing_subscriber::{Layer, Registry, fmt};

use crate::config::{Config, Environment, LogFormat, LogLevel, Warning};

/// Overrides `log_level`, in tracing-subscriber's syntax, such as `redlockd=debug,redis=info`.
const FILTER_VARIABLE: &str = "RUST_LOG";

/// Starts logging, for the whole process. The warning, if any, is about an invalid `RUST_LOG`.
///
/// Errors: where logging was set up before.
pub(crate) fn init(config: &Config, env: &impl Environment) -> Result<Option<Warning>, TryInitError> {
    let (filter, warning) = filter(env.get(FILTER_VARIABLE).and_then(|v| v.into_string().ok()), config.log_level);
    let has_colours = std::io::stderr().is_terminal() && env.get("NO_COLOR").is_none_or(|v| v.is_empty());
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match config.log_format {
        LogFormat::Text => Box::new(fmt::layer().with_ansi(has_colours).with_writer(std::io::stderr)),
        LogFormat::Json => Box::new(json().with_writer(std::io::stderr)),
    };
    tracing_subscriber::registry().with(layer.with_filter(filter)).try_init()?;
    Ok(warning)
}

/// One object per line: time, level and the event's fields; those of its request are under `span`.
fn json<S>() -> fmt::Layer<S, JsonFields, Format<Json>> {
    fmt::layer().json().flatten_event(true).with_span_list(false)
}

fn filter(variable: Option<String>, level: LogLevel) -> (EnvFilter, Option<Warning>) {
    match variable.filter(|text| !text.is_empty()).map(EnvFilter::try_new) {
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (level_filter(level), Some(bad_filter(&error))),
        None => (level_filter(level), None),
    }
}

/// Our own messages at `level`; of libraries only warnings and errors. Of `h2` only errors: it warns of what any client may do.
fn level_filter(level: LogLevel) -> EnvFilter {
    let others = if level == LogLevel::Error { "error" } else { "warn" };
    EnvFilter::new(format!("{others},h2=error,redlockd={}", level.as_str()))
}

fn bad_filter(error: &ParseError) -> Warning {
    Warning::LogFilter { reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(variable: Option<&str>, level: LogLevel) -> String {
        filter(variable.map(str::to_owned), level).0.to_string()
    }

    #[test]
    fn libraries_log_warnings_and_errors_only() {
        assert_eq!(text(None, LogLevel::Debug), "redlockd=debug,h2=error,warn");
        assert_eq!(text(None, LogLevel::Error), "redlockd=error,h2=error,error");
    }

    #[test]
    fn the_variable_overrides_the_level_unless_empty_or_invalid() {
        assert_eq!(text(Some("redlockd=trace"), LogLevel::Info), "redlockd=trace");
        assert_eq!(text(Some(""), LogLevel::Info), text(None, LogLevel::Info));
        let (kept, warning) = filter(Some("redlockd=loud".into()), LogLevel::Info);
        assert_eq!(kept.to_string(), text(None, LogLevel::Info));
        let warning = warning.expect("a warning").to_string();
        assert!(warning.contains("RUST_LOG") && !warning.contains('\n'), "{warning}");
    }
}
