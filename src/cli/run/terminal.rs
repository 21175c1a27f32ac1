//! The terminal while a command runs in a process group of its own: handed over to it, and taken
//! back, as a shell does. Knows process groups, not what runs in them.

use std::io::{self, IsTerminal};

use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::process::{Pid, Signal, getpgrp, kill_current_process_group};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The controlling terminal, of which this process' group is the foreground group.
#[derive(Debug)]
pub struct Terminal {
    own: Pid,
}

impl Terminal {
    /// The terminal, where standard input and output are it and this process is in its foreground.
    /// In a pipeline it is left alone: the other end (a pager, say) may be using it.
    pub fn find() -> Option<Self> {
        let ours = io::stdin().is_terminal() && io::stdout().is_terminal();
        let own = getpgrp();
        (ours && tcgetpgrp(io::stdin()).ok() == Some(own)).then_some(Self { own })
    }

    /// Makes `group` the foreground group: it gets the keyboard, and Ctrl-C.
    pub fn hand_to(&self, group: Pid) {
        set_foreground(group);
    }

    /// Makes this process' group the foreground group again.
    pub fn take_back(&self) {
        set_foreground(self.own);
    }

    /// Stops this process' group as Ctrl-Z would have; returns when it is continued.
    pub fn stop_self(&self) {
        // Fails only where the group does not exist, and we are in it.
        let _ = kill_current_process_group(Signal::TSTP);
    }
}

/// From the background this is allowed only while SIGTTOU is blocked. A terminal that has gone away
/// needs nothing any more.
fn set_foreground(group: Pid) {
    let mut ttou = SigSet::empty();
    ttou.add(NixSignal::SIGTTOU);
    let blocked = ttou.thread_block().is_ok();
    let _ = tcsetpgrp(io::stdin(), group);
    if blocked {
        let _ = ttou.thread_unblock();
    }
}
