//! Formats times, numbers and untrusted texts for pages. `static/live.js` uses the same notation.

use std::fmt::Write as _;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::types::is_hidden;

/// The characters of a query's value that are percent-encoded.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// A duration in at most two units, rounded down: `450 ms`, `28 s`, `4 m 12 s`, `3 h 05 m`, `2 d 3 h`.
pub(crate) fn time(period: Duration) -> String {
    let (s, ms) = (period.as_secs(), period.as_millis());
    match s {
        0 if ms > 0 => format!("{ms} ms"),
        0..60 => format!("{s} s"),
        60..3_600 => format!("{} m {:02} s", s / 60, s % 60),
        3_600..86_400 => format!("{} h {:02} m", s / 3_600, s % 3_600 / 60),
        _ => format!("{} d {} h", s / 86_400, s % 86_400 / 3_600),
    }
}

/// As [`time()`], in whole seconds, for counters that the script continues: `0 s` below one second.
pub(crate) fn clock(period: Duration) -> String {
    time(Duration::from_secs(period.as_secs()))
}

/// Whole milliseconds, for the script.
pub(crate) fn ms(period: Duration) -> u64 {
    u64::try_from(period.as_millis()).unwrap_or(u64::MAX)
}

/// A latency with at most three digits: `850 µs`, `1.25 ms`, `48 ms`, `1.2 s`.
pub(crate) fn latency(took: Duration) -> String {
    let us = took.as_micros();
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..10_000 => format!("{}.{:02} ms", us / 1_000, us % 1_000 / 10),
        10_000..1_000_000 => format!("{} ms", us / 1_000),
        _ => format!("{}.{} s", us / 1_000_000, us % 1_000_000 / 100_000),
    }
}

/// An unsigned integer or a reference to one, since templates pass either.
pub(crate) trait IntoCount {
    /// The number as `u64`.
    fn into_count(self) -> u64;
}

macro_rules! into_count {
    ($($type:ty),+) => { $(
        impl IntoCount for $type {
            fn into_count(self) -> u64 {
                u64::try_from(self).unwrap_or(u64::MAX)
            }
        }
        impl IntoCount for &$type {
            fn into_count(self) -> u64 {
                IntoCount::into_count(*self)
            }
        }
    )+ };
}

into_count!(u8, u32, u64, usize);

/// A number with a thin space between thousands.
pub(crate) fn number(n: impl IntoCount) -> String {
    let digits = n.into_count().to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3 * 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// RFC 3339 in UTC with milliseconds, for `datetime`; empty if out of range.
/// Units: milliseconds since 1970.
pub(crate) fn stamp(wall_ms: u64) -> String {
    let ms = i64::try_from(wall_ms).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(ms).map(|t| format!("{t:.3}")).unwrap_or_default()
}

/// `18:07:03`, in UTC. Units: milliseconds since 1970.
pub(crate) fn time_of_day(wall_ms: u64) -> String {
    stamp(wall_ms).get(11..19).unwrap_or("-").to_owned()
}

/// The time as shown: `2026-11-20 18:07:03 UTC`, or `-` if it is not known.
pub(crate) fn moment(wall_ms: u64) -> String {
    match stamp(wall_ms).split_once('.') {
        Some((text, _)) if wall_ms > 0 => format!("{} UTC", text.replace('T', " ")),
        _ => "-".to_owned(),
    }
}

/// Time between two readings of wall clocks; zero if the clocks disagree about the order.
pub(crate) fn since(now_ms: u64, then_ms: u64) -> Duration {
    Duration::from_millis(now_ms.saturating_sub(then_ms))
}

/// An untrusted text with invisible characters replaced by escapes. The template escapes HTML.
pub(crate) fn visible(text: &str) -> String {
    if !text.chars().any(is_hidden) {
        return text.to_owned();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_hidden(c) {
            let _ = write!(shown, "\\u{{{:x}}}", u32::from(c));
        } else {
            shown.push(c);
        }
    }
    shown
}

/// The pieces of a message's sentence; each says whether it is code, which stands between backticks.
pub(crate) fn pieces(text: &str) -> Vec<(bool, &str)> {
    let whole = text.matches('`').count().is_multiple_of(2);
    let pieces = text.split(if whole { '`' } else { '\0' }).enumerate();
    pieces.map(|(i, piece)| (i % 2 == 1, piece)).filter(|(_, piece)| !piece.is_empty()).collect()
}

/// Percent-encodes the value of a query.
pub(crate) fn query(value: &str) -> String {
    utf8_percent_encode(value, QUERY).to_string()
}

/// `1 waiter`, `3 waiters`.
pub(crate) fn count(n: impl IntoCount, one: &str, many: &str) -> String {
    let n = n.into_count();
    if n == 1 { format!("1 {one}") } else { format!("{} {many}", number(n)) }
}

/// Whether a label is a complete web address, which a page may link.
pub(crate) fn is_web_address(text: &str) -> bool {
    let parsed: Result<axum::http::Uri, _> = text.parse();
    parsed.is_ok_and(|uri| uri.authority().is_some() && matches!(uri.scheme_str(), Some("http" | "https")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_at_most_two_units() {
        for (ms, text) in [
            (0, "0 s"),
            (450, "450 ms"),
            (28_999, "28 s"),
            (252_000, "4 m 12 s"),
            (11_100_000, "3 h 05 m"),
            (183_600_000, "2 d 3 h"),
        ] {
            assert_eq!(time(Duration::from_millis(ms)), text);
        }
        assert_eq!(clock(Duration::from_millis(450)), "0 s");
        assert!(time(Duration::MAX).ends_with(" h"));
    }

    #[test]
    fn latencies_and_numbers_are_short() {
        for (us, text) in [(850, "850 µs"), (1_254, "1.25 ms"), (48_700, "48 ms"), (1_260_000, "1.2 s")] {
            assert_eq!(latency(Duration::from_micros(us)), text);
        }
        assert_eq!(number(1_234_567_u64), "1\u{202f}234\u{202f}567");
        assert_eq!((number(999_usize), number(0_u8)), ("999".to_owned(), "0".to_owned()));
        assert_eq!((count(1_u8, "lock", "locks"), count(2_u8, "lock", "locks")), ("1 lock".into(), "2 locks".into()));
    }

    #[test]
    fn times_are_in_utc() {
        assert_eq!(moment(1_795_198_023_120), "2026-11-20 18:07:03 UTC");
        assert_eq!(stamp(1_795_198_023_120), "2026-11-20T18:07:03.120Z");
        assert_eq!((moment(0), stamp(u64::MAX)), ("-".to_owned(), String::new()));
        assert_eq!((time_of_day(1_795_198_023_120), time_of_day(u64::MAX)), ("18:07:03".to_owned(), "-".to_owned()));
        assert_eq!(since(5, 7), Duration::ZERO);
    }

    #[test]
    fn invisible_characters_are_escaped() {
        assert_eq!(visible("a\u{202e}b\0\n\u{200b}"), "a\\u{202e}b\\u{0}\\u{a}\\u{200b}");
        assert_eq!(visible("Grüße, 世界 <b>"), "Grüße, 世界 <b>");
    }

    #[test]
    fn what_stands_between_backticks_is_code() {
        assert_eq!(pieces("run `redlockd init` once"), [(false, "run "), (true, "redlockd init"), (false, " once")]);
        assert_eq!(pieces("an odd ` stays"), [(false, "an odd ` stays")]);
        assert_eq!(pieces("`x`"), [(true, "x")]);
    }

    #[test]
    fn values_of_queries_are_percent_encoded() {
        assert_eq!(query("a/b c&d=\"é"), "a/b%20c%26d%3D%22%C3%A9");
    }

    #[test]
    fn only_web_addresses_are_links() {
        for good in ["https://ci.example/job/7?x=1", "http://ci.example"] {
            assert!(is_web_address(good), "{good}");
        }
        for other in
            ["", "ci.example/job", "javascript:alert(1)", "https://", "https://a b", "data:text/html,x", "//x/y"]
        {
            assert!(!is_web_address(other), "{other}");
        }
    }
}
