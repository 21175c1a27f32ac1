//! A filter of past events: a range of time, a kind, and the prefix of a name. For the API and the pages.

use std::time::Duration;

use super::request_fields::Fields;
use crate::api::Event;
use crate::duration::parse_duration;
use crate::manager::events::EventKind;
use crate::manager::gaps::Gap;
use crate::types::Invalid;

/// `at=10:42` shows this much before and after it: clocks and memories differ by a minute or two.
const AROUND: Duration = Duration::from_mins(3);
const DAY_MS: u64 = 86_400_000;

/// What an event must match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Not before. Milliseconds since 1970.
    pub from_ms: Option<u64>,
    /// Not after. Milliseconds since 1970.
    pub to_ms: Option<u64>,
    /// `None`: every kind matches.
    pub kind: Option<EventKind>,
    /// The prefix of the name of the resource or node.
    pub prefix: String,
}

impl EventFilter {
    /// The fields that [`Self::read`] takes.
    pub const FIELDS: [&'static str; 6] = ["since", "from", "to", "at", "kind", "prefix"];

    /// Reads the fields; [`Fields::finish`] reports wrong ones. Units of `now_ms`: milliseconds since 1970.
    pub fn read(fields: &mut Fields, now_ms: u64) -> Self {
        let mut moment = |name: &'static str| {
            let text = fields.text(name).filter(|text| !text.is_empty())?;
            fields.check(name, moment(&text, now_ms))
        };
        let (since, from, to, at) = (moment("since"), moment("from"), moment("to"), moment("at"));
        let around = u64::try_from(AROUND.as_millis()).unwrap_or(u64::MAX);
        let kind = fields.text("kind").filter(|word| !word.is_empty()).and_then(|word| {
            let known = EventKind::ALL.into_iter().find(|kind| kind.as_str() == word && *kind != EventKind::Extended);
            let names = || EventKind::ALL.iter().filter(|kind| **kind != EventKind::Extended).map(|kind| kind.as_str());
            let wrong = || Invalid(format!("must be one of {}", names().collect::<Vec<_>>().join(", ")));
            fields.check("kind", known.ok_or_else(wrong))
        });
        Self {
            from_ms: from.or(since).or(at.map(|at| at.saturating_sub(around))),
            to_ms: to.or(at.map(|at| at.saturating_add(around))),
            kind,
            prefix: fields.text("prefix").unwrap_or_default().trim().to_owned(),
        }
    }

    /// Whether an event of this gap could match.
    pub(crate) fn reaches(&self, gap: &Gap) -> bool {
        self.from_ms.is_none_or(|from| gap.to_ms > from) && self.to_ms.is_none_or(|to| gap.from_ms <= to)
    }

    /// Whether the event matches.
    pub(crate) fn matches(&self, event: &Event) -> bool {
        let name = event.resource.as_deref().or(event.node.as_deref()).unwrap_or_default();
        self.from_ms.is_none_or(|from| event.at_ms >= from)
            && self.to_ms.is_none_or(|to| event.at_ms <= to)
            && self.kind.is_none_or(|kind| kind.as_str() == event.event)
            && name.starts_with(&self.prefix)
    }
}

/// `10:42`, `10:42:09` (UTC, its last occurrence), `15m` (15 minutes ago), or RFC 3339. Milliseconds since 1970.
fn moment(text: &str, now_ms: u64) -> Result<u64, Invalid> {
    if let Some(time) = time_of_day(text) {
        let today = now_ms - now_ms % DAY_MS + time;
        return Ok(if today > now_ms { today.saturating_sub(DAY_MS) } else { today });
    }
    if let Ok(ago) = parse_duration(text) {
        return Ok(now_ms.saturating_sub(u64::try_from(ago.as_millis()).unwrap_or(u64::MAX)));
    }
    let stamp = text.parse::<jiff::Timestamp>().ok().and_then(|stamp| u64::try_from(stamp.as_millisecond()).ok());
    stamp.ok_or_else(|| {
        Invalid("must be a time of day (`10:42`, UTC), a duration (`15m`, so long ago) or RFC 3339".to_owned())
    })
}

/// Milliseconds since midnight.
fn time_of_day(text: &str) -> Option<u64> {
    let mut parts = text.split(':');
    let mut part = |limit: u64| {
        let part = parts.next()?;
        let number: u64 = part.parse().ok().filter(|_| part.len() <= 2)?;
        (number < limit).then_some(number)
    };
    let (hours, minutes) = (part(24)?, part(60)?);
    let seconds = if text.matches(':').count() == 2 { part(60)? } else { 0 };
    parts.next().is_none().then_some(((hours * 60 + minutes) * 60 + seconds) * 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Uri;

    /// 2026-11-20T18:07:03.120Z.
    const NOW_MS: u64 = 1_795_198_023_120;

    #[test]
    fn moments_are_times_of_day_durations_or_stamps() {
        let stamp = |text: &str| moment(text, NOW_MS).map(crate::http::format::time);
        for (text, expected) in [
            ("10:42", "2026-11-20T10:42:00.000Z"),
            ("10:42:09", "2026-11-20T10:42:09.000Z"),
            ("18:07", "2026-11-20T18:07:00.000Z"),
            ("18:08", "2026-11-19T18:08:00.000Z"),
            ("15m", "2026-11-20T17:52:03.120Z"),
            ("2026-11-01T00:00:00Z", "2026-11-01T00:00:00.000Z"),
        ] {
            assert_eq!(stamp(text).expect("a time"), expected, "{text}");
        }
        for wrong in ["24:00", "1:60", "10:42:09:1", "yesterday", "10:4x", "-5m", "1:2:3:4"] {
            assert!(moment(wrong, NOW_MS).is_err(), "{wrong}");
        }
    }

    #[test]
    fn events_are_filtered_by_time_kind_and_name() {
        let read = |query: &str| {
            let mut fields =
                Fields::of_query(&format!("/events?{query}").parse::<Uri>().expect("a URI")).expect("read");
            let filter = EventFilter::read(&mut fields, NOW_MS);
            fields.finish(&EventFilter::FIELDS).map(|()| filter)
        };
        let event = |kind: &str, node: &str, ago_s: u64| Event {
            event: kind.into(),
            at_ms: NOW_MS - ago_s * 1_000,
            node: Some(node.into()),
            ..Event::default()
        };
        let matches = |query: &str, event: &Event| read(query).expect("valid").matches(event);
        let down = event("node_down", "n1", 600);
        for query in ["", "since=15m", "at=17:57", "at=17:54:10", "kind=node_down&prefix=n", "from=17:50&to=18:00"] {
            assert!(matches(query, &down), "{query}");
        }
        for query in ["since=5m", "at=17:53", "at=18:01", "kind=node_up", "prefix=n2", "from=17:58", "to=17:56"] {
            assert!(!matches(query, &down), "{query}");
        }
        for wrong in ["at=noon", "kind=extended", "kind=x", "form=1"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
