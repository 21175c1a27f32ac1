//! The arguments of the commands that send requests to a running service.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};

use super::client_help::{
    ELECT_EXAMPLES, EVENTS_EXAMPLES, EXTEND_EXAMPLES, FENCE_EXAMPLES, FORCE_EXAMPLES, HEALTH_EXAMPLES, LIST_EXAMPLES,
    RELEASE_EXAMPLES, RUN_EXAMPLES, RUN_USAGE, STATUS_EXAMPLES, WATCH_EXAMPLES,
};
pub(super) use super::mode_args::ModeArgs;
use crate::duration::parse_duration;
use crate::types::ResourceName;

/// Instances and key.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Service")]
pub(super) struct ServiceArgs {
    /// URL of an instance; repeat it for further ones, which are tried in turn [default: http://127.0.0.1:5625] [env: REDLOCKD_URL, separated by commas]
    #[arg(long = "url", value_name = "URL")]
    pub(super) urls: Vec<String>,
    /// Read the API key from this file [default: ~/.config/redlockd/key, if it exists] [env: REDLOCKD_KEY_FILE]
    #[arg(long, value_name = "FILE")]
    pub(super) key_file: Option<PathBuf>,
    /// Send the API key unencrypted to another host
    #[arg(long)]
    pub(super) insecure_key: bool,
    /// Also trust the certificate authorities in this PEM file, for https
    #[arg(long, value_name = "FILE")]
    pub(super) ca_file: Option<PathBuf>,
}

impl ServiceArgs {
    /// These options as command-line arguments.
    pub(super) fn to_args(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = self.urls.iter().flat_map(|url| ["--url".into(), url.into()]).collect();
        for (option, file) in [("--key-file", &self.key_file), ("--ca-file", &self.ca_file)] {
            args.extend(file.iter().flat_map(|path| [option.into(), path.clone().into_os_string()]));
        }
        args.extend(self.insecure_key.then(|| "--insecure-key".into()));
        args
    }
}

/// Output format; with neither option a table on a terminal, plain text elsewhere.
#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct OutputArgs {
    /// Print the service's answer as JSON
    #[arg(long, conflicts_with = "plain")]
    pub(super) json: bool,
    /// Print text for scripts, without headings [default if standard output is no terminal]
    #[arg(long)]
    pub(super) plain: bool,
}

/// A lease's labels.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct LabelArgs {
    /// Label of the holder (default: user@host:pid, of `run` itself or of the process that started `acquire`)
    #[arg(long, value_name = "TEXT")]
    pub(super) owner: Option<String>,
    /// Purpose of the lease
    #[arg(long, value_name = "TEXT")]
    pub(super) note: Option<String>,
    /// Further label, shown by `redlockd status` and on the lock's page; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = super::args::pair)]
    pub(super) meta: Vec<(String, String)>,
}

/// What happens to the command when its lease can no longer be renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum OnLost {
    /// End it before the lease ends
    #[default]
    Stop,
    /// Let it run and print a warning
    Warn,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES, override_usage = RUN_USAGE)]
pub(super) struct RunCommand {
    /// TTL of the lease, which is renewed at a third of it [default: 30s; with --at-least as long as that, at most 5m]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) ttl: Option<Duration>,
    /// Maximum wait for the lock
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub(super) wait: Duration,
    /// Keep the lock held for at least this long from its grant, also after a shorter command
    #[arg(long, value_name = "TIME", default_value = "0s", hide_default_value = true, value_parser = duration)]
    pub(super) at_least: Duration,
    /// Exit with 0 at once if the lock is held
    #[arg(long, conflicts_with = "wait")]
    pub(super) skip_if_held: bool,
    /// What to do when the lease can no longer be renewed
    #[arg(long, value_name = "WHAT", default_value = "stop")]
    pub(super) on_lost: OnLost,
    /// Time between SIGTERM and SIGKILL, both before the lease ends [default: 5s, at most a third of --ttl]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) grace: Option<Duration>,
    /// Exit code if the lock is held or the wait times out
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = super::exit::HELD)]
    pub(super) conflict_exit_code: u8,
    /// Print only errors
    #[arg(short, long)]
    pub(super) quiet: bool,
    #[command(flatten)]
    pub(super) mode: ModeArgs,
    #[command(flatten)]
    pub(super) labels: LabelArgs,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    /// The name of the lock; several names, up to the `--`, are acquired all or none
    #[arg(value_name = "NAME", value_parser = resource)]
    pub(super) resource: ResourceName,
    /// The command and its arguments; run without a shell. After one name the `--` before it may be left out
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

/// Arguments of `elect`.
#[derive(Debug, Args)]
#[command(after_help = ELECT_EXAMPLES)]
pub(super) struct ElectCommand {
    /// TTL of the lease: at the latest after it another candidate can lead
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(super) ttl: Duration,
    /// Answer who leads on this IP address and port: `GET /`, and `GET /leader` with 200 or 503
    #[arg(long, value_name = "ADDR")]
    pub(super) listen: Option<SocketAddr>,
    /// Time between SIGTERM and SIGKILL, both before the lease ends [default: 5s, at most a third of --ttl]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) grace: Option<Duration>,
    /// Print only errors
    #[arg(short, long)]
    pub(super) quiet: bool,
    #[command(flatten)]
    pub(super) labels: LabelArgs,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    /// The name of the lock
    #[arg(value_parser = resource)]
    pub(super) resource: ResourceName,
    /// The command and its arguments, run while this process leads; without one it only leads
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

/// What `acquire` and `keep` have in common.
#[derive(Debug, Args)]
pub(super) struct AcquireCommand {
    /// TTL of the lease [default: the service's default_ttl]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) ttl: Option<Duration>,
    /// Maximum wait for the lock
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub(super) wait: Duration,
    /// Write the token into this new file (mode 0600) instead of printing it; `-` is standard output
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) mode: ModeArgs,
    #[command(flatten)]
    pub(super) labels: LabelArgs,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    /// The name of the lock, or of several
    #[arg(required = true, value_name = "NAME", value_parser = resource)]
    pub(super) names: Vec<ResourceName>,
}

/// Arguments of `keep`.
#[derive(Debug, Args)]
pub(super) struct KeepCommand {
    /// For how long the service renews the lease
    #[arg(long = "for", value_name = "TIME", value_parser = duration, required_unless_present = "until")]
    pub(super) kept_for: Option<Duration>,
    /// The same up to this time: 18:00 (in this machine's time zone, today or tomorrow), 2026-11-30T08:00, or with a zone
    #[arg(long, value_name = "WHEN", value_parser = time_until, conflicts_with = "kept_for")]
    pub(super) until: Option<Duration>,
    #[command(flatten)]
    pub(super) acquire: AcquireCommand,
}

/// The time from now to a time that a person entered.
fn time_until(text: &str) -> Result<Duration, String> {
    until_from(&jiff::Zoned::now(), text)
}

fn until_from(now: &jiff::Zoned, text: &str) -> Result<Duration, String> {
    let invalid = || "must be a time such as 18:00, 2026-11-30T08:00 or 2026-11-30T08:00Z".to_owned();
    let is_clock_time = text.len() == 5 && text.as_bytes()[2] == b':';
    let at = if is_clock_time {
        let time: jiff::civil::Time = text.parse().map_err(|_| invalid())?;
        let today = now.date().to_datetime(time).to_zoned(now.time_zone().clone()).map_err(|_| invalid())?;
        match today > *now {
            true => today,
            false => today.checked_add(jiff::Span::new().days(1)).map_err(|_| invalid())?,
        }
    } else if let Ok(at) = text.parse::<jiff::Timestamp>() {
        at.to_zoned(now.time_zone().clone())
    } else {
        let local: jiff::civil::DateTime = text.parse().map_err(|_| invalid())?;
        local.to_zoned(now.time_zone().clone()).map_err(|_| invalid())?
    };
    let left = at.timestamp().duration_since(now.timestamp());
    let left = Duration::try_from(left).ok().filter(|left| !left.is_zero()).ok_or("is in the past")?;
    Ok(Duration::from_secs(left.as_secs().max(1)))
}

/// The token of a lease.
#[derive(Debug, Args)]
pub(super) struct TokenArgs {
    /// File with the token; `-` is standard input [env: REDLOCKD_TOKEN_FILE]
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
}

/// Arguments of `extend`.
#[derive(Debug, Args)]
#[command(after_help = EXTEND_EXAMPLES)]
pub(super) struct ExtendCommand {
    /// New TTL, from now [default: the lease's TTL]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) ttl: Option<Duration>,
    /// Make an exclusive lease a shared one
    #[arg(long)]
    pub(super) shared: bool,
    /// Have the service renew the lease for so long from now on
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) keep: Option<Duration>,
    /// Change the note
    #[arg(long, value_name = "TEXT")]
    pub(super) note: Option<String>,
    /// Change one label; an empty value removes it
    #[arg(long, value_name = "KEY=VALUE", value_parser = super::args::pair)]
    pub(super) meta: Vec<(String, String)>,
    #[command(flatten)]
    pub(super) token: TokenArgs,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    /// The name of the lock, or of several
    #[arg(required = true, value_name = "NAME", value_parser = resource)]
    pub(super) names: Vec<ResourceName>,
}

/// Arguments of `release`.
#[derive(Debug, Args)]
#[command(after_help = RELEASE_EXAMPLES)]
pub(super) struct ReleaseCommand {
    #[command(flatten)]
    pub(super) token: TokenArgs,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    /// The name of the lock, or of several
    #[arg(required = true, value_name = "NAME", value_parser = resource)]
    pub(super) names: Vec<ResourceName>,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
#[command(after_help = STATUS_EXAMPLES)]
pub(super) struct StatusCommand {
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    /// The name of the lock
    #[arg(value_parser = resource)]
    pub(super) resource: ResourceName,
}

/// Arguments of `fence`.
#[derive(Debug, Args)]
#[command(after_help = FENCE_EXAMPLES)]
pub(super) struct FenceCommand {
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    /// The name of the lock
    #[arg(value_parser = resource)]
    pub(super) resource: ResourceName,
    /// The fence to check
    #[arg(value_name = "N")]
    pub(super) fence: u64,
}

/// Arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = LIST_EXAMPLES)]
pub(super) struct ListCommand {
    /// Only names with this prefix
    #[arg(long, value_name = "TEXT")]
    pub(super) prefix: Option<String>,
    /// Only this owner's
    #[arg(long, value_name = "TEXT")]
    pub(super) owner: Option<String>,
    /// Only in this state: held, waited or lock-delay
    #[arg(long, value_name = "STATE")]
    pub(super) state: Option<String>,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// Arguments of `force`.
#[derive(Debug, Args)]
#[command(after_help = FORCE_EXAMPLES, group = ArgGroup::new("mode").args(["now", "revoke"]))]
pub(super) struct ForceCommand {
    /// Reason, for the service's log
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: String,
    /// Refuse renewals: the lock is free when the current lease ends (safe, the default)
    #[arg(long)]
    pub(super) revoke: bool,
    /// End the lease at once, even if its holder is still working (UNSAFE)
    #[arg(long)]
    pub(super) now: bool,
    /// Only the lease with this fencing token; of several holders the one that is meant
    #[arg(long, value_name = "FENCE")]
    pub(super) if_fence: Option<u64>,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    /// The name of the lock
    #[arg(value_parser = resource)]
    pub(super) resource: ResourceName,
}

/// Arguments of `watch`.
#[derive(Debug, Args)]
#[command(after_help = WATCH_EXAMPLES)]
pub(super) struct WatchCommand {
    /// Only names with this prefix; events of nodes are always shown
    #[arg(long, value_name = "TEXT")]
    pub(super) prefix: Option<String>,
    /// Include renewals
    #[arg(long)]
    pub(super) renewals: bool,
    /// Stop after this many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) count: Option<u64>,
    /// Stop after this time
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(super) lasts: Option<Duration>,
    /// Stop if no instance has answered for this long
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration)]
    pub(super) give_up: Duration,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// Arguments of `events`.
#[derive(Debug, Args)]
#[command(after_help = EVENTS_EXAMPLES)]
pub(super) struct EventsCommand {
    /// Since a time of day (10:42, UTC), or for so long (15m)
    #[arg(long, value_name = "TIME")]
    pub(super) since: Option<String>,
    /// Three minutes before and after a time of day (10:42, UTC)
    #[arg(long, value_name = "TIME", conflicts_with = "since")]
    pub(super) at: Option<String>,
    /// Not after this time
    #[arg(long, value_name = "TIME")]
    pub(super) to: Option<String>,
    /// Only this kind of event
    #[arg(long, value_name = "KIND")]
    pub(super) kind: Option<String>,
    /// Only names of locks or nodes with this prefix
    #[arg(long, value_name = "TEXT")]
    pub(super) prefix: Option<String>,
    /// At most so many, the newest ones
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=20_000))]
    pub(super) limit: u64,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// Arguments of `health`.
#[derive(Debug, Args)]
#[command(after_help = HEALTH_EXAMPLES)]
pub(super) struct HealthCommand {
    /// Check only that the process answers
    #[arg(long)]
    pub(super) live: bool,
    /// Maximum time for the answer
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    pub(super) timeout: Duration,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|invalid| invalid.0)
}

fn resource(text: &str) -> Result<ResourceName, String> {
    ResourceName::parse(text).map_err(|invalid| invalid.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_day_is_the_next_one() {
        let now: jiff::Zoned = "2026-11-23T17:30:00+01:00[+01:00]".parse().expect("a time");
        let after = |text: &str| until_from(&now, text).map(|left| left.as_secs());
        assert_eq!(after("18:00"), Ok(1_800));
        assert_eq!(after("17:30"), Ok(86_400), "tomorrow");
        assert_eq!(after("08:00"), Ok(14 * 3_600 + 1_800));
        assert_eq!(after("2026-11-24T17:30"), Ok(86_400));
        assert_eq!(after("2026-11-23T18:00:00Z"), Ok(5_400));
        for bad in ["", "25:00", "18", "tomorrow", "2026-11-23T17:00", "2020-01-01T00:00Z"] {
            assert!(after(bad).is_err(), "{bad}");
        }
    }
}
