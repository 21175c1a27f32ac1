//! Gives the leases of processes the names of a view that changes the key template, before anybody is read
//! (`docs/views.md`, *Changing the terms*).

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::join_all;

use crate::mutant::{self, Mutant};
use crate::protocol::{NodeResult, RenameArgs, Reply, Request, View};
use crate::redlock::clock::Clock;
use crate::redlock::engine::Redlock;
use crate::redlock::node::Node;
use crate::redlock::random::Entropy;

/// Number of keys that one page walks. A page occupies the node for about two milliseconds.
const RENAME_KEYS: u32 = if cfg!(test) { 1 } else { 500 };
/// Maximum number of pages: 50 million keys, twice.
const RENAME_PAGES_MAX: u32 = 200_000;

impl<N: Node, C: Clock, E: Entropy> Redlock<N, C, E> {
    /// Which of `entered`, the processes that installed the view, may be read: those whose leases have the view's names. A target that
    /// installed it without an answer is renamed, too; what waits for its vote has no names to keep, and refuses.
    ///
    /// Cancel: some leases are between two names, where releases find them; the next change goes on.
    pub(super) async fn rename(&self, view: &Arc<View>, entered: Vec<usize>, targets: &[usize]) -> Vec<usize> {
        let template = |terms: Option<&crate::protocol::Terms>| terms.and_then(|terms| terms.template.clone());
        let was = template(view.old().and_then(|old| old.terms.as_ref()));
        if was.is_none() || was == template(view.terms()) || mutant::is(Mutant::ReadBeforeRename) {
            return entered;
        }
        let all: BTreeSet<usize> = entered.iter().chain(targets).copied().collect();
        let renamed = join_all(all.iter().map(|node| self.rename_leases(*node, view))).await;
        let renamed = all.into_iter().zip(renamed).filter(|(node, is_done)| *is_done && entered.contains(node));
        renamed.map(|(node, _)| node).collect()
    }

    async fn rename_leases(&self, node: usize, view: &Arc<View>) -> bool {
        let mut place = RenameArgs { count: RENAME_KEYS, ..RenameArgs::default() };
        let is_page = |answer: &NodeResult| matches!(answer, Ok(Reply::Renaming { .. } | Reply::Renamed));
        for _ in 0..RENAME_PAGES_MAX {
            match self.ask_for_page(node, Request::Rename(place), view, is_page).await {
                Some(Reply::Renaming { receives, cursor }) => place = RenameArgs { receives, cursor, ..place },
                answer => return matches!(answer, Some(Reply::Renamed)),
            }
        }
        false
    }
}
