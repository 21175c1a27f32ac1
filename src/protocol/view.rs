//! Views: which process votes under each node name. See `docs/views.md`. A higher view replaces a lower one; votes of two
//! views are never counted together.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use std::sync::Arc;

use super::terms::{ChangedTerms, Terms};
use crate::types::NodeId;

/// A view's number and 64 random bits, compared as a pair. As text: 16 hex digits each, so that scripts compare the texts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ViewId {
    number: u64,
    nonce: u64,
}

impl ViewId {
    /// Below every view: for a node that was in none.
    pub const NONE: Self = Self { number: 0, nonce: 0 };

    /// The view with the next number, and these random bits.
    pub fn above(self, nonce: u64) -> Self {
        Self { number: self.number.saturating_add(1), nonce }
    }

    /// The number, for people: two views with one number are possible, but only one of them is ever chosen.
    pub fn number(self) -> u64 {
        self.number
    }

    /// Reads the text of [`fmt::Display`]; `None` for any other text.
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
    /// The run of the process: `run_id` and `master_replid` of a Redis server.
    pub run: Arc<str>,
    /// The view in which the process was last admitted, or will be.
    pub since: ViewId,
    /// The server's address, as `host:port` or the path of a socket, if an operator moved the name. Without white space.
    pub address: Option<Arc<str>>,
}

/// A view's record, as nodes store it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// The view's id.
    pub id: ViewId,
    /// The process that votes under each name of the list.
    pub roster: BTreeMap<NodeId, RosterEntry>,
    /// The names that vote, once an operator has changed them; before that, the names that all instances have configured.
    pub list: Option<Arc<NodeList>>,
}

/// The names that vote in a view.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeList {
    /// The names, at least one.
    pub names: BTreeSet<NodeId>,
    /// A hash of the settings under which the cluster was declared ([`ClusterName::terms`](super::ClusterName::terms)).
    pub terms: Arc<str>,
    /// The terms in force, once an operator has changed them; before that, those that all instances have configured.
    pub changed: Option<ChangedTerms>,
    /// The list that this view changes, or the same list with other terms; `None` in every later view.
    pub old: Option<OldList>,
}

impl NodeList {
    /// Whether these are just the names of this list or, while it changes, of both lists.
    pub fn has_just(&self, names: &BTreeSet<NodeId>) -> bool {
        let of_both: BTreeSet<&NodeId> = self.names.iter().chain(self.old.iter().flat_map(|old| &old.names)).collect();
        self.names == *names || of_both.into_iter().eq(names)
    }
}

/// The list before a change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OldList {
    /// The names that voted.
    pub names: BTreeSet<NodeId>,
    /// The processes that voted under them, each with the minimum view of its last admission.
    pub before: BTreeMap<NodeId, (Arc<str>, ViewId)>,
    /// The terms, if this view changes them.
    pub terms: Option<Terms>,
}

impl View {
    /// The process that votes under this name, if the view names one.
    pub fn entry(&self, name: &NodeId) -> Option<&RosterEntry> {
        self.roster.get(name)
    }

    /// The terms in force, if they were changed since the cluster was declared.
    pub fn terms(&self) -> Option<&Terms> {
        Some(&self.list.as_ref()?.changed.as_ref()?.now)
    }

    /// The list that this view changes, if any: a process votes in this view only after it was filled for it.
    pub fn old(&self) -> Option<&OldList> {
        self.list.as_ref()?.old.as_ref()
    }

    /// The process that requests go to under this name: the one that votes, or that voted before the change of the list.
    pub(super) fn run_of(&self, name: &NodeId) -> Option<&Arc<str>> {
        let before = || self.old().and_then(|old| old.before.get(name)).map(|(run, _)| run);
        self.entry(name).map(|entry| &entry.run).or_else(before)
    }

    /// Whether the view names this process, with that last admission, under some name.
    pub(super) fn names(&self, run: &str, since: ViewId) -> bool {
        self.roster.values().any(|entry| *entry.run == *run && entry.since == since)
    }

    /// Whether this process, with that last admission, voted in the list that this view changes, or was admitted since.
    pub(super) fn names_before(&self, run: &str, admitted: ViewId) -> bool {
        self.old().is_some_and(|old| old.before.values().any(|(of, since)| **of == *run && admitted >= *since))
    }

    /// As text: the id, then a line for each name: name, run, `since`, and the address if there is one. If the list was changed:
    /// lines `=list`, `=terms`, and in the view that changes it `=old` and, for each of its processes, `=before`. If the terms
    /// were changed: also lines `=settings` and `=accepted`, and in the view that changes them `=was` after `=old`.
    pub fn encode(&self) -> String {
        let mut text = self.id.to_string();
        if let Some(list) = &self.list {
            let names = |names: &BTreeSet<NodeId>| names.iter().map(NodeId::as_str).collect::<Vec<_>>().join(" ");
            let _ = write!(text, "\n=list {}\n=terms {}", names(&list.names), list.terms);
            if let Some(ChangedTerms { now, accepted }) = &list.changed {
                let _ = write!(text, "\n=settings {now}\n=accepted {}", accepted.join(" "));
            }
            if let Some(old) = &list.old {
                let _ = write!(text, "\n=old {}", names(&old.names));
                if let Some(terms) = &old.terms {
                    let _ = write!(text, "\n=was {terms}");
                }
                for (name, (run, since)) in &old.before {
                    let _ = write!(text, "\n=before {name} {run} {since}");
                }
            }
        }
        for (name, RosterEntry { run, since, address }) in &self.roster {
            // Writing to a string cannot fail.
            let _ = write!(text, "\n{name} {run} {since}");
            if let Some(address) = address {
                let _ = write!(text, " {address}");
            }
        }
        text
    }

    /// Reads the text of [`Self::encode`]; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.split('\n').peekable();
        let mut view = Self { id: ViewId::parse(lines.next()?)?, roster: BTreeMap::new(), list: None };
        let mut next = |tag: &str| lines.next_if(|line| line.starts_with(tag)).map(|line| &line[tag.len()..]);
        if let Some(names) = next("=list ") {
            let (names, terms) = (name_set(names)?, hash(next("=terms ")?)?);
            let mut list = NodeList { names, terms, changed: None, old: None };
            if let Some(terms) = next("=settings ") {
                let accepted = next("=accepted ")?.split(' ').map(hash).collect::<Option<_>>()?;
                list.changed = Some(ChangedTerms { now: Terms::parse(terms)?, accepted });
            }
            if let Some(names) = next("=old ") {
                let terms = next("=was ").map(|terms| Terms::parse(terms).ok_or(())).transpose().ok()?;
                let mut old = OldList { names: name_set(names)?, before: BTreeMap::new(), terms };
                while let Some(line) = next("=before ") {
                    let (name, RosterEntry { run, since, address: None }) = words(line)? else { return None };
                    old.before.insert(name, (run, since)).is_none().then_some(())?;
                }
                list.old = Some(old);
            }
            view.list = Some(Arc::new(list));
        }
        for line in lines {
            let (name, entry) = words(line)?;
            view.roster.insert(name, entry).is_none().then_some(())?;
        }
        Some(view)
    }
}

/// One or more names, each once.
fn name_set(text: &str) -> Option<BTreeSet<NodeId>> {
    let mut names = BTreeSet::new();
    text.split(' ').all(|name| NodeId::parse(name).is_ok_and(|name| names.insert(name))).then_some(names)
}

/// Text of letters and digits.
fn hash(text: &str) -> Option<Arc<str>> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric())).then(|| text.into())
}

/// Name, run, view, and an address if there is one.
fn words(line: &str) -> Option<(NodeId, RosterEntry)> {
    let mut words = line.split(' ');
    let (name, run, since) = (NodeId::parse(words.next()?).ok()?, hash(words.next()?)?, ViewId::parse(words.next()?)?);
    let address =
        words.next().map(|address| (!address.is_empty()).then(|| address.into()).ok_or(())).transpose().ok()?;
    words.next().is_none().then_some((name, RosterEntry { run, since, address }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::keys::KeyTemplate;
    use proptest::prelude::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let first = ViewId::NONE.above(7);
        let second = first.above(3);
        let entry = |run: &str, since| RosterEntry { run: run.into(), since, address: None };
        let moved = |run: &str, since| RosterEntry { address: Some("h:1".into()), ..entry(run, since) };
        let name = |text| NodeId::parse(text).expect("valid");
        let roster = [(name("a/1"), entry("0f", first)), (name("b"), moved("ff", second))].into();
        let view = View { id: second, roster, list: None };
        assert_eq!(View::parse(&view.encode()), Some(view.clone()));
        let names = |texts: &[&'static str]| texts.iter().map(|text| name(text)).collect::<BTreeSet<_>>();
        let before: BTreeMap<_, _> = [(name("a/1"), (Arc::from("0f"), first))].into();
        let terms = Terms { lock_delay: std::time::Duration::from_secs(1), ..Terms::default() };
        let changed = ChangedTerms { now: Terms::default(), accepted: vec!["0b".into(), "0c".into()] };
        let old = |terms| Some(OldList { names: names(&["a/1"]), before: BTreeMap::clone(&before), terms });
        let named = Terms { template: KeyTemplate::parse("lock:{resource}").ok(), ..terms.clone() };
        for old in [None, old(None), old(Some(terms)), old(Some(named))] {
            for changed in [None, Some(changed.clone())] {
                let list = NodeList { names: names(&["a/1", "b"]), terms: "0a".into(), changed, old: old.clone() };
                let of_list = View { list: Some(Arc::new(list)), ..view.clone() };
                assert_eq!(View::parse(&of_list.encode()), Some(of_list));
            }
        }
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
            &format!("{second}\n=list a a\n=terms 0"),
            &format!("{second}\n=list a"),
            &format!("{second}\n=old a"),
            &format!("{second}\n=list a\n=terms 0\n=before a 0f {first}"),
            &format!("{second}\n=list a\n=terms 0\n=settings 1 2 3"),
            &format!("{second}\n=list a\n=terms 0\n=settings 1 2\n=accepted 0"),
            &format!("{second}\n=list a\n=terms 0\n=settings 1 2 3\n=accepted "),
            &format!("{second}\n=list a\n=terms 0\n=was 1 2 3"),
            &format!("{second}\n=list a\n=terms 0\n=old a\n=was 1 2"),
            &format!("{second}\n=list a\n=terms 0\n=old a\n=before a 0f {first} h"),
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
