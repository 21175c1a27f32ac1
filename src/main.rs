//! redlockd, the binary: parse, run, exit code.

use std::io;
use std::process::ExitCode;

use redlockd::cli;
use redlockd::config::ProcessEnvironment;

/// Requests allocate many small, short-lived objects, for which it is faster: see docs/performance.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // TLS needs a cryptography provider, once per process. Fails only where one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (out, err) = (&mut io::stdout(), &mut io::stderr());
    ExitCode::from(cli::run(std::env::args_os(), &ProcessEnvironment, out, err))
}
