//! redlockd, the binary: parse, run, exit code.

use std::io;
use std::process::ExitCode;

use redlockd::cli;
use redlockd::config::ProcessEnvironment;

/// Requests make many small objects, short-lived ones mostly, for which it is the faster one: see
/// docs/performance.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // TLS to the nodes needs a provider of cryptography, once per process; fails only where there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (out, err) = (&mut io::stdout(), &mut io::stderr());
    ExitCode::from(cli::run(std::env::args_os(), &ProcessEnvironment, out, err))
}
