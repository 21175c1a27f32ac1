//! Turns the observations of the nodes into problems (they cost availability or safety) and remarks (worth knowing).

use std::collections::BTreeMap;
use std::time::Duration;

use super::collect::{NodeCheck, NodeObservation};
use super::views::{self, NodeNames};
use crate::client::error::one_line;
use crate::protocol::{ClusterName, Terms};
use crate::redlock::round_trip::{AnswerTimeout, RoundTrip};

/// Maximum number of keys in one sentence.
const NAMED_MAX: usize = 5;
/// A latency above this part of the rounds' timeout is a remark.
const SLOWISH: u32 = 2;

/// The settings that observations are compared with.
#[derive(Debug, Clone)]
pub(super) struct Thresholds<'a> {
    /// The setting `node_timeout`.
    pub node_timeout: Duration,
    /// The configured terms. Their guard is the maximum clock offset; rounds wait for half of it at most.
    pub terms: Terms,
    /// The cluster in the markers that instances with these settings write.
    pub cluster: &'a ClusterName,
}

/// The output of `redlockd doctor`.
#[derive(Debug, Default)]
pub(super) struct Diagnosis {
    /// One line per node.
    pub lines: Vec<String>,
    /// An operator should act.
    pub problems: Vec<String>,
    /// Worth knowing; no action is needed.
    pub remarks: Vec<String>,
}

/// Diagnoses each node, then all nodes together.
pub(super) fn diagnose(checks: &[NodeCheck], thresholds: &Thresholds<'_>) -> Diagnosis {
    let mut all = Diagnosis::default();
    for check in checks {
        match &check.result {
            Err(why) => {
                all.lines.push(format!("{}: unreachable", check.node));
                all.problems.push(format!("{}: {}", check.node, one_line(why)));
            }
            Ok(seen) => {
                all.lines.push(line(&check.node, seen));
                single(&check.node, seen, &mut all);
            }
        }
    }
    let seen: Vec<(&str, &NodeObservation)> =
        checks.iter().filter_map(|c| Some((c.node.as_str(), c.result.as_ref().ok()?))).collect();
    let names = views::names(checks, &seen, &mut all);
    let terms = views::terms(&seen, &thresholds.terms, &mut all);
    let thresholds = &Thresholds { terms, ..thresholds.clone() };
    speed(&seen, &names, thresholds, &mut all);
    clocks(&seen, thresholds, &mut all);
    identities(&seen, &mut all);
    views::configuration(&seen, thresholds.cluster, &mut all);
    servers(&seen, &mut all);
    views::compare(&seen, &names, &mut all);
    votes(&seen, &names, &mut all);
    leftovers(&seen, &names, &mut all);
    all
}

fn line(node: &str, seen: &NodeObservation) -> String {
    let state = match &seen.marker {
        None => "new".to_owned(),
        Some(marker) if marker.state == "a" && marker.is_pending => "no vote until it is filled".to_owned(),
        Some(marker) if marker.state == "a" => "votes".to_owned(),
        Some(marker) => {
            let left = marker.until_us.saturating_sub(marker.now_us).div_ceil(1_000_000);
            format!("no vote ({}), {left} s of quarantine left", one_line(&marker.why))
        }
    };
    let view = seen.marker.as_ref().and_then(|marker| marker.view.as_ref());
    let state = view.map_or_else(|| state.clone(), |view| format!("{state}, view {}", view.id.number()));
    format!(
        "{node}: Redis {}, {state}, answers in {} us, clock {:+} ms, {} lease(s)",
        one_line(&seen.server.version),
        seen.latency.as_micros(),
        seen.offset_us / 1_000,
        seen.leases.len()
    )
}

/// Findings of one node.
fn single(node: &str, seen: &NodeObservation, all: &mut Diagnosis) {
    for finding in &seen.server.findings {
        let text = format!("{node}: {}", finding.sentence());
        if finding.removes_vote() { all.problems.push(text) } else { all.remarks.push(text) }
    }
    let permanent: Vec<&str> = seen.foreign.iter().filter(|f| f.without_ttl).map(|f| f.key.as_str()).collect();
    let temporary: Vec<&str> = seen.foreign.iter().filter(|f| !f.without_ttl).map(|f| f.key.as_str()).collect();
    if !permanent.is_empty() {
        all.problems.push(format!(
            "{node}: {} foreign key(s) without a TTL have the names of locks: these resources can never be \
             acquired here: {}. Delete them, or keep other data on another server (or see key_template)",
            permanent.len(),
            named(&permanent)
        ));
    }
    if !temporary.is_empty() {
        all.remarks.push(format!(
            "{node}: {} lock(s) of other Redlock clients, or other data: {}",
            temporary.len(),
            named(&temporary)
        ));
    }
    if seen.more_keys {
        all.remarks.push(format!("{node}: it has more keys than were checked: it is used for other data, too"));
    }
    if let Some(marker) = &seen.marker
        && !seen.server.run_id.is_empty()
        && marker.run != seen.server.run_id
    {
        all.problems.push(format!(
            "{node}: it was restarted and no instance has probed it since: it may have lost leases, and will be in \
             quarantine"
        ));
    }
}

/// Whether rounds of `serve` would wait for the answers of each node.
fn speed(seen: &[(&str, &NodeObservation)], of: &NodeNames, thresholds: &Thresholds<'_>, all: &mut Diagnosis) {
    let timeout = AnswerTimeout::new(thresholds.node_timeout, thresholds.terms.guard);
    let voters = seen.iter().filter(|(node, _)| of.has(node));
    let trips: Vec<RoundTrip> = voters.map(|(_, seen)| RoundTrip::steady(seen.latency)).collect();
    timeout.follow(&trips, of.quorum());
    let timeout = timeout.present();
    for (node, seen) in seen {
        let (latency_us, timeout_us) = (seen.latency.as_micros(), timeout.as_micros());
        let text = format!("{node}: an answer takes {latency_us} us, and rounds wait for {timeout_us} us");
        if seen.latency > timeout {
            all.problems.push(format!(
                "{text}, as the nodes of a quorum need, or the guard allows: its vote seldom counts. Find out what slows it down, \
                 or move it closer"
            ));
        } else if timeout > thresholds.node_timeout {
            all.remarks.push(format!("{text}, as the nodes of a quorum need"));
        } else if seen.latency > timeout / SLOWISH {
            all.remarks.push(text);
        }
    }
}

fn named(keys: &[&str]) -> String {
    let mut text = keys.iter().take(NAMED_MAX).map(|key| one_line(key)).collect::<Vec<_>>().join(", ");
    if keys.len() > NAMED_MAX {
        text.push_str(", …");
    }
    text
}

fn clocks(seen: &[(&str, &NodeObservation)], thresholds: &Thresholds<'_>, all: &mut Diagnosis) {
    let mut offsets: Vec<i64> = seen.iter().map(|(_, s)| s.offset_us).collect();
    offsets.sort_unstable();
    let Some(median) = offsets.get(offsets.len().saturating_sub(1) / 2).copied() else { return };
    let guard_us = i64::try_from(thresholds.terms.guard.as_micros()).unwrap_or(i64::MAX);
    for (node, seen) in seen {
        let off = seen.offset_us.saturating_sub(median);
        let text = format!(
            "{node}: its clock is {:+} ms off the other nodes' (guard is {} ms): run NTP",
            off / 1_000,
            guard_us / 1_000
        );
        if off.saturating_abs() > guard_us {
            all.problems.push(text);
        } else if off.saturating_abs() > guard_us / 2 {
            all.remarks.push(text);
        }
    }
    if median.saturating_abs() > guard_us {
        all.remarks.push(format!("this machine's clock is {:+} ms off the nodes'", median.saturating_neg() / 1_000));
    }
}

/// Two names of one server, nodes of different clusters, and nodes of a cluster other than `own`.
fn identities(seen: &[(&str, &NodeObservation)], all: &mut Diagnosis) {
    let mut runs: BTreeMap<&str, &str> = BTreeMap::new();
    for (node, seen) in seen.iter().filter(|(_, s)| !s.server.run_id.is_empty()) {
        if let Some(other) = runs.insert(&seen.server.run_id, node) {
            all.problems.push(format!("{other} and {node} are the same server: its vote would count twice"));
        }
    }
    let mut clusters: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (node, seen) in seen {
        // A node that forgot is of none.
        if let Some(marker) = seen.marker.as_ref().filter(|marker| !marker.cluster.is_empty()) {
            clusters.entry(&marker.cluster).or_default().push(node);
        }
    }
    if clusters.len() > 1 {
        let groups: Vec<String> = clusters.values().map(|nodes| nodes.join(" and ")).collect();
        all.problems.push(format!(
            "the nodes belong to clusters with different settings (node list, guard, lock_delay, key_template): {}",
            groups.join("; ")
        ));
    }
}

/// Names that resolve to two servers, or, on this machine, to a server other than the one in the nodes' view.
fn servers(seen: &[(&str, &NodeObservation)], all: &mut Diagnosis) {
    let markers = || seen.iter().filter_map(|(_, s)| s.marker.as_ref());
    let view = markers().filter(|m| m.state == "a").filter_map(|m| m.view.as_ref()).max_by_key(|view| view.id);
    let short = |run: &str| one_line(&run.chars().take(8).collect::<String>());
    for (node, seen) in seen.iter().filter(|(_, s)| !s.server.run_id.is_empty()) {
        let own = seen.server.run_id.as_str();
        let mut alive = markers().flat_map(|m| &m.alive).filter(|(name, _)| name == node).map(|(_, run)| run);
        if let Some(run) = alive.find(|run| *run != own) {
            all.problems.push(format!(
                "{node}: its name leads to two servers: an instance reaches another one (run {}), and here it is run {}; turn \
                 off the one that should not be there, or correct the address",
                short(run),
                short(own)
            ));
        } else if let Some(entry) = view.and_then(|view| views::other_process(view, node, own)) {
            all.remarks.push(format!(
                "{node}: the nodes' view names another process (run {}) under this name: it was restarted and is about to be \
                 filled, or the address leads to another server",
                short(&entry.run)
            ));
        }
    }
}

fn votes(seen: &[(&str, &NodeObservation)], of: &NodeNames, all: &mut Diagnosis) {
    let (nodes, need) = (of.names.len(), of.quorum());
    let seen: Vec<_> = seen.iter().filter(|(node, _)| of.has(node)).collect();
    let new = seen.iter().filter(|(_, s)| s.marker.is_none()).count();
    if new > 0 && new == nodes {
        all.problems
            .push("all nodes are new: declare them once, with `redlockd init` and the same settings".to_owned());
        return;
    }
    if new > 0 {
        all.remarks.push(format!(
            "{new} node(s) have no marker: they are new, or lost their data, and will be in quarantine first"
        ));
    }
    let votes = seen
        .iter()
        .filter(|(_, s)| s.marker.as_ref().is_some_and(|m| m.state == "a" && !m.is_pending && m.run == s.server.run_id))
        .count();
    if votes < need && votes + of.unchecked.len() >= need {
        all.remarks.push(format!("{votes} of {nodes} nodes vote as far as they were checked, {need} are needed"));
    } else if votes < need {
        all.problems.push(format!("{votes} of {nodes} nodes vote and {need} are needed: no lock can be acquired"));
    } else if votes + of.unchecked.len() < nodes && votes + of.unchecked.len() == need {
        all.problems.push(format!("{votes} of {nodes} nodes vote, {need} are needed: the next failure is an outage"));
    } else if votes + of.unchecked.len() < nodes {
        all.remarks.push(format!("{votes} of {nodes} nodes vote, {need} are needed: {} more may fail", votes - need));
    }
    if nodes.is_multiple_of(2) {
        all.remarks.push(format!("{nodes} nodes tolerate no more failures than {}: use an odd number", nodes - 1));
    }
}

/// Leases on fewer nodes than a quorum: an acquire in progress, or its remainder.
fn leftovers(seen: &[(&str, &NodeObservation)], of: &NodeNames, all: &mut Diagnosis) {
    let nodes = of.names.len();
    let seen: Vec<_> = seen.iter().filter(|(node, _)| of.has(node)).collect();
    if seen.len() < nodes {
        return; // the others may have the rest
    }
    let mut holders: BTreeMap<(&str, &str), (usize, i64)> = BTreeMap::new();
    for lease in seen.iter().flat_map(|(_, s)| &s.leases) {
        let entry = holders.entry((&lease.key, &lease.token_id)).or_default();
        *entry = (entry.0 + 1, entry.1.max(lease.left_ms));
    }
    for ((key, token_id), (count, left_ms)) in holders.into_iter().filter(|(_, (count, _))| *count < of.quorum()) {
        all.remarks.push(format!(
            "{}: the lease {token_id} is on {count} of {nodes} nodes, less than a quorum: an acquire in progress or the rest of one; it ends in \
             at most {} s",
            one_line(key),
            left_ms.max(0) / 1_000 + 1
        ));
    }
}

#[cfg(test)]
#[path = "diagnose_tests.rs"]
mod tests;
