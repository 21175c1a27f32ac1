//! Supervises the command from its start to its end: renewals, signals, the terminal, and SIGTERM and SIGKILL in time. The
//! command's group ends before the lease's deadline, unless `--on-lost warn` was given.

use std::pin::pin;
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::watch;

use super::job::{CommandState, Job};
use super::signals::{RunSignals, SignalEvent};
use super::terminal::Terminal;
use super::watchdog::Watchdog;
use crate::cli::exit;
use crate::cli::output::MessageWriter;
use crate::client::renewal::{LeaseRenewer, RenewalEnd, sleep_until};
use crate::redlock::clock::{BootTime, Clock, SystemClock};

/// Interval of checks whether a process of the group is left.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// After SIGKILL: how long a group may take to end. Beyond it a process hangs in the kernel.
const KILL_MAX: Duration = Duration::from_secs(2);
/// A failed renewal is reported only if less than this part of the validity is left.
const REPORT_BELOW: u32 = 2;

/// What happens when the lease can no longer be renewed.
#[derive(Debug, Clone, Copy)]
pub(super) struct LossPolicy {
    /// Between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Between SIGKILL and the deadline.
    pub margin: Duration,
    /// Let the command run when its lease is over.
    pub warn_only: bool,
}

/// How `run` ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunOutcome {
    /// The exit code.
    pub code: u8,
    /// The state of the lease.
    pub lease: LeaseEnd,
}

/// The state of the lease when the command has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaseEnd {
    /// Held, to be released.
    Held,
    /// Not renewed in time.
    NotRenewed,
    /// The service reported its end.
    Ended,
}

/// The command and what it is supervised with.
pub(super) struct Supervisor<'a, 'v> {
    pub job: &'a mut Job,
    pub watchdog: Option<&'a mut Watchdog>,
    pub terminal: Option<&'a Terminal>,
    pub deadline: watch::Receiver<BootTime>,
    pub signals: &'a mut RunSignals,
    pub policy: &'a LossPolicy,
    pub messages: &'a MessageWriter<'v>,
    pub name: &'a str,
}

/// The progress of the supervision.
#[derive(Debug, Default)]
struct SupervisorState {
    /// The command's exit code, once it has ended.
    code: Option<u8>,
    /// Whether the lease was lost while the command ran.
    lost: bool,
    /// How the lease was lost, if it was.
    lease: Option<LeaseEnd>,
    /// When SIGKILL is due, once SIGTERM was sent.
    kill_at: Option<BootTime>,
    /// SIGKILL was sent.
    killed_at: Option<BootTime>,
}

impl Supervisor<'_, '_> {
    /// Supervises until no process of the group is left.
    /// Cancel: the watchdog ends the group in time.
    pub(super) async fn run(&mut self, renewer: &mut LeaseRenewer) -> RunOutcome {
        let notice =
            if self.policy.warn_only { Duration::ZERO } else { self.policy.grace.saturating_add(self.policy.margin) };
        self.update_watchdog();
        let (messages, name) = (self.messages, self.name);
        let mut deadline = self.deadline.clone();
        let first = deadline.borrow().since(SystemClock.now());
        let (current, mut reported) = (self.deadline.clone(), false);
        let mut renewing = pin!(renewer.run(notice, move |error| {
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
                event = self.signals.next() => self.handle(event),
                lost = &mut renewing, if is_renewing => {
                    is_renewing = false;
                    self.lost(&lost, &mut state);
                }
                changed = deadline.changed(), if is_renewing => {
                    if changed.is_ok() && state.kill_at.is_none() {
                        self.update_watchdog();
                    }
                }
                () = sleep_until(wake.unwrap_or_default()), if wake.is_some() => {}
            }
        }
    }

    /// Sends the current deadline to the watchdog.
    fn update_watchdog(&mut self) {
        let kill = self.watchdog_time(self.deadline.borrow().minus(self.policy.margin));
        let terminate = kill.minus(self.policy.grace);
        let group = self.job.group();
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.set_group(group);
            watchdog.set_times(terminate, kill);
        }
    }

    fn handle(&mut self, event: SignalEvent) {
        match event {
            SignalEvent::ToGroup(signal) => self.job.signal_group(signal),
            SignalEvent::ToCommand(signal) => self.job.signal_command(signal),
            SignalEvent::Child => {
                if let Some(watchdog) = &mut self.watchdog
                    && !watchdog.is_alive()
                    && SystemClock.now() < *self.deadline.borrow()
                {
                    self.messages.message(
                        "the watchdog process has ended: if this process is stopped, the command is not ended in time",
                    );
                    self.watchdog = None;
                }
            }
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
        self.job.terminate();
        let at = self.watchdog_time(kill_at);
        if let Some(watchdog) = &mut self.watchdog {
            // SIGTERM was sent: only SIGKILL is left.
            watchdog.set_times(at, at);
        }
    }

    /// When the watchdog acts on what is due at `at`: half of the margin later, so that `run` is first.
    fn watchdog_time(&self, at: BootTime) -> BootTime {
        at.plus(self.policy.margin / 2)
    }

    fn lost(&mut self, lost: &RenewalEnd, state: &mut SupervisorState) {
        if state.code.is_some() {
            // The command has ended; only leftover processes are awaited.
            return;
        }
        let why = match lost {
            RenewalEnd::Ended(error) => error.to_string(),
            RenewalEnd::NotRenewed => format!("the lease on {} could not be renewed in time", self.name),
        };
        state.lease = Some(if matches!(lost, RenewalEnd::Ended(_)) { LeaseEnd::Ended } else { LeaseEnd::NotRenewed });
        if self.policy.warn_only {
            self.messages.message(&format!("{why}; the command continues WITHOUT the lock (--on-lost=warn)"));
            return;
        }
        self.messages.message(&format!("{why}; the command is ended"));
        state.lost = true;
        self.begin_to_end(state);
    }

    /// Checks command and group, and sends SIGKILL when it is due. Returns whether the supervision is over.
    fn advance(&mut self, state: &mut SupervisorState) -> bool {
        if state.code.is_none() {
            match self.job.poll_state() {
                CommandState::Alive => {}
                CommandState::JustStopped => self.stopped(),
                CommandState::Ended(code) => {
                    state.code = Some(code);
                    self.ended(state);
                }
            }
        }
        if state.code.is_some() && !self.job.has_members() {
            return true;
        }
        if state.code.is_some() && state.kill_at.is_none() {
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
                self.messages.message("a process of the command's group does not end, even after SIGKILL");
                return state.code.is_some() || self.policy.warn_only;
            }
            _ => {}
        }
        false
    }

    /// The command has ended. If that was late, because this process was stopped, the watchdog reports whether it ended the
    /// command.
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

    /// Ctrl-Z, if the command has the terminal: stops this process too, and continues both together.
    fn stopped(&mut self) {
        let Some(terminal) = self.terminal else { return };
        terminal.take_back();
        let left = self.deadline.borrow().since(SystemClock.now());
        self.messages.message(&format!(
            "stopped; the lease on {} is not renewed meanwhile, and the command is ended in {} s unless continued",
            self.name,
            left.saturating_sub(self.policy.grace).as_secs()
        ));
        terminal.stop_self();
        terminal.hand_to(self.job.group());
        self.job.signal_group(Signal::CONT);
    }

    fn next_check(&self, state: &SupervisorState) -> Option<BootTime> {
        let soon = (state.code.is_some() || state.killed_at.is_some()).then(|| SystemClock.now().plus(CHECK_INTERVAL));
        let kill = if state.killed_at.is_some() { None } else { state.kill_at };
        [soon, kill].into_iter().flatten().min()
    }

    fn outcome(&self, state: &SupervisorState) -> RunOutcome {
        let own = state.code.unwrap_or(exit::LOST);
        RunOutcome { code: if state.lost { exit::LOST } else { own }, lease: state.lease.unwrap_or(LeaseEnd::Held) }
    }
}
