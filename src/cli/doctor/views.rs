//! Findings from the nodes' views: which names vote, which nodes are in another view, an incomplete change of the list, and
//! whether an instance with this configuration would get votes.

use std::collections::{BTreeMap, BTreeSet};

use super::collect::{NodeCheck, NodeObservation, ObservedMarker};
use super::diagnose::Diagnosis;
use crate::duration::format_duration;
use crate::protocol::{ClusterName, RosterEntry, Terms, View};
use crate::redlock::quorum::quorum_of;
use crate::types::NodeId;

/// The nodes that vote, according to the nodes themselves.
#[derive(Debug)]
pub(super) struct NodeNames {
    /// The names in the highest view; the configured names if that view has no list.
    pub names: BTreeSet<String>,
    /// The names among them that are not configured: nothing is known of them.
    pub unchecked: Vec<String>,
}

impl NodeNames {
    /// Number of votes that are needed.
    pub(super) fn quorum(&self) -> usize {
        quorum_of(self.names.len())
    }

    /// Whether the node votes.
    pub(super) fn has(&self, node: &str) -> bool {
        self.names.contains(node)
    }
}

/// The highest view of the nodes that vote and have not restarted since.
fn highest<'a>(seen: &[(&str, &'a NodeObservation)]) -> Option<&'a View> {
    let is_valid = |(_, s): &(&str, &'a NodeObservation)| {
        let marker = s.marker.as_ref().filter(|m| m.state == "a" && m.run == s.server.run_id)?;
        marker.view.as_ref()
    };
    seen.iter().filter_map(is_valid).max_by_key(|view| view.id)
}

/// Compares the configured list with the list on the nodes.
pub(super) fn names(checks: &[NodeCheck], seen: &[(&str, &NodeObservation)], all: &mut Diagnosis) -> NodeNames {
    let configured: BTreeSet<String> = checks.iter().map(|check| check.node.clone()).collect();
    let Some(list) = highest(seen).and_then(|view| view.list.as_ref()) else {
        return NodeNames { names: configured, unchecked: Vec::new() };
    };
    let names: BTreeSet<String> = list.names.iter().map(ToString::to_string).collect();
    let join = |names: &[String]| names.join(", ");
    let unchecked: Vec<String> = names.difference(&configured).cloned().collect();
    let removed: Vec<String> = configured.difference(&names).cloned().collect();
    if !unchecked.is_empty() {
        all.remarks.push(format!(
            "the nodes' list has {}, not configured here and not checked: instances learn it from the other nodes; correct the \
             configuration",
            join(&unchecked)
        ));
    }
    if !removed.is_empty() {
        all.remarks.push(format!(
            "{}: not of the nodes' list any more, has no vote; correct the configuration",
            join(&removed)
        ));
    }
    NodeNames { names, unchecked }
}

/// The process that the view has under this node's name, if it is another one than `run_id`.
pub(super) fn other_process<'v>(view: &'v View, node: &str, run_id: &str) -> Option<&'v RosterEntry> {
    let entry = NodeId::parse(node).ok().and_then(|name| view.entry(&name));
    entry.filter(|entry| *entry.run != *run_id)
}

/// Nodes in other views than the highest, and a change that is not complete.
pub(super) fn compare(seen: &[(&str, &NodeObservation)], of: &NodeNames, all: &mut Diagnosis) {
    let Some(view) = highest(seen) else { return };
    let markers: Vec<(&str, &ObservedMarker)> =
        seen.iter().filter_map(|(node, s)| Some((*node, s.marker.as_ref().filter(|m| m.state == "a")?))).collect();
    let is_in = |marker: &ObservedMarker| marker.view.as_ref().is_some_and(|own| own.id == view.id);
    for (node, marker) in markers.iter().filter(|(node, marker)| of.has(node) && !is_in(marker)) {
        let is_named = seen.iter().any(|(of, s)| of == node && other_process(view, node, &s.server.run_id).is_none());
        if let Some(own) = marker.view.as_ref().filter(|_| is_named) {
            all.remarks.push(format!(
                "{node}: it is in view {}, others are in view {}: an instance brings it along within seconds",
                own.id.number(),
                view.id.number()
            ));
        }
    }
    let votes = markers.iter().filter(|(node, marker)| of.has(node) && is_in(marker) && !marker.is_pending).count();
    if let Some(old) = view.old().filter(|_| votes + of.unchecked.len() < of.quorum()) {
        let names = |names: &BTreeSet<_>| names.iter().map(ToString::to_string).collect::<Vec<String>>().join(", ");
        let list = view.list.as_ref().map(|list| names(&list.names)).unwrap_or_default();
        let what = old.terms.as_ref().map_or_else(
            || format!("the list of nodes is being changed from {} to {list}", names(&old.names)),
            |was| {
                format!(
                    "the terms are being changed from {} to {}",
                    named(was),
                    view.terms().map(named).unwrap_or_default()
                )
            },
        );
        all.problems.push(format!(
            "{what}, and nobody votes until that is done: an instance completes it \
             within seconds, if it reaches a quorum of the former list"
        ));
    }
}

/// Guard, lock delay, fence TTL, and the key template if it was changed.
fn named(terms: &Terms) -> String {
    let [guard, lock_delay, fence_ttl] = [terms.guard, terms.lock_delay, terms.fence_ttl].map(format_duration);
    let template = terms.template.as_ref().map(|template| format!(", key_template {template}")).unwrap_or_default();
    format!("guard {guard}, lock_delay {lock_delay}, fence_ttl {fence_ttl}{template}")
}

/// The terms in force. A remark if they are not the configured ones.
pub(super) fn terms(seen: &[(&str, &NodeObservation)], own: &Terms, all: &mut Diagnosis) -> Terms {
    let terms = highest(seen).and_then(View::terms).unwrap_or(own);
    let is_same = own.template.as_ref().is_some_and(|template| terms.or_template(template) == *own);
    if !is_same && terms != own {
        all.remarks.push(format!(
            "other terms than the configured ones are in force ({}): instances follow the nodes; correct the configuration",
            named(terms)
        ));
    }
    terms.clone()
}

/// Whether an instance with this configuration belongs to the cluster of most nodes.
pub(super) fn configuration(seen: &[(&str, &NodeObservation)], own: &ClusterName, all: &mut Diagnosis) {
    let mut clusters: BTreeMap<&str, Vec<(&str, &ObservedMarker)>> = BTreeMap::new();
    for (node, marker) in seen.iter().filter_map(|(node, s)| Some((*node, s.marker.as_ref()?))) {
        if !marker.cluster.is_empty() {
            clusters.entry(&marker.cluster).or_default().push((node, marker));
        }
    }
    let Some((cluster, markers)) = clusters.into_iter().max_by_key(|(_, markers)| markers.len()) else { return };
    let (nodes, markers): (Vec<&str>, Vec<&ObservedMarker>) = markers.into_iter().unzip();
    // A marker of a former version of the protocol is adopted.
    let former = [format!("4.{cluster}"), format!("4{}", cluster.get(1..).unwrap_or_default())];
    if *cluster == *own.get() || former.contains(&own.get().to_string()) {
        return;
    }
    let lists = markers.iter().filter_map(|marker| marker.view.as_ref()?.list.as_ref());
    let mut accepted =
        lists.flat_map(|list| list.changed.iter().flat_map(|changed| &changed.accepted).chain([&list.terms]));
    if accepted.any(|terms| terms == own.terms()) {
        return; // the list or the terms were changed since: an instance takes the cluster's name from the nodes
    }
    all.problems.push(format!(
        "{}: other settings than these (node list, guard, lock_delay, key_template) are in force: an instance with these gets no \
         vote. Compare `redlockd config show` of a running instance",
        nodes.join(", ")
    ));
}
