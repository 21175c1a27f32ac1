//! Acquire: takes a free resource, or joins the lease that the same token already has.

pub(super) mod reference;

use std::sync::Arc;

use deadpool_redis::redis::Value;

use super::params::RequestTime;
use super::record::LeaseRecord;
use super::reply::Reply;
use super::reply_reader::{Malformed, ReplyReader, in_range};
use super::script::{EncodedRequest, ScriptContext, millis, node_script};
use crate::types::{AttemptId, Fence, Mode, ResourceName, TokenHash, Ttl};

node_script!(
    "plain.lua",
    "../vote.lua",
    "../ended.lua",
    "acquire.lua",
    "../blocks.lua",
    "../members.lua",
    "beside.lua"
);

/// Whether a node may leave the tombstone of an acquire's token unread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenUse {
    /// The instance drew the token for this request and sends it for the first time, with one time of sending: until then nobody
    /// else can have used the token.
    First,
    /// Any other request: with a caller's own token or a ticket's, a further attempt, or one that is sent again in another view.
    Again,
}

/// Arguments of [`Request::Acquire`](super::request::Request::Acquire).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcquireArgs {
    /// The resource to take.
    pub resource: ResourceName,
    /// Hash of the token that will prove the lease.
    pub token: TokenHash,
    /// The attempt that claims the lease.
    pub attempt: AttemptId,
    /// The lease's lifetime, without the lock delay.
    pub ttl: Ttl,
    /// Encoded [`Labels`](crate::types::Labels).
    pub labels: Arc<str>,
    pub token_use: TokenUse,
}

/// The keys and arguments of one acquire.
pub(super) fn encode(context: &ScriptContext<'_>, sent_at: RequestTime, args: &AcquireArgs) -> EncodedRequest {
    let AcquireArgs { resource, token, attempt, ttl, labels, token_use } = args;
    let mut encoded = EncodedRequest::new(
        |keys| {
            keys.joined(context.template.lock_parts(resource));
        },
        |args| {
            let (mut sent, mut ttl_ms) = (itoa::Buffer::new(), itoa::Buffer::new());
            let (sent, ttl_ms) = (sent.format(sent_at.0), ttl_ms.format(ttl.as_ms()));
            args.text(sent).number(millis(ttl.as_duration().saturating_add(context.params.lock_delay)));
            // The value as it is stored if the node gives the time of sending as the fence.
            args.joined([token.as_str(), "|000000|", ttl_ms, "|", sent, "|", attempt.as_str(), ",|", labels]);
        },
    );
    encoded.is_again = *token_use == TokenUse::Again;
    encoded
}

/// Reads the reply to one acquire.
pub(super) fn parse(value: &Value) -> Result<Reply, Malformed> {
    // A number, or a text of digits: a script takes long to convert one into the other.
    let granted = match value {
        Value::Int(fence) => Some(*fence),
        Value::BulkString(digits) => std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()),
        _ => None,
    };
    if let Some(fence) = granted {
        return Ok(Reply::Granted { fence: Fence(in_range(fence, "alone")?), joined: false });
    }
    let mut reply = ReplyReader::new(value)?;
    match reply.text()? {
        "G" => Ok(Reply::Granted { fence: reply.fence()?, joined: reply.flag()? }),
        code => parse_refusal(code, &mut reply),
    }
}

/// Reads the rest of a refusal, exclusive or shared.
pub(super) fn parse_refusal(code: &str, reply: &mut ReplyReader<'_>) -> Result<Reply, Malformed> {
    match code {
        "B" => {
            let left_ms = reply.left_ms()?;
            // The script passes on only values that look like a lease; a value that is no lease is still held.
            let record = LeaseRecord::parse(reply.bytes()?).filter(|record| record.mode == Mode::Exclusive);
            Ok(Reply::Held { left_ms, record })
        }
        "H" => reply.held_by_members(),
        "Y" => Ok(Reply::ModeDiffers { mode: reply.member_mode()? }),
        "D" => Ok(Reply::Ended { reason: reply.end_reason()? }),
        "X" => Ok(Reply::TooManyClaims),
        code => Ok(Reply::NoVote(reply.no_vote(code)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::SCRIPT;
    use crate::protocol::record::{CLAIM_BYTES, CLAIMS_MAX_BYTES};
    use crate::types::AttemptId;

    #[test]
    fn the_script_refuses_claims_beyond_the_maximum() {
        assert_eq!(AttemptId::from_random(u64::MAX).as_str().len() + 1, CLAIM_BYTES);
        assert!(SCRIPT.body().contains(&format!("#claims >= {CLAIMS_MAX_BYTES} then")));
    }
}
