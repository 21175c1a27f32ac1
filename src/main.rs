//! redlockd, the binary: parse, run, exit code.

// In place of the C library's `malloc`, which Rust's allocator calls; see docs/performance.md.
use mimalloc as _;
use std::io;
use std::process::ExitCode;

use redlockd::cli;
use redlockd::config::ProcessEnvironment;

fn main() -> ExitCode {
    // TLS needs a cryptography provider, once per process. Fails only where one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (out, err) = (&mut io::stdout(), &mut io::stderr());
    ExitCode::from(cli::run(std::env::args_os(), &ProcessEnvironment, out, err))
}
