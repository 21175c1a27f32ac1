//! Metrics of requests: by route, method and code, and how many are in flight. All labels are known beforehand. The first request
//! creates a series, so that a scrape has only used ones; later requests find its handle without a lock.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, Registry};

use super::register::{counters, gauges, histograms};
use crate::keyed_maps::KeyedMap;
use crate::redlock::clock::{BootTime, Clock, SystemClock};

/// The route label of a path without a route: raw paths would be an unbounded number of labels.
pub(crate) const UNMATCHED: &str = "unmatched";
/// The method label of a method that the route does not have.
pub(crate) const OTHER_METHOD: &str = "other";
/// The code label of a request whose caller disconnected.
pub(crate) const CODE_ABANDONED: &str = "abandoned";
/// The code label of an answer that is not declared for its route: a defect.
pub(crate) const CODE_OTHER: &str = "other";

/// The code of an internal error, which every route may answer with.
const INTERNAL_ERROR: u16 = 500;
/// Codes of a method that a route does not have, and of a path without a route.
const UNMATCHED_CODES: [u16; 8] = [400, 401, 403, 404, 405, 421, 429, 503];

/// Seconds. A round on a local network takes one to ten milliseconds.
const BUCKETS: [f64; 5] = [0.001, 0.005, 0.025, 0.25, 1.0];

/// The labels of one route.
#[derive(Debug, Clone, Copy)]
pub struct RouteLabels {
    /// The path's pattern.
    pub route: &'static str,
    pub method: &'static str,
    /// The status codes of the route's answers.
    pub codes: &'static [u16],
}

/// The activity of a request in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// None of the other kinds.
    Normal,
    /// Has a wait deadline and waits for a lock.
    Wait,
    /// A stream that waits for a lock or holds one.
    Hold,
    /// A stream of events.
    Events,
}

impl RequestKind {
    pub const ALL: [Self; 4] = [Self::Normal, Self::Wait, Self::Hold, Self::Events];

    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Wait => "wait",
            Self::Hold => "hold",
            Self::Events => "events",
        }
    }
}

/// The handles of one method of a route.
struct RouteSeries {
    route: &'static str,
    method: &'static str,
    requests: IntCounterVec,
    durations: HistogramVec,
    codes: Vec<(u16, OnceLock<IntCounter>)>,
    other: OnceLock<IntCounter>,
    abandoned: OnceLock<IntCounter>,
    /// By the first digit of the code.
    classes: Vec<(u16, OnceLock<Histogram>)>,
    denials: [IntCounter; 3],
}

impl RouteSeries {
    fn count(&self, handle: &OnceLock<IntCounter>, code: &str) {
        handle.get_or_init(|| self.requests.with_label_values(&[self.route, self.method, code])).inc();
    }

    fn answered(&self, code: u16, took: Duration) {
        match self.codes.iter().find(|(known, _)| *known == code) {
            Some((_, handle)) => {
                let new = || self.requests.with_label_values(&[self.route, self.method, &code.to_string()]);
                handle.get_or_init(new).inc();
            }
            None => self.count(&self.other, CODE_OTHER),
        }
        if let Some((class, handle)) = self.classes.iter().find(|(class, _)| *class == code / 100) {
            let new = || self.durations.with_label_values(&[self.route, self.method, &format!("{class}xx")]);
            handle.get_or_init(new).observe(took.as_secs_f64());
        }
    }
}

pub struct RequestMetrics {
    routes: KeyedMap<(&'static str, &'static str), Arc<RouteSeries>>,
    unmatched: Arc<RouteSeries>,
    in_flight: [IntGauge; 4],
}

impl RequestMetrics {
    /// Registers the series of these routes.
    pub fn new(r: &Registry, routes: &[RouteLabels]) -> Self {
        let help = "Requests by route, method and status code.";
        let requests = counters(r, "http_requests_total", help, &["route", "method", "code"]);
        let help = "Requests refused by who asks or under which host name.";
        let denials = counters(r, "auth_failures_total", help, &["reason"]);
        let denials =
            ["unauthenticated", "forbidden", "host-not-allowed"].map(|reason| denials.with_label_values(&[reason]));
        let help = "From the request to the head of the answer, without the wait for a lock.";
        let durations = histograms(r, "http_request_duration_seconds", help, &BUCKETS, &["route", "method", "class"]);
        let series = |route: &'static str, method: &'static str, codes: &[u16], timed: bool| {
            let mut classes: Vec<u16> =
                codes.iter().filter(|c| timed && **c != INTERNAL_ERROR).map(|c| c / 100).collect();
            classes.sort_unstable();
            classes.dedup();
            Arc::new(RouteSeries {
                route,
                method,
                requests: requests.clone(),
                durations: durations.clone(),
                codes: codes.iter().map(|code| (*code, OnceLock::new())).collect(),
                other: OnceLock::new(),
                abandoned: OnceLock::new(),
                classes: classes.into_iter().map(|class| (class, OnceLock::new())).collect(),
                denials: denials.clone(),
            })
        };
        let unmatched_codes = [&UNMATCHED_CODES[..], &[INTERNAL_ERROR]].concat();
        let mut known = KeyedMap::default();
        for labels in routes {
            let codes = [labels.codes, &[INTERNAL_ERROR]].concat();
            known.insert((labels.route, labels.method), series(labels.route, labels.method, &codes, true));
            let other = || series(labels.route, OTHER_METHOD, &unmatched_codes, false);
            known.entry((labels.route, OTHER_METHOD)).or_insert_with(other);
        }
        // One of each, so that the families always exist.
        if let Some(RouteLabels { route, method, .. }) = routes.first() {
            requests.with_label_values(&[route, method, CODE_ABANDONED]);
            durations.with_label_values(&[route, method, "2xx"]);
        }
        let help = "Requests in flight, by kind; hold and events are streams.";
        let in_flight = gauges(r, "http_requests_in_flight", help, &["kind"]);
        Self {
            routes: known,
            unmatched: series(UNMATCHED, OTHER_METHOD, &unmatched_codes, false),
            in_flight: RequestKind::ALL.map(|kind| in_flight.with_label_values(&[kind.as_str()])),
        }
    }

    fn find(&self, route: &'static str, method: &'static str) -> Arc<RouteSeries> {
        // The route of GET answers HEAD requests.
        let methods = if method == "HEAD" { [method, "GET"] } else { [method, OTHER_METHOD] };
        let found = methods.into_iter().chain([OTHER_METHOD]).find_map(|m| self.routes.get(&(route, m)));
        Arc::clone(found.unwrap_or(&self.unmatched))
    }

    /// Counts a request of this kind as in flight until the guard is dropped.
    pub fn in_flight(&self, kind: RequestKind) -> InFlightGuard {
        InFlightGuard::begin(&self.in_flight[kind as usize])
    }
}

/// Increments a gauge until dropped.
pub struct InFlightGuard(IntGauge);

impl InFlightGuard {
    pub(super) fn begin(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Counts a request as waiting instead of normal until dropped.
pub(crate) struct WaitingGuard {
    _wait: InFlightGuard,
    normal: IntGauge,
}

impl WaitingGuard {
    /// Starts counting it as waiting.
    pub(crate) fn begin(requests: &RequestMetrics) -> Self {
        let normal = requests.in_flight[RequestKind::Normal as usize].clone();
        normal.dec();
        Self { _wait: requests.in_flight(RequestKind::Wait), normal }
    }
}

impl Drop for WaitingGuard {
    fn drop(&mut self) {
        self.normal.inc();
    }
}

/// A request in flight. If dropped without an answer, it counts as [`CODE_ABANDONED`].
pub struct RequestWatch {
    series: Arc<RouteSeries>,
    _in_flight: InFlightGuard,
    began: BootTime,
    answered: bool,
}

impl RequestWatch {
    /// Starts measuring a request.
    pub fn begin(requests: &RequestMetrics, route: &'static str, method: &'static str) -> Self {
        Self {
            series: requests.find(route, method),
            _in_flight: requests.in_flight(RequestKind::Normal),
            began: SystemClock.now(),
            answered: false,
        }
    }

    /// Records the answer. `waited`: the part of the time spent waiting for a lock.
    pub fn answered(mut self, code: u16, waited: Duration) {
        self.answered = true;
        let took = SystemClock.now().since(self.began).saturating_sub(waited);
        self.series.answered(code, took);
        match code {
            401 => self.series.denials[0].inc(),
            403 => self.series.denials[1].inc(),
            421 => self.series.denials[2].inc(),
            _ => {}
        }
    }
}

impl Drop for RequestWatch {
    fn drop(&mut self) {
        if !self.answered {
            self.series.count(&self.series.abandoned, CODE_ABANDONED);
        }
    }
}
