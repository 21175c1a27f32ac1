//! Times of which this instance does not know what the others reported, since it did not run, or no node passed it
//! on. Pages and answers name these gaps, so that they are not mistaken for quiet times.

use crate::api::Event;

/// Maximum number of gaps that are kept; beyond it the two oldest become one.
pub(super) const GAPS_MAX: usize = 32;

/// The name of a gap among the incidents of the file, and the name of a gap that is now known.
const GAP: &str = "gap";
const FILLED: &str = "gap_filled";

/// Why a gap is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GapReason {
    /// This instance did not run, or stood still.
    NotRunning,
    /// This instance ran, but no node passed anything on to it.
    CutOff,
}

impl GapReason {
    /// The word in answers and in the file.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::NotRunning => "not-running",
            Self::CutOff => "cut-off",
        }
    }
}

/// One gap. Units: milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gap {
    /// The beginning; 0 if nothing before the end is known.
    pub from_ms: u64,
    /// The end, exclusive.
    pub to_ms: u64,
    pub reason: GapReason,
}

impl Gap {
    fn as_event(&self, kind: &str) -> Event {
        Event {
            event: kind.to_owned(),
            at_ms: self.to_ms,
            after_ms: Some(self.to_ms - self.from_ms),
            reason: Some(self.reason.as_str().to_owned()),
            ..Event::default()
        }
    }

    /// The line of the file that records this gap.
    pub(super) fn line(&self) -> Event {
        self.as_event(GAP)
    }

    /// The line that records that this gap is filled.
    pub(super) fn filled_line(&self) -> Event {
        self.as_event(FILLED)
    }
}

/// Gaps in the order of time, without overlaps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Gaps(Vec<Gap>);

impl Gaps {
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Gap> {
        self.0.iter()
    }

    pub(super) fn add(&mut self, gap: Gap) {
        if gap.from_ms >= gap.to_ms {
            return;
        }
        self.remove(gap.from_ms, gap.to_ms);
        let at = self.0.partition_point(|known| known.to_ms <= gap.from_ms);
        self.0.insert(at, gap);
        while self.0.len() > GAPS_MAX {
            let oldest = self.0.remove(0);
            self.0[0].from_ms = oldest.from_ms;
        }
    }

    /// Removes the time of a gap that is now known.
    pub(super) fn remove(&mut self, from_ms: u64, to_ms: u64) {
        let rest = |gap: &Gap| {
            let before = Gap { to_ms: gap.to_ms.min(from_ms), ..*gap };
            let after = Gap { from_ms: gap.from_ms.max(to_ms), ..*gap };
            [before, after].into_iter().filter(|part| part.from_ms < part.to_ms)
        };
        self.0 = self.0.iter().flat_map(rest).collect();
    }

    /// The latest known part of this time without a gap; empty if there is none.
    pub(super) fn known_within(&self, from_ms: u64, to_ms: u64) -> (u64, u64) {
        let (mut begins, mut ends) = (from_ms, to_ms);
        for gap in self.0.iter().rev().filter(|gap| gap.from_ms < to_ms && gap.to_ms > from_ms) {
            if gap.to_ms < ends {
                begins = gap.to_ms;
                break;
            }
            ends = gap.from_ms.max(from_ms);
        }
        (begins.min(ends), ends)
    }

    /// Takes a line of the file; false if it is an incident.
    pub(super) fn take_line(&mut self, event: &Event) -> bool {
        let reason = match event.reason.as_deref() {
            Some("cut-off") => GapReason::CutOff,
            _ => GapReason::NotRunning,
        };
        let gap = Gap { from_ms: event.at_ms.saturating_sub(event.after_ms.unwrap_or(0)), to_ms: event.at_ms, reason };
        match event.event.as_str() {
            GAP => self.add(gap),
            FILLED => self.remove(gap.from_ms, gap.to_ms),
            _ => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(from_ms: u64, to_ms: u64) -> Gap {
        Gap { from_ms, to_ms, reason: GapReason::NotRunning }
    }

    fn gaps(all: &[(u64, u64)]) -> Gaps {
        let mut gaps = Gaps::default();
        all.iter().for_each(|(from_ms, to_ms)| gaps.add(gap(*from_ms, *to_ms)));
        gaps
    }

    #[test]
    fn what_is_known_later_splits_a_gap_or_ends_it() {
        let mut known = gaps(&[(50, 60), (0, 20)]);
        known.remove(5, 10);
        known.remove(40, 55);
        assert_eq!(known, gaps(&[(0, 5), (10, 20), (55, 60)]));
        known.add(gap(15, 57));
        assert_eq!(known, gaps(&[(0, 5), (10, 15), (15, 57), (57, 60)]));
        known.remove(0, 100);
        known.add(gap(7, 7));
        assert_eq!(known, Gaps::default());
        let many = gaps(&(0..=GAPS_MAX as u64).map(|i| (10 * i, 10 * i + 1)).collect::<Vec<_>>());
        assert_eq!(
            (many.0.len(), many.0[0], many.0[1]),
            (GAPS_MAX, gap(0, 11), gap(20, 21)),
            "not known rather than known"
        );
    }

    #[test]
    fn the_latest_part_without_a_gap_is_known() {
        let known = gaps(&[(0, 100), (200, 300)]);
        for (within, expected) in [
            ((120, 180), (120, 180)),
            ((50, 150), (100, 150)),
            ((50, 250), (100, 200)),
            ((150, 400), (300, 400)),
            ((150, 300), (150, 200)),
            ((210, 250), (210, 210)),
            ((10, 20), (10, 10)),
        ] {
            assert_eq!(known.known_within(within.0, within.1), expected, "{within:?}");
        }
    }

    #[test]
    fn gaps_are_lines_of_the_file_of_incidents() {
        let mut read = Gaps::default();
        let cut_off = Gap { from_ms: 10, to_ms: 30, reason: GapReason::CutOff };
        assert!(read.take_line(&cut_off.line()) && read.take_line(&gap(10, 15).filled_line()));
        assert!(!read.take_line(&Event { event: "node_down".into(), ..Event::default() }));
        assert_eq!(read.0, [Gap { from_ms: 15, ..cut_off }]);
    }
}
