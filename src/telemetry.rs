//! Sets up logging, on standard error: standard output is for answers of the command line.

use std::io::IsTerminal;

use tracing::field::{Field, Visit};
use tracing_subscriber::field::{RecordFields, VisitOutput};
use tracing_subscriber::filter::{EnvFilter, ParseError};
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultVisitor, Format, Json, JsonFields, Writer};
use tracing_subscriber::layer::Layered;
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
    let layer: Box<dyn Layer<Layered<EnvFilter, Registry>> + Send + Sync> = match config.log_format {
        LogFormat::Text if has_colours => Box::new(fmt::layer().with_writer(std::io::stderr)),
        LogFormat::Text => Box::new(plain().with_writer(std::io::stderr)),
        LogFormat::Json => Box::new(json().with_writer(std::io::stderr)),
    };
    // Not a filter of the layer: such a filter looks up each span whenever it is entered or left.
    tracing_subscriber::registry().with(filter).with(layer).try_init()?;
    Ok(warning)
}

/// Lines without colours.
fn plain<S>() -> fmt::Layer<S, PlainFields> {
    fmt::layer().with_ansi(false).fmt_fields(PlainFields)
}

/// One object per line: time, level and the event's fields; those of its request are under `span`.
fn json<S>() -> fmt::Layer<S, JsonFields, Format<Json>> {
    fmt::layer().json().flatten_event(true).with_span_list(false)
}

/// Writes fields as [`DefaultFields`](fmt::format::DefaultFields) does without colours. Each request has a span with fields, and
/// those spend most of their time on the absent colours of names, values and the sign between them.
#[derive(Debug, Clone, Copy)]
struct PlainFields;

impl<'w> FormatFields<'w> for PlainFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> std::fmt::Result {
        let mut visitor = PlainVisitor { writer, is_empty: true, result: Ok(()) };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct PlainVisitor<'w> {
    writer: Writer<'w>,
    is_empty: bool,
    result: std::fmt::Result,
}

impl PlainVisitor<'_> {
    /// Lets the default visitor write a field: messages, errors and raw identifiers.
    fn by_default(&mut self, write: impl FnOnce(&mut DefaultVisitor<'_>)) {
        let mut visitor = DefaultVisitor::new(self.writer.by_ref(), self.is_empty);
        write(&mut visitor);
        self.result = self.result.and(visitor.finish());
        self.is_empty = false;
    }

    fn write_named(&mut self, name: &str, write: impl FnOnce(&mut Writer<'_>) -> std::fmt::Result) {
        let space = if self.is_empty { "" } else { " " };
        self.is_empty = false;
        let written = self.writer.write_str(space).and_then(|()| self.writer.write_str(name));
        let written = written.and_then(|()| self.writer.write_char('=')).and_then(|()| write(&mut self.writer));
        self.result = self.result.and(written);
    }
}

/// Whether the default visitor treats this field apart.
fn is_special(name: &str) -> bool {
    name == "message" || name.starts_with("r#")
}

impl Visit for PlainVisitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        let is_plain = value.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\');
        if !is_plain || is_special(field.name()) {
            return self.by_default(|visitor| visitor.record_str(field, value));
        }
        self.write_named(field.name(), |writer| {
            writer.write_char('"')?;
            writer.write_str(value)?;
            writer.write_char('"')
        });
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.by_default(|visitor| visitor.record_error(field, value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if is_special(field.name()) {
            return self.by_default(|visitor| visitor.record_debug(field, value));
        }
        self.write_named(field.name(), |writer| write!(writer, "{value:?}"));
    }
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

    /// Both ways of writing the same event and span, without the times.
    #[test]
    fn plain_fields_are_written_as_by_default_without_colours() {
        #[derive(Clone, Default)]
        struct Lines(std::sync::Arc<parking_lot::Mutex<Vec<u8>>>);
        impl std::io::Write for Lines {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let written = |log: &dyn Fn(Lines) -> Box<dyn Layer<Registry> + Send + Sync>| {
            let lines = Lines::default();
            tracing::subscriber::with_default(Registry::default().with(log(lines.clone())), || {
                let error = std::io::Error::other(std::fmt::Error);
                let span = tracing::error_span!(
                    "request",
                    id = "a \"b\" \\ \u{1b}ä",
                    path = "/locks/x",
                    quote = "a \"b\"",
                    back = "a\\b",
                    late = tracing::field::Empty
                );
                span.record("late", 7);
                let _entered = span.enter();
                tracing::warn!(%error, source = &error as &dyn std::error::Error, r#type = "x", n = 1, "it \u{1b}[31m failed");
            });
            String::from_utf8(lines.0.lock().clone()).expect("text")
        };
        let by_default =
            written(&|lines| Box::new(fmt::layer().with_ansi(false).without_time().with_writer(move || lines.clone())));
        let plainly = written(&|lines| Box::new(plain().without_time().with_writer(move || lines.clone())));
        assert_eq!(plainly, by_default);
        assert!(by_default.contains("path=\"/locks/x\" quote="), "{by_default}");
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
