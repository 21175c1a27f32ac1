//! Release and cancel, which share a script: end a lease for good, or withdraw one attempt's claim to it.

pub(super) mod reference;

use std::time::Duration;

use deadpool_redis::redis::Value;

use super::keys;
use super::params::{ClusterParams, TOKEN_TOMBSTONE};
use super::reply::{EndReason, Found, Released, Reply};
use super::reply_reader::{Malformed, ReplyReader};
use super::script::{EncodedRequest, ScriptContext, millis, node_script};
use crate::types::{AttemptId, ResourceName, TokenHash};

node_script!("release.lua", "../members.lua", "member.lua");

/// Arguments of [`Request::Release`](super::request::Request::Release).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseArgs {
    /// The leased resource.
    pub resource: ResourceName,
    /// Hash of the lease's token.
    pub token: TokenHash,
    /// Why the lease ends; stored in the tombstone.
    pub reason: EndReason,
}

/// Arguments of [`Request::Cancel`](super::request::Request::Cancel).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelArgs {
    /// The resource that the attempt asked for.
    pub resource: ResourceName,
    /// Hash of the attempt's token.
    pub token: TokenHash,
    /// The attempt to withdraw.
    pub attempt: AttemptId,
}

/// A release or a cancel, as its script receives it.
pub(super) struct ScriptArgs<'a> {
    resource: &'a ResourceName,
    token: &'a TokenHash,
    /// For a cancel only.
    attempt: Option<&'a AttemptId>,
    reason: &'static str,
    tombstone_ttl: Duration,
}

impl<'a> ScriptArgs<'a> {
    pub(super) fn release(args: &'a ReleaseArgs) -> Self {
        let ReleaseArgs { resource, token, reason } = args;
        Self { resource, token, attempt: None, reason: reason.as_str(), tombstone_ttl: TOKEN_TOMBSTONE }
    }

    pub(super) fn cancel(args: &'a CancelArgs, params: &ClusterParams) -> Self {
        let CancelArgs { resource, token, attempt } = args;
        let (reason, tombstone_ttl) = (EndReason::Cancelled.as_str(), params.attempt_tombstone());
        Self { resource, token, attempt: Some(attempt), reason, tombstone_ttl }
    }
}

/// The keys and arguments of one release or cancel.
pub(super) fn encode(context: &ScriptContext<'_>, args: &ScriptArgs<'_>) -> EncodedRequest {
    let ScriptArgs { resource, token, attempt, .. } = args;
    EncodedRequest::new(
        |keys| {
            keys.joined(context.template.lock_parts(resource));
            match attempt {
                None => keys.joined(keys::token_tombstone_parts(resource, token)),
                Some(attempt) => keys.joined(keys::attempt_tombstone_parts(resource, token, attempt)),
            };
        },
        |words| {
            words.text(token.as_str()).text(attempt.map_or("", |a| a.as_str())).number(millis(args.tombstone_ttl));
            words.text(args.reason).joined(keys::freed_channel_parts(resource)).text(resource.as_str());
        },
    )
}

/// Reads the reply to one release or cancel.
pub(super) fn parse(value: &Value) -> Result<Reply, Malformed> {
    if let Value::Int(1) = value {
        return Ok(Reply::Released(Released { found: Found::Match, earlier: None }));
    }
    ReplyReader::new(value)?.released()
}
