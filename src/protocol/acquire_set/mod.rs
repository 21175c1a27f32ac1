//! Acquire of several resources with one token: all of them, or none. It grants ordinary leases, exclusive or shared.

pub(super) mod reference;

use std::sync::Arc;

use deadpool_redis::redis::Value;

use super::acquire::{self, AcquireArgs, TokenUse};
use super::acquire_shared::AcquireSharedArgs;
use super::keys;
use super::params::RequestTime;
use super::record::MEMBERS_MAX;
use super::reply::{NodeGrant, Reply};
use super::reply_reader::{Malformed, ReplyReader, malformed};
use super::script::{Command, CommandBuilder, ScriptContext, ScriptRef, millis, node_script};
use crate::types::{AttemptId, Mode, ResourceName, TokenHash, Ttl};

node_script!(with_marker "../fences.lua", "../blocks.lua", "../ended.lua", "acquire_set.lua", "../members.lua", "beside.lua");

/// The maximum number of resources of one set: its script occupies the node as long as that many acquires do.
pub const SET_MAX: usize = 16;

/// Arguments of [`Request::AcquireSet`](super::request::Request::AcquireSet).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcquireSetArgs {
    /// The resources to take: distinct, at least one, at most [`SET_MAX`].
    pub resources: Arc<[ResourceName]>,
    /// Hash of the token that will prove each lease.
    pub token: TokenHash,
    /// The attempt that claims each lease.
    pub attempt: AttemptId,
    /// The lifetime of each lease, without the lock delay.
    pub ttl: Ttl,
    /// Encoded [`Labels`](crate::types::Labels) of each lease.
    pub labels: Arc<str>,
    /// Each lease is shared; otherwise each is exclusive.
    pub is_shared: bool,
}

impl AcquireSetArgs {
    /// The acquire of one of the resources alone, shared.
    pub(crate) fn one_shared(&self, resource: &ResourceName) -> AcquireSharedArgs {
        AcquireSharedArgs {
            resource: resource.clone(),
            token: self.token.clone(),
            mode: Mode::Shared,
            attempt: self.attempt.clone(),
            ttl: self.ttl,
            labels: Arc::clone(&self.labels),
            proposed: None,
        }
    }

    /// The acquire of one of the resources alone, exclusive.
    pub(super) fn one(&self, resource: &ResourceName) -> AcquireArgs {
        AcquireArgs {
            resource: resource.clone(),
            token: self.token.clone(),
            attempt: self.attempt.clone(),
            ttl: self.ttl,
            labels: Arc::clone(&self.labels),
            token_use: TokenUse::Again,
        }
    }
}

pub(super) fn build(
    context: &ScriptContext<'_>,
    sent_at: RequestTime,
    args: &AcquireSetArgs,
    script_ref: ScriptRef,
) -> Command {
    let AcquireSetArgs { resources, token, attempt, ttl, labels, is_shared } = args;
    let mut command = CommandBuilder::new(&SCRIPT, script_ref, 2 + 3 * resources.len(), resources.len());
    command.keys([keys::META_KEY, keys::LEASES_KEY]);
    for resource in resources.iter() {
        command.joined(context.template.lock_parts(resource)).joined(keys::token_tombstone_parts(resource, token));
        command.joined(keys::attempt_tombstone_parts(resource, token, attempt));
    }
    command.marker_args(context, sent_at).text(token.as_str()).number(ttl.as_ms());
    command.number(millis(ttl.as_duration().saturating_add(context.params.lock_delay)));
    command.text(attempt.as_str()).text(labels);
    command.text(if *is_shared { "s" } else { "e" }).number(MEMBERS_MAX as u64);
    for resource in resources.iter() {
        command.text(resource.as_str());
    }
    command.build()
}

pub(super) fn parse(args: &AcquireSetArgs, value: &Value) -> Result<Reply, Malformed> {
    let mut reply = ReplyReader::new(value)?;
    match reply.text()? {
        "Y" => {
            let mut leases = Vec::with_capacity(args.resources.len());
            while reply.remaining() > 0 {
                leases.push(NodeGrant { fence: reply.fence()?, joined: reply.flag()? });
            }
            match leases.len() == args.resources.len() {
                true => Ok(Reply::SetGranted { leases }),
                false => malformed("has not as many leases as resources"),
            }
        }
        "N" => {
            let mut refused = Vec::new();
            while reply.remaining() > 0 {
                let index = usize::try_from(reply.number()?).unwrap_or(usize::MAX);
                let why = acquire::parse(reply.value()?)?;
                if !(1..=args.resources.len()).contains(&index) || matches!(why, Reply::Granted { .. }) {
                    return malformed("refuses no resource of the request");
                }
                refused.push((index - 1, why));
            }
            if refused.is_empty() { malformed("has no reason") } else { Ok(Reply::SetRefused { refused }) }
        }
        code => Ok(Reply::NoVote(reply.no_vote(code)?)),
    }
}
