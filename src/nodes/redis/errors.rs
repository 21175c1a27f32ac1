//! Maps the driver's and the server's errors to [`Unreachable`]. Operators act on the kind, so each must be correct.

use std::io;

use crate::protocol::{Unreachable, UnreachableKind};
use deadpool_redis::redis::{ErrorKind, RedisError, ServerErrorKind, make_extension_error};

/// Maximum length of a detail in the log; longer ones are cut.
const DETAIL_MAX_CHARS: usize = 300;

/// Whether the node does not know the script: the script did not run.
pub(super) fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Whether the connection must be replaced.
pub(super) fn breaks_connection(error: &RedisError) -> bool {
    error.is_unrecoverable_error() || (error.is_io_error() && !error.is_timeout())
}

/// The error of a command that may have been sent.
pub(super) fn of_call(error: &RedisError) -> Unreachable {
    Unreachable::new(kind_of(error), detail_of(error))
}

/// The error of an attempt to connect, of a hand-shake or of a health check.
pub(super) fn of_connecting(error: &RedisError) -> Unreachable {
    let kind = match kind_of(error) {
        UnreachableKind::Broken => UnreachableKind::Disconnected,
        kind => kind,
    };
    Unreachable::new(kind, detail_of(error))
}

fn kind_of(error: &RedisError) -> UnreachableKind {
    match error.kind() {
        ErrorKind::AuthenticationFailed => UnreachableKind::Auth,
        ErrorKind::Io => match error.is_timeout() {
            true => UnreachableKind::Timeout,
            false => UnreachableKind::Broken,
        },
        ErrorKind::Server(kind) => of_server(kind, error.detail().unwrap_or("")),
        ErrorKind::Extension => of_code(error.code().unwrap_or("")).unwrap_or(UnreachableKind::Protocol),
        _ => UnreachableKind::Protocol,
    }
}

fn of_server(kind: ServerErrorKind, detail: &str) -> UnreachableKind {
    match kind {
        ServerErrorKind::NoPerm => UnreachableKind::Auth,
        ServerErrorKind::ReadOnly => UnreachableKind::ReadOnly,
        ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown => UnreachableKind::Busy,
        ServerErrorKind::Moved
        | ServerErrorKind::Ask
        | ServerErrorKind::ClusterDown
        | ServerErrorKind::CrossSlot
        | ServerErrorKind::TryAgain => UnreachableKind::Unsuitable,
        ServerErrorKind::ResponseError => of_script(detail),
        _ => UnreachableKind::Protocol,
    }
}

/// Error codes without a name in the driver.
fn of_code(code: &str) -> Option<UnreachableKind> {
    match code {
        "WRONGPASS" | "NOAUTH" | "NOPERM" => Some(UnreachableKind::Auth),
        "READONLY" => Some(UnreachableKind::ReadOnly),
        "OOM" | "MISCONF" => Some(UnreachableKind::Full),
        "LOADING" | "BUSY" | "MASTERDOWN" => Some(UnreachableKind::Busy),
        _ => None,
    }
}

/// A plain `ERR`: older servers wrap a script's error in one, with the code somewhere in the text.
fn of_script(detail: &str) -> UnreachableKind {
    if detail.contains("user executing the script can't") || detail.contains("max number of clients") {
        return if detail.contains("clients") { UnreachableKind::Busy } else { UnreachableKind::Auth };
    }
    detail
        .split_ascii_whitespace()
        .filter_map(|word| word.strip_prefix('-'))
        .find_map(of_code)
        .unwrap_or(UnreachableKind::Protocol)
}

fn detail_of(error: &RedisError) -> String {
    error.to_string().chars().take(DETAIL_MAX_CHARS).collect()
}

/// The error of a hand-shake that found no master.
pub(super) fn not_master(role: &str) -> RedisError {
    make_extension_error("READONLY".into(), Some(format!("the server's role is {role}")))
}

/// The end of the connection, as an error of the driver.
pub(super) fn lost() -> RedisError {
    RedisError::from(io::Error::from(io::ErrorKind::BrokenPipe))
}

/// The error for a node that is not in the list.
pub(super) fn closed() -> RedisError {
    RedisError::from(io::Error::new(io::ErrorKind::NotConnected, "the node is not of the list"))
}

/// A timeout of this program, as an error of the driver.
pub(super) fn timed_out() -> RedisError {
    RedisError::from(io::Error::from(io::ErrorKind::TimedOut))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(code: &str, detail: &str) -> UnreachableKind {
        of_call(&make_extension_error(code.into(), Some(detail.into()))).kind
    }

    #[test]
    fn server_error_codes_map_to_kinds() {
        for (code, expected) in [
            ("WRONGPASS", UnreachableKind::Auth),
            ("NOAUTH", UnreachableKind::Auth),
            ("NOPERM", UnreachableKind::Auth),
            ("READONLY", UnreachableKind::ReadOnly),
            ("OOM", UnreachableKind::Full),
            ("MISCONF", UnreachableKind::Full),
            ("LOADING", UnreachableKind::Busy),
            ("BUSY", UnreachableKind::Busy),
            ("WRONGTYPE", UnreachableKind::Protocol),
            ("SOMETHING", UnreachableKind::Protocol),
        ] {
            assert_eq!(kind(code, "text"), expected, "{code}");
        }
    }

    #[test]
    fn error_codes_in_script_errors_of_older_servers_are_recognised() {
        let wrapped =
            |code| format!("Error running script (call to f_1): @user_script:1: @user_script: 1: -{code} text");
        assert_eq!(of_server(ServerErrorKind::ResponseError, &wrapped("OOM")), UnreachableKind::Full);
        assert_eq!(of_server(ServerErrorKind::ResponseError, &wrapped("READONLY")), UnreachableKind::ReadOnly);
        assert_eq!(of_server(ServerErrorKind::ResponseError, "attempt to index nil"), UnreachableKind::Protocol);
        let denied = "The user executing the script can't run this command or subcommand";
        assert_eq!(of_server(ServerErrorKind::ResponseError, denied), UnreachableKind::Auth);
    }

    #[test]
    fn a_lost_connection_is_broken_for_a_call_and_disconnected_for_connecting() {
        let lost = || RedisError::from(io::Error::from(io::ErrorKind::ConnectionReset));
        assert_eq!(of_call(&lost()).kind, UnreachableKind::Broken);
        assert!(breaks_connection(&lost()));
        assert_eq!(of_connecting(&lost()).kind, UnreachableKind::Disconnected);
        assert_eq!(of_call(&timed_out()).kind, UnreachableKind::Timeout);
        assert!(!breaks_connection(&timed_out()));
    }
}
