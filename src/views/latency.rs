//! How long quorums took to decide over the last quarter of an hour: a distribution with its
//! quantiles, and their course. Knows no request.

use askama::Template;

use super::charts::{self, Distribution, Sparkline};
use super::format;
use super::layout::Layout;
use crate::manager::latency::LatencyWindow;

/// A quantile in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quantile {
    /// `p50`.
    pub name: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// Its value; `-` where there is none.
    pub value: String,
}

/// The page.
#[derive(Debug, Template)]
#[template(path = "latency.html")]
pub struct LatencyPage {
    layout: Layout,
    total: u64,
    quantiles: Vec<Quantile>,
    distribution: Option<Distribution>,
    course: Sparkline,
}

impl LatencyPage {
    /// The page.
    pub fn new(layout: Layout, rounds: &LatencyWindow) -> Self {
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
            quantiles: charts::SHARES.iter().zip(meanings).map(quantile).collect(),
            distribution: charts::distribution(all),
            course: charts::sparkline(rounds, charts::WIDTH, charts::HEIGHT / 2.0),
        }
    }
}
