//! The page of the quorum latency: how long rounds took in the last 15 minutes, as a distribution with quantiles
//! and over time.

use askama::Template;

use super::charts::{self, Distribution, Sparkline};
use super::format;
use super::layout::Layout;
use crate::manager::latency::LatencyWindow;

/// A quantile as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Quantile {
    /// `p50`.
    pub name: &'static str,
    /// What the quantile means.
    pub meaning: &'static str,
    /// Its value; `-` if there is none.
    pub value: String,
}

/// The page.
#[derive(Debug, Template)]
#[template(path = "latency.html")]
pub(crate) struct LatencyPage {
    layout: Layout,
    total: u64,
    quantiles: Vec<Quantile>,
    distribution: Option<Distribution>,
    over_time: Sparkline,
}

impl LatencyPage {
    /// `rounds`: the latencies of the last 15 minutes.
    pub(crate) fn new(layout: Layout, rounds: &LatencyWindow) -> Self {
        let all = &rounds.all.took;
        let meanings = ["half were faster", "19 of 20 were faster", "99 of 100 were faster"];
        let quantile = |((name, share), meaning): (&(&'static str, f64), &'static str)| Quantile {
            name,
            meaning,
            value: all.quantile(*share).map_or_else(|| "-".to_owned(), format::latency),
        };
        Self {
            layout,
            total: all.total(),
            quantiles: charts::QUANTILES.iter().zip(meanings).map(quantile).collect(),
            distribution: charts::distribution(all),
            over_time: charts::sparkline(rounds, charts::WIDTH, charts::HEIGHT / 2.0),
        }
    }
}
