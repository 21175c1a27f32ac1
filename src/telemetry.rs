//! Sets up logging, on standard error: standard output is for answers of the command line.

use std::io::IsTerminal;

use tracing::{Event, Subscriber};
use tracing_subscriber::filter::{EnvFilter, ParseError};
use tracing_subscriber::fmt::format::{DefaultFields, Format, Json, JsonFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::Layered;
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::TryInitError;
use tracing_subscriber::{Layer, Registry, fmt};

use crate::config::{Config, Environment, LogFormat, LogLevel, Warning};
use crate::http::log_request::LogRequest;

/// Overrides `log_level`, in tracing-subscriber's syntax, such as `redlockd=debug,redis=info`.
const FILTER_VARIABLE: &str = "RUST_LOG";

/// Starts logging, for the whole process. The warning, if any, is about an invalid `RUST_LOG`.
///
/// Errors: where logging was set up before.
pub(crate) fn init(config: &Config, env: &impl Environment) -> Result<Option<Warning>, TryInitError> {
    let (filter, warning) = filter(env.get(FILTER_VARIABLE).and_then(|v| v.into_string().ok()), config.log_level);
    let has_colours = std::io::stderr().is_terminal() && env.get("NO_COLOR").is_none_or(|v| v.is_empty());
    let layer: Box<dyn Layer<Layered<EnvFilter, Registry>> + Send + Sync> = match config.log_format {
        LogFormat::Text => Box::new(text(SystemTime, has_colours).with_writer(std::io::stderr)),
        LogFormat::Json => Box::new(json(SystemTime).with_writer(std::io::stderr)),
    };
    // Not a filter of the layer: such a filter looks up each span whenever it is entered or left.
    tracing_subscriber::registry().with(filter).with(layer).try_init()?;
    Ok(warning)
}

/// Lines of text: time, level, the fields of the event's request, and its own.
fn text<S, T>(timer: T, has_colours: bool) -> fmt::Layer<S, DefaultFields, TextLines<T>>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    T: FormatTime + 'static,
{
    let format = Format::default().with_timer(timer).with_ansi(has_colours);
    fmt::layer().with_ansi(has_colours).event_format(TextLines(format))
}

/// One object per line: time, level and the event's fields; those of its request are under `span`.
fn json<S, T>(timer: T) -> fmt::Layer<S, JsonFields, JsonLines<T>>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    T: FormatTime + 'static,
{
    let format = Format::default().with_timer(timer).json().flatten_event(true).with_span_list(false);
    fmt::layer().json().event_format(JsonLines(format))
}

/// Adds the request to a line of text, where the span of a request would be.
struct TextLines<T>(Format<fmt::format::Full, T>);

impl<S, N, T> FormatEvent<S, N> for TextLines<T>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    T: FormatTime,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> std::fmt::Result {
        let Some(request) = LogRequest::current() else { return self.0.format_event(ctx, out, event) };
        let (mut line, has_colours) = (String::new(), out.has_ansi_escapes());
        self.0.format_event(ctx, Writer::new(&mut line), event)?;
        // No time contains the name of a level. A space follows it, and before that the end of its colour.
        let level = event.metadata().level().as_str();
        let after = level.len() + if has_colours { "\x1b[0m ".len() } else { " ".len() };
        let (start, rest) = line.split_at_checked(line.find(level).map_or(0, |at| at + after)).unwrap_or(("", &line));
        out.write_str(start)?;
        request.write_text(&mut out, has_colours)?;
        out.write_str(rest)
    }
}

/// Adds the request to a line of JSON, as its last member.
struct JsonLines<T>(Format<Json, T>);

impl<S, N, T> FormatEvent<S, N> for JsonLines<T>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    T: FormatTime,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> std::fmt::Result {
        let Some(request) = LogRequest::current() else { return self.0.format_event(ctx, out, event) };
        let mut line = String::new();
        self.0.format_event(ctx, Writer::new(&mut line), event)?;
        let Some(members) = line.strip_suffix("}\n") else { return out.write_str(&line) };
        write!(out, "{members},\"span\":")?;
        request.write_json(&mut out)?;
        out.write_str("}\n")
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
    use crate::http::middleware::request_id;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const PARENT: &str = "00f067aa0ba902b7";

    #[derive(Clone, Default)]
    struct Lines(std::sync::Arc<parking_lot::Mutex<Vec<u8>>>);

    impl Lines {
        fn writer(&self) -> impl Fn() -> Self + Send + Sync + use<> {
            let lines = self.clone();
            move || lines.clone()
        }

        fn take(&self) -> String {
            String::from_utf8(std::mem::take(&mut *self.0.lock())).expect("text")
        }
    }

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn filtered(variable: Option<&str>, level: LogLevel) -> String {
        filter(variable.map(str::to_owned), level).0.to_string()
    }

    #[test]
    fn libraries_log_warnings_and_errors_only() {
        assert_eq!(filtered(None, LogLevel::Debug), "redlockd=debug,h2=error,warn");
        assert_eq!(filtered(None, LogLevel::Error), "redlockd=error,h2=error,error");
    }

    /// What a request's line is with these layers: one knows the request, the other one has a span with the same fields.
    fn both(
        ours: impl Layer<Registry> + Send + Sync,
        theirs: impl Layer<Registry> + Send + Sync,
        lines: &Lines,
    ) -> [String; 2] {
        let error = std::io::Error::other(std::fmt::Error);
        let say = || tracing::warn!(%error, r#type = "x", n = 1, "it \u{1b}[31m failed at level INFO");
        let path = "/locks/x%22y";
        let mut head = axum::http::Request::builder().method("POST").uri(format!("{path}?token=x"));
        head = head.header("x-request-id", "a-1").header("traceparent", format!("00-{TRACE}-{PARENT}-01"));
        let head = head.body(axum::body::Body::empty()).expect("a request");
        let in_log = Some(request_id::identify(&head).1);
        tracing::subscriber::with_default(Registry::default().with(ours), || LogRequest::enter(&in_log, say));
        let ours = lines.take();
        tracing::subscriber::with_default(Registry::default().with(theirs), || {
            let (method, request_id) = (tracing::field::display("POST"), "a-1");
            tracing::error_span!("request", request_id, method, path, trace_id = TRACE, parent_id = PARENT)
                .in_scope(say);
        });
        [ours, lines.take()]
    }

    #[test]
    fn lines_about_a_request_are_those_of_a_span_with_its_fields() {
        let lines = Lines::default();
        for has_colours in [false, true] {
            let ours = text((), has_colours).with_writer(lines.writer());
            let theirs = fmt::layer().with_ansi(has_colours).with_timer(()).with_writer(lines.writer());
            let [ours, theirs] = both(ours, theirs, &lines);
            assert_eq!(ours, theirs);
            assert!(ours.contains("/locks/x%22y") && !ours.contains("token"), "{ours}");
        }
        let theirs = fmt::layer().json().flatten_event(true).with_span_list(false).with_timer(());
        let [ours, theirs] = both(json(()).with_writer(lines.writer()), theirs.with_writer(lines.writer()), &lines);
        let parsed = [ours, theirs].map(|line| serde_json::from_str::<serde_json::Value>(&line).expect("JSON"));
        assert_eq!(parsed[0], parsed[1]);
        assert_eq!(parsed[0]["span"]["parent_id"], PARENT);
    }

    #[test]
    fn the_variable_overrides_the_level_unless_empty_or_invalid() {
        assert_eq!(filtered(Some("redlockd=trace"), LogLevel::Info), "redlockd=trace");
        assert_eq!(filtered(Some(""), LogLevel::Info), filtered(None, LogLevel::Info));
        let (kept, warning) = filter(Some("redlockd=loud".into()), LogLevel::Info);
        assert_eq!(kept.to_string(), filtered(None, LogLevel::Info));
        let warning = warning.expect("a warning").to_string();
        assert!(warning.contains("RUST_LOG") && !warning.contains('\n'), "{warning}");
    }
}
