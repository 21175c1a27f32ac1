//! The arguments and help texts of the commands that send requests to a running service. Each example is run by a test
//! (`tests/it/cli_examples.rs`).

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};

use crate::duration::parse_duration;
use crate::types::ResourceName;

pub(super) const RUN_EXAMPLES: &str = "\
Examples:
  redlockd run deploy/prod -- ./deploy.sh
      acquire the lock or exit with 75; run the script; release the lock
  redlockd run --wait 5m --ttl 1m --note 'release 1.9' deploy/prod -- ./deploy.sh --fast
      wait in the queue for up to five minutes
  redlockd run --skip-if-held cron/nightly -- ./nightly.sh
      one of many hosts runs it; the others exit with 0 at once
  redlockd run -E 1 --url http://a:5625 --url http://b:5625 x -- ./job.sh
      exit with 1 if the lock is held, like flock; try the second instance if the first is down

The command's environment has REDLOCKD_RESOURCE, REDLOCKD_FENCE (pass it to the protected system),
REDLOCKD_TOKEN_FILE and REDLOCKD_DEADLINE_MS (Unix time in ms at the start; renewals extend it).

Exit codes: the command's own, 128+n for signal n; 64 wrong usage, 69 no instance or no quorum,
73 the token file cannot be written, 75 the lock is held (-E), 76 the lease was lost, 77 not
allowed, 126 and 127 the command cannot be run or found.";

pub(super) const ACQUIRE_EXAMPLES: &str = "\
Examples:
  redlockd acquire --ttl 2m --wait 30s --token-file lease.token deploy/prod
      the token goes to a new file that only you can read
  T=$(redlockd acquire --ttl 2m deploy/staging)
      standard output is no terminal: it gets only the token
  redlockd acquire --json --owner ci-4711 --meta build=17 deploy/test

Exit codes: 0 acquired, 64 wrong usage, 69 no instance or no quorum, 73 the token file cannot be
written, 75 the lock is held, 77 not allowed.";

pub(super) const EXTEND_EXAMPLES: &str = "\
Examples:
  redlockd extend --token-file lease.token deploy/prod
      by its TTL, from now
  printf %s \"$T\" | redlockd extend --token-file - --ttl 5m --note 'step 2' deploy/staging

Exit codes: 0 extended, 64 wrong usage, 69 unknown (the old deadline is still valid), 76 the lease has
ended: stop working, 77 not allowed.";

pub(super) const RELEASE_EXAMPLES: &str = "\
Examples:
  redlockd release --token-file lease.token deploy/prod
  printf %s \"$T\" | redlockd release --token-file - deploy/staging

Exit codes: 0 released, 64 wrong usage, 69 no instance or no quorum, 76 the lease had ended
already, 77 not allowed.";

pub(super) const STATUS_EXAMPLES: &str = "\
Examples:
  redlockd status deploy/prod
  redlockd status --plain deploy/prod || echo free

Exit codes: 0 held, 1 free, 64 wrong usage, 69 no instance or no quorum, 77 not allowed.";

pub(super) const LIST_EXAMPLES: &str = "\
Examples:
  redlockd list
  redlockd list --prefix deploy/ --json
  redlockd list --plain | cut -f1
      one resource per line: name, state, owner, milliseconds left, fence, waiters, note

Exit codes: 0 answered, 64 wrong usage, 69 no instance answers, or fewer nodes than a quorum
answered it (the list is printed all the same), 77 not allowed.";

pub(super) const NODES_EXAMPLES: &str = "\
Examples:
  redlockd nodes
  redlockd nodes --plain | cut -f1,2
      one node per line: name, state, votes (yes or no), latency in microseconds, clock offset in ms

Exit codes: 0 a quorum votes, 64 wrong usage, 69 no instance answers or too few nodes vote, 77 not
allowed.";

pub(super) const FORCE_EXAMPLES: &str = "\
Examples:
  redlockd force --reason 'runner died' deploy/prod
      safe: no further renewals, the lock is free when the current lease ends
  redlockd force --now --if-fence 1763660823123456 --reason 'seen dead' deploy/prod
      UNSAFE: free at once, although the holder may still be working; only if this fence holds it

Exit codes: 0 done, 1 the lock is free, 64 wrong usage, 69 no instance or no quorum, 75 the holder
is not --if-fence, 77 not allowed.";

pub(super) const WATCH_EXAMPLES: &str = "\
Examples:
  redlockd watch --prefix deploy/ --for 1s
      one line per event; without --for until it is interrupted
  redlockd watch --plain --for 1s | cut -f2,3
      one event per line: time, event, resource or node, owner, fence, token_id, reason
  redlockd watch --json --renewals --for 1s

Events: acquired, extended (with --renewals), released, expired, forced, lost, node_down, node_up,
quarantined. An interrupted stream is resumed after its last event, at any instance; standard
error reports if events may be missing.

Exit codes: 0 --count or --for is reached, or the output was closed; 64 wrong usage, 69 no instance
answers, or none did for --give-up, 77 not allowed, 130 or 143 interrupted.";

pub(super) const HEALTH_EXAMPLES: &str = "\
Examples:
  redlockd health
      ready: not stopping, and a quorum of nodes answered recently
  redlockd health --live --url http://127.0.0.1:5625 --timeout 1s

Exit codes: 0 yes, 1 no, 64 wrong usage.";

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
    /// The same options on a command line.
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
    /// Further label; may be repeated
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
#[command(after_help = RUN_EXAMPLES)]
pub(super) struct RunCommand {
    /// TTL of the lease, which is renewed at a third of it
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(super) ttl: Duration,
    /// Maximum wait for the lock
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub(super) wait: Duration,
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
    pub(super) labels: LabelArgs,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    /// The name of the lock
    #[arg(value_parser = resource)]
    pub(super) resource: ResourceName,
    /// The command and its arguments; run without a shell. A `--` before it is optional
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

/// Arguments of `acquire`.
#[derive(Debug, Args)]
#[command(after_help = ACQUIRE_EXAMPLES)]
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
    pub(super) labels: LabelArgs,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    /// The name of the lock
    #[arg(value_parser = resource)]
    pub(super) resource: ResourceName,
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
    /// The name of the lock
    #[arg(value_parser = resource)]
    pub(super) resource: ResourceName,
}

/// Arguments of `release`.
#[derive(Debug, Args)]
#[command(after_help = RELEASE_EXAMPLES)]
pub(super) struct ReleaseCommand {
    #[command(flatten)]
    pub(super) token: TokenArgs,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    /// The name of the lock
    #[arg(value_parser = resource)]
    pub(super) resource: ResourceName,
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

/// Arguments of `nodes`.
#[derive(Debug, Args)]
#[command(after_help = NODES_EXAMPLES)]
pub(super) struct NodesCommand {
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
    /// Only if the holder has this fencing token
    #[arg(long, value_name = "FENCE")]
    pub(super) if_fence: Option<u64>,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
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

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|invalid| invalid.0)
}

fn resource(text: &str) -> Result<ResourceName, String> {
    ResourceName::parse(text).map_err(|invalid| invalid.0)
}
