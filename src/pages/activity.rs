//! The last hour on the home page: sparklines of grants, waits and contention, the names with the most contention, and the owners
//! that held each of them longest.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use super::events::{self, EventRow, Reported};
use super::format;
use crate::api::Event;
use crate::manager::activity::{Hour, MINUTES, MinuteCounts};
use crate::manager::overview::Overview;
use crate::manager::standstills::Standstill;
use crate::types::ResourceName;

/// Rows of each table.
const ROWS_MAX: usize = 5;
/// Width of a bar. Units: of the SVG's view box.
const BAR: usize = 4;
/// Width of a chart.
pub(crate) const WIDTH: usize = BAR * MINUTES;
/// Height of a chart.
pub(crate) const HEIGHT: u64 = 36;
/// The kinds of events that are listed: those that an operator who arrives now needs to know.
const INCIDENTS: [&str; 9] =
    ["node_down", "node_up", "quarantined", "two_servers", "quorum_lost", "quorum_back", "forced", "lost", "deadlock"];
const HOUR: Duration = Duration::from_hours(1);

/// A value over the hour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HourChart {
    /// The heading of the chart.
    pub label: &'static str,
    /// Its value for the whole hour.
    pub value: String,
    /// What the value counts, and its largest value in a minute.
    pub hint: String,
    /// A bar for each minute with a value, as a path.
    pub bars: String,
}

/// A row of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShareRow {
    /// A name or an owner; empty for leases without an owner.
    pub text: String,
    /// The page about the name or the owner.
    pub href: String,
    /// The number, formatted for people.
    pub value: String,
    /// The value in percent: of the hour, or of the first row.
    pub percent: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HourSection {
    /// Empty for a reader who may not see all names.
    pub charts: Vec<HourChart>,
    /// Names with the most contended requests.
    pub contended: Vec<ShareRow>,
    /// Names that were held for the largest part of the hour.
    pub names: Vec<ShareRow>,
    /// Owners with the longest time held, summed over all their locks.
    pub owners: Vec<ShareRow>,
    /// The time from which this instance has data, if that is less than an hour ago.
    pub known_from: String,
    /// The number of instance runs that the data covers.
    pub instances: usize,
    /// The latest incidents.
    pub incidents: Vec<EventRow>,
}

impl HourSection {
    /// `overview`: the leases that the reader may see; `may_read`: for names of the past; `sees_all`: whether the reader may see
    /// all names. Units of `wall_ms`: milliseconds since 1970.
    pub(crate) fn new(
        hour: &Hour,
        overview: &Overview,
        may_read: impl Fn(&ResourceName) -> bool,
        sees_all: bool,
        wall_ms: u64,
    ) -> Self {
        let is_visible = |name: &str| sees_all || ResourceName::parse(name).is_ok_and(|name| may_read(&name));
        let contended = hour.contended.iter().filter(|(name, _)| is_visible(name));
        let contended = largest(contended.map(|(name, count)| (name.as_str(), *count)).collect());
        let (mut names, mut owners) = (HashMap::<&str, Duration>::new(), HashMap::<&str, Duration>::new());
        let mut add = |name, owner, held: Duration| {
            let sum = names.entry(name).or_default();
            *sum = sum.saturating_add(held).min(HOUR);
            let sum = owners.entry(owner).or_default();
            *sum = sum.saturating_add(held);
        };
        for ((name, owner), held) in hour.held.iter().filter(|((name, _), _)| is_visible(name)) {
            add(name, owner, *held);
        }
        let all = overview.leases.leases.iter().flat_map(|(name, lease)| lease.all().map(move |one| (name, one)));
        for (name, lease) in all.filter(|(_, lease)| lease.is_confirmed) {
            let labels = lease.labels();
            if labels.acquired_at_ms > 0 && lease.left > overview.age {
                add(name.as_str(), &labels.owner, format::since(wall_ms, labels.acquired_at_ms).min(HOUR));
            }
        }
        let most = contended.first().map_or(1, |(_, count)| *count);
        let contended = contended.iter().map(|(name, count)| ShareRow {
            text: (*name).to_owned(),
            href: format!("/ui/locks/{name}"),
            value: format::number(*count),
            percent: count * 100 / most.max(1),
        });
        let of_name = |(name, held): &(&str, Duration)| ShareRow {
            text: (*name).to_owned(),
            href: format!("/ui/locks/{name}"),
            value: format::clock(*held),
            percent: percent(*held),
        };
        let of_owner = |(owner, held): &(&str, Duration)| ShareRow {
            text: format::visible(owner),
            href: format!("/ui/?owner={}", format::query(owner)),
            value: format::clock(*held),
            percent: percent(*held),
        };
        Self {
            charts: if sees_all { charts(hour).into() } else { Vec::new() },
            contended: contended.collect(),
            names: largest(names.into_iter().collect()).iter().map(of_name).collect(),
            owners: largest(owners.into_iter().collect()).iter().map(of_owner).collect(),
            known_from: known_from(hour),
            instances: hour.instances,
            incidents: Vec::new(),
        }
    }

    /// Adds the latest of these events, newest first, without the everyday ones of locks and instances, and the standstills of
    /// this instance.
    #[must_use]
    pub(crate) fn with_incidents(self, events: &[Arc<Event>], standstills: &[Standstill], wall_ms: u64) -> Self {
        let from_ms = wall_ms.saturating_sub(format::ms(HOUR));
        let recent = events.iter().map(Arc::as_ref).take_while(|event| event.at_ms > from_ms);
        let is_rejected = |event: &Event| event.event == "reloaded" && event.reason.as_deref() == Some("rejected");
        let incidents = recent.filter(|event| INCIDENTS.contains(&event.event.as_str()) || is_rejected(event));
        let incidents = Reported::of(incidents);
        let incidents = incidents.iter().take(ROWS_MAX).map(Reported::row);
        let recent = standstills.iter().filter(|one| one.to_ms > from_ms);
        let mut incidents: Vec<EventRow> = incidents.chain(recent.map(events::standstill_row)).collect();
        incidents.sort_by(|a, b| b.stamp.cmp(&a.stamp));
        incidents.truncate(ROWS_MAX);
        Self { incidents, ..self }
    }
}

/// `10:42` if the data begins after the hour does.
fn known_from(hour: &Hour) -> String {
    if hour.known_from_ms <= hour.from_ms {
        return String::new();
    }
    format::stamp(hour.known_from_ms).get(11..16).unwrap_or_default().to_owned()
}

/// The rows with the largest values, in order.
fn largest<T: Ord + Copy>(mut all: Vec<(&str, T)>) -> Vec<(&str, T)> {
    let order = |(a, x): &(&str, T), (b, y): &(&str, T)| y.cmp(x).then_with(|| a.cmp(b));
    if all.len() > ROWS_MAX {
        all.select_nth_unstable_by(ROWS_MAX, order);
        all.truncate(ROWS_MAX);
    }
    all.sort_unstable_by(order);
    all
}

/// The time held in percent of an hour; above 100 for an owner of several locks.
fn percent(held: Duration) -> u64 {
    held.as_secs() * 100 / HOUR.as_secs()
}

fn charts(hour: &Hour) -> [HourChart; 3] {
    let ms = |minute: &MinuteCounts| minute.wait_p95().map_or(0, format::ms);
    let time = |ms| format::time(Duration::from_millis(ms));
    let most = |of: &dyn Fn(&MinuteCounts) -> u64| hour.minutes.iter().map(of).max().unwrap_or(0);
    let bars = |of: &dyn Fn(&MinuteCounts) -> u64| bars(&hour.minutes.iter().map(of).collect::<Vec<_>>());
    let (grants, contended) = (|minute: &MinuteCounts| minute.grants, |minute: &MinuteCounts| minute.contended);
    let wait = hour.all.wait_p95();
    [
        HourChart {
            label: "Grants",
            value: format::number(hour.all.grants),
            hint: format!("at most {} in a minute", format::number(most(&grants))),
            bars: bars(&grants),
        },
        HourChart {
            label: "Wait, p95",
            value: wait.map_or_else(|| "-".to_owned(), |wait| time(format::ms(wait))),
            hint: match wait {
                Some(_) => format!("of requests ready to wait; at most {} in a minute", time(most(&ms))),
                None => "no request was ready to wait".to_owned(),
            },
            bars: bars(&ms),
        },
        HourChart {
            label: "Contention",
            value: format::number(hour.all.contended),
            hint: format!("requests refused or kept waiting; at most {} in a minute", format::number(most(&contended))),
            bars: bars(&contended),
        },
    ]
}

/// One bar for each value above zero; the largest is as high as the chart.
fn bars(values: &[u64]) -> String {
    let largest = values.iter().copied().max().unwrap_or(0).max(1);
    let mut path = String::new();
    for (i, value) in values.iter().enumerate().filter(|(_, value)| **value > 0) {
        // A value stays visible even if it is small beside the largest one.
        let height = (u128::from(*value) * u128::from(HEIGHT) / u128::from(largest)).max(1);
        let _ = write!(path, "M{} {HEIGHT}v-{height}h{}v{height}z", i * BAR, BAR - 1);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::locks::tests::{NOW_MS, four};

    fn hour() -> Hour {
        let mut hour = Hour { minutes: vec![MinuteCounts::default(); MINUTES], instances: 2, ..Hour::default() };
        (hour.minutes[0].grants, hour.minutes[59].grants, hour.all.grants) = (1, 200, 1_201);
        hour.contended = (0..9).map(|i| (format!("hot/{i}"), 100 - i)).collect();
        let held =
            |name: &str, owner: &str, minutes| ((name.to_owned(), owner.to_owned()), Duration::from_mins(minutes));
        hour.held =
            [held("deploy/prod", "ci-4711", 30), held("deploy/prod", "ci-1", 28), held("hidden", "x", 7)].into();
        hour
    }

    #[test]
    fn what_ended_and_what_is_held_are_added_and_the_largest_come_first() {
        let overview = four();
        let section = HourSection::new(&hour(), &overview, |_| false, true, NOW_MS);
        let rows = |rows: &[ShareRow]| {
            rows.iter().map(|r| format!("{} {} {}", r.text, r.value, r.percent)).collect::<Vec<_>>()
        };
        assert_eq!(rows(&section.names)[..2], ["deploy/prod 1 h 00 m 100", "hidden 7 m 00 s 11"], "an hour at most");
        assert_eq!(rows(&section.owners)[..3], ["ci-4711 35 m 00 s 58", "ci-1 28 m 00 s 46", "x 7 m 00 s 11"]);
        assert_eq!((section.contended.len(), rows(&section.contended)[1].as_str()), (ROWS_MAX, "hot/1 99 99"));
        let [grants, wait, _] = &section.charts[..] else { panic!("{section:?}") };
        assert_eq!((grants.value.as_str(), grants.hint.as_str()), ("1\u{202f}201", "at most 200 in a minute"));
        assert_eq!(grants.bars, "M0 36v-1h3v1zM236 36v-36h3v36z");
        assert_eq!((wait.value.as_str(), wait.bars.as_str()), ("-", ""));
    }

    #[test]
    fn the_latest_incidents_of_the_hour_are_listed() {
        let event = |kind: &str, ago_s: u64| {
            Arc::new(Event { event: kind.into(), at_ms: NOW_MS - ago_s * 1_000, ..Event::default() })
        };
        let all = [event("node_up", 5), event("released", 6), event("node_down", 9), event("quorum_lost", 3_700)];
        let stood_still = |ago_s: u64, s| {
            let lasted = Duration::from_secs(s);
            Standstill { to_ms: NOW_MS - ago_s * 1_000, lasted }
        };
        let standstills = [stood_still(7, 63), stood_still(3_601, 5)];
        let section = HourSection::default().with_incidents(&all, &standstills, NOW_MS);
        assert_eq!(
            section.incidents.iter().map(|row| row.kind.text.as_str()).collect::<Vec<_>>(),
            ["node up", "this instance stood still", "node down"]
        );
        let details = "for 1 m 03 s, to 18:06:56: it was stopped, suspended, or got no processor time";
        assert_eq!(section.incidents[1].details, details);
        let many: Vec<_> = (0..9).map(|ago_s| stood_still(ago_s, 3)).collect();
        assert_eq!(HourSection::default().with_incidents(&all, &many, NOW_MS).incidents.len(), ROWS_MAX);
    }

    #[test]
    fn a_reader_sees_only_names_that_they_may_read_and_no_totals() {
        let section = HourSection::new(&hour(), &four(), |name| name.as_str() == "hot/3", false, NOW_MS);
        assert!(section.charts.is_empty());
        assert_eq!(section.contended.iter().map(|row| row.text.as_str()).collect::<Vec<_>>(), ["hot/3"]);
        assert!(section.owners.iter().all(|row| row.text != "ci-1" && row.text != "x"), "{:?}", section.owners);
    }
}
