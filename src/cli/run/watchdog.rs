//! A second process that ends the command in time if `run` cannot, because `run` is stopped (SIGSTOP, a debugger) or was
//! killed. It receives the command's process group and two instants through a pipe; it has no network and no runtime. After
//! a killed `run`, and once the command has ended, it starts `redlockd release`, so that the lock is free at once.
//!
//! Guaranteed while the watchdog runs: the command gets SIGTERM and SIGKILL before the lease's local deadline, whatever
//! happens to `run`; after a suspend as soon as the machine wakes, when only the fence protects. Not covered: stopping or
//! killing both processes, the instant between the start of the command and the pipe's first line, and processes that left
//! the command's group (daemons that call setsid).

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use rustix::time::Timespec;

use crate::redlock::clock::{BootTime, Clock, SystemClock};

/// The hidden command; its argument is the path of the token file.
pub(crate) const COMMAND: &str = "__watchdog";
/// Exit code of a watchdog that ended the command.
const ACTED: i32 = 3;
/// Longest sleep: timers stop while the machine is suspended, leases do not.
const SLEEP_MAX: Duration = Duration::from_millis(500);
/// Interval of checks after SIGTERM.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// After SIGKILL: how long a group may take to end.
const KILL_MAX: Duration = Duration::from_secs(2);
/// How long `run` waits for its watchdog's exit code.
const EXIT_WAIT_MAX: Duration = Duration::from_millis(500);
/// Interval of checks for it.
const EXIT_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// The watchdog process, as `run` controls it.
#[derive(Debug)]
pub(crate) struct Watchdog {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Watchdog {
    /// Starts it, in its own process group. If `run` was killed, it runs this program with the arguments `release` once
    /// the command has ended, and removes the token file.
    ///
    /// Errors: the operating system's.
    pub(crate) fn start(token_file: &Path, release: &[OsString]) -> io::Result<Self> {
        let mut start = own_program();
        start.arg(COMMAND).arg(token_file).args(release);
        start.stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
        let mut child = start.spawn()?;
        let pipe = child.stdin.take();
        Ok(Self { child, pipe })
    }

    /// Sends the group to end.
    pub(crate) fn set_group(&mut self, group: Pid) {
        self.send(&format!("group {}\n", group.as_raw_nonzero()));
    }

    /// Sends the times of SIGTERM and SIGKILL; the latest ones count.
    pub(crate) fn set_times(&mut self, terminate: BootTime, kill: BootTime) {
        self.send(&format!("until {} {}\n", terminate.as_micros(), kill.as_micros()));
    }

    /// Errors are ignored: [`Watchdog::is_alive`] detects that the watchdog has ended.
    fn send(&mut self, line: &str) {
        if let Some(pipe) = &mut self.pipe {
            let _ = pipe.write_all(line.as_bytes());
        }
    }

    /// Whether it still runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Whether it has ended the command.
    pub(crate) fn has_acted(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(status)) if status.code() == Some(ACTED))
    }

    /// Ends it, without waiting.
    pub(crate) fn dismiss(&mut self) {
        self.send("done\n");
        self.pipe = None;
    }

    /// Ends it; whether it had ended the command before. Blocks for at most [`EXIT_WAIT_MAX`].
    pub(crate) fn dismiss_and_wait(&mut self) -> bool {
        self.dismiss();
        let end = SystemClock.now().plus(EXIT_WAIT_MAX);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return status.code() == Some(ACTED),
                Ok(None) if SystemClock.now() < end => std::thread::sleep(EXIT_CHECK_INTERVAL),
                _ => return false,
            }
        }
    }
}

/// This program, also where its file was replaced since this process started.
fn own_program() -> Command {
    Command::new("/proc/self/exe")
}

/// What the watchdog has received.
#[derive(Debug, Default)]
struct Orders {
    group: Option<Pid>,
    terminate: Option<BootTime>,
    kill: Option<BootTime>,
    done: bool,
}

impl Orders {
    /// Reads one line; invalid lines are ignored.
    fn read(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        let word = words.next();
        let mut number = || words.next().and_then(|w| w.parse::<u64>().ok());
        match word {
            Some("group") => self.group = number().and_then(|n| i32::try_from(n).ok()).and_then(Pid::from_raw),
            Some("until") => {
                let mut instant = || number().map(|us| BootTime::from_nanos(us.saturating_mul(1_000)));
                (self.terminate, self.kill) = (instant(), instant());
            }
            Some("done") => self.done = true,
            _ => {}
        }
    }
}

/// Runs the watchdog; returns its exit code. Blocks.
pub(crate) fn main(token_file: &Path, release: &[OsString], err: &mut dyn Write) -> u8 {
    // A supervisor that sends SIGTERM to all processes must not end the watchdog before the command.
    let mut blocked = SigSet::empty();
    [NixSignal::SIGTERM, NixSignal::SIGINT, NixSignal::SIGHUP, NixSignal::SIGQUIT]
        .into_iter()
        .for_each(|s| blocked.add(s));
    let _ = blocked.thread_block();
    let (mut orders, mut unread, mut orphaned) = (Orders::default(), Vec::new(), false);
    loop {
        let now = SystemClock.now();
        if orders.done {
            return 0;
        }
        let late = orders.terminate.is_some_and(|at| now >= at);
        if let (Some(group), true) = (orders.group, orphaned || late) {
            if !orphaned && test_kill_process_group(group).is_err() {
                return 0;
            }
            let grace = orders.kill.map(|kill| kill.since(orders.terminate.unwrap_or(kill))).unwrap_or_default();
            let kill = orders.kill.unwrap_or(now).min(now.plus(grace));
            let why = if orphaned { "was killed" } else { "did not renew the lease in time (is it stopped?)" };
            let _ = writeln!(err, "redlockd: run {why}: its command is ended before the lease is over");
            let has_ended = end_group(group, kill);
            if orphaned {
                if has_ended && !release.is_empty() {
                    // Where it fails, the lease ends by its TTL.
                    let _ = own_program().args(release).stdin(Stdio::null()).stderr(Stdio::null()).status();
                }
                let _ = std::fs::remove_file(token_file);
            }
            return u8::try_from(ACTED).unwrap_or(1);
        }
        if orphaned {
            let _ = std::fs::remove_file(token_file);
            return 0;
        }
        let left = orders.terminate.map_or(SLEEP_MAX, |at| at.since(now)).min(SLEEP_MAX);
        match read_pipe(&mut unread, left) {
            PipeRead::Nothing => {}
            PipeRead::Data => {
                while let Some(end) = unread.iter().position(|b| *b == b'\n') {
                    let line: Vec<u8> = unread.drain(..=end).collect();
                    orders.read(&String::from_utf8_lossy(&line));
                }
            }
            PipeRead::Closed => orphaned = !orders.done,
        }
    }
}

enum PipeRead {
    Nothing,
    Data,
    Closed,
}

/// Reads from the pipe, waiting for at most `timeout` (below a second).
fn read_pipe(into: &mut Vec<u8>, timeout: Duration) -> PipeRead {
    let stdin = io::stdin();
    let mut fds = [PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN)];
    let timespec = Timespec { tv_sec: 0, tv_nsec: i64::from(timeout.subsec_nanos()) };
    match poll(&mut fds, Some(&timespec)) {
        Ok(0) | Err(_) => return PipeRead::Nothing,
        Ok(_) => {}
    }
    let mut buffer = [0; 256];
    // Not through the standard library's buffer, which poll(2) cannot see into.
    match rustix::io::read(&stdin, &mut buffer) {
        Ok(0) | Err(_) => PipeRead::Closed,
        Ok(n) => {
            into.extend_from_slice(&buffer[..n]);
            PipeRead::Data
        }
    }
}

/// Sends SIGTERM now, and SIGKILL at `kill` if a process is left. Returns whether none is left, at most [`KILL_MAX`] later.
fn end_group(group: Pid, kill: BootTime) -> bool {
    // Errors: no process is left.
    let _ = kill_process_group(group, Signal::TERM);
    let _ = kill_process_group(group, Signal::CONT);
    let has_ended = |until: BootTime| loop {
        if test_kill_process_group(group) == Err(Errno::SRCH) {
            return true;
        }
        let left = until.since(SystemClock.now());
        if left.is_zero() {
            return false;
        }
        std::thread::sleep(left.min(CHECK_INTERVAL));
    };
    if has_ended(kill) {
        return true;
    }
    let _ = kill_process_group(group, Signal::KILL);
    has_ended(SystemClock.now().plus(KILL_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_and_invalid_lines_are_ignored() {
        let mut orders = Orders::default();
        for line in ["group 17\n", "until 5 6\n", "", "frob 1", "until x"] {
            orders.read(line);
        }
        assert_eq!(orders.group.map(|g| g.as_raw_nonzero().get()), Some(17));
        assert_eq!((orders.terminate, orders.kill, orders.done), (None, None, false));
        orders.read("until 5 6");
        assert_eq!(
            (orders.terminate, orders.kill),
            (Some(BootTime::from_nanos(5_000)), Some(BootTime::from_nanos(6_000)))
        );
        orders.read("done");
        assert!(orders.done);
    }
}
