//! The text form of durations: `500ms`, `30s`, `5m`, `1h`. The configuration, the HTTP API and the command line all use it.

use std::time::Duration;

use crate::types::Invalid;

/// The units, each with its milliseconds.
const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];
/// The maximum number of characters of a refused value in a message.
const SHOWN_MAX_CHARS: usize = 32;

/// Reads a whole number followed by `ms`, `s`, `m` or `h`.
///
/// Errors: [`Invalid`] for anything else, in one sentence that is safe to show to a client: no unit (with the hint
/// `did you mean "30s"?`), another unit, a fraction, a sign, blanks, or more milliseconds than 64 bits can hold.
pub fn parse_duration(raw: &str) -> Result<Duration, Invalid> {
    let digits_end = raw.find(|c: char| !c.is_ascii_digit()).unwrap_or(raw.len());
    let (digits, unit) = raw.split_at(digits_end);
    if digits.is_empty() {
        return Err(refused(raw, "is not a duration such as \"30s\": a whole number and one of ms, s, m, h"));
    }
    if unit.is_empty() {
        return Err(refused(raw, &format!("has no unit: did you mean \"{}s\"?", shown(digits))));
    }
    let Some((_, unit_ms)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(refused(raw, "is not a duration such as \"30s\": a whole number and one of ms, s, m, h"));
    };
    let ms = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(*unit_ms));
    ms.map(Duration::from_millis).ok_or_else(|| refused(raw, "is too long a duration"))
}

/// The shortest text that [`parse_duration`] parses as `duration`, which is rounded down to whole milliseconds.
pub fn format_duration(duration: Duration) -> String {
    let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let (name, unit_ms) = UNITS
        .iter()
        .rev()
        .find(|(_, unit_ms)| ms > 0 && ms.is_multiple_of(*unit_ms))
        .map_or(("s", 1_000), |&(name, unit_ms)| (name, unit_ms));
    format!("{}{name}", ms / unit_ms)
}

fn refused(raw: &str, why: &str) -> Invalid {
    Invalid(format!("\"{}\" {why}", shown(raw)))
}

/// The value as quoted in a message: short, and on one line.
fn shown(raw: &str) -> String {
    let mut text: String = raw.chars().take(SHOWN_MAX_CHARS).flat_map(char::escape_debug).collect();
    if raw.chars().nth(SHOWN_MAX_CHARS).is_some() {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reason(raw: &str) -> String {
        parse_duration(raw).expect_err(raw).0
    }

    #[test]
    fn the_four_units_are_parsed() {
        for (raw, ms) in
            [("500ms", 500), ("30s", 30_000), ("5m", 300_000), ("1h", 3_600_000), ("0s", 0), ("007s", 7_000)]
        {
            assert_eq!(parse_duration(raw), Ok(Duration::from_millis(ms)), "{raw}");
        }
    }

    #[test]
    fn a_number_without_a_unit_gets_a_hint() {
        assert_eq!(reason("30"), "\"30\" has no unit: did you mean \"30s\"?");
    }

    #[test]
    fn everything_else_is_refused() {
        for raw in [
            "", "s", "ms", "1.5s", "-1s", "+1s", " 1s", "1s ", "1 s", "1d", "1S", "1sec", "1µs", "1m30s", "٣s", "0x1s",
            "1e3s",
        ] {
            assert!(reason(raw).contains("is not a duration such as \"30s\""), "{raw}: {}", reason(raw));
        }
    }

    #[test]
    fn overflow_is_refused_and_the_largest_value_is_accepted() {
        assert_eq!(parse_duration("18446744073709551615ms"), Ok(Duration::from_millis(u64::MAX)));
        for raw in ["18446744073709551616ms", "18446744073709551615s", "5124095576031h"] {
            assert!(reason(raw).contains("too long"), "{raw}");
        }
    }

    #[test]
    fn messages_are_short_and_on_one_line() {
        let text = reason(&format!("1\n\u{1b}[31m{}", "x".repeat(10_000)));
        assert!(text.len() < 300 && !text.contains(['\n', '\u{1b}']), "{text}");
    }

    #[test]
    fn the_text_form_is_the_shortest() {
        for (ms, text) in
            [(0, "0s"), (1, "1ms"), (1_500, "1500ms"), (30_000, "30s"), (300_000, "5m"), (5_400_000, "90m")]
        {
            assert_eq!(format_duration(Duration::from_millis(ms)), text);
        }
    }

    proptest! {
        #[test]
        fn formatted_durations_are_parsed_back(ms: u64) {
            let duration = Duration::from_millis(ms);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn parsing_is_exact_or_refused(n: u64, unit in 0..UNITS.len()) {
            let (name, unit_ms) = UNITS[unit];
            let exact = u128::from(n) * u128::from(unit_ms);
            let read = parse_duration(&format!("{n}{name}")).ok().map(|d| d.as_millis());
            prop_assert_eq!(read, u64::try_from(exact).is_ok().then_some(exact));
        }

        #[test]
        fn no_input_panics_and_only_digits_with_a_unit_are_accepted(raw in "\\PC*|[0-9]{0,25}[mshd]{0,3}") {
            if parse_duration(&raw).is_ok() {
                let number = raw.trim_end_matches(['m', 's', 'h']);
                prop_assert!(number.bytes().all(|b| b.is_ascii_digit()) && !number.is_empty());
            }
        }
    }
}
