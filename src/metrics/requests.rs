//! Requests as metrics see them: by route, method and code, and how many are under way. Every series
//! is made beforehand, so that a request looks its handles up without a lock. Knows no router.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntGauge, Registry};

use super::register::{counters, gauges, histograms};
use crate::redlock::clock::{BootTime, Clock, SystemClock};

/// The route label of a path that has no route: raw paths would be labels without bound.
pub const UNMATCHED: &str = "unmatched";
/// The method label of a method that the route has not.
pub const OTHER_METHOD: &str = "other";
/// The code label of a request whose caller hung up.
pub const CODE_ABANDONED: &str = "abandoned";
/// The code label of an answer that its route does not announce: a defect.
pub const CODE_OTHER: &str = "other";

/// Codes that every route may answer with, by a defect of its own.
const DEFECT: u16 = 500;
/// Codes of a method that a route has not, and of a path that has no route.
const STRAY_CODES: [u16; 8] = [400, 401, 403, 404, 405, 421, 429, 503];

/// Seconds. A round on a local network takes one to ten milliseconds.
const BUCKETS: [f64; 13] = [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

/// One route as metrics see it.
#[derive(Debug, Clone, Copy)]
pub struct RouteLabels {
    /// The path's pattern.
    pub route: &'static str,
    /// The method.
    pub method: &'static str,
    /// The codes that it answers with.
    pub codes: &'static [u16],
}

/// What a request does while it is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// It is worked on.
    Normal,
    /// It is willing to wait for a lock.
    Wait,
    /// Its answer is a stream that queues for a lock or holds one.
    Hold,
    /// Its answer is a stream of events.
    Events,
}

impl RequestKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Normal, Self::Wait, Self::Hold, Self::Events];

    /// The label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Wait => "wait",
            Self::Hold => "hold",
            Self::Events => "events",
        }
    }
}

/// The handles of one method of one route.
struct RouteSeries {
    codes: Vec<(u16, IntCounter)>,
    other: IntCounter,
    abandoned: IntCounter,
    /// By the code's first digit.
    durations: Vec<(u16, Histogram)>,
}

/// All requests.
pub struct RequestMetrics {
    routes: HashMap<(&'static str, &'static str), Arc<RouteSeries>>,
    unmatched: Arc<RouteSeries>,
    flights: [IntGauge; 4],
    denials: [IntCounter; 3],
}

impl RequestMetrics {
    /// For these routes.
    pub fn new(r: &Registry, routes: &[RouteLabels]) -> Self {
        let help = "Requests by route, method and status code of the answer.";
        let requests = counters(r, "http_requests_total", help, &["route", "method", "code"]);
        let help = "From a request's head to its answer's, without the time spent waiting for a lock.";
        let durations = histograms(r, "http_request_duration_seconds", help, &BUCKETS, &["route", "method", "class"]);
        let series = |route: &str, method: &str, codes: &[u16], timed: bool| {
            let counter = |code: &str| requests.with_label_values(&[route, method, code]);
            let mut classes: Vec<u16> = codes.iter().filter(|c| timed && **c != DEFECT).map(|c| c / 100).collect();
            classes.sort_unstable();
            classes.dedup();
            let timed = |class: u16| (class, durations.with_label_values(&[route, method, &format!("{class}xx")]));
            Arc::new(RouteSeries {
                codes: codes.iter().map(|code| (*code, counter(&code.to_string()))).collect(),
                other: counter(CODE_OTHER),
                abandoned: counter(CODE_ABANDONED),
                durations: classes.into_iter().map(timed).collect(),
            })
        };
        let stray = [&STRAY_CODES[..], &[DEFECT]].concat();
        let mut known = HashMap::new();
        for labels in routes {
            let codes = [labels.codes, &[DEFECT]].concat();
            known.insert((labels.route, labels.method), series(labels.route, labels.method, &codes, true));
            let other = || series(labels.route, OTHER_METHOD, &stray, false);
            known.entry((labels.route, OTHER_METHOD)).or_insert_with(other);
        }
        let help = "Requests under way, by what they do; hold and events are streams.";
        let flights = gauges(r, "http_requests_in_flight", help, &["kind"]);
        let help = "Requests refused for want of proof who they are, of a right, or of a name that is ours.";
        let denials = counters(r, "auth_failures_total", help, &["reason"]);
        Self {
            routes: known,
            unmatched: series(UNMATCHED, OTHER_METHOD, &stray, false),
            flights: RequestKind::ALL.map(|kind| flights.with_label_values(&[kind.as_str()])),
            denials: ["unauthenticated", "forbidden", "host-not-allowed"]
                .map(|reason| denials.with_label_values(&[reason])),
        }
    }

    fn find(&self, route: &'static str, method: &'static str) -> Arc<RouteSeries> {
        // What answers GET answers HEAD.
        let asked = if method == "HEAD" { [method, "GET"] } else { [method, OTHER_METHOD] };
        let found = asked.into_iter().chain([OTHER_METHOD]).find_map(|m| self.routes.get(&(route, m)));
        Arc::clone(found.unwrap_or(&self.unmatched))
    }

    /// Counts it as under way until the guard is dropped.
    pub fn in_flight(&self, kind: RequestKind) -> InFlightGuard {
        InFlightGuard::begin(&self.flights[kind as usize])
    }
}

/// Counts something as under way until it is dropped.
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

/// Counts a request that is willing to wait as waiting rather than normal.
pub struct WaitingGuard {
    _wait: InFlightGuard,
    normal: IntGauge,
}

impl WaitingGuard {
    /// From now on until it is dropped.
    pub fn begin(requests: &RequestMetrics) -> Self {
        let normal = requests.flights[RequestKind::Normal as usize].clone();
        normal.dec();
        Self { _wait: requests.in_flight(RequestKind::Wait), normal }
    }
}

impl Drop for WaitingGuard {
    fn drop(&mut self) {
        self.normal.inc();
    }
}

/// One request under way. Dropped without an answer it counts as [`CODE_ABANDONED`]; the gauge of
/// requests in flight falls in any case.
pub struct RequestWatch {
    series: Arc<RouteSeries>,
    denials: [IntCounter; 3],
    _flight: InFlightGuard,
    began: BootTime,
    answered: bool,
}

impl RequestWatch {
    /// Follows a request from now on.
    pub fn begin(requests: &RequestMetrics, route: &'static str, method: &'static str) -> Self {
        Self {
            series: requests.find(route, method),
            denials: requests.denials.clone(),
            _flight: requests.in_flight(RequestKind::Normal),
            began: SystemClock.now(),
            answered: false,
        }
    }

    /// It was answered with `code`, after `waited` of its time had been spent waiting for a lock.
    pub fn answered(mut self, code: u16, waited: Duration) {
        self.answered = true;
        let took = SystemClock.now().since(self.began).saturating_sub(waited);
        let counter = self.series.codes.iter().find(|(c, _)| *c == code).map_or(&self.series.other, |(_, n)| n);
        counter.inc();
        if let Some((_, durations)) = self.series.durations.iter().find(|(class, _)| *class == code / 100) {
            durations.observe(took.as_secs_f64());
        }
        match code {
            401 => self.denials[0].inc(),
            403 => self.denials[1].inc(),
            421 => self.denials[2].inc(),
            _ => {}
        }
    }
}

impl Drop for RequestWatch {
    fn drop(&mut self) {
        if !self.answered {
            self.series.abandoned.inc();
        }
    }
}
