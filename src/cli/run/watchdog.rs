//! A second process that ends the command in time where `run` itself cannot: because it is stopped
//! (SIGSTOP, a debugger), or was killed. It knows the command's process group and two instants, both
//! told over a pipe, and nothing else: no network, no lease, no runtime.
//!
//! What holds: while the watchdog lives, the command gets SIGTERM and SIGKILL before the lease's
//! local deadline whatever happens to `run`, also after the machine was suspended (as soon as it
//! wakes; only the fence protects what happens in the first instant). What does not: somebody who
//! stops or kills both processes, the instant between the start of the command and the pipe's first
//! line, and processes that left the command's group (daemons that call setsid).

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use rustix::time::Timespec;

use crate::redlock::clock::{BootTime, Clock, SystemClock};

/// The hidden command, with the path of the token file behind it.
pub const COMMAND: &str = "__watchdog";
/// Exit code of a watchdog that had to act.
const ACTED: i32 = 3;
/// Longest sleep: timers stand still while the machine is suspended, leases do not.
const LOOK: Duration = Duration::from_millis(500);
/// How often a group that was asked to end is looked at.
const LOOK_ENDING: Duration = Duration::from_millis(50);
/// How long `run` waits for its watchdog's word.
const LAST_WORD: Duration = Duration::from_millis(500);
/// Between two looks at whether it has come.
const LAST_WORD_LOOK: Duration = Duration::from_millis(2);

/// The side of `run`.
#[derive(Debug)]
pub struct Watchdog {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Watchdog {
    /// Starts it, in a process group of its own. It removes the token file where `run` cannot.
    ///
    /// Errors: the operating system's.
    pub fn start(token_file: &Path) -> io::Result<Self> {
        // The file may have been replaced by a newer one since this process began.
        let mut start = Command::new("/proc/self/exe");
        start.arg(COMMAND).arg(token_file).stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
        let mut child = start.spawn()?;
        let pipe = child.stdin.take();
        Ok(Self { child, pipe })
    }

    /// Names the group that it guards.
    pub fn guard(&mut self, group: Pid) {
        self.tell(&format!("group {}\n", group.as_raw_nonzero()));
    }

    /// When to send SIGTERM and SIGKILL, unless it is told another time before.
    pub fn until(&mut self, terminate: BootTime, kill: BootTime) {
        self.tell(&format!("until {} {}\n", terminate.as_micros(), kill.as_micros()));
    }

    /// A watchdog that died has nobody to tell; [`Watchdog::is_alive`] finds out.
    fn tell(&mut self, line: &str) {
        if let Some(pipe) = &mut self.pipe {
            let _ = pipe.write_all(line.as_bytes());
        }
    }

    /// Whether it still watches.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends it home. Its end is not waited for.
    pub fn dismiss(&mut self) {
        self.tell("done\n");
        self.pipe = None;
    }

    /// Sends it home; whether it had to act before. Blocks for [`LAST_WORD`] at most.
    pub fn dismiss_and_ask(&mut self) -> bool {
        self.dismiss();
        let end = SystemClock.now().plus(LAST_WORD);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return status.code() == Some(ACTED),
                Ok(None) if SystemClock.now() < end => std::thread::sleep(LAST_WORD_LOOK),
                _ => return false,
            }
        }
    }
}

/// What the watchdog knows.
#[derive(Debug, Default)]
struct Orders {
    group: Option<Pid>,
    terminate: Option<BootTime>,
    kill: Option<BootTime>,
    done: bool,
}

impl Orders {
    /// Takes one line; what cannot be read is no order.
    fn take(&mut self, line: &str) {
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

/// The watchdog's life; its exit code. Blocks.
pub fn main(token_file: &Path, err: &mut dyn Write) -> u8 {
    // A supervisor that ends all of us with SIGTERM must not end the guard before the guarded.
    let mut held = SigSet::empty();
    [NixSignal::SIGTERM, NixSignal::SIGINT, NixSignal::SIGHUP, NixSignal::SIGQUIT]
        .into_iter()
        .for_each(|s| held.add(s));
    let _ = held.thread_block();
    let (mut orders, mut unread, mut orphaned) = (Orders::default(), Vec::new(), false);
    loop {
        let now = SystemClock.now();
        if orders.done {
            return 0;
        }
        let late = orders.terminate.is_some_and(|at| now >= at);
        if let (Some(group), true) = (orders.group, orphaned || late) {
            if test_kill_process_group(group).is_err() {
                return 0;
            }
            let grace = orders.kill.map(|kill| kill.since(orders.terminate.unwrap_or(kill))).unwrap_or_default();
            let kill = orders.kill.unwrap_or(now).min(now.plus(grace));
            let why = if orphaned { "was killed" } else { "did not renew the lease in time (is it stopped?)" };
            let _ = writeln!(err, "redlockd: run {why}: its command is ended before the lease is over");
            end_group(group, kill);
            if orphaned {
                let _ = std::fs::remove_file(token_file);
            }
            return u8::try_from(ACTED).unwrap_or(1);
        }
        if orphaned {
            let _ = std::fs::remove_file(token_file);
            return 0;
        }
        let left = orders.terminate.map_or(LOOK, |at| at.since(now)).min(LOOK);
        match read_some(&mut unread, left) {
            PipeRead::Nothing => {}
            PipeRead::Something => {
                while let Some(end) = unread.iter().position(|b| *b == b'\n') {
                    let line: Vec<u8> = unread.drain(..=end).collect();
                    orders.take(&String::from_utf8_lossy(&line));
                }
            }
            PipeRead::End => orphaned = !orders.done,
        }
    }
}

enum PipeRead {
    Nothing,
    Something,
    End,
}

/// Waits for more orders, for a while.
fn read_some(into: &mut Vec<u8>, patience: Duration) -> PipeRead {
    let stdin = io::stdin();
    let mut fds = [PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN)];
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(patience.subsec_nanos()) };
    match poll(&mut fds, Some(&timeout)) {
        Ok(0) | Err(_) => return PipeRead::Nothing,
        Ok(_) => {}
    }
    let mut buffer = [0; 256];
    // Not through the standard library's buffer, which poll(2) cannot see into.
    match rustix::io::read(&stdin, &mut buffer) {
        Ok(0) | Err(_) => PipeRead::End,
        Ok(n) => {
            into.extend_from_slice(&buffer[..n]);
            PipeRead::Something
        }
    }
}

/// SIGTERM now, SIGKILL at `kill` to whoever is left.
fn end_group(group: Pid, kill: BootTime) {
    // Nobody left is what is wanted.
    let _ = kill_process_group(group, Signal::TERM);
    let _ = kill_process_group(group, Signal::CONT);
    while SystemClock.now() < kill {
        if test_kill_process_group(group).is_err() {
            return;
        }
        std::thread::sleep(kill.since(SystemClock.now()).min(LOOK_ENDING));
    }
    let _ = kill_process_group(group, Signal::KILL);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_and_nonsense_is_none() {
        let mut orders = Orders::default();
        for line in ["group 17\n", "until 5 6\n", "", "frob 1", "until x"] {
            orders.take(line);
        }
        assert_eq!(orders.group.map(|g| g.as_raw_nonzero().get()), Some(17));
        assert_eq!((orders.terminate, orders.kill, orders.done), (None, None, false));
        orders.take("until 5 6");
        assert_eq!(
            (orders.terminate, orders.kill),
            (Some(BootTime::from_nanos(5_000)), Some(BootTime::from_nanos(6_000)))
        );
        orders.take("done");
        assert!(orders.done);
    }
}
