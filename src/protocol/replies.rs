//! What a node's scripts answer, as [`Reply`]s. Pure, and trusts nothing: an answer of another shape is
//! [`UnreachableKind::Protocol`], never a panic, since whoever can reach the port may speak Redis badly.

use deadpool_redis::redis::Value;

use super::commands::batch_kind;
use crate::protocol::{
    EndReason, Found, LeaseRecord, ListedLease, NoVote, NodeInspection, NodeStatus, Released, Reply, Request,
    StoredLock, Unreachable, UnreachableKind, Vote,
};
use crate::types::{Fence, ResourceName};

/// Fences and times stay below it: a script's numbers are doubles.
const NUMBER_MAX: u64 = 1 << 53;

/// Reads the answer to `request`, which had a command of its own.
///
/// Errors: [`UnreachableKind::Protocol`] where it is none.
pub fn parse(request: &Request, value: &Value) -> Result<Reply, Unreachable> {
    parse_one_of(1, 0, request, value)
}

/// Reads the answer to `request`, the one at `index` of `count` that shared a command.
///
/// Errors: [`UnreachableKind::Protocol`] where it is none.
pub fn parse_one_of(count: usize, index: usize, request: &Request, value: &Value) -> Result<Reply, Unreachable> {
    let reply = match (batch_kind(request), value) {
        (None, value) => read(request, value),
        (Some(_), Value::Array(items)) if items.len() == count => {
            items.get(index).map_or_else(|| odd("is missing"), |item| read(request, item))
        }
        (Some(_), Value::Array(items)) => odd(format!("is for {} requests in the place of {count}", items.len())),
        (Some(_), _) => odd("is not a list"),
    };
    reply.map_err(|Odd(what)| {
        Unreachable::new(UnreachableKind::Protocol, format!("{}: the answer {what}", request.operation()))
    })
}

/// What is odd about an answer. Never quotes it.
struct Odd(String);

fn odd<T>(what: impl Into<String>) -> Result<T, Odd> {
    Err(Odd(what.into()))
}

fn read(request: &Request, value: &Value) -> Result<Reply, Odd> {
    let items = match (request, value) {
        (_, Value::Array(items)) => items,
        // The short forms of what is answered most.
        (Request::Acquire(_), Value::Int(fence)) => {
            return Ok(Reply::Granted { fence: Fence(in_range(*fence, "alone")?), joined: false });
        }
        (Request::Cancel(_) | Request::Release(_), Value::Int(1)) => {
            return Ok(Reply::Released(Released { found: Found::Match, earlier: None }));
        }
        _ => return odd("is not a list"),
    };
    let mut items = Items { items, at: 0 };
    match request {
        Request::Acquire(_) => acquire(&mut items),
        Request::Update(_) => hold(&mut items),
        Request::Restore(_) => plant(&mut items),
        Request::Cancel(_) | Request::Release(_) | Request::DeleteForeign(_) => release(&mut items),
        Request::Revoke(_) => revoke(&mut items),
        Request::Inspect { .. } => inspect(&mut items),
        Request::List(_) => list(&mut items),
        Request::Probe | Request::Init | Request::Quarantine | Request::Activate { .. } => status(&mut items),
    }
}

fn acquire(items: &mut Items<'_>) -> Result<Reply, Odd> {
    match items.text()? {
        "G" => Ok(Reply::Granted { fence: items.fence()?, joined: items.flag()? }),
        "B" => {
            let left_ms = items.left()?;
            // A foreigner's value never gets here, save one that looks like ours to the script: still held.
            Ok(Reply::Held { left_ms, record: LeaseRecord::parse(items.bytes()?) })
        }
        "D" => Ok(Reply::Ended { reason: items.reason()? }),
        "X" => Ok(Reply::TooManyClaims),
        code => Ok(Reply::NoVote(items.no_vote(code)?)),
    }
}

fn hold(items: &mut Items<'_>) -> Result<Reply, Odd> {
    match items.text()? {
        "G" => {
            let record = LeaseRecord::parse(items.bytes()?).ok_or_else(|| Odd("has no lease".into()))?;
            Ok(Reply::Updated { record, before_ms: items.left()?.unwrap_or_default() })
        }
        "M" => Ok(Reply::Missing),
        "O" => items.other(),
        "D" => Ok(Reply::Ended { reason: items.reason()? }),
        "F" => Ok(Reply::FenceTooFarAhead),
        code => Ok(Reply::NoVote(items.no_vote(code)?)),
    }
}

fn plant(items: &mut Items<'_>) -> Result<Reply, Odd> {
    match items.text()? {
        "P" => Ok(Reply::Restored),
        "O" => items.other(),
        "D" => Ok(Reply::Ended { reason: items.reason()? }),
        "F" => Ok(Reply::FenceTooFarAhead),
        code => Ok(Reply::NoVote(items.no_vote(code)?)),
    }
}

fn release(items: &mut Items<'_>) -> Result<Reply, Odd> {
    let found = match items.text()? {
        "R" => Found::Match,
        "M" => Found::Nothing,
        "O" => Found::Other,
        _ => return odd("has an unknown code"),
    };
    let earlier = match items.text()? {
        "" => None,
        word => Some(EndReason::parse(word).ok_or_else(|| Odd("has an unknown reason".into()))?),
    };
    Ok(Reply::Released(Released { found, earlier }))
}

fn revoke(items: &mut Items<'_>) -> Result<Reply, Odd> {
    match items.text()? {
        "V" => Ok(Reply::Revoked { left_ms: items.left()?.unwrap_or_default() }),
        "M" => Ok(Reply::Missing),
        "O" => items.other(),
        _ => odd("has an unknown code"),
    }
}

fn inspect(items: &mut Items<'_>) -> Result<Reply, Odd> {
    if items.text()? != "I" {
        return odd("has an unknown code");
    }
    let no_vote = match items.text()? {
        "A" => {
            items.number()?;
            None
        }
        code => Some(items.no_vote(code)?),
    };
    let kind = items.text()?;
    let left_ms = items.left()?;
    let value = items.bytes()?;
    let foreign = |fingerprint: &str| StoredLock::Foreign { left_ms, fingerprint: fingerprint.into() };
    let lock = match kind {
        "free" => StoredLock::Free,
        "ours" => match LeaseRecord::parse(value) {
            Some(record) => StoredLock::Lease { record, left_ms: left_ms.unwrap_or_default() },
            None => foreign("unreadable"),
        },
        "foreign" => match std::str::from_utf8(value) {
            Ok(print) => foreign(print),
            Err(_) => return odd("has a fingerprint that is no text"),
        },
        _ => return odd("has an unknown kind of key"),
    };
    Ok(Reply::Inspected(NodeInspection { no_vote, lock }))
}

fn list(items: &mut Items<'_>) -> Result<Reply, Odd> {
    let next = match items.text()?.parse::<u64>() {
        Ok(0) => None,
        Ok(cursor) => Some(cursor),
        Err(_) => return odd("has a cursor that is no number"),
    };
    let mut leases = Vec::with_capacity(items.left_over() / 3);
    while items.left_over() > 0 {
        let (resource, left_ms, value) = (items.bytes()?, items.left()?, items.bytes()?);
        // An entry of the index that names no resource, or whose key is a foreigner's by now, is no lease.
        let resource = std::str::from_utf8(resource).ok().and_then(|name| ResourceName::parse(name).ok());
        if let (Some(resource), Some(left_ms), Some(record)) = (resource, left_ms, LeaseRecord::parse(value)) {
            leases.push(ListedLease { resource, record, left_ms });
        }
    }
    Ok(Reply::Page { next, leases })
}

fn status(items: &mut Items<'_>) -> Result<Reply, Odd> {
    let vote = match items.text()? {
        "A" => {
            items.number()?;
            Vote::Active
        }
        "N" => {
            items.number()?;
            Vote::AlreadyInitialised
        }
        code => Vote::NoVote(items.no_vote(code)?),
    };
    Ok(Reply::Status(NodeStatus {
        vote,
        high_water: items.fence()?,
        now_us: items.number()?,
        run: items.text()?.to_owned(),
        why: items.text()?.to_owned(),
        since_us: items.number()?,
        until_us: items.number()?,
    }))
}

fn in_range(number: i64, at: impl std::fmt::Display) -> Result<u64, Odd> {
    match u64::try_from(number) {
        Ok(number) if number < NUMBER_MAX => Ok(number),
        _ => odd(format!("has a number out of range as item {at}")),
    }
}

/// The items of an answer, read in order.
struct Items<'a> {
    items: &'a [Value],
    at: usize,
}

impl<'a> Items<'a> {
    fn left_over(&self) -> usize {
        self.items.len() - self.at
    }

    fn next(&mut self) -> Result<&'a Value, Odd> {
        let Some(item) = self.items.get(self.at) else {
            return odd(format!("ends after {} items", self.items.len()));
        };
        self.at += 1;
        Ok(item)
    }

    fn bytes(&mut self) -> Result<&'a [u8], Odd> {
        match self.next()? {
            Value::BulkString(bytes) => Ok(bytes),
            Value::SimpleString(text) => Ok(text.as_bytes()),
            _ => odd(format!("has no text as item {}", self.at)),
        }
    }

    fn text(&mut self) -> Result<&'a str, Odd> {
        let bytes = self.bytes()?;
        std::str::from_utf8(bytes).map_err(|_| Odd(format!("has no text as item {}", self.at)))
    }

    fn int(&mut self) -> Result<i64, Odd> {
        match self.next()? {
            Value::Int(number) => Ok(*number),
            _ => odd(format!("has no number as item {}", self.at)),
        }
    }

    fn number(&mut self) -> Result<u64, Odd> {
        let number = self.int()?;
        in_range(number, self.at)
    }

    fn fence(&mut self) -> Result<Fence, Odd> {
        self.number().map(Fence)
    }

    fn flag(&mut self) -> Result<bool, Odd> {
        match self.int()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => odd(format!("has no flag as item {}", self.at)),
        }
    }

    /// A `PTTL`: negative where the key has none.
    fn left(&mut self) -> Result<Option<u64>, Odd> {
        Ok(u64::try_from(self.int()?).ok())
    }

    fn reason(&mut self) -> Result<EndReason, Odd> {
        EndReason::parse(self.text()?).ok_or_else(|| Odd("has an unknown reason".into()))
    }

    fn other(&mut self) -> Result<Reply, Odd> {
        let fence = self.number()?;
        Ok(Reply::Other { fence: (fence > 0).then_some(Fence(fence)) })
    }

    fn no_vote(&mut self, code: &str) -> Result<NoVote, Odd> {
        match code {
            "Q" => Ok(NoVote::Quarantined { left_ms: self.number()? }),
            "S" => Ok(NoVote::Unseeded { high_water: self.fence()? }),
            "K" => Ok(NoVote::ClockOff { node_us: self.number()? }),
            "C" => Ok(NoVote::OtherCluster { theirs: self.text()?.to_owned() }),
            _ => odd("has an unknown code"),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::types::Ttl;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::protocol::{AcquireArgs, DeleteForeignArgs, ListArgs, ReleaseArgs, RestoreArgs, RevokeArgs, UpdateArgs};
    use crate::types::{AttemptId, Token};

    const LEASE: &str = "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f|000001|30000|17|a0,|{}";

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn list(items: &[Value]) -> Value {
        Value::Array(items.to_vec())
    }

    /// One request of each kind of answer.
    fn requests() -> Vec<Request> {
        let resource = ResourceName::parse("r").expect("valid");
        let token = Token::parse("abcdefghijklmnopqrstuv").expect("valid").hash();
        let (attempt, ttl) = (AttemptId::from_random(1), Ttl::from_ms(1).expect("valid"));
        let record = LeaseRecord::parse(LEASE.as_bytes()).expect("a lease");
        let labels: Arc<str> = "{}".into();
        vec![
            Request::Acquire(AcquireArgs { resource: resource.clone(), token: token.clone(), attempt, ttl, labels }),
            Request::Update(UpdateArgs {
                resource: resource.clone(),
                token: token.clone(),
                ttl: None,
                fence: None,
                renewal: true,
                labels: None,
            }),
            Request::Restore(RestoreArgs { resource: resource.clone(), record, left_ms: 1 }),
            Request::Release(ReleaseArgs {
                resource: resource.clone(),
                token: token.clone(),
                reason: EndReason::Released,
            }),
            Request::Revoke(RevokeArgs { resource: resource.clone(), token }),
            Request::DeleteForeign(DeleteForeignArgs { resource: resource.clone(), fingerprint: "x".into() }),
            Request::Inspect { resource },
            Request::List(ListArgs { cursor: 0, count: 1 }),
            Request::Probe,
        ]
    }

    fn is_protocol(answer: &Result<Reply, Unreachable>) -> bool {
        matches!(answer, Err(Unreachable { kind: UnreachableKind::Protocol, .. }))
    }

    #[test]
    fn answers_of_another_shape_are_protocol_errors() {
        let nested = list(&[list(&[text("G")])]);
        let shapes = [
            Value::Nil,
            Value::Okay,
            Value::Int(1),
            text("G"),
            list(&[]),
            list(&[Value::Nil]),
            nested,
            list(&[text("?")]),
        ];
        for request in requests() {
            for shape in &shapes {
                let answer = parse(&request, shape);
                assert!(is_protocol(&answer), "{} {shape:?}: {answer:?}", request.operation());
            }
        }
    }

    #[test]
    fn half_answers_and_absurd_numbers_are_protocol_errors() {
        let [acquire, hold, .., probe] = &requests()[..] else { panic!("requests") };
        let int = Value::Int;
        for items in [
            vec![text("G")],
            vec![text("G"), int(5)],
            vec![text("G"), int(-1), int(0)],
            vec![text("G"), int(1 << 53), int(0)],
            vec![text("G"), int(5), int(2)],
            vec![text("G"), text("5"), int(0)],
            vec![text("B"), int(5)],
            vec![text("B"), text("5"), text("")],
            vec![text("D"), text("bored")],
            vec![text("Q"), int(-5)],
            vec![text("C"), int(5)],
        ] {
            let answer = parse(acquire, &list(&[list(&items)]));
            assert!(is_protocol(&answer), "{items:?}: {answer:?}");
        }
        for alone in [int(-1), int(1 << 53)] {
            assert!(is_protocol(&parse(acquire, &list(&[alone]))));
        }
        assert!(is_protocol(&parse(hold, &list(&[text("G"), int(5), int(0), int(5)]))), "a TTL of nothing");
        assert!(is_protocol(&parse(probe, &list(&[text("A"), int(0), int(1), int(i64::MAX)]))));
    }

    #[test]
    fn what_stands_at_a_key_is_read_or_held_by_a_foreigner() {
        let request = &requests()[0];
        let held = |left, value| parse(request, &list(&[list(&[text("B"), Value::Int(left), value])]));
        let record = LeaseRecord::parse(LEASE.as_bytes());
        assert_eq!(held(9, text(LEASE)), Ok(Reply::Held { left_ms: Some(9), record }));
        assert_eq!(held(-1, text("")), Ok(Reply::Held { left_ms: None, record: None }));
        let raw = Value::BulkString(vec![0xff; 20]);
        assert_eq!(held(9, raw), Ok(Reply::Held { left_ms: Some(9), record: None }));
    }

    #[test]
    fn each_of_several_gets_its_own_answer_and_none_where_their_number_differs() {
        let [acquire, .., release, _, _, _, _, _] = &requests()[..] else { panic!("requests") };
        let both = list(&[Value::Int(7), list(&[text("G"), Value::Int(5), Value::Int(1)])]);
        let granted = |fence, joined| Ok(Reply::Granted { fence: Fence(fence), joined });
        assert_eq!(parse_one_of(2, 0, acquire, &both), granted(7, false));
        assert_eq!(parse_one_of(2, 1, acquire, &both), granted(5, true));
        assert!(is_protocol(&parse_one_of(3, 0, acquire, &both)));
        assert!(is_protocol(&parse_one_of(2, 2, acquire, &both)));
        let mine = Reply::Released(Released { found: Found::Match, earlier: None });
        assert_eq!(parse(release, &list(&[Value::Int(1)])), Ok(mine));
        assert!(is_protocol(&parse(release, &list(&[Value::Int(2)]))));
    }

    #[test]
    fn a_page_skips_what_is_no_lease_and_ends_at_cursor_zero() {
        let request = &requests()[7];
        let entry = |name: &str, left, value: &str| [text(name), Value::Int(left), text(value)];
        let mut items = vec![text("12")];
        for part in [entry("a", 5, LEASE), entry("b", -2, LEASE), entry("c d", 5, LEASE), entry("e", 5, "foreign")] {
            items.extend(part);
        }
        let Ok(Reply::Page { next: Some(12), leases }) = parse(request, &list(&items)) else { panic!("no page") };
        assert_eq!(leases.iter().map(|l| l.resource.as_str()).collect::<Vec<_>>(), ["a"]);
        items.pop();
        assert!(is_protocol(&parse(request, &list(&items))), "half an entry");
        assert_eq!(parse(request, &list(&[text("0")])), Ok(Reply::Page { next: None, leases: vec![] }));
        assert!(is_protocol(&parse(request, &list(&[text("-1")]))));
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<i64>().prop_map(Value::Int),
            any::<Vec<u8>>().prop_map(Value::BulkString),
            "[GBDXMOFPVIAQSKCN]".prop_map(|code| Value::BulkString(code.into_bytes())),
            Just(Value::Nil),
            any::<f64>().prop_map(Value::Double),
        ];
        leaf.prop_recursive(2, 20, 8, |inner| prop::collection::vec(inner, 0..9).prop_map(Value::Array))
    }

    proptest! {
        #[test]
        fn any_answer_is_read_or_refused(value in any_value()) {
            for request in requests() {
                let _ = parse(&request, &value);
            }
        }
    }
}
