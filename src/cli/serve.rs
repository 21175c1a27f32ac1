//! `redlockd serve` and `redlockd init`: start the log and the runtime, and run the service until a signal.

use std::io::Write;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::exit;
use super::output::print_line;
use super::sd_notify::{READY, STOPPING, notify};
use crate::app::{self, App};
use crate::config::{Config, Environment, Loaded};
use crate::shutdown::Signals;
use crate::telemetry;

/// Serves until a signal; returns the exit code. An error is one sentence on `err`.
pub(super) fn serve(loaded: Loaded, env: &impl Environment, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let Loaded { config, mut warnings } = loaded;
    match telemetry::init(&config, env) {
        Ok(warning) => warnings.extend(warning),
        Err(error) => return fail(err, &error),
    }
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => return fail(err, &error),
    };
    let code = match runtime.block_on(until_stopped(&config, env, out)) {
        Ok(code) => code,
        Err(error) => fail(err, &*error),
    };
    // Blocking threads had their time to finish.
    runtime.shutdown_background();
    code
}

/// That of the main thread.
fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

async fn until_stopped(
    config: &Config,
    env: &impl Environment,
    out: &mut dyn Write,
) -> Result<u8, Box<dyn std::error::Error>> {
    let mut signals = Signals::listen()?;
    // `systemctl reload` must not end a service that has no files to reload.
    let is_unit = env.get("NOTIFY_SOCKET").is_some_and(|socket| !socket.is_empty());
    let _hangups = is_unit.then(|| signal(SignalKind::hangup())).transpose()?;
    let token = CancellationToken::new();
    let service = async {
        let app = App::start(config).await?;
        // Nobody reads a closed standard output.
        let _ = write!(out, "{}", app.announcement()).and_then(|()| out.flush());
        notify(env, READY);
        app.run(token.clone()).await
    };
    let stopping = async {
        token.cancelled().await;
        notify(env, STOPPING);
        std::future::pending::<u8>().await
    };
    tokio::select! {
        biased;
        code = signals.supervise(&token) => Ok(code),
        code = stopping => Ok(code),
        result = service => result.map(|()| exit::OK).map_err(Into::into),
    }
}

/// `redlockd init`: declares a new cluster; returns the exit code.
pub(super) fn init(loaded: Loaded, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let declared = runtime().map_err(app_io).and_then(|runtime| runtime.block_on(app::init(&loaded.config)));
    match declared {
        Ok(report) => {
            let _ = writeln!(out, "{report}");
            exit::OK
        }
        Err(error) => {
            let code = fail(err, &error);
            // Provisioning scripts run this repeatedly.
            if matches!(error, app::AppError::AlreadyInitialised(_)) { exit::NO } else { code }
        }
    }
}

fn app_io(error: std::io::Error) -> app::AppError {
    app::AppError::Runtime(error)
}

/// Prints one sentence with all causes; a cause that the message already contains is not repeated.
fn fail(err: &mut dyn Write, error: &dyn std::error::Error) -> u8 {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let reason = error.to_string();
        if !text.ends_with(&reason) {
            text.push_str(": ");
            text.push_str(&reason);
        }
        cause = error.source();
    }
    print_line(err, &format!("redlockd: {text}"));
    exit::UNAVAILABLE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Outer {
        #[error("cannot start")]
        Plain(#[source] std::io::Error),
        #[error("cannot start: {0}")]
        WithCause(#[source] std::io::Error),
    }

    #[test]
    fn error_is_one_sentence_with_each_cause_once() {
        let cause = || std::io::Error::other("disk full");
        for error in [Outer::Plain(cause()), Outer::WithCause(cause())] {
            let mut err = Vec::new();
            assert_eq!(fail(&mut err, &error), exit::UNAVAILABLE);
            assert_eq!(String::from_utf8(err).as_deref(), Ok("redlockd: cannot start: disk full\n"));
        }
    }
}
