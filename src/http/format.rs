//! Units and text as answers write them: rounded milliseconds and seconds, timestamps, `key=value` lines.

use std::time::Duration;

use jiff::fmt::temporal::DateTimePrinter;

use crate::types::is_hidden;

/// With milliseconds.
const TIMES: DateTimePrinter = DateTimePrinter::new().precision(Some(3));

/// What the printer reserves, as a year may have seven characters and a second nine decimals.
const TIME_BYTES: usize = 33;

/// Whole milliseconds, rounded down: an answer never promises more time than is left.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whole milliseconds, rounded up.
pub(crate) fn ms_up(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Whole seconds, rounded up.
pub(crate) fn seconds_up(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}

/// RFC 3339 in UTC with milliseconds; empty for a time beyond the calendar.
/// Units: milliseconds since 1970.
pub(crate) fn time(wall_ms: u64) -> String {
    let (ms, mut text) = (i64::try_from(wall_ms).unwrap_or(i64::MAX), String::with_capacity(TIME_BYTES));
    let time = jiff::Timestamp::from_millisecond(ms);
    time.and_then(|time| TIMES.print_timestamp(&time, &mut text)).map(|()| text).unwrap_or_default()
}

/// Text on one line: backslashes, control characters, and characters that are invisible or change the direction of text
/// are escaped, so that a label can neither forge a second line nor look like another one.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => line.push_str("\\\\"),
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            '\t' => line.push_str("\\t"),
            c if is_hidden(c) => line.extend(c.escape_unicode()),
            c => line.push(c),
        }
    }
    line
}

/// One line with tabs between the cells; [`one_line`] escapes the cells.
pub(crate) fn tabs(cells: &[&str]) -> String {
    cells.iter().map(|cell| one_line(cell)).collect::<Vec<_>>().join("\t") + "\n"
}

/// `key=value` lines; [`one_line`] escapes the values.
pub(crate) fn lines<'a>(pairs: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let mut text = String::new();
    for (key, value) in pairs {
        text.push_str(key);
        text.push('=');
        text.push_str(&one_line(&value));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_utc_with_milliseconds() {
        assert_eq!(time(1_795_198_023_120), "2026-11-20T18:07:03.120Z");
        assert_eq!(time(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(time(u64::MAX), "");
    }

    #[test]
    fn remaining_time_rounds_down_and_retry_times_round_up() {
        assert_eq!(ms(Duration::from_micros(1_999)), 1);
        assert_eq!(ms_up(Duration::from_micros(1_001)), 2);
        assert_eq!(seconds_up(Duration::from_millis(1)), 1);
        assert_eq!(seconds_up(Duration::from_secs(2)), 2);
        assert_eq!(
            (ms(Duration::MAX), ms_up(Duration::MAX), seconds_up(Duration::MAX)),
            (u64::MAX, u64::MAX, u64::MAX)
        );
    }

    #[test]
    fn l7_characters_that_turn_the_direction_of_text_are_escaped() {
        assert_eq!(one_line("ann\u{202e}nimda\u{2066}\u{200f}"), r"ann\u{202e}nimda\u{2066}\u{200f}");
        assert_eq!(one_line("Grüße, 世界, שלום"), "Grüße, 世界, שלום");
    }

    proptest! {
        #[test]
        fn a_value_stays_on_one_line(value: String) {
            let text = lines([("owner", value)]);
            prop_assert_eq!(text.lines().count(), 1);
            prop_assert!(text.ends_with('\n'));
            prop_assert_eq!(text.chars().filter(|c| is_hidden(*c)).count(), 1);
        }
    }
}
