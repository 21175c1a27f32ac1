//! Supervises the command from its start to its end: renewals, signals, the terminal, and SIGTERM and SIGKILL in time. The
//! command's group ends before the lease's deadline, unless `--on-lost warn` was given.

use std::pin::pin;
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::watch;

use super::lease_keeper::{GOES_ON, not_renewed};
use super::process_group::{CommandEnd, CommandState, Job};
use super::signals::{RunSignals, SignalEvent};
use super::terminal::Terminal;
use super::watchdog::Watchdog;
use crate::cli::exit;
use crate::cli::output::MessageWriter;
use crate::client::error::ClientError;
use crate::client::names::LockNames;
use crate::client::renewal::{LeaseRenewer, RenewalEnd, sleep_until};
use crate::redlock::clock::{BootTime, Clock, SystemClock};

/// Interval of checks whether a process of the group is left.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// How long a group may take to end after SIGKILL. After that, a process hangs in the kernel.
const KILL_MAX: Duration = Duration::from_secs(2);
/// Interval of the message about such a group.
const HANGS_INTERVAL: Duration = Duration::from_secs(60);
/// A shorter stop of this process had no effect: without a shell, nobody can continue a process group.
const STOP_MIN: Duration = Duration::from_millis(5);
/// With `--on-lost warn`: the timeout of the service's answer whether the watchdog renewed a lease whose deadline has passed,
/// while this process was stopped.
const ASK_MAX: Duration = Duration::from_secs(2);
/// A failed renewal is reported only if less than this part of the validity is left.
const REPORT_BELOW: u32 = 2;

/// What happens when the lease can no longer be renewed.
#[derive(Debug, Clone, Copy)]
pub(super) struct LossPolicy {
    /// Between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Between SIGKILL and the deadline.
    pub margin: Duration,
    /// The command continues when its lease is over.
    pub warn_only: bool,
}

/// How the command ended, and the state of the lease.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunOutcome {
    /// The exit code, and the signal that ended the command.
    pub end: CommandEnd,
    /// The state of the lease.
    pub lease: LeaseEnd,
    /// A forwarded signal asked this process to end.
    pub is_interrupted: bool,
}

/// The state of the lease when the command has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaseEnd {
    /// Held, to be released.
    Held,
    /// The lease was not renewed in time.
    NotRenewed,
    /// The service reported the lease's end.
    Ended,
}

/// The command and the tools of its supervision.
pub(super) struct Supervisor<'a, 'v> {
    pub job: &'a mut Job,
    pub watchdog: Option<&'a mut Watchdog>,
    pub terminal: Option<&'a Terminal>,
    pub deadline: watch::Receiver<BootTime>,
    pub signals: &'a mut RunSignals,
    pub policy: &'a LossPolicy,
    pub messages: &'a MessageWriter<'v>,
    pub name: &'a LockNames,
}

/// As [`LeaseRenewer::run`]. With `asks`, the service is asked before a lease counts as not renewed: the watchdog renews while
/// this process is stopped.
async fn renewals(
    renewer: &mut LeaseRenewer,
    notice: Duration,
    asks: bool,
    mut on_failure: impl FnMut(&ClientError),
) -> RenewalEnd {
    loop {
        let end = renewer.run(notice, &mut on_failure).await;
        if !asks || matches!(end, RenewalEnd::Ended(_)) {
            return end;
        }
        let renewed = tokio::select! {
            biased;
            renewed = renewer.renew(ASK_MAX) => renewed,
            // Trying several instances in turn may take longer.
            () = SystemClock.sleep(ASK_MAX) => return end,
        };
        match renewed {
            Ok(()) => {}
            Err(error) if error.is_lost() => return RenewalEnd::Ended(error),
            Err(_) => return end,
        }
    }
}

/// The progress of the supervision.
#[derive(Debug, Default)]
struct SupervisorState {
    /// How the command ended, once it has.
    end: Option<CommandEnd>,
    /// Whether the lease was lost while the command ran.
    lost: bool,
    /// How the lease was lost, if it was.
    lease: Option<LeaseEnd>,
    /// When SIGKILL is due, once SIGTERM was sent.
    kill_at: Option<BootTime>,
    /// SIGKILL was sent.
    killed_at: Option<BootTime>,
    /// When it was last reported that the group has not ended.
    reported_at: Option<BootTime>,
    /// It was reported that the group may not be signalled.
    is_forbidden: bool,
    /// A signal was forwarded to the group.
    is_interrupted: bool,
}

impl Supervisor<'_, '_> {
    /// Supervises until no process of the group is left.
    /// Cancel: the watchdog ends the group in time, or renews the lease.
    pub(super) async fn run(&mut self, renewer: &mut LeaseRenewer) -> RunOutcome {
        let notice =
            if self.policy.warn_only { Duration::ZERO } else { self.policy.grace.saturating_add(self.policy.margin) };
        self.update_watchdog();
        let (messages, name) = (self.messages, self.name);
        let mut deadline = self.deadline.clone();
        let first = deadline.borrow().since(SystemClock.now());
        let (current, mut reported) = (self.deadline.clone(), false);
        let mut renewing = pin!(renewals(renewer, notice, self.policy.warn_only, move |error| {
            let left = current.borrow().since(SystemClock.now());
            let late = left < first / REPORT_BELOW;
            if late && !std::mem::replace(&mut reported, true) {
                messages.message(&format!(
                    "the lease on {name} cannot be renewed: {error}; {} s left, trying again",
                    left.as_secs()
                ));
            }
        }));
        let (mut state, mut is_renewing) = (SupervisorState::default(), true);
        loop {
            if self.advance(&mut state) {
                return self.outcome(&state);
            }
            let wake = self.next_check(&state);
            tokio::select! {
                biased;
                event = self.signals.next() => self.handle(event, &mut state),
                lost = &mut renewing, if is_renewing => {
                    is_renewing = false;
                    self.lost(&lost, &mut state);
                }
                changed = deadline.changed(), if is_renewing => {
                    // If the watchdog renews, it does not depend on when the group ends.
                    if changed.is_ok() && (state.kill_at.is_none() || self.policy.warn_only) {
                        self.update_watchdog();
                    }
                }
                () = sleep_until(wake.unwrap_or_default()), if wake.is_some() => {}
            }
        }
    }

    /// Sends the current deadline to the watchdog.
    fn update_watchdog(&mut self) {
        let deadline = *self.deadline.borrow();
        let (kill, over) = (self.watchdog_time(deadline.minus(self.policy.margin)), self.watchdog_time(deadline));
        let Some(watchdog) = &mut self.watchdog else { return };
        watchdog.set_group(self.job.group());
        match self.policy.warn_only {
            true => watchdog.set_deadline(over),
            false => watchdog.set_times(kill.minus(self.policy.grace), kill),
        }
    }

    fn handle(&mut self, event: SignalEvent, state: &mut SupervisorState) {
        match event {
            SignalEvent::ToGroup(signal) => {
                state.is_interrupted = true;
                let is_forbidden = self.job.end_by(signal);
                self.report_forbidden(is_forbidden, state);
            }
            SignalEvent::ToCommand(signal) => self.job.signal_command(signal),
            SignalEvent::Child => {
                if let Some(watchdog) = &mut self.watchdog
                    && !watchdog.is_alive()
                    && !watchdog.has_acted()
                    // The watchdog may not signal the command either, and has nothing left to do.
                    && !state.is_forbidden
                    && SystemClock.now() < *self.deadline.borrow()
                {
                    let lack = if self.policy.warn_only {
                        "the lease is not renewed"
                    } else {
                        "the command is not ended in time"
                    };
                    self.messages
                        .message(&format!("the watchdog process has ended: if this process is stopped, {lack}"));
                    self.watchdog = None;
                }
            }
        }
    }

    /// Reports once that the command runs with its own privileges.
    fn report_forbidden(&self, is_forbidden: bool, state: &mut SupervisorState) {
        if is_forbidden && !std::mem::replace(&mut state.is_forbidden, true) {
            self.messages.message(&format!(
                "no right to signal the command (process group {}, run by another user): it may outlive the lease; run \
                 redlockd itself by sudo instead",
                self.job.group().as_raw_nonzero()
            ));
        }
    }

    /// Sends SIGTERM, once, and sets the time of SIGKILL.
    fn begin_to_end(&mut self, state: &mut SupervisorState) {
        if state.kill_at.is_some() {
            return;
        }
        let latest = self.deadline.borrow().minus(self.policy.margin);
        let kill_at = SystemClock.now().plus(self.policy.grace).min(latest);
        state.kill_at = Some(kill_at);
        let is_forbidden = self.job.end_by(Signal::TERM);
        self.report_forbidden(is_forbidden, state);
        let at = self.watchdog_time(kill_at);
        if let Some(watchdog) = self.watchdog.as_mut().filter(|_| !self.policy.warn_only) {
            // SIGTERM was sent: only SIGKILL is left.
            watchdog.set_times(at, at);
        }
    }

    /// When the watchdog acts on an action due at `at`: half of the margin later, so that `run` acts first.
    fn watchdog_time(&self, at: BootTime) -> BootTime {
        at.plus(self.policy.margin / 2)
    }

    fn lost(&mut self, lost: &RenewalEnd, state: &mut SupervisorState) {
        if state.end.is_some() {
            // The command has ended; only leftover processes are awaited.
            return;
        }
        let why = match lost {
            RenewalEnd::Ended(error) => error.to_string(),
            RenewalEnd::NotRenewed => not_renewed(self.name),
        };
        state.lease = Some(if matches!(lost, RenewalEnd::Ended(_)) { LeaseEnd::Ended } else { LeaseEnd::NotRenewed });
        if self.policy.warn_only {
            self.messages.message(&format!("{why}{GOES_ON}"));
            if let Some(watchdog) = &mut self.watchdog {
                watchdog.set_lost();
            }
            return;
        }
        self.messages.message(&format!("{why}; the command is ended"));
        state.lost = true;
        self.begin_to_end(state);
    }

    /// Checks command and group, and sends SIGKILL when it is due. Returns whether the supervision is over.
    fn advance(&mut self, state: &mut SupervisorState) -> bool {
        if state.end.is_none() {
            match self.job.poll_state() {
                CommandState::Alive => {}
                CommandState::JustStopped(signal) => self.stopped(signal, state),
                CommandState::Ended(end) => {
                    state.end = Some(end);
                    self.ended(state);
                }
            }
        }
        if state.end.is_some() && !self.job.has_members() {
            return true;
        }
        if state.end.is_some() && state.kill_at.is_none() {
            self.messages
                .message("processes that the command left behind in its group are ended before the lock is released");
            self.begin_to_end(state);
        }
        let now = SystemClock.now();
        match (state.kill_at, state.killed_at) {
            (Some(at), None) if now >= at => {
                self.job.signal_group(Signal::KILL);
                state.killed_at = Some(now);
            }
            (_, Some(at)) if now >= at.plus(KILL_MAX) => {
                if state.reported_at.is_none_or(|at| now.since(at) >= HANGS_INTERVAL) {
                    state.reported_at = Some(now);
                    self.messages.message("a process of the command's group does not end, even after SIGKILL");
                }
                return state.end.is_some() || self.policy.warn_only;
            }
            _ => {}
        }
        false
    }

    /// Handles the end of the command. If it ended late, because this process was stopped, the watchdog reports whether it ended
    /// the command.
    fn ended(&mut self, state: &mut SupervisorState) {
        let end = self.deadline.borrow().minus(self.policy.margin).minus(self.policy.grace);
        if state.lost || self.policy.warn_only || SystemClock.now() < end {
            return;
        }
        if let Some(watchdog) = self.watchdog.take()
            && watchdog.dismiss_and_wait()
        {
            state.lost = true;
        }
    }

    /// Handles a stop of the command: by Ctrl-Z, or because it uses the terminal from the background.
    fn stopped(&mut self, signal: Option<Signal>, state: &mut SupervisorState) {
        let Some(terminal) = self.terminal else { return };
        match signal {
            Some(signal @ (Signal::TTIN | Signal::TTOU)) => self.needs_terminal(terminal, signal, state),
            _ if terminal.is_handed() => self.stop_both(terminal, Signal::TSTP),
            _ => {}
        }
    }

    /// The command reads from the terminal but is not in its foreground, as in a pipeline or after `&`. It gets the terminal if
    /// this process may give it; otherwise both stop until the shell brings them to the foreground.
    fn needs_terminal(&mut self, terminal: &Terminal, signal: Signal, state: &mut SupervisorState) {
        if !terminal.is_in_foreground() && !terminal.is_handed() {
            let before = SystemClock.now();
            self.stop_both(terminal, signal);
            if !terminal.is_in_foreground() && SystemClock.now().since(before) < STOP_MIN {
                // No process is left that could continue this one, so the system does not stop it.
                self.messages.message("the command needs the terminal, which is gone; the command is ended");
                self.begin_to_end(state);
                return;
            }
        }
        if terminal.is_in_foreground() {
            terminal.hand_to(self.job.group());
        }
        self.job.signal_group(Signal::CONT);
    }

    /// Stops this process too; returns when a shell has continued it, and continues the command.
    fn stop_both(&mut self, terminal: &Terminal, signal: Signal) {
        let had_terminal = terminal.is_handed();
        terminal.take_back();
        let left = self.deadline.borrow().since(SystemClock.now());
        let (name, left) = (self.name, left.saturating_sub(self.policy.grace).as_secs());
        self.messages.message(&match self.policy.warn_only {
            true => format!("stopped; the lease on {name} is renewed meanwhile"),
            false => format!(
                "stopped; the lease on {name} is not renewed meanwhile, and the command is ended in {left} s unless continued"
            ),
        });
        Terminal::stop_self(signal);
        if had_terminal && terminal.is_in_foreground() {
            terminal.hand_to(self.job.group());
        }
        self.job.signal_group(Signal::CONT);
    }

    fn next_check(&self, state: &SupervisorState) -> Option<BootTime> {
        let soon = (state.end.is_some() || state.killed_at.is_some()).then(|| SystemClock.now().plus(CHECK_INTERVAL));
        let kill = if state.killed_at.is_some() { None } else { state.kill_at };
        [soon, kill].into_iter().flatten().min()
    }

    fn outcome(&self, state: &SupervisorState) -> RunOutcome {
        let lost = CommandEnd { code: exit::LOST, signal: None };
        let end = state.end.filter(|_| !state.lost).unwrap_or(lost);
        RunOutcome { end, lease: state.lease.unwrap_or(LeaseEnd::Held), is_interrupted: state.is_interrupted }
    }
}
