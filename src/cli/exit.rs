//! Exit codes, after BSD's sysexits(3), so that a script can tell a mistake from a failure and a
//! lock that is held from both. `docs/command-line.md` has them in one table, which a test holds
//! against [`TABLE`].

use crate::client::error::{ClientError, ErrorClass};

/// All went well.
pub const OK: u8 = 0;
/// The answer is no: free (`status`, `force`), not healthy (`health`), findings (`doctor`).
pub const NO: u8 = 1;
/// `EX_USAGE`: the command line, or a request made of it, is not understood.
pub const USAGE: u8 = 64;
/// `EX_UNAVAILABLE`: the service could not start, or ended because something it needs is gone; or
/// no instance of it, or no quorum of its nodes, can be reached.
pub const UNAVAILABLE: u8 = 69;
/// `EX_CANTCREAT`: a file for the token cannot be written.
pub const CANNOT_CREATE: u8 = 73;
/// `EX_TEMPFAIL`: held by somebody else, or the wait ran out.
pub const HELD: u8 = 75;
/// `EX_PROTOCOL`: the lease is over: lost while a command ran under it, or before.
pub const LOST: u8 = 76;
/// `EX_NOPERM`: no or wrong credentials, or not allowed.
pub const NOT_ALLOWED: u8 = 77;
/// `EX_CONFIG`: the configuration is refused.
pub const CONFIG: u8 = 78;
/// The command of `run` exists and cannot be executed, as shells have it.
pub const CANNOT_EXECUTE: u8 = 126;
/// The command of `run` does not exist, as shells have it.
pub const NOT_FOUND: u8 = 127;
/// What a process that a signal ended exits with: this plus the signal's number, as shells have it.
pub const BY_SIGNAL: u8 = 128;

/// Every code, as the documentation has them.
pub const TABLE: [u8; 12] =
    [OK, NO, USAGE, UNAVAILABLE, CANNOT_CREATE, HELD, LOST, NOT_ALLOWED, CONFIG, CANNOT_EXECUTE, NOT_FOUND, BY_SIGNAL];

/// The code for a request that failed.
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
