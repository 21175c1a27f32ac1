//! Makes the command's process group the terminal's foreground group and takes the terminal back, as a shell does.

use std::io::{self, IsTerminal};

use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::process::{Pid, Signal, getpgrp, kill_current_process_group};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The controlling terminal, of which this process' group is the foreground group.
#[derive(Debug)]
pub(super) struct Terminal {
    own: Pid,
}

impl Terminal {
    /// The terminal, if standard input and output are the terminal and this process is in its foreground. In a pipeline
    /// it is not used, because another process of the pipeline (a pager, for example) may need it.
    pub(super) fn find() -> Option<Self> {
        let ours = io::stdin().is_terminal() && io::stdout().is_terminal();
        let own = getpgrp();
        (ours && tcgetpgrp(io::stdin()).ok() == Some(own)).then_some(Self { own })
    }

    /// Makes `group` the foreground group: it gets the keyboard and Ctrl-C.
    pub(super) fn hand_to(&self, group: Pid) {
        set_foreground(group);
    }

    /// Makes this process' group the foreground group again.
    pub(super) fn take_back(&self) {
        set_foreground(self.own);
    }

    /// Stops this process' group, as Ctrl-Z does; returns when it is continued.
    pub(super) fn stop_self(&self) {
        // Fails only if the group does not exist, and this process is in it.
        let _ = kill_current_process_group(Signal::TSTP);
    }
}

/// From the background this is allowed only while SIGTTOU is blocked (rustix cannot block signals without unsafe code,
/// hence nix). Errors are ignored: a closed terminal has no foreground.
fn set_foreground(group: Pid) {
    let mut ttou = SigSet::empty();
    ttou.add(NixSignal::SIGTTOU);
    let blocked = ttou.thread_block().is_ok();
    let _ = tcsetpgrp(io::stdin(), group);
    if blocked {
        let _ = ttou.thread_unblock();
    }
}
