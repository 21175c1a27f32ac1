//! The value of a lock's key on a node: the record of a lease.

use std::sync::Arc;

use crate::types::{Fence, Labels, Mode, PermitLimit, TOKEN_HASH_DIGITS, TokenHash, Ttl, WantedMode};

/// The maximum renewal count: it has six digits in the lock's value. Further renewals are not counted.
pub const MAX_RENEWALS: u32 = 999_999;
/// The maximum number of attempts that may claim one lease (replays of one `POST`); further ones are refused.
pub const MAX_CLAIMS: usize = 16;
/// The maximum number of shared leases of a resource at a time: further ones are refused.
pub const MEMBERS_MAX: usize = 1_000;
/// The maximum number of members that a refusal lists.
pub const MEMBERS_SHOWN: usize = 8;
/// The maximum length of a foreign client's value that is copied, in bytes. Redlock clients store some 20 to 40.
pub(super) const FOREIGN_VALUE_MAX: usize = 1_024;
/// The length of an attempt's id and the comma after it.
pub(super) const CLAIM_BYTES: usize = 18;
/// The maximum length of claims; at this length no attempt is added.
pub(super) const CLAIMS_MAX_BYTES: usize = MAX_CLAIMS * CLAIM_BYTES;

/// A lease, stored in the lock's value as `token hash|renewals (6 digits)|ttl_ms|fence|attempt,attempt,|labels`. The record of a
/// member (a shared lease or a permit) begins with its mode: `Ms|` or, with slot and limit, `Mp0/3|`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRecord {
    /// How the lease shares its resource.
    pub mode: Mode,
    /// Hash of the token that proves the lease.
    pub token: TokenHash,
    /// The number of extends that this node has counted.
    pub renewals: u32,
    /// The TTL it was acquired with.
    pub ttl: Ttl,
    /// Its fencing token on this node.
    pub fence: Fence,
    /// The attempts that claim the lease, each followed by a comma; `p,` after an extend or a restore.
    pub claims: Arc<str>,
    /// Encoded [`Labels`].
    pub labels: Arc<str>,
}

impl LeaseRecord {
    /// Reads a lock's value; `None` for a foreign client's value.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?;
        let (mode, text) = match text.strip_prefix('M') {
            Some(member) => {
                let (mode, rest) = member.split_once('|')?;
                (parse_member_mode(mode)?, rest)
            }
            None => (Mode::Exclusive, text),
        };
        let (token, mut rest) = text.split_at_checked(TOKEN_HASH_DIGITS)?;
        let token = TokenHash::parse(token)?;
        rest = rest.strip_prefix('|')?;
        let renewals = next_part(&mut rest)?.parse().ok()?;
        let ttl = Ttl::from_ms(next_part(&mut rest)?.parse().ok()?).ok()?;
        let fence = Fence(next_part(&mut rest)?.parse().ok()?);
        let claims = next_part(&mut rest)?.into();
        Some(Self { mode, token, renewals, ttl, fence, claims, labels: rest.into() })
    }

    /// The lock's value, as text.
    pub fn encode(&self) -> String {
        format!(
            "{}{}|{:06}|{}|{}|{}|{}",
            member_prefix(self.mode),
            self.token.as_str(),
            self.renewals.min(MAX_RENEWALS),
            self.ttl.as_ms(),
            self.fence,
            self.claims,
            self.labels
        )
    }

    /// The largest of several records of a lease is the latest: nodes may have missed a fence, renewals, or that it is kept.
    pub fn recency(&self) -> (Fence, u32, bool) {
        (self.fence, self.renewals, self.labels.contains("\"k\":"))
    }

    /// The labels; empty if they cannot be read.
    pub fn labels(&self) -> Labels {
        serde_json::from_str(&self.labels).unwrap_or_default()
    }
}

/// Removes the text before the next `|`, and that. The parts are short, and a list has many: no searcher is set up for each.
fn next_part<'a>(rest: &mut &'a str) -> Option<&'a str> {
    let end = rest.bytes().position(|byte| byte == b'|')?;
    let part = &rest[..end];
    *rest = &rest[end + 1..];
    Some(part)
}

/// The prefix of a member's record.
fn member_prefix(mode: Mode) -> String {
    if mode == Mode::Exclusive { String::new() } else { format!("M{}|", member_mode(mode)) }
}

/// A member's mode in the scripts' notation; `e` for an exclusive lease.
pub(super) fn member_mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "e".into(),
        Mode::Shared => "s".into(),
        Mode::Permit { slot, limit } => format!("p{slot}/{limit}"),
    }
}

/// The common kind of a resource's members, after `S|` in its lock's value.
pub(super) fn member_kind(mode: WantedMode) -> String {
    mode.limit().map_or_else(|| "s".into(), |limit| format!("p{limit}"))
}

/// Reads [`member_kind`].
pub(super) fn parse_kind(text: &str) -> Option<WantedMode> {
    match text {
        "s" => Some(WantedMode::Shared),
        _ => Some(WantedMode::Permit { limit: PermitLimit::new(text.strip_prefix('p')?.parse().ok()?)? }),
    }
}

/// `s`, or `p` with slot and limit.
pub(super) fn parse_member_mode(text: &str) -> Option<Mode> {
    if text == "s" {
        return Some(Mode::Shared);
    }
    let (slot, limit) = text.strip_prefix('p')?.split_once('/')?;
    Mode::permit(slot.parse().ok()?, PermitLimit::new(limit.parse().ok()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn foreign_values_are_not_leases() {
        let rslock = [0xff_u8; 20];
        let zeros = format!("{}|", "0".repeat(64));
        for foreign in [&b""[..], b"a3f1", &rslock, zeros.as_bytes(), &[b'|'; 80]] {
            assert_eq!(LeaseRecord::parse(foreign), None);
        }
    }

    proptest! {
        #[test]
        fn an_encoded_record_is_parsed_back(renewals in 0..=MAX_RENEWALS, ttl in 1u64..1 << 40, fence in 0u64..1 << 53, labels in ".{0,80}", mode in 0usize..3) {
            let limit = PermitLimit::new(100).expect("in range");
            let modes = [Mode::Exclusive, Mode::Shared, Mode::Permit { slot: 99, limit }];
            let record = LeaseRecord {
                mode: modes[mode],
                token: TokenHash::parse(&"0f".repeat(32)).expect("hex"),
                renewals,
                ttl: Ttl::from_ms(ttl).expect("in range"),
                fence: Fence(fence),
                claims: "a0123456789abcdef,p,".into(),
                labels: labels.into(),
            };
            prop_assert_eq!(LeaseRecord::parse(record.encode().as_bytes()), Some(record));
        }

        #[test]
        fn parsing_any_bytes_never_panics(bytes: Vec<u8>) {
            let _ = LeaseRecord::parse(&bytes);
        }
    }
}
