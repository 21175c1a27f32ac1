//! Release and cancel, which share a script: end a lease for good, or withdraw one attempt's claim to it.

pub(super) mod reference;

use std::time::Duration;

use deadpool_redis::redis::Value;

use super::keys;
use super::params::ClusterParams;
use super::reply::{EndReason, Found, Released, Reply};
use super::reply_reader::{Malformed, ReplyReader};
use super::script::{EncodedRequest, ScriptContext, millis, node_script};
use crate::types::{AttemptId, ResourceName, TokenHash};

node_script!("plain.lua", "../ended.lua", "release.lua", "../members.lua", "member.lua");

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
    kind: Kind<'a>,
}

#[derive(Clone, Copy)]
enum Kind<'a> {
    /// Its tombstone lasts for [`TOKEN_TOMBSTONE`](super::params::TOKEN_TOMBSTONE), and has the reason.
    Release(EndReason),
    /// Of this attempt, and how long its tombstone lasts.
    Cancel(&'a AttemptId, Duration),
}

impl<'a> ScriptArgs<'a> {
    pub(super) fn release(args: &'a ReleaseArgs) -> Self {
        let ReleaseArgs { resource, token, reason } = args;
        Self { resource, token, kind: Kind::Release(*reason) }
    }

    pub(super) fn cancel(args: &'a CancelArgs, params: &ClusterParams) -> Self {
        let CancelArgs { resource, token, attempt } = args;
        Self { resource, token, kind: Kind::Cancel(attempt, params.attempt_tombstone()) }
    }
}

/// The keys and arguments of one release or cancel: a release has one argument, its reason, and a cancel two.
pub(super) fn encode(context: &ScriptContext<'_>, args: &ScriptArgs<'_>) -> EncodedRequest {
    let ScriptArgs { resource, token, kind } = *args;
    EncodedRequest::new(
        |keys| {
            keys.joined(context.template.lock_parts(resource));
            match kind {
                Kind::Release(_) => keys.joined(keys::token_tombstone_parts(resource, token)),
                Kind::Cancel(attempt, _) => keys.joined(keys::attempt_tombstone_parts(resource, token, attempt)),
            };
        },
        |words| {
            match kind {
                Kind::Release(reason) => words.text(reason.as_str()),
                Kind::Cancel(attempt, tombstone_ttl) => words.text(attempt.as_str()).number(millis(tombstone_ttl)),
            };
        },
    )
}

/// Reads the reply to one release or cancel.
pub(super) fn parse(value: &Value) -> Result<Reply, Malformed> {
    if matches!(value, Value::Int(1)) || matches!(value, Value::BulkString(one) if one == b"1") {
        return Ok(Reply::Released(Released { found: Found::Match, earlier: None }));
    }
    ReplyReader::new(value)?.released()
}

#[cfg(test)]
mod tests {
    use super::{SCRIPT, millis};
    use crate::protocol::params::TOKEN_TOMBSTONE;
    use crate::protocol::{admin, read_all};

    #[test]
    fn the_scripts_know_how_long_a_token_is_refused() {
        let (ms, us) = (millis(TOKEN_TOMBSTONE), TOKEN_TOMBSTONE.as_micros());
        let count = |script: &str, text: &str| script.matches(text).count();
        assert_eq!(count(SCRIPT.body(), &format!("expect_late({us})")), 1, "acquires read it for as long");
        assert_eq!(count(SCRIPT.body(), &format!("<= {us} ")), 1, "it counts");
        assert_eq!(count(read_all::SCRIPT.body(), &format!("{ms} - math.floor")), 1, "others see how long");
        assert_eq!(count(admin::SCRIPT.body(), &format!(">= {us} ")), 1, "it is kept");
    }
}
