//! The options that say how a lease shares its lock: one meaning for `run`, `acquire` and `keep`.

use clap::Args;

use crate::types::{PERMITS_MAX, PERMITS_MIN, PermitLimit, WantedMode};

/// How the lease shares the lock.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(super) struct ModeArgs {
    /// Share the lock with other shared leases: many readers, or one writer
    #[arg(long, conflicts_with = "permits")]
    shared: bool,
    /// Take one of N permits, 2 to 100: all who use the lock give the same N
    #[arg(long, value_name = "N", value_parser = permits)]
    permits: Option<PermitLimit>,
}

impl ModeArgs {
    /// The mode that the request asks for.
    pub(super) fn wanted(self) -> WantedMode {
        match self.permits {
            Some(limit) => WantedMode::Permit { limit },
            None if self.shared => WantedMode::Shared,
            None => WantedMode::Exclusive,
        }
    }
}

fn permits(text: &str) -> Result<PermitLimit, String> {
    let limit = text.parse().ok().and_then(PermitLimit::new);
    limit.ok_or_else(|| format!("must be a number from {PERMITS_MIN} to {PERMITS_MAX}"))
}
