//! A lock's last hour as a drawing: its holders over time, its waiters, and incidents of nodes and quorum meanwhile. A table with
//! the same data follows, for screen readers.

use std::sync::Arc;
use std::time::Duration;

use super::format;
use crate::api::Event;
use crate::manager::gaps::{Gap, GapReason};
use crate::manager::tenures::{KnownTenures, Tenure, TenureEnd};
use crate::manager::types::Inspection;
use crate::types::ResourceName;

/// Width of the drawing. Units: of the SVG's view box.
pub(crate) const WIDTH: u64 = 960;
/// Height of a row. Units: of the SVG's view box.
pub(crate) const ROW: usize = 18;
/// The default period.
pub(crate) const HOUR_MS: u64 = 3_600_000;
/// Maximum number of bars that are drawn; older ones are left off.
const BARS_MAX: usize = 200;
/// Maximum number of rows of waits that are drawn.
const WAIT_ROWS_MAX: usize = 5;
/// Maximum number of rows of leases that are held at the same time.
const HOLDER_ROWS_MAX: usize = 6;
/// The overlap that two bars of one row may have: their times come from two clocks, and short bars are widened.
const OVERLAP_MAX: u64 = 4;
/// Maximum number of incidents that are marked.
const MARKS_MAX: usize = 50;
/// The minimum width of a visible bar.
const BAR_MIN: u64 = 2;
/// The minimum width of a bar with a text.
const TEXT_MIN: u64 = 90;

/// A lease or a wait of an owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    pub x: u64,
    pub width: u64,
    /// Row, from 0: first the holders, then the waiters.
    pub row: usize,
    /// Owner label, `no owner` or `several owners`.
    pub owner: String,
    /// Whether the lease or wait is in progress.
    pub is_present: bool,
    /// Whether this is a wait.
    pub is_wait: bool,
    /// Whether the owner's name fits into the bar.
    pub has_text: bool,
    /// When it began, in the words of the page.
    pub from: String,
    /// When it ended, in the words of the page.
    pub to: String,
    /// The duration; for several bars that lie close together, of all of them.
    pub lasts: String,
    /// The end: `released`, `expired`, `lost`, `ended by an operator`, `holds`; `waits`, `then granted`, `in vain`.
    pub end: &'static str,
}

impl Span {
    /// The vertical position.
    pub(crate) fn y(&self) -> usize {
        self.row * ROW + 2
    }

    /// Its class in the style sheet.
    pub(crate) fn class(&self) -> &'static str {
        match (self.is_wait, self.is_present) {
            (true, true) => "waits",
            (true, false) => "waited",
            (false, true) => "holds",
            (false, false) => "held",
        }
    }

    /// All fields in words.
    pub(crate) fn title(&self) -> String {
        format!("{}: {} to {}, {}, {}", self.owner, self.from, self.to, self.lasts, self.end)
    }
}

/// An incident of a node or of the quorum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    pub x: u64,
    /// What happened, and when.
    pub title: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LockHistory {
    /// Leases, newest first, then waits.
    pub spans: Vec<Span>,
    /// Incidents of nodes and of the quorum.
    pub marks: Vec<Mark>,
    /// The periods without data, the oldest first.
    pub unknown: Vec<Unknown>,
}

/// A period without data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unknown {
    pub x: u64,
    pub width: u64,
    /// When it begins, in the words of the page.
    pub from: String,
    /// When it ends, in the words of the page.
    pub to: String,
    /// Why there is no data for it.
    pub why: &'static str,
}

impl Unknown {
    /// All fields in words.
    pub(crate) fn title(&self) -> String {
        format!("not known: {} to {}, {}", self.from, self.to, self.why)
    }
}

/// The present holder: owner, and the start of the lease on the wall clock.
pub(crate) type PresentHolder<'a> = (&'a str, u64);

/// The data of one name.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Known<'a> {
    /// The leases that are held now.
    pub holders: &'a [PresentHolder<'a>],
    /// The waiters: owner, and time waited.
    pub waiters: &'a [(String, Duration)],
    /// Leases and waits that have ended.
    pub tenures: &'a [Tenure],
    /// From when this instance knows ended leases and waits. Milliseconds since 1970.
    pub since_ms: u64,
    /// The periods since then without data.
    pub gaps: &'a [Gap],
}

impl LockHistory {
    /// `events`: newest first; those of nodes and quorum are marked. Units of `wall_ms`: milliseconds since 1970; of `period_ms`,
    /// which ends at `wall_ms`: milliseconds.
    pub(crate) fn new(known: Known<'_>, events: &[Arc<Event>], (wall_ms, period_ms): (u64, u64)) -> Self {
        let window = Window { from_ms: wall_ms.saturating_sub(period_ms), to_ms: wall_ms };
        let present = known.holders.iter().map(|(owner, since_ms)| window.present(owner, *since_ms, false));
        let waiters = known
            .waiters
            .iter()
            .map(|(owner, waited)| window.present(owner, wall_ms.saturating_sub(format::ms(*waited)), true));
        let (mut leases, mut waits): (Vec<Span>, Vec<Span>) = (present.collect(), waiters.collect());
        let mut past: Vec<&Tenure> = known.tenures.iter().filter(|tenure| tenure.to_ms > window.from_ms).collect();
        past.sort_by_key(|tenure| std::cmp::Reverse(tenure.to_ms));
        for span in past.into_iter().map(|tenure| window.past(tenure)) {
            if span.is_wait { waits.push(span) } else { leases.push(span) }
        }
        leases.truncate(BARS_MAX);
        waits.truncate(BARS_MAX);
        let rows = spread(&mut leases, 0, HOLDER_ROWS_MAX).max(1);
        spread(&mut waits, rows, WAIT_ROWS_MAX);
        leases.append(&mut waits);
        let is_incident = |event: &&Arc<Event>| event.resource.is_none() && event.cycle.is_none();
        let marks = events.iter().filter(is_incident).filter(|event| event.at_ms > window.from_ms).take(MARKS_MAX);
        let mark = |event: &Arc<Event>| {
            let row = super::events::row(event);
            // Each instance reports its own view of the quorum, its start and its stop.
            let subject = match (row.node.is_empty(), row.instance.is_empty()) {
                (false, _) => format!(" {}", row.node),
                (true, false) => format!(", instance {}", row.instance),
                (true, true) => String::new(),
            };
            Mark { x: window.x(event.at_ms), title: format!("{}: {}{subject}", clock(event.at_ms), row.kind.text) }
        };
        let before = Gap { from_ms: 0, to_ms: known.since_ms, reason: GapReason::NotRunning };
        let unknown = std::iter::once(&before).chain(known.gaps).filter_map(|gap| window.unknown(gap)).collect();
        Self { spans: leases, marks: marks.map(mark).collect(), unknown }
    }

    /// The last hour of one lock, as its page shows it. A lease that no quorum confirms is drawn as not held.
    pub(crate) fn of_lock(
        resource: &ResourceName,
        inspection: Option<&Inspection>,
        tenures: &KnownTenures,
        (events, wall_ms): (&[Arc<Event>], u64),
    ) -> Self {
        let holders = inspection.filter(|i| i.is_confirmed()).map(Inspection::holders).unwrap_or_default();
        let holders = holders.iter().map(|holder| &holder.labels).filter(|labels| labels.acquired_at_ms > 0);
        let holders: Vec<_> = holders.map(|labels| (labels.owner.as_str(), labels.acquired_at_ms)).collect();
        let waiters = inspection.map(|inspection| inspection.waiters.as_slice()).unwrap_or_default();
        let waiters: Vec<_> = waiters.iter().map(|waiter| (waiter.owner.clone(), waiter.waiting)).collect();
        let past = tenures.names.get(resource.as_str()).map(Vec::as_slice).unwrap_or_default();
        let (since_ms, gaps) = (tenures.since_ms, &tenures.gaps);
        let known = Known { holders: &holders, waiters: &waiters, tenures: past, since_ms, gaps };
        Self::new(known, events, (wall_ms, HOUR_MS))
    }

    /// Whether there is nothing to draw.
    pub(crate) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The height of the drawing without its scale.
    pub(crate) fn height(&self) -> usize {
        (self.spans.iter().map(|span| span.row).max().unwrap_or(0) + 1) * ROW + 2
    }
}

/// Puts overlapping spans into separate rows, from the row `first` on, at most `max` rows; returns the number of rows.
fn spread(spans: &mut [Span], first: usize, max: usize) -> usize {
    let mut begins = vec![u64::MAX; max];
    // Newest first: a row is free for a span that ends before the row's last one begins.
    for span in spans.iter_mut() {
        let end = (span.x + span.width).saturating_sub(OVERLAP_MAX);
        let row = begins.iter().position(|begin| *begin >= end).unwrap_or(max - 1);
        (span.row, begins[row]) = (first + row, begins[row].min(span.x));
    }
    spans.iter().map(|span| span.row - first + 1).max().unwrap_or(0)
}

/// The drawn period. Milliseconds since 1970.
struct Window {
    from_ms: u64,
    to_ms: u64,
}

impl Window {
    fn x(&self, at_ms: u64) -> u64 {
        at_ms.clamp(self.from_ms, self.to_ms).saturating_sub(self.from_ms) * WIDTH / (self.to_ms - self.from_ms).max(1)
    }

    /// The drawn part of a gap; `None` if it is not visible.
    fn unknown(&self, gap: &Gap) -> Option<Unknown> {
        let (from_ms, to_ms) = (gap.from_ms.max(self.from_ms), gap.to_ms.min(self.to_ms));
        let (x, width) = (self.x(from_ms), self.x(to_ms).saturating_sub(self.x(from_ms)));
        let why = match gap.reason {
            GapReason::NotRunning => "this instance did not run",
            GapReason::CutOff => "no node passed anything on to this instance",
        };
        (to_ms > from_ms && width > 0).then(|| Unknown { x, width, from: clock(from_ms), to: clock(to_ms), why })
    }

    fn present(&self, owner: &str, from_ms: u64, is_wait: bool) -> Span {
        let (to_ms, end) = (self.to_ms, if is_wait { "waits" } else { "holds" });
        let lasts = format::time(format::since(to_ms, from_ms));
        let span = self.span(owner_text(Some(owner)), (from_ms, to_ms), (lasts, end));
        Span { is_present: true, is_wait, to: "now".to_owned(), ..span }
    }

    fn past(&self, tenure: &Tenure) -> Span {
        let (end, is_wait) = match tenure.end {
            TenureEnd::Released => ("released", false),
            TenureEnd::Expired => ("expired", false),
            TenureEnd::Lost => ("lost", false),
            TenureEnd::Forced => ("ended by an operator", false),
            TenureEnd::Granted => ("then granted", true),
            TenureEnd::GaveUp => ("in vain", true),
        };
        let lasted = format::time(Duration::from_millis(tenure.lasted_ms));
        let lasts = match tenure.count {
            1 => lasted,
            count => {
                format!("{} with {lasted} together", format::count(count, "", if is_wait { "waits" } else { "leases" }))
            }
        };
        let span = self.span(owner_text(tenure.owner.as_deref()), (tenure.from_ms, tenure.to_ms), (lasts, end));
        Span { is_wait, ..span }
    }

    fn span(&self, owner: String, (from_ms, to_ms): (u64, u64), (lasts, end): (String, &'static str)) -> Span {
        let width = (self.x(to_ms) - self.x(from_ms)).max(BAR_MIN);
        let x = self.x(from_ms).min(WIDTH - width);
        Span {
            x,
            width,
            row: 0,
            owner,
            is_present: false,
            is_wait: false,
            has_text: width >= TEXT_MIN,
            from: clock(from_ms),
            to: clock(to_ms),
            lasts,
            end,
        }
    }
}

fn owner_text(owner: Option<&str>) -> String {
    match owner {
        None => "several owners".to_owned(),
        Some("") => "no owner".to_owned(),
        Some(owner) => format::visible(owner),
    }
}

/// `10:46:02`, in UTC.
fn clock(wall_ms: u64) -> String {
    format::stamp(wall_ms).get(11..19).unwrap_or("-").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-20T18:07:03.120Z.
    const NOW_MS: u64 = 1_795_198_023_120;

    fn ended(owner: &str, ago_s: u64, lasted_s: u64, end: TenureEnd) -> Tenure {
        let (to_ms, lasted_ms) = (NOW_MS - ago_s * 1_000, lasted_s * 1_000);
        let (owner, from_ms) = (Some(owner.to_owned()), to_ms - lasted_ms);
        Tenure { owner, from_ms, to_ms, end, count: 1, lasted_ms }
    }

    fn drawn(known: Known<'_>) -> LockHistory {
        let down = Event { event: "node_down".into(), at_ms: NOW_MS - 1_200_000, ..Event::default() };
        let events = [Arc::new(Event { node: Some("n1".into()), ..down })];
        LockHistory::new(known, &events, (NOW_MS, HOUR_MS))
    }

    #[test]
    fn leases_waits_and_incidents_of_the_last_hour_are_drawn() {
        let tenures = [
            ended("ann", 3_000, 1_800, TenureEnd::Expired),
            ended("ann", 600, 900, TenureEnd::Released),
            ended("ann", 7_200, 60, TenureEnd::Released),
            ended("eve", 600, 450, TenureEnd::Granted),
        ];
        let waiters = [("bob".to_owned(), Duration::from_secs(360))];
        let since_ms = NOW_MS - 3_300_000;
        let cut_off = Gap { from_ms: NOW_MS - 2_700_000, to_ms: NOW_MS - 2_400_000, reason: GapReason::CutOff };
        let holders = [("", NOW_MS - 450_000)];
        let known = Known { holders: &holders, waiters: &waiters, tenures: &tenures, since_ms, gaps: &[cut_off] };
        let drawing = drawn(known);
        let places: Vec<_> = drawing.spans.iter().map(|span| (span.row, span.x, span.width, span.class())).collect();
        let expected = [
            (0, 840, 120, "holds"),
            (0, 560, 240, "held"),
            (0, 0, 160, "held"),
            (1, 864, 96, "waits"),
            (1, 680, 120, "waited"),
        ];
        assert_eq!(places, expected);
        assert_eq!((drawing.spans[0].owner.as_str(), drawing.spans[0].to.as_str()), ("no owner", "now"));
        assert_eq!(drawing.spans[1].title(), "ann: 17:42:03 to 17:57:03, 15 m 00 s, released");
        assert_eq!((drawing.spans[2].end, drawing.spans[4].end), ("expired", "then granted"));
        assert_eq!(drawing.marks, [Mark { x: 640, title: "17:47:03: node down n1".into() }]);
        let unknown: Vec<_> = drawing.unknown.iter().map(|part| (part.x, part.width, part.title())).collect();
        let not_running = "not known: 17:07:03 to 17:12:03, this instance did not run".to_owned();
        let not_received = "not known: 17:22:03 to 17:27:03, no node passed anything on to this instance".to_owned();
        assert_eq!(unknown, [(0, 80, not_running), (240, 80, not_received)]);
        assert_eq!(drawing.height(), 2 * ROW + 2);
        assert!(drawn(Known::default()).is_empty());
    }

    #[test]
    fn leases_that_are_held_together_have_rows_of_their_own() {
        let tenures = [ended("eve", 1_200, 1_200, TenureEnd::Released)];
        let known = Known {
            holders: &[("ann", NOW_MS - 1_800_000), ("bob", NOW_MS - 900_000)],
            waiters: &[("eve".to_owned(), Duration::from_secs(60))],
            tenures: &tenures,
            ..Known::default()
        };
        let drawing = drawn(known);
        let rows: Vec<_> = drawing.spans.iter().map(|span| (span.row, span.class())).collect();
        assert_eq!(rows, [(0, "holds"), (1, "holds"), (1, "held"), (2, "waits")]);
    }

    #[test]
    fn a_short_tenure_can_be_seen_and_several_together_say_so() {
        let short = ended("ann", 0, 1, TenureEnd::Released);
        let several = Tenure { owner: None, count: 37, lasted_ms: 12_000, ..ended("", 600, 60, TenureEnd::Forced) };
        let tenures = [short, several];
        let drawing = drawn(Known { tenures: &tenures, ..Known::default() });
        assert_eq!((drawing.spans[0].x, drawing.spans[0].width), (WIDTH - BAR_MIN, BAR_MIN));
        assert!(!drawing.spans[0].has_text);
        let title = "several owners: 17:56:03 to 17:57:03, 37 leases with 12 s together, ended by an operator";
        assert_eq!(drawing.spans[1].title(), title);
    }
}
