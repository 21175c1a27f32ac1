//! Views: which process votes under each node name. See `docs/views.md`. A higher view replaces a lower one; votes of two
//! views are never counted together.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::Arc;

use crate::types::NodeId;

/// A view's number and 64 random bits, compared as a pair. As text: 16 hex digits each, so that scripts compare the texts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ViewId {
    number: u64,
    nonce: u64,
}

impl ViewId {
    /// Below every view: of a node that was in none.
    pub const NONE: Self = Self { number: 0, nonce: 0 };

    /// The view with the next number, and these random bits.
    pub fn above(self, nonce: u64) -> Self {
        Self { number: self.number.saturating_add(1), nonce }
    }

    /// The number, for people: two views of one number are possible, but only one of them is ever chosen.
    pub fn number(self) -> u64 {
        self.number
    }

    /// Reads the text of [`fmt::Display`]; `None` where it is another one.
    pub fn parse(text: &str) -> Option<Self> {
        let is_hex = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let (number, nonce) = is_hex.then(|| text.split_at(16))?;
        let read = |digits| u64::from_str_radix(digits, 16).ok();
        Some(Self { number: read(number)?, nonce: read(nonce)? })
    }
}

impl fmt::Display for ViewId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.number, self.nonce)
    }
}

impl fmt::Debug for ViewId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:04x}", self.number, self.nonce >> 48)
    }
}

/// The process that votes under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RosterEntry {
    /// Its run: `run_id` and `master_replid` of a Redis server.
    pub run: Arc<str>,
    /// The view in which it was last admitted, or is to be.
    pub since: ViewId,
    /// Where its server is, as `host:port` or the path of a socket, if an operator moved the name. Without white space.
    pub address: Option<Arc<str>>,
}

/// A view's record, as nodes store it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// Which view it is.
    pub id: ViewId,
    /// Who votes under each name of the list.
    pub roster: BTreeMap<NodeId, RosterEntry>,
}

impl View {
    /// The process that votes under this name, if the view names one.
    pub fn entry(&self, name: &NodeId) -> Option<&RosterEntry> {
        self.roster.get(name)
    }

    /// Whether it names this process, with that last admission, under some name.
    pub(super) fn names(&self, run: &str, since: ViewId) -> bool {
        self.roster.values().any(|entry| *entry.run == *run && entry.since == since)
    }

    /// As text: the id, then for each name a line of name, run, `since`, and the address if there is one.
    pub fn encode(&self) -> String {
        let mut text = self.id.to_string();
        for (name, RosterEntry { run, since, address }) in &self.roster {
            // Writing to a string cannot fail.
            let _ = write!(text, "\n{name} {run} {since}");
            if let Some(address) = address {
                let _ = write!(text, " {address}");
            }
        }
        text
    }

    /// Reads [`Self::encode`]'s text; `None` where it is another one.
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.split('\n');
        let mut view = Self { id: ViewId::parse(lines.next()?)?, roster: BTreeMap::new() };
        for line in lines {
            let mut words = line.split(' ');
            let (name, run, since) = (words.next()?, words.next()?, words.next()?);
            let is_run = !run.is_empty() && run.bytes().all(|b| b.is_ascii_alphanumeric());
            let address = words.next().map(|address| (!address.is_empty()).then(|| address.into()).ok_or(()));
            let (run, since) = (is_run.then(|| run.into())?, ViewId::parse(since)?);
            let entry = RosterEntry { run, since, address: address.transpose().ok()? };
            let is_new = view.roster.insert(NodeId::parse(name).ok()?, entry).is_none();
            if !is_new || words.next().is_some() {
                return None;
            }
        }
        Some(view)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let first = ViewId::NONE.above(7);
        let second = first.above(3);
        let entry = |run: &str, since| RosterEntry { run: run.into(), since, address: None };
        let moved = |run: &str, since| RosterEntry { address: Some("h:1".into()), ..entry(run, since) };
        let name = |text| NodeId::parse(text).expect("valid");
        let roster = [(name("a/1"), entry("0f", first)), (name("b"), moved("ff", second))].into();
        let view = View { id: second, roster };
        assert_eq!(View::parse(&view.encode()), Some(view.clone()));
        let twice = format!("{}\nb 00 {first}", view.encode());
        for bad in [
            "",
            "7",
            "\n",
            twice.as_str(),
            &format!("{second}\nb ff"),
            &format!("{second}\nb f-f {first}"),
            &format!("{second}\nb ff {first} "),
            &format!("{second}\nb ff {first} h i"),
        ] {
            assert_eq!(View::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn of_two_views_the_higher_number_is_higher_and_then_the_random_bits() {
        let low = ViewId::NONE.above(u64::MAX);
        assert!(ViewId::NONE < low && low < low.above(0));
        assert!(ViewId::NONE.above(1) < ViewId::NONE.above(2));
    }

    proptest! {
        #[test]
        fn the_texts_of_views_are_ordered_as_the_views(a in any::<(u64, u64)>(), b in any::<(u64, u64)>()) {
            let id = |(number, nonce)| ViewId { number, nonce };
            let (a, b) = (id(a), id(b));
            prop_assert_eq!(a.to_string().cmp(&b.to_string()), a.cmp(&b));
            prop_assert_eq!(ViewId::parse(&a.to_string()), Some(a));
        }

        #[test]
        fn parsing_never_panics(text in "(?s).{0,120}") {
            let _ = View::parse(&text);
        }
    }
}
