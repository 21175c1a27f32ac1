//! The command as a process group: starts it, sends signals, and checks whether a process of the group remains.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, test_kill_process_group, waitid,
};

use crate::cli::exit;

/// The state of the command's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommandState {
    /// The process runs, or is stopped.
    Alive,
    /// This signal stopped the process since the last check.
    JustStopped(Option<Signal>),
    Ended(CommandEnd),
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CommandEnd {
    /// The exit code; 128+n for signal n.
    pub(super) code: u8,
    /// The signal that ended the command, if one did.
    pub(super) signal: Option<Signal>,
}

/// A command in a process group of its own.
#[derive(Debug)]
pub(super) struct Job {
    child: Child,
    group: Pid,
    ended: Option<CommandEnd>,
}

impl Job {
    /// Starts the command, without a shell, with these variables added to the environment. Standard input, output and error are
    /// those of this process.
    ///
    /// Errors: the operating system's.
    pub(super) fn start(command: &[OsString], env: &[(&str, OsString)]) -> io::Result<Self> {
        let (program, args) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut start = Command::new(program);
        start.args(args).envs(env.iter().map(|(k, v)| (k, v))).process_group(0);
        let child = start.spawn()?;
        let group = Pid::from_child(&child);
        Ok(Self { child, group, ended: None })
    }

    /// The command's process group, whose id is the command's process id.
    pub(super) fn group(&self) -> Pid {
        self.group
    }

    /// Signals every process of the group; an empty group is no error. Returns whether the group has processes and none of them
    /// may be signalled.
    pub(super) fn signal_group(&self, signal: Signal) -> bool {
        kill_process_group(self.group, signal) == Err(Errno::PERM)
    }

    /// Sends a signal that may end the group, and SIGCONT, since a stopped process gets the signal only when it is continued.
    /// Returns as [`Self::signal_group`].
    pub(super) fn end_by(&self, signal: Signal) -> bool {
        let is_forbidden = self.signal_group(signal);
        self.signal_group(Signal::CONT);
        is_forbidden
    }

    /// Signals only the command, unless it has ended.
    pub(super) fn signal_command(&self, signal: Signal) {
        if self.ended.is_none() {
            let _ = kill_process(self.group, signal);
        }
    }

    /// The command's state; reaps it when it has ended.
    pub(super) fn poll_state(&mut self) -> CommandState {
        if let Ok(Some(status)) = self.child.try_wait() {
            self.ended = Some(end_of(status));
        }
        if let Some(end) = self.ended {
            return CommandState::Ended(end);
        }
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        match waitid(WaitId::Pid(self.group), options) {
            Ok(Some(status)) if status.stopped() => {
                CommandState::JustStopped(status.stopping_signal().and_then(Signal::from_named_raw))
            }
            _ => CommandState::Alive,
        }
    }

    /// Whether a process of the group remains, zombies excluded. The group's id is not reused while one remains.
    pub(super) fn has_members(&self) -> bool {
        test_kill_process_group(self.group).is_ok() && (self.ended.is_none() || has_living_member(self.group))
    }
}

fn end_of(status: ExitStatus) -> CommandEnd {
    let number = status.signal().and_then(|n| u8::try_from(n).ok());
    let by_signal = number.map(|n| exit::BY_SIGNAL.saturating_add(n));
    let code = status.code().and_then(|code| u8::try_from(code).ok()).or(by_signal).unwrap_or(u8::MAX);
    CommandEnd { code, signal: status.signal().and_then(Signal::from_named_raw) }
}

/// As [`Job::has_members`], for a process that may not have the right to signal the group.
pub(super) fn has_members(group: Pid) -> bool {
    test_kill_process_group(group) != Err(Errno::SRCH) && has_living_member(group)
}

/// Searches /proc, because a zombie stays a member of its group. If /proc cannot be read, assumes that there is a member.
fn has_living_member(group: Pid) -> bool {
    let group = group.as_raw_nonzero().to_string();
    // While the command lives, it has the group's number and makes the search unnecessary.
    if is_living_member(&Path::new("/proc").join(&group), &group) {
        return true;
    }
    let Ok(processes) = std::fs::read_dir("/proc") else { return true };
    processes.flatten().any(|entry| is_living_member(&entry.path(), &group))
}

fn is_living_member(process: &Path, group: &str) -> bool {
    let stat = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
    // pid (name) state ppid pgrp …, where the name may contain anything.
    let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let (state, pgrp) = (fields.next(), fields.nth(1));
    pgrp == Some(group) && !matches!(state, Some("Z" | "X"))
}
