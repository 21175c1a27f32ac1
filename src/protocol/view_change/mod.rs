//! Membership: the changes of the view on one process (promise, install, admit), which share a script.

pub(super) mod reference;

use std::sync::Arc;

use deadpool_redis::redis::Value;

use super::keys;
use super::params::{BY_CLOCK, RequestTime};
use super::reply::{MemberStatus, Reply, Vote};
use super::reply_reader::{Malformed, ReplyReader};
use super::request::Request;
use super::script::{Command, CommandBuilder, ScriptContext, ScriptRef, node_script};
use super::view::View;
use crate::types::Fence;

node_script!(with_marker "../durable.lua", "view_change.lua");

/// Arguments of [`Request::Admit`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmitArgs {
    /// The view that names the process as admitted in it.
    pub view: Arc<View>,
    /// Identifies the fill; the process has all its pages.
    pub nonce: u64,
    /// The number of its pages.
    pub pages: u32,
    /// The highest fence among the nodes that were read; without a quorum of them, the maximum of that and the clock.
    pub seed: Fence,
    /// Fewer nodes than a quorum were read.
    pub by_clock: bool,
}

/// The command for a change of the view.
pub(super) fn build(
    context: &ScriptContext<'_>,
    sent_at: RequestTime,
    request: &Request,
    script_ref: ScriptRef,
) -> Command {
    let mut command = CommandBuilder::new(&SCRIPT, script_ref, 1, 1);
    command.keys([keys::META_KEY]).marker_args(context, sent_at).text(request.operation());
    match request {
        Request::Promise { view } => {
            command.text(&view.to_string()).text("");
        }
        Request::Install { view } | Request::Admit(AdmitArgs { view, .. }) => {
            command.text(&view.id.to_string()).text(&view.encode());
        }
        _ => {}
    }
    if let Request::Admit(AdmitArgs { nonce, pages, seed, by_clock, .. }) = request {
        command.text(&format!("{nonce}|{pages}")).number(seed.0).text(if *by_clock { BY_CLOCK } else { "" });
    } else {
        command.text("").number(0).text("");
    }
    command.build()
}

/// Reads the reply to a change of the view.
pub(super) fn parse(value: &Value) -> Result<Reply, Malformed> {
    let mut reply = ReplyReader::new(value)?;
    let is_done = reply.flag()?;
    let vote = match reply.text()? {
        "A" => {
            reply.number()?;
            Vote::Active
        }
        code => Vote::NoVote(reply.no_vote(code)?),
    };
    Ok(Reply::Member(Box::new(MemberStatus {
        is_done,
        vote,
        high_water: reply.fence()?,
        run: reply.text()?.into(),
        view: reply.view()?,
        promised: reply.view_id()?,
        admitted: reply.view_id()?,
        inherited: reply.inherited()?,
    })))
}
