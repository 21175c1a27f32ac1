//! Adding and removing names, and changing terms, while the service runs (`docs/views.md`, *Changing the view*). All instances follow the
//! view's list: they open nodes that are new, and close nodes that left.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::change::{Outcome, ViewPurpose};
use super::next_view::NodeAnswers;
use super::view_monitor::Latest;
use crate::protocol::{NodeList, Terms, View, quarantine_for};
use crate::redlock::clock::Clock;
use crate::redlock::monitor::NodeMonitor;
use crate::redlock::node::Node;
use crate::redlock::quorum::quorum_of;
use crate::redlock::random::Entropy;
use crate::types::NodeId;

/// How long a change of the list may take from the request on: connecting, and filling all nodes.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(300);
/// Maximum length of a list: a quorum of a longer list is slower, and no safer.
pub(crate) const NODES_LISTED_MAX: usize = 15;
/// After this time this instance completes a change that another instance began: filling may take seconds, and two
/// instances that do it restart each other's change in turn.
const HALF_DONE_WAITS: Duration = Duration::from_secs(5);

/// Why the list was not changed. It is as before, except after [`ListError::Timeout`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// No node of the list has this name.
    #[error("no node of this cluster has this name")]
    Unknown,
    /// A node of the list has this name.
    #[error("a node of this cluster has this name already: `nodes replace` moves it")]
    Exists,
    /// The nodes are embedded, or the text is not an address.
    #[error("no node can be reached there")]
    Address,
    /// The list has the maximum length.
    #[error("a cluster has at most 15 nodes")]
    TooMany,
    /// The node is the only one of the list.
    #[error("the last node cannot be removed")]
    Last,
    /// The nodes are embedded, so their terms are the configured ones.
    #[error("the nodes are embedded: change the configuration and start the service again")]
    Embedded,
    /// Fences may be ahead by more than a quarantine under the new terms lasts.
    #[error("the guard is to become smaller by more than a quarantine covers: make it smaller in steps")]
    GuardTooSmall,
    /// Another change is under way at this instance.
    #[error("the list of nodes or their terms are being changed already")]
    Busy,
    /// Why the list or the terms were not changed in time. If a quorum of nodes has taken it before, every instance still follows it.
    #[error("this was not done within 30 s: {0}")]
    Timeout(String),
}

/// What a change is to bring about.
enum Wanted {
    Names(BTreeSet<NodeId>),
    Terms(Terms),
}

/// Ends the change at this instance when dropped. Connections that were opened for it are closed with the next probe.
struct Listing<'a, N, C, E>(&'a NodeMonitor<N, C, E>);

impl<N, C, E> Drop for Listing<'_, N, C, E> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        (state.is_listing, state.listing) = (false, None);
    }
}

impl<N: Node, C: Clock, E: Entropy> NodeMonitor<N, C, E> {
    /// Adds a name with its server, which is filled with blocks for what the others hold, and votes. At least a
    /// quorum of the present list must vote. No node votes while the nodes are read and filled.
    ///
    /// Errors: [`ListError`]. Cancel: if the nodes have taken a view with the new list, every instance completes and follows it.
    pub async fn add(&self, name: &NodeId, address: &str) -> Result<(), ListError> {
        let _listing = self.begin(Some(name))?;
        let engine = &self.engine;
        if engine.member(name).is_some() {
            return Err(ListError::Exists);
        }
        if engine.size() >= NODES_LISTED_MAX {
            return Err(ListError::TooMany);
        }
        let index = engine.open(name, address).ok_or(ListError::Address)?;
        let wanted = |latest: &Latest, current: &View| {
            let member = latest.members.get(index).and_then(Option::as_ref).ok_or("the new node does not answer")?;
            if latest.rivals[index] {
                return Err("another process was seen under this name just now");
            }
            match member.is_fillable {
                false => Err("the new node is of another cluster, or its clock is off"),
                true if !latest.known().may_be_filled(current, index) => {
                    Err("the server at this address is one that votes already, under another name")
                }
                true => Ok(Wanted::Names(latest.names_of(current).into_iter().chain([name.clone()]).collect())),
            }
        };
        self.until_listed(|latest, base| latest.names_of(base).contains(name), wanted).await
    }

    /// Removes a name from the list. Its process, alive or not, has no vote from then on. Otherwise as [`Self::add`].
    ///
    /// Errors and Cancel: as of [`Self::add`].
    pub async fn remove(&self, name: &NodeId) -> Result<(), ListError> {
        let _listing = self.begin(Some(name))?;
        if self.engine.member(name).is_none() {
            return Err(ListError::Unknown);
        }
        if self.engine.size() == 1 {
            return Err(ListError::Last);
        }
        let wanted = |latest: &Latest, current: &View| {
            let names: BTreeSet<_> = latest.names_of(current).into_iter().filter(|other| other != name).collect();
            if names.is_empty() {
                Err("it is the last node, which cannot be removed")
            } else {
                Ok(Wanted::Names(names))
            }
        };
        self.until_listed(|latest, base| !latest.names_of(base).contains(name), wanted).await
    }

    /// Puts other terms in force. At least a quorum of the list must vote. Otherwise as [`Self::add`].
    ///
    /// Errors and Cancel: as of [`Self::add`].
    pub async fn change_terms(&self, terms: Terms) -> Result<(), ListError> {
        let _listing = self.begin(None)?;
        if self.engine.nodes.iter().all(|node| node.address().is_none()) {
            return Err(ListError::Embedded);
        }
        let (own, present) = (&self.engine.settings.params, self.engine.params());
        let quarantine = quarantine_for(present.longest_ttl(), terms.lock_delay, terms.guard);
        if quarantine < present.guard.saturating_mul(2) {
            return Err(ListError::GuardTooSmall);
        }
        let terms = terms.or_template(&present.template);
        self.until_listed(|_, base| own.in_view(base).terms() == terms, |_, _| Ok(Wanted::Terms(terms.clone()))).await
    }

    fn begin(&self, name: Option<&NodeId>) -> Result<Listing<'_, N, C, E>, ListError> {
        let mut state = self.state();
        if state.is_listing || self.engine.replacing.lock().is_some() {
            return Err(ListError::Busy);
        }
        (state.is_listing, state.listing) = (true, name.cloned());
        Ok(Listing(self))
    }

    /// Changes the list or the terms until a quorum votes in a view that `is_wanted`.
    async fn until_listed(
        &self,
        is_wanted: impl Fn(&Latest, &View) -> bool,
        wanted: impl Fn(&Latest, &View) -> Result<Wanted, &'static str>,
    ) -> Result<(), ListError> {
        let end = self.engine.clock.now().plus(LIST_TIMEOUT);
        loop {
            self.probe_all().await;
            let latest = self.latest();
            let (base, voters) = latest.known().base();
            let votes = voters.len() >= quorum_of(latest.names_of(&base).len());
            let is_done = votes && is_wanted(&latest, &base);
            if is_done {
                self.engine.take_view(&base, &latest.who_show_list(&base));
                if base.old().is_none() {
                    return Ok(());
                }
            }
            let why = match wanted(&latest, &base) {
                Err(why) if !is_done => why,
                Ok(_) if !votes => "fewer than a quorum of the nodes vote",
                wanted => {
                    let purpose = match &wanted {
                        Ok(Wanted::Names(names)) if !is_done => ViewPurpose::List(names),
                        Ok(Wanted::Terms(terms)) if !is_done => ViewPurpose::Terms(terms),
                        _ => ViewPurpose::Healing,
                    };
                    let above = self.highest_seen();
                    match self.engine.change_view(above, &latest.rivals, &latest.ended, &latest.followed, purpose).await
                    {
                        Outcome::Done(_) => continue,
                        Outcome::Displaced => "another change of the nodes' view came first, or a node did not answer",
                        Outcome::Nothing => "fewer than a quorum of the nodes vote",
                    }
                }
            };
            if self.engine.clock.now() >= end {
                return Err(ListError::Timeout(why.to_owned()));
            }
            self.engine.clock.sleep(PAUSE).await;
        }
    }

    /// Whether a change of the list has been half done for so long that the instance that began it has given up.
    pub(super) fn is_left_half_done(&self, known: &NodeAnswers<'_>) -> bool {
        let (view, now, mut state) = (known.base().0.id, self.engine.clock.now(), self.state());
        if !known.is_half_done() {
            state.half_done = None;
            return false;
        }
        let since = state.half_done.filter(|(of, _)| *of == view).map_or(now, |(_, since)| since);
        state.half_done = Some((view, since));
        now.since(since) >= HALF_DONE_WAITS
    }

    /// The change of the list that is under way: the former names, and the names that are to vote.
    pub fn list_change(&self) -> Option<(Vec<NodeId>, Vec<NodeId>)> {
        let list = self.half_done_list()?;
        let old = list.old.as_ref().filter(|old| old.terms.is_none())?;
        let names = |names: &BTreeSet<NodeId>| names.iter().cloned().collect();
        Some((names(&old.names), names(&list.names)))
    }

    /// The change of the terms that is under way: the former ones, and those that are to count.
    pub fn terms_change(&self) -> Option<(Terms, Terms)> {
        let list = self.half_done_list()?;
        Some((list.old.as_ref()?.terms.clone()?, list.changed.as_ref()?.now.clone()))
    }

    fn half_done_list(&self) -> Option<Arc<NodeList>> {
        self.state().half_done?;
        self.latest().known().base().0.list.clone()
    }

    /// Connects to the names of the view's list, and to the former names until the change is complete (`is_complete`).
    pub(super) fn follow_list(&self, view: &View, latest: &Latest, is_complete: bool) {
        let engine = &self.engine;
        let mut wanted = latest.names_of(view);
        wanted.extend(view.old().filter(|_| !is_complete).into_iter().flat_map(|old| old.names.iter().cloned()));
        wanted.extend(self.state().listing.clone());
        let opened = engine.nodes.opened();
        for name in &wanted {
            let index = engine.nodes.iter().position(|node| node.id() == name);
            if index.is_some_and(|index| opened.contains(&index)) {
                continue;
            }
            let address = view.entry(name).and_then(|entry| entry.address.clone());
            let address = address.filter(|_| latest.known().is_confirmed(view, name, None));
            let address = address.or_else(|| index.and_then(|index| engine.nodes[index].address()));
            if let Some(address) = address.filter(|address| engine.open(name, address).is_some()) {
                tracing::warn!(node = %name, %address, "the nodes' view has a name that is not configured: it is used");
            }
        }
        for index in opened.into_iter().filter(|i| is_complete && !wanted.contains(engine.nodes[*i].id())) {
            tracing::warn!(node = %engine.nodes[index].id(), "the nodes' view does not have this name any more: it is not used");
            engine.set_open(index, false);
        }
    }
}

impl Latest {
    /// The names of the view's list.
    pub(super) fn names_of(&self, view: &View) -> BTreeSet<NodeId> {
        match &view.list {
            Some(list) => list.names.clone(),
            None => self.names[..self.configured].iter().cloned().collect(),
        }
    }
}
