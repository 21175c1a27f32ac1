//! Replacing a node by another server while the service runs: the name stays, its process and address change
//! (`docs/views.md`, *Changing the view*). All instances follow the address in the view.

use std::sync::Arc;
use std::time::Duration;

use super::change::{Outcome, ViewPurpose};
use crate::protocol::View;
use crate::redlock::clock::Clock;
use crate::redlock::monitor::NodeMonitor;
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;
use crate::types::NodeId;

/// How long a replacement may take from the request on: connecting, and filling the new server.
const REPLACE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(300);

/// Why a node was not replaced. The node is as before.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplaceError {
    /// No node of the list has this name.
    #[error("no node of this cluster has this name")]
    Unknown,
    /// The node is not a Redis node, or the text is not an address.
    #[error("the node cannot be moved there")]
    Address,
    /// Another replacement is under way at this instance.
    #[error("a node is being replaced already")]
    Busy,
    /// The server at this address votes under this name already.
    #[error("the server at this address is the one that votes already")]
    SameServer,
    /// The server votes under another name.
    #[error("the server at this address is one that votes already, under another name")]
    OtherName,
    /// No other node knows what the former process voted for.
    #[error(
        "it is the only node, so no other one knows what the new server has to know: add the new server under another \
             name (`nodes add`), then remove this one (`nodes remove`)"
    )]
    Only,
    /// Why the new server got no vote in time.
    #[error("the new server got no vote within 30 s: {0}")]
    Timeout(String),
}

/// Moves the node back to its former address when dropped, unless the replacement is done.
struct Moving<'a, N, C, E> {
    monitor: &'a NodeMonitor<N, C, E>,
    move_back: Option<Box<dyn Fn() + Send + 'a>>,
}

impl<N, C, E> Drop for Moving<'_, N, C, E> {
    fn drop(&mut self) {
        if let Some(move_back) = &self.move_back {
            move_back();
        }
        *self.monitor.engine.replacing.lock() = None;
    }
}

impl<N: Node, C: Clock, E: Entropy> NodeMonitor<N, C, E> {
    /// Connects to another server under this name, fills it with what the others know, and gives it the vote of the
    /// former server, which may be alive or not. At least a quorum of others must vote.
    ///
    /// Errors: [`ReplaceError`]. Cancel: this instance connects to the former server again. If the nodes have taken a
    /// view with the new server before, every instance still follows that view.
    pub async fn replace(&self, name: &NodeId, address: &str) -> Result<(), ReplaceError> {
        let engine = &self.engine;
        let index = engine.member(name).ok_or(ReplaceError::Unknown)?;
        let node = Arc::clone(&engine.nodes[index]);
        let before = node.address().ok_or(ReplaceError::Address)?;
        if engine.size() == 1 {
            return Err(ReplaceError::Only);
        }
        let former = engine.views.current().entry(name).map(|entry| Arc::clone(&entry.run));
        {
            let mut replacing = engine.replacing.lock();
            if replacing.is_some() {
                return Err(ReplaceError::Busy);
            }
            *replacing = Some(index);
        }
        let back = Arc::clone(&node);
        let move_back = Box::new(move || {
            back.move_to(&before);
        });
        let mut moving = Moving { monitor: self, move_back: Some(move_back) };
        if !node.move_to(address) {
            return Err(ReplaceError::Address);
        }
        let end = engine.clock.now().plus(REPLACE_TIMEOUT);
        loop {
            engine.clock.sleep(PAUSE).await;
            let why = match self.admit_newcomer(index, former.as_deref()).await? {
                None => {
                    moving.move_back = None;
                    return Ok(());
                }
                Some(why) => why,
            };
            if engine.clock.now() >= end {
                return Err(ReplaceError::Timeout(why));
            }
        }
    }

    /// One attempt. `None`: the new server votes. Otherwise the reason why it does not.
    async fn admit_newcomer(&self, index: usize, former: Option<&str>) -> Result<Option<String>, ReplaceError> {
        self.probe_all().await;
        let mut latest = self.latest();
        let Some(member) = &latest.members[index] else { return Ok(Some("it does not answer".to_owned())) };
        if former == Some(&*member.run) {
            return Err(ReplaceError::SameServer);
        }
        let (base, named) = latest.known().base();
        if named.contains(&index) {
            return Ok(None);
        }
        if !member.is_fillable {
            return Ok(Some("it is of another cluster, or its clock is off".to_owned()));
        }
        if !latest.known().may_be_filled(&base, index) {
            return Err(ReplaceError::OtherName);
        }
        // The former process may be alive: the operator decides between the two.
        latest.rivals[index] = false;
        let above = self.highest_seen();
        match self
            .engine
            .change_view(above, &latest.rivals, &latest.ended, &latest.followed, ViewPurpose::Admission(index))
            .await
        {
            Outcome::Done(1..) => Ok(None),
            Outcome::Displaced => Ok(Some("another change of the nodes' view came first".to_owned())),
            Outcome::Done(0) | Outcome::Nothing => Ok(Some("fewer than a quorum of the other nodes vote".to_owned())),
        }
    }

    /// Connects to the servers that the view names.
    pub(super) fn follow_addresses(&self, view: &View) {
        let replacing = *self.engine.replacing.lock();
        for (i, node) in self.engine.nodes.iter().enumerate().filter(|(i, _)| Some(*i) != replacing) {
            let address = view.entry(node.id()).and_then(|entry| entry.address.as_deref());
            let Some(address) = address.filter(|address| node.address().is_some_and(|own| *own != **address)) else {
                continue;
            };
            if node.move_to(address) {
                let name = self.engine.nodes[i].id();
                tracing::warn!(node = %name, address, "the nodes' view has another address than the configuration: it is used");
            }
        }
    }
}
