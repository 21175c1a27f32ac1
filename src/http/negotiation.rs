//! Content negotiation (RFC 9110, 12.5.1), by one rule for answers, problems and streams.

use axum::http::{HeaderMap, header};

/// The format of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseFormat {
    /// `application/json`, problems as `application/problem+json`.
    Json,
    /// `text/plain`, for terminals and scripts.
    Text,
}

/// The format of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamFormat {
    /// `application/x-ndjson`: one JSON object per line.
    Lines,
    /// `text/event-stream`: server-sent events.
    Events,
    /// `text/plain`: a word and a value per line.
    Text,
}

/// The stream format that the client prefers, by default lines; `application/json` gets lines too. `None`: it accepts
/// none.
pub fn stream(headers: &HeaderMap) -> Option<StreamFormat> {
    preferred(&ranges(headers), &[StreamFormat::Lines, StreamFormat::Events, StreamFormat::Text], weigh_stream)
}

/// The client's weight for this format, in thousandths.
pub fn weight_of(headers: &HeaderMap, stream: StreamFormat) -> u16 {
    weigh_stream(&ranges(headers), stream).0
}

fn weigh_stream(ranges: &[(String, u16)], stream: StreamFormat) -> Weight {
    match stream {
        StreamFormat::Lines => weigh_type(ranges, &["application/x-ndjson", "application/json"], "application/*"),
        StreamFormat::Events => weigh_type(ranges, &["text/event-stream"], "text/*"),
        StreamFormat::Text => weigh_type(ranges, &["text/plain"], "text/*"),
    }
}

/// Weight in thousandths, then how specific the range is: a tie goes to the more specific one.
type Weight = (u16, u8);

/// The format in `offered` that the client prefers; of equally preferred ones, the first. `None`: it accepts none (406).
pub fn negotiate(headers: &HeaderMap, offered: &[ResponseFormat]) -> Option<ResponseFormat> {
    if !headers.contains_key(header::ACCEPT) {
        return offered.first().copied();
    }
    preferred(&ranges(headers), offered, weigh)
}

fn preferred<F: Copy>(ranges: &[(String, u16)], offered: &[F], weigh: fn(&[(String, u16)], F) -> Weight) -> Option<F> {
    let mut best: Option<(Weight, F)> = None;
    for format in offered {
        let weight = weigh(ranges, *format);
        if weight.0 > 0 && best.is_none_or(|(w, _)| weight > w) {
            best = Some((weight, *format));
        }
    }
    best.map(|(_, format)| format)
}

/// The format of a problem: text only if the client prefers it; never a 406.
pub fn for_problem(headers: &HeaderMap) -> ResponseFormat {
    negotiate(headers, &[ResponseFormat::Json, ResponseFormat::Text]).unwrap_or(ResponseFormat::Json)
}

/// The ranges of all Accept headers with their weights; malformed ones are skipped.
fn ranges(headers: &HeaderMap) -> Vec<(String, u16)> {
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|v| v.to_str().ok());
    let mut ranges = Vec::new();
    for item in values.flat_map(|v| v.split(',')) {
        let mut parts = item.split(';').map(str::trim);
        let range = parts.next().unwrap_or_default().to_ascii_lowercase();
        let q = parts.find_map(|p| p.strip_prefix("q=").or_else(|| p.strip_prefix("Q=")));
        let weight = q.map_or(Some(1_000), permille);
        if let (true, Some(weight)) = (range.contains('/'), weight) {
            ranges.push((range, weight));
        }
    }
    ranges
}

/// `0`, `1`, `0.5`, `1.000`: at most three decimals, at most 1.
fn permille(q: &str) -> Option<u16> {
    let (whole, decimals) = q.split_once('.').unwrap_or((q, ""));
    if !matches!(whole, "0" | "1") || decimals.len() > 3 || !decimals.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let fraction: u16 = format!("{decimals:0<3}").parse().ok()?;
    let weight = if whole == "1" { 1_000 + fraction } else { fraction };
    (weight <= 1_000).then_some(weight)
}

/// The most specific range decides. Without any range, everything is accepted.
fn weigh(ranges: &[(String, u16)], format: ResponseFormat) -> Weight {
    match format {
        ResponseFormat::Json => weigh_type(ranges, &["application/json", "application/problem+json"], "application/*"),
        ResponseFormat::Text => weigh_type(ranges, &["text/plain"], "text/*"),
    }
}

fn weigh_type(ranges: &[(String, u16)], names: &[&str], family: &str) -> Weight {
    if ranges.is_empty() {
        return (1_000, 0);
    }
    let specificity = |range: &str| match range {
        name if names.contains(&name) => 3,
        name if name == family => 2,
        "*/*" => 1,
        _ => 0,
    };
    let matching = ranges.iter().map(|(range, weight)| (specificity(range), *weight)).filter(|(close, _)| *close > 0);
    matching.max().map_or((0, 0), |(close, weight)| (weight, close))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ResponseFormat::{Json, Text};

    fn best(accept: &str) -> Option<ResponseFormat> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, accept.parse().expect("a header value"));
        negotiate(&headers, &[Json, Text])
    }

    #[test]
    fn the_default_is_json() {
        assert_eq!(negotiate(&HeaderMap::new(), &[Json, Text]), Some(Json));
        for accept in [
            "*/*",
            "application/*",
            "application/json",
            "text/plain, application/json",
            "",
            "garbage",
            "text/plain;q=x",
        ] {
            assert_eq!(best(accept), Some(Json), "{accept}");
        }
    }

    #[test]
    fn text_is_answered_if_preferred() {
        for accept in [
            "text/plain",
            "TEXT/Plain; charset=utf-8",
            "text/*",
            "text/plain, */*",
            "application/json;q=0.5, text/plain;q=0.6",
            "*/*, application/json;q=0",
        ] {
            assert_eq!(best(accept), Some(Text), "{accept}");
        }
    }

    #[test]
    fn streams_are_lines_unless_events_are_preferred() {
        let of = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().expect("a header value"));
            stream(&headers)
        };
        assert_eq!(stream(&HeaderMap::new()), Some(StreamFormat::Lines));
        for accept in ["*/*", "application/json", "application/x-ndjson", "text/event-stream;q=0.5, */*"] {
            assert_eq!(of(accept), Some(StreamFormat::Lines), "{accept}");
        }
        for accept in ["text/event-stream", "text/event-stream, */*;q=0.1"] {
            assert_eq!(of(accept), Some(StreamFormat::Events), "{accept}");
        }
        for accept in ["text/plain", "text/plain, text/*;q=0.5"] {
            assert_eq!(of(accept), Some(StreamFormat::Text), "C6: {accept}");
        }
        assert_eq!((of("text/*"), of("image/png")), (Some(StreamFormat::Events), None));
    }

    #[test]
    fn types_that_are_not_offered_are_not_acceptable() {
        for accept in ["image/png", "text/html", "application/json;q=0", "*/*;q=0", "text/plain;q=0.000"] {
            assert_eq!(best(accept), None, "{accept}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, "text/plain".parse().expect("a header value"));
        assert_eq!(negotiate(&headers, &[Json]), None);
        headers.insert(header::ACCEPT, "image/png".parse().expect("a header value"));
        assert_eq!(for_problem(&headers), Json);
    }
}
