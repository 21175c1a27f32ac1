//! The watchdog's work for `--on-lost warn`: while `run` cannot renew (it is stopped, or was killed), renews the lease until the
//! command's process group has ended. It never signals the command. Each try is a `redlockd extend` in its own process.
//!
//! `run` and the watchdog may both renew at once. That is harmless. Each renewal, with the same token, moves the lease's end to
//! one TTL from then, so their order does not matter. An ended lease is refused to both. Each counts its deadline from its own
//! requests alone, so the other can only make the lease longer than that.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::cli::exit;
use crate::cli::output::print_line;
use crate::redlock::clock::{BootTime, Clock, SystemClock};
use crate::redlock::random::SystemEntropy;
use crate::redlock::renewal::{renewal_interval, renewal_retry};

/// `run` renews after a third of the TTL. After this part, the watchdog assumes that `run` cannot.
const LATE_AFTER_PART: u32 = 2;
/// Maximum duration of one command, as a part of the TTL, so that several fit before its end …
const COMMANDS_PER_TTL: u32 = 4;
/// … but at least this, since a process must start, …
const COMMAND_MIN: Duration = Duration::from_secs(2);
/// … and at most this.
const COMMAND_MAX: Duration = Duration::from_secs(10);
/// Interval of checks whether a command or the group has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Ends the message that the lease is over; the words before it give the reason.
pub(super) const GOES_ON: &str = "; the command continues WITHOUT the lock (--on-lost=warn)";

/// Why the lease is over if no request has reported it.
pub(super) fn not_renewed(names: impl std::fmt::Display) -> String {
    format!("the lease on {names} could not be renewed in time")
}

/// This program, even if its file was replaced since this process started.
pub(super) fn own_program() -> Command {
    Command::new("/proc/self/exe")
}

/// Runs `redlockd extend` and `redlockd release` for one lease.
pub(super) struct LockCommands {
    /// The content of the token file, which may be removed while the command runs.
    pub token: String,
    /// Further arguments: the service, `--`, and the names.
    pub args: Vec<OsString>,
}

impl LockCommands {
    fn start(&self, verb: &str) -> io::Result<LockCommand> {
        let began = SystemClock.now();
        let mut start = own_program();
        start.args([verb, "--token-file", "-"]).args(&self.args);
        let mut child = start.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        // A pipe holds far more than a token, so this does not block. If it fails, the command reports it.
        let _ = child.stdin.take().map(|mut to| to.write_all(self.token.as_bytes()));
        Ok(LockCommand { child, began })
    }

    /// Releases the lock, in one try of at most [`COMMAND_MAX`]. If that fails, the lease ends by its TTL.
    pub(super) fn release(&self) {
        if let Ok(mut release) = self.start("release") {
            while release.ended(COMMAND_MAX).is_none() {
                std::thread::sleep(CHECK_INTERVAL);
            }
        }
    }
}

/// A running command.
struct LockCommand {
    child: Child,
    began: BootTime,
}

impl LockCommand {
    /// The output once the command has ended; the command is killed after `max`.
    fn ended(&mut self, max: Duration) -> Option<Output> {
        if matches!(self.child.try_wait(), Ok(None)) {
            if SystemClock.now().since(self.began) < max {
                return None;
            }
            // Fails only if the command has just ended.
            let _ = self.child.kill();
        }
        let read = |pipe: Option<&mut dyn io::Read>| {
            let mut all = Vec::new();
            let _ = pipe.map(|pipe| pipe.read_to_end(&mut all));
            all
        };
        let stdout = read(self.child.stdout.as_mut().map(|pipe| pipe as &mut dyn io::Read));
        let stderr = read(self.child.stderr.as_mut().map(|pipe| pipe as &mut dyn io::Read));
        let status = self.child.wait().unwrap_or_default();
        Some(Output { status, stdout, stderr })
    }
}

/// Renews in place of `run`.
pub(super) struct LeaseKeeper {
    ttl: Duration,
    names: String,
    /// The known minimum end of the lease.
    deadline: Option<BootTime>,
    /// When the next try is due.
    due: Option<BootTime>,
    attempt: Option<LockCommand>,
    /// `run` was killed.
    is_orphaned: bool,
    /// `run` was killed, or was late when a renewal was last due.
    is_in_charge: bool,
    /// The service reported that the lease has ended.
    is_over: bool,
    /// This process or `run` reported that the lease is over.
    is_reported: bool,
}

impl LeaseKeeper {
    pub(super) fn new(ttl: Duration, names: String) -> Self {
        Self {
            ttl,
            names,
            deadline: None,
            due: None,
            attempt: None,
            is_orphaned: false,
            is_in_charge: false,
            is_over: false,
            is_reported: false,
        }
    }

    /// Notes that `run` has renewed the lease up to `deadline`.
    pub(super) fn renewed_by_run(&mut self, deadline: BootTime) {
        (self.deadline, self.is_in_charge) = (Some(deadline), false);
        self.due = Some(deadline.minus(self.ttl / LATE_AFTER_PART));
    }

    /// Notes that `run` reported the end of the lease. If it was only not renewed in time, the service may still know it.
    pub(super) fn reported_by_run(&mut self) {
        self.is_reported = true;
    }

    /// Notes that `run` was killed. Returns whether that is new.
    pub(super) fn take_over(&mut self) -> bool {
        if std::mem::replace(&mut self.is_orphaned, true) {
            return false;
        }
        if !self.is_in_charge {
            self.due = Some(self.deadline.map_or_else(|| SystemClock.now(), |deadline| self.due_before(deadline)));
        }
        self.is_in_charge = true;
        true
    }

    /// Whether no other process renews the lease.
    pub(super) fn is_in_charge(&self) -> bool {
        self.is_in_charge
    }

    /// Whether, as far as is known, there is a lease to renew.
    pub(super) fn has_lease(&self) -> bool {
        !self.is_over && !self.is_reported
    }

    /// Begins and ends tries, and reports the end of the lease. Returns the time until the next step, at most `max`.
    pub(super) fn step(&mut self, lock: &LockCommands, err: &mut dyn Write, max: Duration) -> Duration {
        let now = SystemClock.now();
        if let Some(attempt) = &mut self.attempt {
            let (began, longest) = (attempt.began, (self.ttl / COMMANDS_PER_TTL).clamp(COMMAND_MIN, COMMAND_MAX));
            if let Some(output) = attempt.ended(longest) {
                self.attempt = None;
                self.tried(began, &output, err);
            }
        } else if !self.is_over && self.due.is_some_and(|due| now >= due) {
            self.is_in_charge = true;
            self.attempt = lock.start("extend").ok();
            self.due = self.attempt.is_none().then(|| self.next_try());
        }
        // A try in progress asks the service, which knows better.
        if self.attempt.is_none() && self.deadline.is_some_and(|deadline| now >= deadline) {
            self.report(&format!("redlockd: {}", not_renewed(&self.names)), err);
        }
        let due = self.due.map_or(max, |due| due.since(SystemClock.now()));
        if self.is_in_charge || self.attempt.is_some() { due.min(CHECK_INTERVAL) } else { due.min(max) }
    }

    /// Ends a try in progress: the lease is about to be released.
    pub(super) fn stop(&mut self) {
        if let Some(mut attempt) = self.attempt.take() {
            attempt.ended(Duration::ZERO);
        }
    }

    fn tried(&mut self, began: BootTime, output: &Output, err: &mut dyn Write) {
        let next = match output.status.code().and_then(|code| u8::try_from(code).ok()) {
            Some(exit::OK) => {
                let deadline = valid_for(&output.stdout).map(|valid_for| began.plus(valid_for));
                // An extend never shortens the promised validity.
                self.deadline = self.deadline.max(deadline);
                began.plus(renewal_interval(self.ttl))
            }
            Some(exit::LOST) => {
                self.is_over = true;
                let said = String::from_utf8_lossy(&output.stderr);
                return self.report(said.lines().next_back().unwrap_or("redlockd: the lease has ended"), err);
            }
            _ => self.next_try(),
        };
        // Otherwise `run` has renewed meanwhile, and is late only some time after that.
        if self.is_in_charge {
            self.due = Some(next);
        }
    }

    /// The time after a failed try: soon while the lease is held, so that several tries fit before its end.
    fn next_try(&self) -> BootTime {
        let now = SystemClock.now();
        let is_held = self.deadline.is_none_or(|deadline| now < deadline);
        now.plus(if is_held { renewal_retry(self.ttl, &SystemEntropy) } else { renewal_interval(self.ttl) })
    }

    /// When to renew a lease of which this process knows only the deadline.
    fn due_before(&self, deadline: BootTime) -> BootTime {
        deadline.minus(self.ttl.saturating_sub(renewal_interval(self.ttl)))
    }

    fn report(&mut self, why: &str, err: &mut dyn Write) {
        if !std::mem::replace(&mut self.is_reported, true) {
            print_line(err, &format!("{why}{GOES_ON}"));
        }
    }
}

/// The answer of `extend`.
fn valid_for(printed: &[u8]) -> Option<Duration> {
    let printed = String::from_utf8_lossy(printed);
    let ms = printed.lines().find_map(|line| line.strip_prefix("valid_for_ms="))?;
    ms.parse().ok().map(Duration::from_millis)
}
