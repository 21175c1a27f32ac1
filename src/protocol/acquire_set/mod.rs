//! Acquire of several resources with one token: all of them, or none. What it grants are ordinary leases.

pub(super) mod reference;

use std::sync::Arc;

use deadpool_redis::redis::Value;

use super::acquire::{self, AcquireArgs};
use super::keys;
use super::params::RequestTime;
use super::reply::{GrantedLease, Reply};
use super::reply_reader::{Malformed, ReplyReader, malformed};
use super::script::{Command, CommandBuilder, ScriptContext, ScriptRef, millis, node_script};
use crate::types::{AttemptId, ResourceName, TokenHash, Ttl};

node_script!(with_marker "acquire_set.lua");

/// The maximum number of resources of one set: its script occupies the node as long as as many acquires do.
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
    /// Of each lease, without the lock delay.
    pub ttl: Ttl,
    /// Encoded [`Labels`](crate::types::Labels), of each lease.
    pub labels: Arc<str>,
}

impl AcquireSetArgs {
    /// The acquire of one of them alone.
    pub(super) fn one(&self, resource: &ResourceName) -> AcquireArgs {
        AcquireArgs {
            resource: resource.clone(),
            token: self.token.clone(),
            attempt: self.attempt.clone(),
            ttl: self.ttl,
            labels: Arc::clone(&self.labels),
        }
    }
}

pub(super) fn build(
    context: &ScriptContext<'_>,
    sent_at: RequestTime,
    args: &AcquireSetArgs,
    script_ref: ScriptRef,
) -> Command {
    let AcquireSetArgs { resources, token, attempt, ttl, labels } = args;
    let mut command = CommandBuilder::new(&SCRIPT, script_ref, 2 + 4 * resources.len(), resources.len());
    command.keys([keys::META_KEY, keys::LEASES_KEY]);
    for resource in resources.iter() {
        command.joined(context.template.lock_parts(resource)).joined(keys::token_tombstone_parts(resource, token));
        command.joined(keys::attempt_tombstone_parts(resource, token, attempt)).joined(keys::fence_parts(resource));
    }
    command.marker_args(context, sent_at).text(token.as_str()).number(ttl.as_ms());
    command.number(millis(ttl.as_duration().saturating_add(context.params.lock_delay)));
    command.text(attempt.as_str()).text(labels);
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
                leases.push(GrantedLease { fence: reply.fence()?, joined: reply.flag()? });
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
