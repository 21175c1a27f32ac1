//! Exit codes, after BSD's sysexits(3), so that a script can distinguish wrong usage, failures and a held lock. A test
//! compares [`TABLE`] with `docs/command-line.md`.

use crate::client::error::{ClientError, ErrorClass};

/// The command did what it was asked for.
pub const OK: u8 = 0;
/// The lock is free (`status`, `force`), not healthy (`health`), problems found (`doctor`), initialised before (`init`),
/// or there is no such ticket (`ticket`).
pub const NO: u8 = 1;
/// `EX_USAGE`: the command line, or the request that it made, is invalid.
pub const USAGE: u8 = 64;
/// `EX_UNAVAILABLE`: the service could not start or run; or no instance, or no quorum of nodes, can be reached.
pub const UNAVAILABLE: u8 = 69;
/// `EX_CANTCREAT`: the token file cannot be written.
pub const CANNOT_CREATE: u8 = 73;
/// `EX_TEMPFAIL`: the lock is held, or the wait timed out.
pub const HELD: u8 = 75;
/// `EX_PROTOCOL`: the lease has ended, while the command ran or before.
pub const LOST: u8 = 76;
/// `EX_NOPERM`: missing or wrong key, or not allowed.
pub const NOT_ALLOWED: u8 = 77;
/// `EX_CONFIG`: the configuration is invalid.
pub const CONFIG: u8 = 78;
/// The command of `run` cannot be executed, as in shells.
pub const CANNOT_EXECUTE: u8 = 126;
/// The command of `run` does not exist, as in shells.
pub const NOT_FOUND: u8 = 127;
/// Ended by a signal: this plus the signal's number, as in shells.
pub const BY_SIGNAL: u8 = 128;

/// Every code, in the order of the documentation.
pub const TABLE: [u8; 12] =
    [OK, NO, USAGE, UNAVAILABLE, CANNOT_CREATE, HELD, LOST, NOT_ALLOWED, CONFIG, CANNOT_EXECUTE, NOT_FOUND, BY_SIGNAL];

/// The code for a failed request.
pub fn of(error: &ClientError) -> u8 {
    match error.class() {
        ErrorClass::Held | ErrorClass::Deadlock | ErrorClass::Changed => HELD,
        ErrorClass::Unavailable => UNAVAILABLE,
        ErrorClass::Lost => LOST,
        ErrorClass::Forbidden => NOT_ALLOWED,
        ErrorClass::NotHeld => NO,
        ErrorClass::Wrong => USAGE,
    }
}
