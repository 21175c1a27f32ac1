//! Makes the command's process group the terminal's foreground group and takes the terminal back, as a shell does.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, IsTerminal};

use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::process::{Pid, Signal, getpgrp, kill_current_process_group};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The controlling terminal of this process.
#[derive(Debug)]
pub(super) struct Terminal {
    tty: File,
    own: Pid,
    /// The command's group was made the foreground group.
    is_handed: Cell<bool>,
}

impl Terminal {
    /// The controlling terminal, if there is one.
    pub(super) fn open() -> Option<Self> {
        let tty = File::options().read(true).write(true).open("/dev/tty").ok()?;
        Some(Self { tty, own: getpgrp(), is_handed: Cell::new(false) })
    }

    /// Whether the command should have the terminal from its start: standard input and output are the terminal, and this
    /// process is in its foreground. In a pipeline another process (a pager, for example) may need it.
    pub(super) fn is_for_command(&self) -> bool {
        io::stdin().is_terminal() && io::stdout().is_terminal() && self.is_in_foreground()
    }

    /// Whether this process' group is the foreground group.
    pub(super) fn is_in_foreground(&self) -> bool {
        tcgetpgrp(&self.tty).ok() == Some(self.own)
    }

    /// Whether the command's group has the keyboard.
    pub(super) fn is_handed(&self) -> bool {
        self.is_handed.get()
    }

    /// Makes `group` the foreground group: it gets the keyboard and Ctrl-C.
    pub(super) fn hand_to(&self, group: Pid) {
        self.is_handed.set(true);
        self.set_foreground(group);
    }

    /// Makes this process' group the foreground group again, if the command's group had become it.
    pub(super) fn take_back(&self) {
        if self.is_handed.replace(false) {
            self.set_foreground(self.own);
        }
    }

    /// Stops this process' group by `signal`, as the terminal would; returns when it is continued.
    pub(super) fn stop_self(signal: Signal) {
        // Fails only if the group does not exist, but this process is in it.
        let _ = kill_current_process_group(signal);
    }

    /// From the background, this is allowed only while SIGTTOU is blocked (rustix cannot block signals without unsafe code, hence
    /// nix). Errors are ignored: a closed terminal has no foreground.
    fn set_foreground(&self, group: Pid) {
        let mut ttou = SigSet::empty();
        ttou.add(NixSignal::SIGTTOU);
        let blocked = ttou.thread_block().is_ok();
        let _ = tcsetpgrp(&self.tty, group);
        if blocked {
            let _ = ttou.thread_unblock();
        }
    }
}
