//! The page of latencies: durations of rounds in the last 15 minutes, as a distribution with quantiles and as heat maps over
//! time, by operation and by node.

use std::time::Duration;

use askama::Template;

use super::charts::{self, Distribution};
use super::format;
use super::heat_map::{HeatMap, Scale, ScaleTick, reach};
use super::layout::Layout;
use crate::manager::latency::{LatencyWindow, Round};
use crate::types::NodeId;

/// A quantile as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Quantile {
    /// Such as `p50`, as the table shows it.
    pub name: &'static str,
    /// What the quantile means.
    pub meaning: &'static str,
    /// Its value; `-` if there is none.
    pub value: String,
}

#[derive(Debug, Template)]
#[template(path = "latency.html")]
pub(crate) struct LatencyPage {
    layout: Layout,
    total: u64,
    quantiles: Vec<Quantile>,
    distribution: Option<Distribution>,
    scale: Scale,
    timeout: Option<ScaleTick>,
    reach: String,
    rounds: HeatMap,
    operations: Vec<HeatMap>,
    nodes: Vec<HeatMap>,
}

impl LatencyPage {
    /// The latencies of the last 15 minutes: of all rounds, of each kind of round, and of the calls to each node.
    pub(crate) fn new(
        layout: Layout,
        all: &LatencyWindow,
        each: &[(Round, LatencyWindow)],
        nodes: &[(NodeId, LatencyWindow)],
        node_timeout: Duration,
    ) -> Self {
        let took = &all.all.took;
        let meanings = ["half were faster", "19 of 20 were faster", "99 of 100 were faster"];
        let quantile = |((name, share), meaning): (&(&'static str, f64), &'static str)| Quantile {
            name,
            meaning,
            value: took.quantile(*share).map_or_else(|| "-".to_owned(), format::latency),
        };
        let windows = each.iter().map(|(_, window)| window).chain(nodes.iter().map(|(_, window)| window));
        let scale = Scale::of(windows, node_timeout);
        let name = |round: Round| match round {
            Round::Granted => "acquire, granted",
            Round::Refused => "acquire, refused: held",
            Round::Extended => "extend",
            Round::Released => "release",
        };
        let operation = |(round, window): &(Round, LatencyWindow)| {
            scale.map(name(*round).to_owned(), *round == Round::Refused, window)
        };
        Self {
            layout,
            total: took.total(),
            quantiles: charts::QUANTILES.iter().zip(meanings).map(quantile).collect(),
            distribution: charts::distribution(took),
            rounds: scale.map("all rounds".to_owned(), false, all),
            operations: each.iter().map(operation).collect(),
            nodes: nodes.iter().map(|(node, window)| scale.map(node.to_string(), false, window)).collect(),
            timeout: scale.tick(node_timeout),
            reach: format!("{} minutes", reach().as_secs() / 60),
            scale,
        }
    }
}
