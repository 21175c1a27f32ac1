//! The command line of what speaks to a running service, as clap reads it. Help texts and their
//! examples live here, and each example is run by a test (`tests/it/cli_examples.rs`). Checks
//! single values by the same readers as the service; does nothing.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};

use crate::duration::parse_duration;
use crate::types::ResourceName;

pub(super) const RUN_EXAMPLES: &str = "\
Examples:
  redlockd run deploy/prod -- ./deploy.sh
      take the lock or exit with 75; run the script under it; release it
  redlockd run --wait 5m --ttl 1m --note 'release 1.9' deploy/prod -- ./deploy.sh --fast
      wait in the queue for up to five minutes
  redlockd run --skip-if-held cron/nightly -- ./nightly.sh
      one host of many does it; the others exit with 0 at once
  redlockd run -E 1 --url http://a:5625 --url http://b:5625 x -- ./job.sh
      exit with 1 where it is held, as flock does; try a second instance where the first is down

The command sees REDLOCKD_RESOURCE, REDLOCKD_FENCE (hand it to what you protect),
REDLOCKD_TOKEN_FILE and REDLOCKD_DEADLINE_MS (Unix time in ms; renewals move it on).

Exit codes: the command's own, 128+n for signal n; 64 wrong usage, 69 no instance or no quorum,
73 no room for the token file, 75 held by somebody else (-E), 76 lost while it ran, 77 not
allowed, 126 and 127 the command cannot be run or found.";

pub(super) const ACQUIRE_EXAMPLES: &str = "\
Examples:
  redlockd acquire --ttl 2m --wait 30s --token-file lease.token deploy/prod
      the token goes to a new file that only you can read
  T=$(redlockd acquire --ttl 2m deploy/staging)
      the token alone on standard output where that is no terminal
  redlockd acquire --json --owner ci-4711 --meta build=17 deploy/test

Exit codes: 0 acquired, 64 wrong usage, 69 no instance or no quorum, 73 the token file cannot be
written, 75 held by somebody else, 77 not allowed.";

pub(super) const EXTEND_EXAMPLES: &str = "\
Examples:
  redlockd extend --token-file lease.token deploy/prod
      by its own TTL, from now
  printf %s \"$T\" | redlockd extend --token-file - --ttl 5m --note 'step 2' deploy/staging

Exit codes: 0 extended, 64 wrong usage, 69 not known whether (the old deadline stands), 76 the
lease is over: stop working, 77 not allowed.";

pub(super) const RELEASE_EXAMPLES: &str = "\
Examples:
  redlockd release --token-file lease.token deploy/prod
  printf %s \"$T\" | redlockd release --token-file - deploy/staging

Exit codes: 0 released, 64 wrong usage, 69 no instance or no quorum, 76 the lease was over
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
      one resource a line: name, state, owner, milliseconds left, fence, waiters, note

Exit codes: 0 answered, 64 wrong usage, 69 no instance answers, or fewer nodes than a quorum stand
behind the list (it is printed all the same), 77 not allowed.";

pub(super) const NODES_EXAMPLES: &str = "\
Examples:
  redlockd nodes
  redlockd nodes --plain | cut -f1,2
      one node a line: name, state, votes (yes or no), latency in microseconds, clock offset in ms

Exit codes: 0 a quorum votes, 64 wrong usage, 69 no instance answers or too few nodes vote, 77 not
allowed.";

pub(super) const FORCE_EXAMPLES: &str = "\
Examples:
  redlockd force --reason 'runner died' deploy/prod
      safe: no further renewals, the lock is free when the current lease ends
  redlockd force --now --if-fence 1763660823123456 --reason 'seen dead' deploy/prod
      UNSAFE: free at once, although the holder may still be working; only this very holder

Exit codes: 0 done, 1 nobody holds it, 64 wrong usage, 69 no instance or no quorum, 75 another
holder than --if-fence by now, 77 not allowed.";

pub(super) const WATCH_EXAMPLES: &str = "\
Examples:
  redlockd watch --prefix deploy/ --for 1s
      a line for each event; without --for until it is interrupted
  redlockd watch --plain --for 1s | cut -f2,3
      one event a line: time, event, resource or node, owner, fence, token_id, reason
  redlockd watch --json --renewals --for 1s

Events: acquired, extended (with --renewals), released, expired, forced, lost, node_down, node_up,
quarantined. A stream that breaks is taken up again, at any instance, where it ended; standard
error says so where events may be missing.

Exit codes: 0 --count or --for is over, or the reader of the output left; 64 wrong usage, 69 no
instance answers, or none has for the time of --give-up, 77 not allowed, 130 or 143 interrupted.";

pub(super) const HEALTH_EXAMPLES: &str = "\
Examples:
  redlockd health
      ready: not stopping, and a quorum of nodes answered lately
  redlockd health --live --url http://127.0.0.1:5625 --timeout 1s

Exit codes: 0 yes, 1 no, 64 wrong usage.";

/// Where the service is, and who asks.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Service")]
pub(super) struct ServiceArgs {
    /// An instance of the service; give it once for each, they are tried in turn [default: http://127.0.0.1:5625] [env: REDLOCKD_URL, commas between several]
    #[arg(long = "url", value_name = "URL")]
    pub(super) urls: Vec<String>,
    /// Read the API key from this file [default: ~/.config/redlockd/key, where it exists] [env: REDLOCKD_KEY_FILE]
    #[arg(long, value_name = "FILE")]
    pub(super) key_file: Option<PathBuf>,
    /// Send the API key over plain HTTP to another host, where others may read it
    #[arg(long)]
    pub(super) insecure_key: bool,
    /// Trust the certificate authorities in this PEM file too, for https
    #[arg(long, value_name = "FILE")]
    pub(super) ca_file: Option<PathBuf>,
}

/// How answers are printed; a table for people where neither is given and it goes to a terminal.
#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct OutputArgs {
    /// Print the service's answer as JSON
    #[arg(long, conflicts_with = "plain")]
    pub(super) json: bool,
    /// Print text for scripts, without headings [default where standard output is no terminal]
    #[arg(long)]
    pub(super) plain: bool,
}

/// What a lease is called.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct LabelArgs {
    /// Who holds it, for people (default: user@host:pid)
    #[arg(long, value_name = "TEXT")]
    pub(super) owner: Option<String>,
    /// What it is held for, for people
    #[arg(long, value_name = "TEXT")]
    pub(super) note: Option<String>,
    /// More for people; may be given more than once
    #[arg(long, value_name = "KEY=VALUE", value_parser = super::args::pair)]
    pub(super) meta: Vec<(String, String)>,
}

/// What to do with the command when its lease is about to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum OnLost {
    /// End it before the lease ends
    #[default]
    Stop,
    /// Let it run and say so
    Warn,
}

/// `run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
pub(super) struct RunArgs {
    /// Ask for leases of this length; renewed at a third of it
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(super) ttl: Duration,
    /// Wait for the lock for at most this long
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub(super) wait: Duration,
    /// Exit with 0 at once where somebody else holds it
    #[arg(long, conflicts_with = "wait")]
    pub(super) skip_if_held: bool,
    /// What to do when the lease cannot be kept
    #[arg(long, value_name = "WHAT", default_value = "stop")]
    pub(super) on_lost: OnLost,
    /// Time between SIGTERM and SIGKILL, both before the lease ends [default: 5s, at most a third of --ttl]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) grace: Option<Duration>,
    /// Exit with this where somebody else holds it or the wait ran out
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = super::exit::HELD)]
    pub(super) conflict_exit_code: u8,
    /// Say less: only what went wrong
    #[arg(short, long)]
    pub(super) quiet: bool,
    #[command(flatten)]
    pub(super) labels: LabelArgs,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    /// What to hold while the command runs
    #[arg(value_parser = resource)]
    pub(super) resource: ResourceName,
    /// The command and its arguments, without a shell
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

/// `acquire`.
#[derive(Debug, Args)]
#[command(after_help = ACQUIRE_EXAMPLES)]
pub(super) struct AcquireArgs {
    /// For how long [default: the service's default_ttl]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) ttl: Option<Duration>,
    /// Wait for the lock for at most this long
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub(super) wait: Duration,
    /// Write the token into this new file (mode 0600) instead of printing it
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) labels: LabelArgs,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    /// What to hold
    #[arg(value_parser = resource)]
    pub(super) resource: ResourceName,
}

/// Where the proof of a lease is.
#[derive(Debug, Args)]
pub(super) struct TokenArgs {
    /// Read the token from this file, `-` is standard input [env: REDLOCKD_TOKEN_FILE]
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
}

/// `extend`.
#[derive(Debug, Args)]
#[command(after_help = EXTEND_EXAMPLES)]
pub(super) struct ExtendArgs {
    /// Time left from now on [default: the lease's own TTL]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) ttl: Option<Duration>,
    /// Change the note
    #[arg(long, value_name = "TEXT")]
    pub(super) note: Option<String>,
    /// Change one entry of the metadata; an empty value removes it
    #[arg(long, value_name = "KEY=VALUE", value_parser = super::args::pair)]
    pub(super) meta: Vec<(String, String)>,
    #[command(flatten)]
    pub(super) token: TokenArgs,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    /// What is held
    #[arg(value_parser = resource)]
    pub(super) resource: ResourceName,
}

/// `release`.
#[derive(Debug, Args)]
#[command(after_help = RELEASE_EXAMPLES)]
pub(super) struct ReleaseArgs {
    #[command(flatten)]
    pub(super) token: TokenArgs,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    /// What is held
    #[arg(value_parser = resource)]
    pub(super) resource: ResourceName,
}

/// `status`.
#[derive(Debug, Args)]
#[command(after_help = STATUS_EXAMPLES)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    /// What to look at
    #[arg(value_parser = resource)]
    pub(super) resource: ResourceName,
}

/// `list`.
#[derive(Debug, Args)]
#[command(after_help = LIST_EXAMPLES)]
pub(super) struct ListArgs {
    /// Only resources that begin with this
    #[arg(long, value_name = "TEXT")]
    pub(super) prefix: Option<String>,
    /// Only what this owner holds
    #[arg(long, value_name = "TEXT")]
    pub(super) owner: Option<String>,
    /// Only what is in this state: held, waited or lock-delay
    #[arg(long, value_name = "STATE")]
    pub(super) state: Option<String>,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// `nodes`.
#[derive(Debug, Args)]
#[command(after_help = NODES_EXAMPLES)]
pub(super) struct NodesArgs {
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// `force`.
#[derive(Debug, Args)]
#[command(after_help = FORCE_EXAMPLES, group = ArgGroup::new("how").args(["now", "revoke"]))]
pub(super) struct ForceArgs {
    /// Why, for the service's log
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: String,
    /// Refuse renewals; it is free when the current lease ends (safe) (the default)
    #[arg(long)]
    pub(super) revoke: bool,
    /// End it at once, whatever its holder is doing (UNSAFE)
    #[arg(long)]
    pub(super) now: bool,
    /// Only where the holder has this fencing token: the one that you saw
    #[arg(long, value_name = "FENCE")]
    pub(super) if_fence: Option<u64>,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    /// Whose holder to end
    #[arg(value_parser = resource)]
    pub(super) resource: ResourceName,
}

/// `watch`.
#[derive(Debug, Args)]
#[command(after_help = WATCH_EXAMPLES)]
pub(super) struct WatchArgs {
    /// Only resources that begin with this; events of nodes are shown in any case
    #[arg(long, value_name = "TEXT")]
    pub(super) prefix: Option<String>,
    /// Show renewals too
    #[arg(long)]
    pub(super) renewals: bool,
    /// Stop after so many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) count: Option<u64>,
    /// Stop after this time
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(super) lasts: Option<Duration>,
    /// Stop when no instance has answered for this long
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration)]
    pub(super) give_up: Duration,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// `health`.
#[derive(Debug, Args)]
#[command(after_help = HEALTH_EXAMPLES)]
pub(super) struct HealthArgs {
    /// Ask only whether the process answers
    #[arg(long)]
    pub(super) live: bool,
    /// How long the answer may take
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
