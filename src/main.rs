//! redlockd, the binary: parse, run, exit code.

use std::io;
use std::process::ExitCode;

use redlockd::cli;
use redlockd::config::ProcessEnvironment;

fn main() -> ExitCode {
    // TLS to the nodes needs a provider of cryptography, once per process; fails only where there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (out, err) = (&mut io::stdout(), &mut io::stderr());
    ExitCode::from(cli::run(std::env::args_os(), &ProcessEnvironment, out, err))
}
