//! `redlockd nodes`: shows the nodes, waits until enough of them vote, and reports for an operator that a node has ended or is
//! now another server.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::client_args::{OutputArgs, ServiceArgs, duration};
use super::client_from_args;
use super::client_help::{
    ADD_EXAMPLES, FORGET_EXAMPLES, NODES_EXAMPLES, REMOVE_EXAMPLES, REPLACE_EXAMPLES, SETTINGS_EXAMPLES,
};
use super::commands::CommandIo;
use super::exit;
use super::format::{self, OutputFormat};
use super::output::print_line;
use crate::api;
use crate::client::error::{ClientError, ErrorClass};
use crate::client::transport::Client;
use crate::config::Environment;
use crate::duration::format_duration;
use crate::redlock::clock::{Clock, SystemClock};
use crate::types::NodeId;

/// Time between two requests.
const POLL: Duration = Duration::from_millis(250);
/// How long the nodes must stay as required: an answer may be up to a second and a half old, from before a restart.
const STEADY: Duration = Duration::from_secs(2);
/// Timeout of a replacement's answer: longer than the service's own.
const REPLACE_TIMEOUT: Duration = Duration::from_secs(40);
/// How long `--wait` lasts without `--timeout`.
const TIMEOUT_DEFAULT: Duration = Duration::from_mins(1);

/// Arguments of `nodes`.
#[derive(Debug, Args)]
#[command(after_help = NODES_EXAMPLES, args_conflicts_with_subcommands = true)]
pub(super) struct NodesCommand {
    /// Wait until this node answers
    #[arg(long, value_name = "NAME")]
    pub(super) wait: Option<String>,
    /// Wait until the node of --wait votes
    #[arg(long, requires = "wait")]
    pub(super) votes: bool,
    /// Require that so many nodes more than a quorum vote
    #[arg(long, value_name = "N")]
    pub(super) margin: Option<usize>,
    /// Maximum wait [default: 1m with --wait, else 0s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) timeout: Option<Duration>,
    #[command(subcommand)]
    pub(super) action: Option<NodesAction>,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// The commands of `nodes`.
#[derive(Debug, Subcommand)]
pub(super) enum NodesAction {
    /// Say that a node has ended for good, so that the others do not wait for it
    Forget(ForgetCommand),
    /// Give a node's name to another server: it is filled with what the others know, and votes
    Replace(ReplaceCommand),
    /// Let another server vote, under a new name: a list of N nodes becomes one of N + 1
    Add(AddCommand),
    /// Let a node vote no more: a list of N nodes becomes one of N - 1
    Remove(RemoveCommand),
    /// Change guard, lock delay, fence TTL or key template for all instances
    Settings(SettingsCommand),
}

/// What `nodes add`, `remove` and `replace` have in common.
#[derive(Debug, Args)]
pub(super) struct ChangeArgs {
    /// Why, for the service's log
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: String,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    /// The node's name
    #[arg(value_parser = node)]
    pub(super) node: NodeId,
}

/// Arguments of `nodes add`.
#[derive(Debug, Args)]
#[command(after_help = ADD_EXAMPLES)]
pub(super) struct AddCommand {
    #[command(flatten)]
    pub(super) change: ChangeArgs,
    /// The server, without user and password: those of the first configured node are used
    pub(super) url: String,
}

/// Arguments of `nodes remove`.
#[derive(Debug, Args)]
#[command(after_help = REMOVE_EXAMPLES)]
pub(super) struct RemoveCommand {
    #[command(flatten)]
    pub(super) change: ChangeArgs,
}

/// Arguments of `nodes replace`.
#[derive(Debug, Args)]
#[command(after_help = REPLACE_EXAMPLES)]
pub(super) struct ReplaceCommand {
    #[command(flatten)]
    pub(super) change: ChangeArgs,
    /// The new server, without user and password: those of the configuration are used
    pub(super) url: String,
}

/// Arguments of `nodes forget`.
#[derive(Debug, Args)]
#[command(after_help = FORGET_EXAMPLES)]
pub(super) struct ForgetCommand {
    /// What became of it, for the service's log
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: String,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
    /// The node's name
    #[arg(value_parser = node)]
    pub(super) node: NodeId,
}

/// Arguments of `nodes settings`.
#[derive(Debug, Args)]
#[command(after_help = SETTINGS_EXAMPLES)]
#[group(id = "terms", required = true, multiple = true, args = ["guard", "lock_delay", "fence_ttl", "key_template"])]
pub(super) struct SettingsCommand {
    /// Maximum clock offset, and maximum age of a request, at which a node votes
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) guard: Option<Duration>,
    /// What is added to each TTL on the nodes
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) lock_delay: Option<Duration>,
    /// How long the nodes know the last fence of a resource
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) fence_ttl: Option<Duration>,
    /// How a lock's key is made from the name of its resource, such as lock:{resource}
    #[arg(long, value_name = "TEMPLATE")]
    pub(super) key_template: Option<String>,
    /// Why, for the service's log
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: String,
    #[command(flatten)]
    pub(super) service: ServiceArgs,
}

/// Runs `redlockd nodes` and its subcommands; returns the exit code.
pub(super) fn nodes<E: Environment>(args: &NodesCommand, io: &mut CommandIo<'_, E>) -> Result<u8, u8> {
    match &args.action {
        Some(NodesAction::Forget(args)) => return forget(args, io),
        Some(NodesAction::Replace(args)) => return replace(args, io),
        Some(NodesAction::Add(args)) => return change_list(&args.change, Some(&args.url), io),
        Some(NodesAction::Remove(args)) => return change_list(&args.change, None, io),
        Some(NodesAction::Settings(args)) => return change_terms(args, io),
        None => {}
    }
    io.is_json = args.output.json;
    let client = client_from_args::client(&args.service, io.env, io.err)?;
    let waits = args.wait.is_some() || args.margin.is_some() || args.timeout.is_some();
    let (nodes, unmet) = match waits {
        true => io.send(until_met(&client, args))?,
        false => (io.send(client.nodes())?, None),
    };
    match OutputFormat::of(args.output, io.env) {
        OutputFormat::Json => io.print_json(&nodes),
        form => print_line(io.out, &format::nodes(&nodes, form)),
    }
    let count = nodes.quorum;
    match unmet {
        Some(Unmet::NoSuchNode) => Ok(io.fail(exit::USAGE, "no node of this cluster has the name of --wait")),
        Some(Unmet::Not(why)) => Ok(io.fail(exit::HELD, &why)),
        None if count.granted >= count.needed => Ok(exit::OK),
        None => {
            let why = format!("{} of {} nodes vote, {} are needed", count.granted, count.nodes, count.needed);
            Ok(io.fail(exit::UNAVAILABLE, &why))
        }
    }
}

/// Why the requirement is not met.
#[derive(Debug, PartialEq, Eq)]
enum Unmet {
    NoSuchNode,
    Not(String),
}

/// Polls until the requirement has been met for [`STEADY`], or the timeout passes. An instance that does not answer is polled
/// again: it may be restarting.
async fn until_met(client: &Client, args: &NodesCommand) -> Result<(api::Nodes, Option<Unmet>), ClientError> {
    let timeout = args.timeout.unwrap_or(if args.wait.is_some() { TIMEOUT_DEFAULT } else { Duration::ZERO });
    let (begun, mut met_since) = (SystemClock.now(), None);
    loop {
        let answer = client.nodes().await;
        let now = SystemClock.now();
        // Without a wait, one request suffices.
        let steady = if timeout.is_zero() { Duration::ZERO } else { STEADY };
        let is_over = now.since(begun) >= timeout.max(steady);
        match answer {
            Ok(nodes) => match unmet(&nodes, args) {
                None if now.since(*met_since.get_or_insert(now)) >= steady => return Ok((nodes, None)),
                None => {}
                Some(why) if is_over || why == Unmet::NoSuchNode => return Ok((nodes, Some(why))),
                Some(_) => met_since = None,
            },
            Err(error) if is_over || error.class() != ErrorClass::Unavailable => return Err(error),
            Err(_) => met_since = None,
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The unmet requirement, if any.
fn unmet(nodes: &api::Nodes, args: &NodesCommand) -> Option<Unmet> {
    if let Some(name) = &args.wait {
        let Some(node) = nodes.nodes.iter().find(|node| node.node == *name) else { return Some(Unmet::NoSuchNode) };
        let answers = !matches!(node.state.as_str(), "down" | "unknown");
        if !(node.votes || answers && !args.votes) {
            let what = if args.votes { "vote" } else { "answer" };
            let why = node.why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
            return Some(Unmet::Not(format!("{name} does not {what}{why}")));
        }
    }
    let needed = args.margin.map(|margin| nodes.quorum.needed.saturating_add(margin))?;
    (nodes.quorum.granted < needed)
        .then(|| Unmet::Not(format!("{} of {} nodes vote, {needed} were to", nodes.quorum.granted, nodes.quorum.nodes)))
}

fn forget<E: Environment>(args: &ForgetCommand, io: &mut CommandIo<'_, E>) -> Result<u8, u8> {
    let client = client_from_args::client(&args.service, io.env, io.err)?;
    let nodes = io.send_change(client.forget_node(&args.node, &args.reason))?;
    let node = nodes.nodes.iter().find(|node| node.node == args.node.as_str());
    let why = node.and_then(|node| node.why.clone()).unwrap_or_default();
    print_line(io.err, &format!("redlockd: {}: {why}", args.node));
    Ok(exit::OK)
}

fn replace<E: Environment>(args: &ReplaceCommand, io: &mut CommandIo<'_, E>) -> Result<u8, u8> {
    let ReplaceCommand { change: ChangeArgs { reason, service, node }, url } = args;
    let client = client_from_args::client(service, io.env, io.err)?;
    io.send_change(client.replace_node(node, url, reason, REPLACE_TIMEOUT))?;
    print_line(io.err, &format!("redlockd: {node} is the server at {url} now, and votes"));
    Ok(exit::OK)
}

/// `nodes add`, and `nodes remove` without a URL.
fn change_list<E: Environment>(
    ChangeArgs { reason, service, node }: &ChangeArgs,
    url: Option<&str>,
    io: &mut CommandIo<'_, E>,
) -> Result<u8, u8> {
    let client = client_from_args::client(service, io.env, io.err)?;
    let nodes = io.send_change(client.list_node(node, url, reason, REPLACE_TIMEOUT))?;
    let (of, needed) = (nodes.quorum.nodes, nodes.quorum.needed);
    let even = match of % 2 {
        0 => "; with an even number, one node more or less costs no safety and is cheaper",
        _ => "",
    };
    let done = if url.is_some() { "votes" } else { "votes no more" };
    print_line(io.err, &format!("redlockd: {node} {done}: there are {of} nodes, {needed} of them must agree{even}"));
    Ok(exit::OK)
}

fn change_terms<E: Environment>(args: &SettingsCommand, io: &mut CommandIo<'_, E>) -> Result<u8, u8> {
    let client = client_from_args::client(&args.service, io.env, io.err)?;
    let terms = [("guard", args.guard), ("lock_delay", args.lock_delay), ("fence_ttl", args.fence_ttl)];
    let periods: Vec<_> = terms.into_iter().filter_map(|(name, to)| Some((name, to?))).collect();
    let template = args.key_template.iter().map(|template| ("key_template", template.clone()));
    let sent = periods.iter().map(|(name, to)| (*name, format!("{}ms", to.as_millis())));
    let sent: Vec<_> = sent.chain(template.clone()).collect();
    io.send_change(client.change_terms(&sent, &args.reason, REPLACE_TIMEOUT))?;
    let named = periods.into_iter().map(|(name, to)| (name, format_duration(to))).chain(template);
    let named: Vec<String> = named.map(|(name, to)| format!("{name} is {to}")).collect();
    print_line(io.err, &format!("redlockd: {} now; correct the configuration of all instances", named.join(", ")));
    Ok(exit::OK)
}

fn node(text: &str) -> Result<NodeId, String> {
    NodeId::parse(text).map_err(|invalid| invalid.0)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        nodes: NodesCommand,
    }

    fn args(text: &str) -> NodesCommand {
        Line::try_parse_from(std::iter::once("nodes").chain(text.split_whitespace())).expect("valid").nodes
    }

    /// Three nodes of a quorum of two: state and vote of each.
    fn three(states: [(&str, bool); 3]) -> api::Nodes {
        let node = |(i, (state, votes)): (usize, &(&str, bool))| {
            serde_json::json!({
                "node": format!("n{i}"), "state": state, "votes": votes, "state_for_ms": 0, "votes_in_ms": null, "why": null,
                "latency_us": null, "clock_offset_ms": null, "run_id": null, "version": null, "durable": false, "restarts": 0, "findings": [],
            })
        };
        let nodes: Vec<_> = states.iter().enumerate().map(node).collect();
        let granted = states.iter().filter(|(_, votes)| *votes).count();
        let quorum = serde_json::json!({ "granted": granted, "needed": 2, "nodes": 3 });
        serde_json::from_value(serde_json::json!({ "nodes": nodes, "quorum": quorum })).expect("nodes")
    }

    #[test]
    fn a_node_answers_before_it_votes_and_a_margin_is_counted_above_the_quorum() {
        let nodes = three([("up", true), ("quarantined", false), ("up", true)]);
        assert_eq!(unmet(&nodes, &args("--wait n1")), None);
        assert_eq!(unmet(&nodes, &args("--wait n1 --votes")), Some(Unmet::Not("n1 does not vote".into())));
        assert_eq!(unmet(&nodes, &args("--wait n0 --votes --margin 0")), None);
        assert_eq!(unmet(&nodes, &args("--margin 1")), Some(Unmet::Not("2 of 3 nodes vote, 3 were to".into())));
        assert_eq!(unmet(&nodes, &args("--wait n3")), Some(Unmet::NoSuchNode));
        let nodes = three([("down", false), ("up", true), ("up", true)]);
        assert_eq!(unmet(&nodes, &args("--wait n0")), Some(Unmet::Not("n0 does not answer".into())));
    }
}
