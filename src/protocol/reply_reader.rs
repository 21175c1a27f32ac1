//! Reads the items of a script's reply in order. Trusts nothing: a reply of another shape is [`Malformed`], never a panic,
//! since anything may answer at a node's address.

use std::collections::BTreeSet;
use std::sync::Arc;

use deadpool_redis::redis::Value;

use super::record::{LeaseRecord, parse_kind, parse_member_mode};
use super::reply::{EndReason, Found, HeldByMembers, Inherited, ListedLease, NoVote, Released, Reply};
use super::view::{View, ViewId};
use crate::types::{Fence, Mode, ResourceName};

/// The maximum of fences and times: a script's numbers are doubles.
const NUMBER_MAX: u64 = 1 << 53;

/// What is wrong with a reply. Never quotes the reply.
pub(super) struct Malformed(pub(super) String);

pub(super) fn malformed<T>(problem: impl Into<String>) -> Result<T, Malformed> {
    Err(Malformed(problem.into()))
}

/// Checks a fence or a time; `position` is its place in the reply, for the message.
pub(super) fn in_range(number: i64, position: impl std::fmt::Display) -> Result<u64, Malformed> {
    match u64::try_from(number) {
        Ok(number) if number < NUMBER_MAX => Ok(number),
        _ => malformed(format!("has a number out of range as item {position}")),
    }
}

/// The items of a reply, read in order.
pub(super) struct ReplyReader<'a> {
    items: &'a [Value],
    position: usize,
}

impl<'a> ReplyReader<'a> {
    pub(super) fn new(reply: &'a Value) -> Result<Self, Malformed> {
        match reply {
            Value::Array(items) => Ok(Self { items, position: 0 }),
            _ => malformed("is not a list"),
        }
    }

    /// The number of unread items.
    pub(super) fn remaining(&self) -> usize {
        self.items.len() - self.position
    }

    /// An item that is a reply of its own.
    pub(super) fn value(&mut self) -> Result<&'a Value, Malformed> {
        self.next()
    }

    fn next(&mut self) -> Result<&'a Value, Malformed> {
        let Some(item) = self.items.get(self.position) else {
            return malformed(format!("ends after {} items", self.items.len()));
        };
        self.position += 1;
        Ok(item)
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        match self.next()? {
            Value::BulkString(bytes) => Ok(bytes),
            Value::SimpleString(text) => Ok(text.as_bytes()),
            _ => malformed(format!("has no text as item {}", self.position)),
        }
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Malformed> {
        let bytes = self.bytes()?;
        std::str::from_utf8(bytes).map_err(|_| Malformed(format!("has no text as item {}", self.position)))
    }

    fn int(&mut self) -> Result<i64, Malformed> {
        match self.next()? {
            Value::Int(number) => Ok(*number),
            _ => malformed(format!("has no number as item {}", self.position)),
        }
    }

    pub(super) fn number(&mut self) -> Result<u64, Malformed> {
        let number = self.int()?;
        in_range(number, self.position)
    }

    pub(super) fn fence(&mut self) -> Result<Fence, Malformed> {
        self.number().map(Fence)
    }

    pub(super) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.int()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => malformed(format!("has no flag as item {}", self.position)),
        }
    }

    /// A `PTTL`: `None` for a negative one, which means that the key has none.
    pub(super) fn left_ms(&mut self) -> Result<Option<u64>, Malformed> {
        Ok(u64::try_from(self.int()?).ok())
    }

    pub(super) fn end_reason(&mut self) -> Result<EndReason, Malformed> {
        EndReason::parse(self.text()?).ok_or_else(|| Malformed("has an unknown reason".into()))
    }

    /// The rest of [`Reply::Other`].
    pub(super) fn other(&mut self) -> Result<Reply, Malformed> {
        let fence = self.number()?;
        Ok(Reply::Other { fence: (fence > 0).then_some(Fence(fence)) })
    }

    /// The rest of a refusal to vote.
    pub(super) fn no_vote(&mut self, code: &str) -> Result<NoVote, Malformed> {
        match code {
            "Q" => Ok(NoVote::Quarantined { left_ms: self.number()? }),
            "S" => Ok(NoVote::Unseeded { high_water: self.fence()? }),
            "W" => Ok(NoVote::Blocked { left_ms: self.left_ms()?.unwrap_or_default() }),
            "K" => Ok(NoVote::ClockOff { node_us: self.number()? }),
            "C" => Ok(NoVote::OtherCluster { theirs: self.text()?.to_owned() }),
            "V" => Ok(NoVote::OtherView { view: self.view()? }),
            "P" => Ok(NoVote::NewerProtocol { theirs: self.number()? }),
            _ => malformed("has an unknown code"),
        }
    }

    /// A view's record; without a roster if only its id was sent.
    pub(super) fn view(&mut self) -> Result<Arc<View>, Malformed> {
        View::parse(self.text()?).map(Arc::new).ok_or_else(|| Malformed("has an unreadable view".into()))
    }

    /// `run|beat|flag`; empty: nothing.
    pub(super) fn inherited(&mut self) -> Result<Option<Inherited>, Malformed> {
        let text = self.text()?;
        if text.is_empty() {
            return Ok(None);
        }
        let mut parts = text.splitn(3, '|');
        let mut next = || parts.next().unwrap_or_default();
        let (run, beat, flag) = (next().into(), next().parse(), next());
        let beat_us = beat.map_err(|_| Malformed("has an unreadable beat".into()))?;
        Ok(Some(Inherited { run, beat_us, is_ready: flag == "1" }))
    }

    pub(super) fn view_id(&mut self) -> Result<ViewId, Malformed> {
        ViewId::parse(self.text()?).ok_or_else(|| Malformed("has an unreadable view".into()))
    }

    /// The rest: three items for each entry of an index. Leaves out entries that name no resource, and entries whose key is now a
    /// foreign client's.
    pub(super) fn listed_leases(&mut self) -> Result<(Vec<ListedLease>, Vec<ResourceName>), Malformed> {
        let (mut leases, mut unread) = (Vec::with_capacity(self.remaining() / 3), Vec::new());
        while self.remaining() > 0 {
            let (resource, left_ms, value) = (self.bytes()?, self.left_ms()?, self.bytes()?);
            let resource = std::str::from_utf8(resource).ok().and_then(|name| ResourceName::parse(name).ok());
            match (resource, left_ms, LeaseRecord::parse(value)) {
                (Some(resource), Some(left_ms), Some(record)) => leases.push(ListedLease { resource, record, left_ms }),
                (Some(resource), _, None) if value.starts_with(b"S|") => unread.push(resource),
                _ => {}
            }
        }
        Ok((leases, unread))
    }

    /// The mode in which a token holds a resource: `e`, or a member's.
    pub(super) fn member_mode(&mut self) -> Result<Mode, Malformed> {
        match self.text()? {
            "e" => Ok(Mode::Exclusive),
            text => parse_member_mode(text).ok_or_else(|| Malformed("has an unknown mode".into())),
        }
    }

    /// The rest of an inspection: the remaining time and the record of each member.
    pub(super) fn members(&mut self) -> Result<Vec<(LeaseRecord, u64)>, Malformed> {
        let mut members = Vec::new();
        while self.remaining() > 0 {
            let left_ms = self.number()?;
            members.push((self.member()?, left_ms));
        }
        if members.is_empty() { malformed("has no member") } else { Ok(members) }
    }

    fn member(&mut self) -> Result<LeaseRecord, Malformed> {
        let record = LeaseRecord::parse(self.bytes()?).filter(|record| record.mode != Mode::Exclusive);
        record.ok_or_else(|| Malformed("has no member where one should be".into()))
    }

    /// The rest of [`Reply::HeldByMembers`].
    pub(super) fn held_by_members(&mut self) -> Result<Reply, Malformed> {
        let left_ms = self.left_ms()?.unwrap_or_default();
        let kind = match self.text()? {
            "" => None,
            text => Some(parse_kind(text).ok_or_else(|| Malformed("has an unknown kind of members".into()))?),
        };
        let is_intent = self.flag()?;
        let mut taken = BTreeSet::new();
        for slot in self.text()?.split(',').filter(|slot| !slot.is_empty()) {
            taken.insert(slot.parse::<u8>().map_err(|_| Malformed("has a slot that is no number".into()))?);
        }
        let mut members = Vec::new();
        while self.remaining() > 0 {
            members.push(self.member()?);
        }
        Ok(Reply::HeldByMembers(HeldByMembers { left_ms, kind, is_intent, taken, members }))
    }

    /// All of [`Reply::Released`].
    pub(super) fn released(&mut self) -> Result<Reply, Malformed> {
        let found = match self.text()? {
            "R" => Found::Match,
            "M" => Found::Nothing,
            "O" => Found::Other,
            _ => return malformed("has an unknown code"),
        };
        let earlier = match self.text()? {
            "" => None,
            reason => Some(EndReason::parse(reason).ok_or_else(|| Malformed("has an unknown reason".into()))?),
        };
        Ok(Reply::Released(Released { found, earlier }))
    }
}
