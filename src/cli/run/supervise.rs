//! The time between the start of a command and its end: renewals, signals, the terminal, and the
//! order in which things end. The command's group is dead before the lease's deadline, or somebody
//! asked for a warning instead.

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

/// How often the group of a command that has ended is looked at, until nobody is left.
const LOOK: Duration = Duration::from_millis(10);
/// After SIGKILL: how long the system may take to end a group. Beyond it a process hangs in the
/// kernel, and there is nothing else that could be done to it.
const KILL_PATIENCE: Duration = Duration::from_secs(2);
/// A failed renewal is told when less than this part of the TTL is left; before that it is no news.
const NEWS_BELOW: u32 = 2;

/// What was asked for.
#[derive(Debug, Clone, Copy)]
pub struct LossPolicy {
    /// Between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Between SIGKILL and the deadline.
    pub margin: Duration,
    /// Let the command run when its lease is over.
    pub warn_only: bool,
}

/// How it ended.
#[derive(Debug, Clone, Copy)]
pub struct RunOutcome {
    /// For the exit.
    pub code: u8,
    /// What there is to give back.
    pub lease: LeaseEnd,
}

/// How the lease stands when the command has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseEnd {
    /// It is ours, to be given back.
    Running,
    /// It could not be renewed: nobody was reached, lately.
    Unrenewed,
    /// The service says that it is over.
    Over,
}

/// What it watches.
pub struct Supervisor<'a, 'v> {
    pub job: &'a mut Job,
    pub watchdog: Option<&'a mut Watchdog>,
    pub terminal: Option<&'a Terminal>,
    pub deadline: watch::Receiver<BootTime>,
    pub signals: &'a mut RunSignals,
    pub plan: &'a LossPolicy,
    pub messages: &'a MessageWriter<'v>,
    pub name: &'a str,
}

/// Where things stand.
#[derive(Debug, Default)]
struct SupervisorState {
    /// The command's exit code, once it has ended.
    code: Option<u8>,
    /// The lease was lost while the command ran.
    lost: bool,
    /// How the lease was lost, if it was.
    lease: Option<LeaseEnd>,
    /// When SIGKILL is due, once SIGTERM was sent.
    kill_at: Option<BootTime>,
    /// SIGKILL was sent.
    killed_at: Option<BootTime>,
}

impl Supervisor<'_, '_> {
    /// Watches until nobody of the command's group is left.
    /// Cancel: the watchdog ends the group in time.
    pub async fn run(&mut self, keeper: &mut LeaseRenewer) -> RunOutcome {
        let notice =
            if self.plan.warn_only { Duration::ZERO } else { self.plan.grace.saturating_add(self.plan.margin) };
        self.guard();
        let (messages, name) = (self.messages, self.name);
        let mut deadline = self.deadline.clone();
        let first = deadline.borrow().since(SystemClock.now());
        let (watched, mut told) = (self.deadline.clone(), false);
        let mut keep = pin!(keeper.run(notice, move |error| {
            let left = watched.borrow().since(SystemClock.now());
            let late = left < first / NEWS_BELOW;
            if late && !std::mem::replace(&mut told, true) {
                messages.message(&format!(
                    "the lease on {name} cannot be renewed: {error}; {} s left, trying again",
                    left.as_secs()
                ));
            }
        }));
        let (mut state, mut keeping) = (SupervisorState::default(), true);
        loop {
            if self.look(&mut state) {
                return self.outcome(&state);
            }
            let wake = self.next_look(&state);
            tokio::select! {
                biased;
                news = self.signals.next() => self.pass_on(news),
                lost = &mut keep, if keeping => {
                    keeping = false;
                    self.lost(&lost, &mut state);
                }
                changed = deadline.changed(), if keeping => {
                    if changed.is_ok() && state.kill_at.is_none() {
                        self.guard();
                    }
                }
                () = sleep_until(wake.unwrap_or_default()), if wake.is_some() => {}
            }
        }
    }

    /// Tells the watchdog of the present deadline.
    fn guard(&mut self) {
        let kill = self.watchdogs(self.deadline.borrow().minus(self.plan.margin));
        let terminate = kill.minus(self.plan.grace);
        let group = self.job.group();
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.guard(group);
            watchdog.until(terminate, kill);
        }
    }

    fn pass_on(&mut self, news: SignalEvent) {
        match news {
            SignalEvent::ToGroup(signal) => self.job.signal_group(signal),
            SignalEvent::ToCommand(signal) => self.job.signal_command(signal),
            SignalEvent::Child => {
                if let Some(watchdog) = &mut self.watchdog
                    && !watchdog.is_alive()
                    && SystemClock.now() < *self.deadline.borrow()
                {
                    self.messages
                        .message("the watchdog process has ended: if this process is stopped, nobody ends the command");
                    self.watchdog = None;
                }
            }
        }
    }

    /// Sends SIGTERM, once, and says when SIGKILL is due.
    fn begin_to_end(&mut self, state: &mut SupervisorState) {
        if state.kill_at.is_some() {
            return;
        }
        let latest = self.deadline.borrow().minus(self.plan.margin);
        let kill_at = SystemClock.now().plus(self.plan.grace).min(latest);
        state.kill_at = Some(kill_at);
        self.job.terminate();
        let at = self.watchdogs(kill_at);
        if let Some(watchdog) = &mut self.watchdog {
            // SIGTERM was sent: what is left to guard is SIGKILL.
            watchdog.until(at, at);
        }
    }

    /// When the watchdog acts on what is due at `at`: half of the margin later, so that `run` is first.
    fn watchdogs(&self, at: BootTime) -> BootTime {
        at.plus(self.plan.margin / 2)
    }

    fn lost(&mut self, lost: &RenewalEnd, state: &mut SupervisorState) {
        if state.code.is_some() {
            // The command has ended; only what it left behind is being waited for.
            return;
        }
        let why = match lost {
            RenewalEnd::Ended(error) => error.to_string(),
            RenewalEnd::NotRenewed => format!("the lease on {} could not be renewed in time", self.name),
        };
        state.lease = Some(if matches!(lost, RenewalEnd::Ended(_)) { LeaseEnd::Over } else { LeaseEnd::Unrenewed });
        if self.plan.warn_only {
            self.messages.message(&format!("{why}; the command runs on WITHOUT the lock (--on-lost=warn)"));
            return;
        }
        self.messages.message(&format!("{why}; the command is ended"));
        state.lost = true;
        self.begin_to_end(state);
    }

    /// Looks at command and group, and sends what is due; whether all is over.
    fn look(&mut self, state: &mut SupervisorState) -> bool {
        if state.code.is_none() {
            match self.job.look() {
                CommandState::Alive => {}
                CommandState::JustStopped => self.stopped(),
                CommandState::Ended(code) => {
                    state.code = Some(code);
                    self.ended(state);
                }
            }
        }
        if state.code.is_some() && !self.job.is_anybody_left() {
            return true;
        }
        if state.code.is_some() && state.kill_at.is_none() {
            self.messages
                .message("processes that the command left behind in its group are ended before the lock is given back");
            self.begin_to_end(state);
        }
        let now = SystemClock.now();
        match (state.kill_at, state.killed_at) {
            (Some(at), None) if now >= at => {
                self.job.signal_group(Signal::KILL);
                state.killed_at = Some(now);
            }
            (_, Some(at)) if now >= at.plus(KILL_PATIENCE) => {
                self.messages.message("a process of the command's group does not end, not even by SIGKILL");
                return state.code.is_some() || self.plan.warn_only;
            }
            _ => {}
        }
        false
    }

    /// The command has ended. Where that was late, because this process was stopped, the watchdog
    /// knows whether it ended by itself.
    fn ended(&mut self, state: &mut SupervisorState) {
        let end = self.deadline.borrow().minus(self.plan.margin).minus(self.plan.grace);
        if state.lost || self.plan.warn_only || SystemClock.now() < end {
            return;
        }
        if let Some(watchdog) = self.watchdog.take()
            && watchdog.dismiss_and_ask()
        {
            state.lost = true;
        }
    }

    /// Ctrl-Z, where the command has the terminal: stop like it, and go on with it if there is time.
    fn stopped(&mut self) {
        let Some(terminal) = self.terminal else { return };
        terminal.take_back();
        let left = self.deadline.borrow().since(SystemClock.now());
        self.messages.message(&format!(
            "stopped; the lease on {} is not renewed meanwhile, and the command is ended in {} s unless continued",
            self.name,
            left.saturating_sub(self.plan.grace).as_secs()
        ));
        terminal.stop_self();
        terminal.hand_to(self.job.group());
        self.job.signal_group(Signal::CONT);
    }

    fn next_look(&self, state: &SupervisorState) -> Option<BootTime> {
        let soon = (state.code.is_some() || state.killed_at.is_some()).then(|| SystemClock.now().plus(LOOK));
        let kill = if state.killed_at.is_some() { None } else { state.kill_at };
        [soon, kill].into_iter().flatten().min()
    }

    fn outcome(&self, state: &SupervisorState) -> RunOutcome {
        let own = state.code.unwrap_or(exit::LOST);
        RunOutcome { code: if state.lost { exit::LOST } else { own }, lease: state.lease.unwrap_or(LeaseEnd::Running) }
    }
}
