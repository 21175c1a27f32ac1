//! The commands, their help texts, and the options that set settings. The configuration checks values in the same way for all
//! layers.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use super::client_args::{
    ElectCommand, EventsCommand, ExtendCommand, FenceCommand, ForceCommand, HealthCommand, KeepCommand, ListCommand,
    ReleaseCommand, RunCommand, StatusCommand, WatchCommand,
};
use super::client_help::{ACQUIRE_EXAMPLES, KEEP_EXAMPLES};
use super::nodes::NodesCommand;
use super::ticket::{AskCommand, TicketCommand};
use crate::config::Inputs;

const EXAMPLES: &str = "\
Examples:
  redlockd
      serve on 127.0.0.1:5625 with an embedded node, without Redis
  redlockd serve --node redis://10.0.0.1 --node redis://10.0.0.2 --node redis://10.0.0.3
      serve over three independent Redis masters
  redlockd serve --config redlockd.toml --set node_timeout=40ms
      settings from a file, one of them overridden
  REDLOCKD_NODES=redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3 redlockd
      the same settings from the environment

Settings: defaults < --config FILE < REDLOCKD_<KEY> in the environment < command line.
`redlockd config default` prints all of them with their ranges.

Most used: `redlockd run RESOURCE -- COMMAND` (see redlockd run --help).

Exit codes: 0 stopped after finishing its requests, 64 wrong usage, 69 could not start or run,
78 wrong configuration, 130 or 143 stopped at once by a second signal.";

const CHECK_EXAMPLES: &str = "\
Examples:
  redlockd config check --config redlockd.toml
  redlockd config check --node redis://10.0.0.1 --node redis://10.0.0.2

Exit codes: 0 valid (warnings go to standard error), 78 invalid. Connects to no node.";

const INIT_EXAMPLES: &str = "\
Examples:
  redlockd init --node redis://10.0.0.1 --node redis://10.0.0.2 --node redis://10.0.0.3
      with the settings of the service, before it is started
  redlockd init --config redlockd.toml

New nodes look like nodes that lost their memory. Without this command they have no vote until every
lease that they may have lost has ended (max_ttl and a little more).
Refused if a node does not answer or is part of a cluster already.

Exit codes: 0 declared, 1 all nodes were declared before, 64 wrong usage, 69 refused, 78 wrong configuration.";

const SHOW_EXAMPLES: &str = "\
Examples:
  redlockd config show --config redlockd.toml
  redlockd config show --set node_timeout=40ms | grep -v 'in the defaults'

Exit codes: 0 printed, 78 wrong configuration. Connects to no node.";

const DOCTOR_EXAMPLES: &str = "\
Examples:
  redlockd doctor --node redis://10.0.0.1 --node redis://10.0.0.2 --node redis://10.0.0.3
  redlockd doctor --config redlockd.toml

Connects to each node and changes nothing. Use the settings of the service.

Exit codes: 0 no problem (there may be remarks), 1 problems, 64 wrong usage, 78 wrong configuration.";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  redlockd completions bash > redlockd.bash
  redlockd completions zsh > _redlockd

Exit codes: 0 printed, 64 wrong usage.";

const MAN_EXAMPLES: &str = "\
Examples:
  redlockd man > redlockd.1
  redlockd man run > redlockd-run.1

Exit codes: 0 printed, 64 no such command.";

/// A distributed-lock service over HTTP: Redlock on independent Redis masters, with fencing tokens
#[derive(Debug, Parser)]
#[command(name = "redlockd", version, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
#[command(max_term_width = 100)]
pub(super) struct Cli {
    #[command(flatten)]
    pub(super) settings: ConfigArgs,
    #[command(subcommand)]
    pub(super) command: Option<CliCommand>,
}

#[derive(Debug, Subcommand)]
pub(super) enum CliCommand {
    /// Serve (what `redlockd` without a command does)
    #[command(after_help = EXAMPLES)]
    Serve(ConfigArgs),
    /// Declare a new cluster: once, when its Redis nodes are new and before they are used
    #[command(after_help = INIT_EXAMPLES, mut_arg("listen", hidden), mut_arg("data_dir", hidden), mut_arg("log_format", hidden), mut_arg("log_level", hidden), mut_arg("insecure_no_auth", hidden))]
    Init(ConfigArgs),
    /// Run a command while holding a lock, which is renewed meanwhile and released afterwards
    Run(Box<RunCommand>),
    /// Lead while holding a lock, run a command meanwhile, and campaign again when the lease is lost
    Elect(Box<ElectCommand>),
    /// Acquire a lock and print its token; or, with --async, a ticket that waits for it without a process
    #[command(after_help = ACQUIRE_EXAMPLES)]
    Acquire(Box<AskCommand>),
    /// Tickets of `acquire --async`: show one, wait for its lease, give it up
    #[command(disable_help_subcommand = true, arg_required_else_help = false)]
    Ticket {
        #[command(subcommand)]
        command: TicketCommand,
    },
    /// Hold a lock for a time, without a process: the service renews the lease meanwhile
    #[command(after_help = KEEP_EXAMPLES)]
    Keep(Box<KeepCommand>),
    /// Renew a lease, or edit its labels
    Extend(Box<ExtendCommand>),
    /// Release a lock
    Release(Box<ReleaseCommand>),
    /// Show a lock's holder and waiters, and its state on each node
    Status(Box<StatusCommand>),
    /// Check whether a fence is that of the lease that stands now
    Fence(Box<FenceCommand>),
    /// List the held locks of the whole cluster
    List(Box<ListCommand>),
    /// Show the nodes: state, vote, latency, findings
    Nodes(Box<NodesCommand>),
    /// End another client's lease
    Force(Box<ForceCommand>),
    /// Follow the events of the cluster
    Watch(Box<WatchCommand>),
    /// Show what has happened: incidents and the last events of locks
    Events(Box<EventsCommand>),
    /// Check whether an instance is ready, for container probes
    Health(Box<HealthCommand>),
    /// Check the Redis nodes directly, without a service, and report problems
    #[command(after_help = DOCTOR_EXAMPLES, mut_arg("listen", hidden), mut_arg("data_dir", hidden), mut_arg("log_format", hidden), mut_arg("log_level", hidden), mut_arg("insecure_no_auth", hidden))]
    Doctor(ConfigArgs),
    /// Print a script that completes this program's options in a shell
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page of this program, or of one of its commands
    #[command(after_help = MAN_EXAMPLES)]
    Man {
        /// The command; without it the page of the program
        command: Option<String>,
    },
    /// Print the version
    Version,
    /// Create API keys
    #[command(disable_help_subcommand = true, arg_required_else_help = false)]
    Key {
        #[command(subcommand)]
        command: KeyCommand,
    },
    /// Call-backs and hooks: make and verify signatures, list, test
    #[command(disable_help_subcommand = true, arg_required_else_help = false)]
    Hook {
        #[command(subcommand)]
        command: super::hook::HookCommand,
    },
    /// Inspect the configuration
    #[command(disable_help_subcommand = true, arg_required_else_help = false)]
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    /// Draw a key for a principal; prints it once, with the lines for the access file
    #[command(after_help = super::key::NEW_EXAMPLES)]
    New(super::key::NewKey),
}

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Check the settings as `serve` would
    #[command(after_help = CHECK_EXAMPLES)]
    Check(ConfigArgs),
    /// Print every setting in force and the layer that set it, without secrets
    #[command(after_help = SHOW_EXAMPLES)]
    Show(ConfigArgs),
    /// Print every setting with its default, range and reason, as a configuration file
    Default,
}

/// Hides an option that has no effect on a command but is accepted: it may be among the service's options.
fn hidden(option: clap::Arg) -> clap::Arg {
    option.hide(true)
}

/// The options that set settings.
#[derive(Debug, Default, Args)]
pub(super) struct ConfigArgs {
    /// Read settings from this TOML file [env: REDLOCKD_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Listen on this IP address and port [default: 127.0.0.1:5625] [env: REDLOCKD_LISTEN]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Use this Redis node; repeat it for each node [default: embedded nodes] [env: REDLOCKD_NODES]
    #[arg(long = "node", value_name = "[NAME=]URL")]
    nodes: Vec<String>,
    /// Keep the embedded nodes' state file in this directory [env: REDLOCKD_DATA_DIR]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// Log as text or json [default: text] [env: REDLOCKD_LOG_FORMAT]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
    /// Lowest level that is logged: error, warn, info, debug or trace [default: info] [env: REDLOCKD_LOG_LEVEL]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Serve on an address that other machines can reach without an access_file
    #[arg(long)]
    insecure_no_auth: bool,
    /// Set any setting, such as node_timeout=80ms; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
}

/// Parses `KEY=VALUE`. Errors: no `=`.
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("there is no `=` in it")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

impl ConfigArgs {
    /// The configuration's inputs. A dedicated option overrides `--set`.
    pub(super) fn into_inputs(self) -> Inputs {
        let own = [
            ("listen", self.listen),
            ("data_dir", self.data_dir),
            ("log_format", self.log_format),
            ("log_level", self.log_level),
            ("insecure_no_auth", self.insecure_no_auth.then(|| "true".to_owned())),
        ];
        let own = own.into_iter().filter_map(|(key, value)| value.map(|value| (key.to_owned(), value)));
        Inputs { file: self.config, flags: self.set.into_iter().chain(own).collect(), nodes: self.nodes }
    }
}
