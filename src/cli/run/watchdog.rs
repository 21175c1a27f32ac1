//! A second process that acts if `run` cannot, because `run` is stopped (SIGSTOP, a debugger) or was killed. It receives the
//! command's process group and instants through a pipe; it has no network and no runtime. It reaches the service by
//! `redlockd extend` and `redlockd release`.
//!
//! Usually it ends the command before the lease's end. While it runs, it guarantees that the command gets SIGTERM and SIGKILL
//! before the lease's local deadline, whatever happens to `run`; after a suspend, as soon as the machine wakes, when only the
//! fence protects. If `run` was killed, it releases the lock, so that the lock is free at once.
//!
//! With `--on-lost warn` it does not signal the command, but renews the lease until the command's group has ended
//! ([`LeaseKeeper`]), and releases the lock then.
//!
//! Not covered: stopping or killing both processes (the command continues, and the lease ends with its TTL), the instant between
//! the start of the command and the pipe's first line, and processes that left the command's group (daemons that call setsid).

use std::ffi::OsString;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use rustix::time::Timespec;

use super::lease_keeper::{LeaseKeeper, LockCommands, own_program};
use super::process_group::has_members;
use crate::cli::exit;
use crate::cli::output::print_line;
use crate::client::names::LockNames;
use crate::redlock::clock::{BootTime, Clock, SystemClock};

/// The hidden command; its arguments are the path of the token file and those of [`WatchdogTask::to_args`].
pub(crate) const COMMAND: &str = "__watchdog";
/// Separates the service's options from the names.
const NAMES: &str = "--";
/// The argument of a watchdog that ends the command; other watchdogs get the TTL of the lease that they renew, in ms.
const END: &str = "end";
/// The argument of a watchdog that releases the lock at the end; for others it is empty.
const RELEASE: &str = "release";
/// Exit code of a watchdog that ended the command, or saw its end.
const ACTED: u8 = 3;
/// Longest sleep: timers stop while the machine is suspended, leases do not.
const SLEEP_MAX: Duration = Duration::from_millis(500);
/// Interval of checks after SIGTERM.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// How long a group may take to end after SIGKILL.
const KILL_MAX: Duration = Duration::from_secs(2);
/// How long `run` waits for its watchdog's exit code.
const EXIT_WAIT_MAX: Duration = Duration::from_millis(500);
/// Interval of checks for that exit code.
const EXIT_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// The watchdog's task if `run` cannot act.
#[derive(Debug)]
pub(crate) struct WatchdogTask {
    /// The TTL of the lease that the watchdog renews (`--on-lost warn`). `None`: it ends the command.
    pub(crate) renews: Option<Duration>,
    /// Whether the watchdog releases the lock when the command has ended. With `--at-least` the lease ends by its TTL.
    pub(crate) releases: bool,
    /// The options of `redlockd extend` and `redlockd release` that name the service.
    pub(crate) service: Vec<OsString>,
    pub(crate) names: LockNames,
}

impl WatchdogTask {
    fn to_args(&self) -> Vec<OsString> {
        let renews = self.renews.map_or(END.to_owned(), |ttl| ttl.as_millis().to_string());
        let releases = if self.releases { RELEASE } else { "" };
        let mut args: Vec<OsString> = vec![renews.into(), releases.into()];
        args.extend(self.service.iter().cloned());
        args.push(NAMES.into());
        args.extend(self.names.iter().map(|name| name.as_str().into()));
        args
    }
}

/// The watchdog process, as `run` controls it.
#[derive(Debug)]
pub(crate) struct Watchdog {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Watchdog {
    /// Starts the watchdog, in its own process group. If `run` was killed, it removes the token file once the command has ended.
    ///
    /// Errors: the operating system's.
    pub(crate) fn start(token_file: &Path, task: &WatchdogTask) -> io::Result<Self> {
        let mut start = own_program();
        start.arg(COMMAND).arg(token_file).args(task.to_args());
        start.stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
        let mut child = start.spawn()?;
        let pipe = child.stdin.take();
        Ok(Self { child, pipe })
    }

    /// Sends the command's group.
    pub(crate) fn set_group(&mut self, group: Pid) {
        self.send(&format!("group {}\n", group.as_raw_nonzero()));
    }

    /// Sends the times of SIGTERM and SIGKILL; the latest ones count.
    pub(crate) fn set_times(&mut self, terminate: BootTime, kill: BootTime) {
        self.send(&format!("until {} {}\n", terminate.as_micros(), kill.as_micros()));
    }

    /// Sends the lease's deadline after a renewal, to a watchdog that renews.
    pub(crate) fn set_deadline(&mut self, deadline: BootTime) {
        self.send(&format!("lease {}\n", deadline.as_micros()));
    }

    /// Notes that the end of the lease was reported, for a watchdog that renews.
    pub(crate) fn set_lost(&mut self) {
        self.send("lost\n");
    }

    /// Errors are ignored: [`Watchdog::is_alive`] detects that the watchdog has ended.
    fn send(&mut self, line: &str) {
        if let Some(pipe) = &mut self.pipe {
            let _ = pipe.write_all(line.as_bytes());
        }
    }

    /// Whether the watchdog still runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Whether the watchdog has ended the command, or seen its end.
    pub(crate) fn has_acted(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(status)) if status.code() == Some(i32::from(ACTED)))
    }

    /// Ends the watchdog, without waiting.
    pub(crate) fn dismiss(&mut self) {
        self.send("done\n");
        self.pipe = None;
    }

    /// Ends the watchdog; returns whether it had ended the command before. Blocks for at most [`EXIT_WAIT_MAX`].
    pub(crate) fn dismiss_and_wait(&mut self) -> bool {
        self.dismiss();
        let end = SystemClock.now().plus(EXIT_WAIT_MAX);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return status.code() == Some(i32::from(ACTED)),
                Ok(None) if SystemClock.now() < end => std::thread::sleep(EXIT_CHECK_INTERVAL),
                _ => return false,
            }
        }
    }
}

/// The data that the watchdog has received.
#[derive(Debug, Default)]
struct Orders {
    group: Option<Pid>,
    terminate: Option<BootTime>,
    kill: Option<BootTime>,
    /// The lease's deadline after a renewal.
    lease: Option<BootTime>,
    lost: bool,
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
                let mut instant = || number().map(micros);
                (self.terminate, self.kill) = (instant(), instant());
            }
            Some("lease") => self.lease = number().map(micros),
            Some("lost") => self.lost = true,
            Some("done") => self.done = true,
            _ => {}
        }
    }
}

fn micros(since_origin: u64) -> BootTime {
    BootTime::from_nanos(since_origin.saturating_mul(1_000))
}

/// Runs the watchdog with the arguments after [`COMMAND`]; returns its exit code. Blocks.
pub(crate) fn main(args: &[OsString], err: &mut dyn Write) -> u8 {
    let [token_file, renews, releases, lock @ ..] = args else {
        print_line(err, "redlockd: this command is for `redlockd run` alone");
        return exit::USAGE;
    };
    // A supervisor that sends SIGTERM to all processes must not end the watchdog before the command. Nor must a terminal stop it
    // that lets only its foreground write (`stty tostop`).
    let mut blocked = SigSet::empty();
    [NixSignal::SIGTERM, NixSignal::SIGINT, NixSignal::SIGHUP, NixSignal::SIGQUIT, NixSignal::SIGTTOU]
        .into_iter()
        .for_each(|s| blocked.add(s));
    let _ = blocked.thread_block();
    let names: Vec<_> =
        lock.iter().skip_while(|arg| *arg != NAMES).skip(1).map(|name| name.to_string_lossy()).collect();
    let ttl = renews.to_str().and_then(|ms| ms.parse().ok()).map(Duration::from_millis);
    let keeper = ttl.map(|ttl| LeaseKeeper::new(ttl, names.join(", ")));
    // `run` wrote the file before it started this process.
    let token = std::fs::read_to_string(token_file).unwrap_or_default();
    let lock = LockCommands { token, args: lock.to_vec() };
    let (orders, unread, orphaned) = (Orders::default(), Vec::new(), false);
    let (token_file, releases) = (Path::new(token_file), releases == RELEASE);
    WatchdogProcess { token_file, releases, lock, orders, unread, orphaned, err }.run(keeper)
}

/// The state of the watchdog's process.
struct WatchdogProcess<'a> {
    token_file: &'a Path,
    releases: bool,
    lock: LockCommands,
    orders: Orders,
    unread: Vec<u8>,
    /// `run` was killed.
    orphaned: bool,
    err: &'a mut dyn Write,
}

impl WatchdogProcess<'_> {
    fn run(&mut self, mut keeper: Option<LeaseKeeper>) -> u8 {
        loop {
            if self.orders.done {
                return 0;
            }
            let step = match (self.orders.group, &mut keeper) {
                (Some(group), Some(keeper)) => self.keep_lease(group, keeper),
                (Some(group), None) => self.end_command(group),
                (None, _) if self.orphaned => {
                    self.remove_token_file();
                    ControlFlow::Break(0)
                }
                (None, _) => ControlFlow::Continue(SLEEP_MAX),
            };
            match step {
                ControlFlow::Break(code) => return code,
                // A closed pipe is always ready.
                ControlFlow::Continue(pause) if self.orphaned => std::thread::sleep(pause),
                ControlFlow::Continue(pause) => self.receive(pause),
            }
        }
    }

    /// Ends the command if it is time; else returns the time until then.
    fn end_command(&mut self, group: Pid) -> ControlFlow<u8, Duration> {
        let (now, orders) = (SystemClock.now(), &self.orders);
        if !self.orphaned && orders.terminate.is_none_or(|at| now < at) {
            let left = orders.terminate.map_or(SLEEP_MAX, |at| at.since(now));
            return ControlFlow::Continue(left.min(SLEEP_MAX));
        }
        if !self.orphaned && test_kill_process_group(group).is_err() {
            return ControlFlow::Break(0);
        }
        let grace = orders.kill.map(|kill| kill.since(orders.terminate.unwrap_or(kill))).unwrap_or_default();
        let kill = orders.kill.unwrap_or(now).min(now.plus(grace));
        let why = if self.orphaned { "was killed" } else { "did not renew the lease in time (is it stopped?)" };
        print_line(self.err, &format!("redlockd: run {why}: its command is ended before the lease is over"));
        let has_ended = end_group(group, kill);
        if self.orphaned {
            if has_ended && self.releases {
                self.lock.release();
            }
            self.remove_token_file();
        }
        ControlFlow::Break(ACTED)
    }

    /// Renews the lease if `run` cannot, until the command has ended; returns the time until the next step.
    fn keep_lease(&mut self, group: Pid, keeper: &mut LeaseKeeper) -> ControlFlow<u8, Duration> {
        if let Some(deadline) = self.orders.lease.take() {
            keeper.renewed_by_run(deadline);
        }
        if std::mem::take(&mut self.orders.lost) {
            keeper.reported_by_run();
        }
        let is_new = self.orphaned && keeper.take_over();
        if keeper.is_in_charge() && !has_members(group) {
            keeper.stop();
            if self.releases {
                self.lock.release();
            }
            self.remove_token_file();
            return ControlFlow::Break(ACTED);
        }
        if is_new && keeper.has_lease() {
            print_line(
                self.err,
                "redlockd: run was killed: the lease is renewed until its command ends (--on-lost=warn)",
            );
        }
        ControlFlow::Continue(keeper.step(&self.lock, self.err, SLEEP_MAX))
    }

    fn remove_token_file(&self) {
        // The command may have removed the file.
        let _ = std::fs::remove_file(self.token_file);
    }

    /// Reads orders, waiting for at most `timeout`.
    fn receive(&mut self, timeout: Duration) {
        match read_pipe(&mut self.unread, timeout) {
            PipeRead::Nothing => {}
            PipeRead::Data => {
                while let Some(end) = self.unread.iter().position(|b| *b == b'\n') {
                    let line: Vec<u8> = self.unread.drain(..=end).collect();
                    self.orders.read(&String::from_utf8_lossy(&line));
                }
            }
            PipeRead::Closed => self.orphaned = !self.orders.done,
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
    // Not through the standard library's buffer, which is invisible to poll(2).
    match rustix::io::read(&stdin, &mut buffer) {
        Ok(0) | Err(_) => PipeRead::Closed,
        Ok(n) => {
            into.extend_from_slice(&buffer[..n]);
            PipeRead::Data
        }
    }
}

/// Sends SIGTERM now, and SIGKILL at `kill` if a process remains. Returns whether none remains, at most [`KILL_MAX`] later.
fn end_group(group: Pid, kill: BootTime) -> bool {
    // Errors: no process remains.
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
        orders.read("lease 7");
        assert_eq!((orders.lease, orders.lost), (Some(BootTime::from_nanos(7_000)), false));
        orders.read("lost");
        orders.read("done");
        assert!(orders.lost && orders.done);
    }
}
