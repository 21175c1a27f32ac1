//! Admin: the operations on the node itself (probe, init, quarantine), which share a script.

pub(super) mod reference;

use std::collections::BTreeSet;
use std::sync::Arc;

use deadpool_redis::redis::Value;

use super::keys;
use super::params::RequestTime;
use super::reply::{NodeStatus, Reply, Vote};
use super::reply_reader::{Malformed, ReplyReader};
use super::request::Request;
use super::script::{Command, CommandBuilder, ScriptContext, ScriptRef, node_script};
use crate::types::NodeId;

node_script!(with_marker "../fences.lua", "../durable.lua", "../names.lua", "admin.lua");

/// The number of entries of the index of leases that one probe checks: an instance that probes each second keeps up with this
/// many abandoned leases per second, more than it can grant.
const SWEEP_MAX: u32 = 8_192;

/// The notes that an instance leaves on each node that it probes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProbeArgs {
    /// The instance's process; empty: no notes are left.
    pub instance: Arc<str>,
    /// The instance's time has agreed with the nodes' for long enough: if its probe agrees with the node's clock, that clock was
    /// not stepped lately.
    pub is_witness: bool,
    /// The nodes, with their runs, that the instance saw alive within the last 2 s.
    pub alive: Vec<(NodeId, Arc<str>)>,
    /// Whether the server syncs each write before it replies, as the instance has just read; `None`: not known.
    pub syncs: Option<bool>,
}

/// The command for an operation on the node.
pub(super) fn build(
    context: &ScriptContext<'_>,
    sent_at: RequestTime,
    request: &Request,
    script_ref: ScriptRef,
) -> Command {
    let mut command = CommandBuilder::new(&SCRIPT, script_ref, 2, 1);
    command.keys([keys::META_KEY, keys::LEASES_KEY]);
    command.marker_args(context, sent_at);
    let record = if let Request::Init { view } = request { view.encode() } else { String::new() };
    command.text(request.operation()).text(&record);
    command.text(context.template.head()).text(context.template.tail()).number(SWEEP_MAX.into());
    match request {
        Request::Probe(ProbeArgs { instance, is_witness, alive, syncs }) => {
            command.text(instance).number(u64::from(*is_witness && !instance.is_empty()));
            command.text(match syncs {
                None => "",
                Some(false) => "0",
                Some(true) => "1",
            });
            for (name, run) in alive {
                command.text(name.as_str()).text(run);
            }
        }
        Request::Quarantine { by } => {
            command.text(by);
        }
        _ => {
            command.text("");
        }
    }
    command.build()
}

/// Reads the node's status.
pub(super) fn parse(value: &Value) -> Result<Reply, Malformed> {
    let mut reply = ReplyReader::new(value)?;
    let vote = match reply.text()? {
        "A" => {
            reply.number()?;
            Vote::Active
        }
        "N" => {
            reply.number()?;
            Vote::AlreadyInitialised
        }
        "W" => {
            reply.number()?;
            Vote::Witnessed
        }
        code => Vote::NoVote(reply.no_vote(code)?),
    };
    let mut status = NodeStatus {
        vote,
        high_water: reply.fence()?,
        now_us: reply.number()?,
        run: reply.text()?.to_owned(),
        why: reply.text()?.to_owned(),
        since_us: reply.number()?,
        until_us: reply.number()?,
        view: reply.view()?,
        promised: reply.view_id()?,
        admitted: reply.view_id()?,
        inherited: reply.inherited()?,
        is_durable: reply.flag()?,
        alive: BTreeSet::new(),
    };
    while reply.remaining() > 0 {
        let name = NodeId::parse(reply.text()?).map_err(|_| Malformed("has an invalid node name".into()))?;
        status.alive.insert((name, reply.text()?.into()));
    }
    Ok(Reply::Status(Box::new(status)))
}
