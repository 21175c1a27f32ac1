//! What the watchdog does for `--on-lost warn`: while `run` cannot (it is stopped, or was killed), renews the lease until the
//! command's process group has ended. It never signals the command. Each try is `redlockd extend` in a process of its own.
//!
//! `run` and the watchdog may both renew at once. That is harmless: each renewal moves the lease's end to a TTL from then, with
//! the same token, so their order does not matter; an ended lease is refused to both; and each counts its deadline from its
//! own requests alone, so that the other one can only make the lease longer than that.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::cli::exit;
use crate::cli::output::print_line;
use crate::redlock::clock::{BootTime, Clock, SystemClock};
use crate::redlock::random::SystemEntropy;
use crate::redlock::renewal::{renewal_interval, renewal_retry};

/// `run` renews after a third of the TTL. The watchdog assumes that it cannot after this part.
const LATE_AFTER_PART: u32 = 2;
/// Maximum duration of one command, as a part of the TTL, so that several fit before its end …
const COMMANDS_PER_TTL: u32 = 4;
/// … but at least this, since a process must start, …
const COMMAND_MIN: Duration = Duration::from_secs(2);
/// … and at most this.
const COMMAND_MAX: Duration = Duration::from_secs(10);
/// Interval of checks whether a command or the group has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Said when the lease is over; the words before it say why.
pub(super) const GOES_ON: &str = "; the command continues WITHOUT the lock (--on-lost=warn)";

/// Why the lease is over where no request has reported it.
pub(super) fn not_renewed(names: impl std::fmt::Display) -> String {
    format!("the lease on {names} could not be renewed in time")
}

/// This program, also where its file was replaced since this process started.
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
        // A pipe holds far more than a token, so this does not block. Where it fails, the command says so.
        let _ = child.stdin.take().map(|mut to| to.write_all(self.token.as_bytes()));
        Ok(LockCommand { child, began })
    }

    /// Releases the lock, in one try of at most [`COMMAND_MAX`]. Where it fails, the lease ends by its TTL.
    pub(super) fn release(&self) {
        if let Ok(mut release) = self.start("release") {
            while release.ended(COMMAND_MAX).is_none() {
                std::thread::sleep(CHECK_INTERVAL);
            }
        }
    }
}

/// One of them while it runs.
struct LockCommand {
    child: Child,
    began: BootTime,
}

impl LockCommand {
    /// Its output, once it has ended; it is killed if that takes longer than `max`.
    fn ended(&mut self, max: Duration) -> Option<Output> {
        if matches!(self.child.try_wait(), Ok(None)) {
            if SystemClock.now().since(self.began) < max {
                return None;
            }
            // Fails only if it has just ended.
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
    /// Until when the lease is held at least, as far as is known.
    deadline: Option<BootTime>,
    /// When the next try is due.
    due: Option<BootTime>,
    attempt: Option<LockCommand>,
    /// `run` was killed.
    is_orphaned: bool,
    /// `run` was killed, or was late when a renewal was last due.
    is_in_charge: bool,
    /// The service said that the lease has ended.
    is_over: bool,
    /// It was said that the lease is over, by this process or by `run`.
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

    /// `run` has renewed the lease, up to `deadline`.
    pub(super) fn renewed_by_run(&mut self, deadline: BootTime) {
        (self.deadline, self.is_in_charge) = (Some(deadline), false);
        self.due = Some(deadline.minus(self.ttl / LATE_AFTER_PART));
    }

    /// `run` has reported that the lease is over. If it has only not been renewed in time, the service may still know it.
    pub(super) fn reported_by_run(&mut self) {
        self.is_reported = true;
    }

    /// `run` was killed. Returns whether that is new.
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

    /// Whether nobody else renews the lease.
    pub(super) fn is_in_charge(&self) -> bool {
        self.is_in_charge
    }

    /// Whether there is a lease to renew, as far as is known.
    pub(super) fn has_lease(&self) -> bool {
        !self.is_over && !self.is_reported
    }

    /// Begins and ends tries, and says when the lease is over. Returns for how long there is nothing to do, at most `max`.
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
        // A try that is under way asks the service, which knows better.
        if self.attempt.is_none() && self.deadline.is_some_and(|deadline| now >= deadline) {
            self.report(&format!("redlockd: {}", not_renewed(&self.names)), err);
        }
        let due = self.due.map_or(max, |due| due.since(SystemClock.now()));
        if self.is_in_charge || self.attempt.is_some() { due.min(CHECK_INTERVAL) } else { due.min(max) }
    }

    /// Ends a try that is under way: the lease is to be released.
    pub(super) fn stop(&mut self) {
        if let Some(mut attempt) = self.attempt.take() {
            attempt.ended(Duration::ZERO);
        }
    }

    fn tried(&mut self, began: BootTime, output: &Output, err: &mut dyn Write) {
        let next = match output.status.code().and_then(|code| u8::try_from(code).ok()) {
            Some(exit::OK) => {
                let deadline = valid_for(&output.stdout).map(|valid_for| began.plus(valid_for));
                // An extend never shortens what was promised.
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

    /// After a failed try: soon while the lease is held, so that several fit before its end.
    fn next_try(&self) -> BootTime {
        let now = SystemClock.now();
        let is_held = self.deadline.is_none_or(|deadline| now < deadline);
        now.plus(if is_held { renewal_retry(self.ttl, &SystemEntropy) } else { renewal_interval(self.ttl) })
    }

    /// When a lease with this deadline is renewed, which is known to this process by its deadline alone.
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
