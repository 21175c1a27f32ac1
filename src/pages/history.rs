//! A lock's last hour as a drawing: who held it when, who waits, and what happened to nodes and quorum meanwhile. The same data
//! follows as a table, for screen readers.

use std::sync::Arc;
use std::time::Duration;

use super::format;
use crate::api::Event;

/// Width of the drawing. Units: of the SVG's view box.
pub(crate) const WIDTH: u64 = 960;
/// Height of a row.
pub(crate) const ROW: usize = 18;
/// The default period.
pub(crate) const HOUR_MS: u64 = 3_600_000;
/// Bars that are drawn at most; older ones are left off.
const BARS_MAX: usize = 200;
/// Waiters that have a row of their own.
const WAITERS_MAX: usize = 5;
/// Rows of leases that are held at the same time.
const HOLDER_ROWS_MAX: usize = 6;
/// By so much two bars of one row may overlap: the times are of two clocks, and short bars are drawn wider than they are.
const OVERLAP_MAX: u64 = 4;
/// Incidents that are marked at most.
const MARKS_MAX: usize = 50;
/// The narrowest bar that can be seen.
const BAR_MIN: u64 = 2;
/// The narrowest bar with a text.
const TEXT_MIN: u64 = 90;

/// Somebody who held the lock, or waits for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    /// Left edge.
    pub x: u64,
    /// Width.
    pub width: u64,
    /// Row, from 0: the holders; the waiters follow.
    pub row: usize,
    /// Owner label, or `no owner`.
    pub owner: String,
    /// Whether it holds or waits now.
    pub is_present: bool,
    /// Whether the owner's name fits into it.
    pub has_text: bool,
    /// From, as shown.
    pub from: String,
    /// To, as shown.
    pub to: String,
    /// For how long.
    pub lasts: String,
    /// How it ended: `released`, `expired`, `lost`, `ended by an operator`, `holds` or `waits`.
    pub end: &'static str,
}

impl Span {
    /// The vertical position.
    pub(crate) fn y(&self) -> usize {
        self.row * ROW + 2
    }

    /// All of it in words.
    pub(crate) fn title(&self) -> String {
        format!("{}: {} to {}, {}, {}", self.owner, self.from, self.to, self.lasts, self.end)
    }
}

/// Something that happened to a node or the quorum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Position.
    pub x: u64,
    /// What and when.
    pub title: String,
}

/// The drawing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LockHistory {
    /// Holders, newest first, then waiters.
    pub spans: Vec<Span>,
    /// Incidents.
    pub marks: Vec<Mark>,
}

/// The present holder: owner, and since when on the wall clock.
pub(crate) type PresentHolder<'a> = (&'a str, u64);

impl LockHistory {
    /// `events`: newest first, of this lock and of nodes and quorum; `waiters`: owner and how long each has waited. Units of
    /// `wall_ms`: milliseconds since 1970; of `period_ms`, which ends then: milliseconds.
    pub(crate) fn new(
        resource: &str,
        events: &[Arc<Event>],
        holders: &[PresentHolder<'_>],
        waiters: &[(String, Duration)],
        (wall_ms, period_ms): (u64, u64),
    ) -> Self {
        let window = Window { from_ms: wall_ms.saturating_sub(period_ms), to_ms: wall_ms };
        let present = holders.iter().take(BARS_MAX);
        let present = present.map(|(owner, since_ms)| window.span(owner, (*since_ms, wall_ms), 0, "holds"));
        let ended = events.iter().filter(|event| event.resource.as_deref() == Some(resource)).filter_map(|event| {
            let end = match (event.event.as_str(), event.reason.as_deref()) {
                ("released", _) => "released",
                ("expired", _) => "expired",
                ("lost", _) => "lost",
                ("forced", Some("now")) => "ended by an operator",
                _ => return None,
            };
            let from_ms = event.at_ms.saturating_sub(event.after_ms?);
            (event.at_ms > window.from_ms)
                .then(|| window.span(event.owner.as_deref().unwrap_or_default(), (from_ms, event.at_ms), 0, end))
        });
        let mut spans: Vec<Span> = present.chain(ended).take(BARS_MAX).collect();
        let rows = spread(&mut spans);
        let waiting = waiters.iter().take(WAITERS_MAX).enumerate().map(|(i, (owner, waited))| {
            let from_ms = wall_ms.saturating_sub(format::ms(*waited));
            window.span(owner, (from_ms, wall_ms), i + rows, "waits")
        });
        spans.extend(waiting);
        let is_incident = |event: &&Arc<Event>| event.resource.is_none() && event.cycle.is_none();
        let marks = events.iter().filter(is_incident).filter(|event| event.at_ms > window.from_ms).take(MARKS_MAX);
        let mark = |event: &Arc<Event>| {
            let row = super::events::row(event);
            let subject = if row.node.is_empty() { String::new() } else { format!(" {}", row.node) };
            Mark { x: window.x(event.at_ms), title: format!("{}: {}{subject}", clock(event.at_ms), row.kind.text) }
        };
        Self { spans, marks: marks.map(mark).collect() }
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

/// Gives leases that were held at the same time rows of their own, as far as there are; returns how many rows there are, at
/// least one.
fn spread(spans: &mut [Span]) -> usize {
    let mut begins = [u64::MAX; HOLDER_ROWS_MAX];
    // Newest first: a row is free for what ended before it begins.
    for span in spans.iter_mut() {
        let end = (span.x + span.width).saturating_sub(OVERLAP_MAX);
        span.row = begins.iter().position(|begin| *begin >= end).unwrap_or(HOLDER_ROWS_MAX - 1);
        begins[span.row] = begins[span.row].min(span.x);
    }
    spans.iter().map(|span| span.row + 1).max().unwrap_or(1)
}

/// The time that is drawn. Milliseconds since 1970.
struct Window {
    from_ms: u64,
    to_ms: u64,
}

impl Window {
    fn x(&self, at_ms: u64) -> u64 {
        at_ms.clamp(self.from_ms, self.to_ms).saturating_sub(self.from_ms) * WIDTH / (self.to_ms - self.from_ms).max(1)
    }

    fn span(&self, owner: &str, (from_ms, to_ms): (u64, u64), row: usize, end: &'static str) -> Span {
        let width = (self.x(to_ms) - self.x(from_ms)).max(BAR_MIN);
        let x = self.x(from_ms).min(WIDTH - width);
        let owner = if owner.is_empty() { "no owner".to_owned() } else { format::visible(owner) };
        let is_present = matches!(end, "holds" | "waits");
        Span {
            x,
            width,
            row,
            owner,
            is_present,
            has_text: width >= TEXT_MIN,
            from: clock(from_ms),
            to: if is_present { "now".to_owned() } else { clock(to_ms) },
            lasts: format::time(format::since(to_ms, from_ms)),
            end,
        }
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

    fn event(kind: &str, ago_s: u64, held_s: Option<u64>) -> Arc<Event> {
        Arc::new(Event {
            event: kind.into(),
            at_ms: NOW_MS - ago_s * 1_000,
            resource: held_s.map(|_| "a".into()),
            owner: Some("ann".into()),
            after_ms: held_s.map(|s| s * 1_000),
            node: held_s.is_none().then(|| "n1".into()),
            ..Event::default()
        })
    }

    #[test]
    fn holders_waiters_and_incidents_of_the_last_hour_are_drawn() {
        let events = [
            event("released", 600, Some(900)),
            event("node_down", 1_200, None),
            event("released", 3_000, Some(1_800)),
            event("released", 7_200, Some(60)),
        ];
        let waiters = [("bob".to_owned(), Duration::from_secs(360))];
        let holder = [("", NOW_MS - 450_000)];
        let drawn = LockHistory::new("a", &events, &holder, &waiters, (NOW_MS, HOUR_MS));
        let places: Vec<_> = drawn.spans.iter().map(|span| (span.row, span.x, span.width, span.end)).collect();
        assert_eq!(
            places,
            [(0, 840, 120, "holds"), (0, 560, 240, "released"), (0, 0, 160, "released"), (1, 864, 96, "waits")]
        );
        assert_eq!((drawn.spans[0].owner.as_str(), drawn.spans[0].to.as_str()), ("no owner", "now"));
        assert_eq!(drawn.spans[1].title(), "ann: 17:42:03 to 17:57:03, 15 m 00 s, released");
        assert_eq!(drawn.marks, [Mark { x: 640, title: "17:47:03: node down n1".into() }]);
        assert_eq!(drawn.height(), 2 * ROW + 2);
        assert!(LockHistory::new("b", &events, &[], &[], (NOW_MS, HOUR_MS)).is_empty());
    }

    #[test]
    fn leases_that_are_held_together_have_rows_of_their_own() {
        let holders = [("ann", NOW_MS - 1_800_000), ("bob", NOW_MS - 900_000)];
        let waiters = [("eve".to_owned(), Duration::from_secs(60))];
        let drawn =
            LockHistory::new("a", &[event("released", 1_200, Some(1_200))], &holders, &waiters, (NOW_MS, HOUR_MS));
        let rows: Vec<_> = drawn.spans.iter().map(|span| (span.row, span.end)).collect();
        assert_eq!(rows, [(0, "holds"), (1, "holds"), (1, "released"), (2, "waits")]);
    }

    #[test]
    fn a_short_tenure_can_be_seen_and_stays_within_the_drawing() {
        let drawn = LockHistory::new("a", &[event("released", 0, Some(1))], &[], &[], (NOW_MS, HOUR_MS));
        assert_eq!((drawn.spans[0].x, drawn.spans[0].width), (WIDTH - BAR_MIN, BAR_MIN));
        assert!(!drawn.spans[0].has_text);
    }
}
