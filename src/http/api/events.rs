//! `GET /events`: the events of the cluster as server-sent events, without an end. A reader that is too slow
//! gets the number of missed events and is disconnected.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;

use super::event_filter::EventFilter;
use super::hold::NO_BUFFERING;
use super::request_fields::Fields;
use super::{lock_responses, request_headers, to_wire};
use crate::api::{Event, PastEvents};
use crate::auth::access_rule::Right;
use crate::auth::quota::StreamPermit;
use crate::http::access::Access;
use crate::http::format;
use crate::http::middleware::credentials;
use crate::http::negotiation::{self, ResponseFormat, StreamFormat};
use crate::http::problem::Problem;
use crate::http::problem_kind::ProblemKind;
use crate::http::request_context::RequestContext;
use crate::http::state::AppState;
use crate::manager::events::{EventHub, EventKind, EventSubscription, EventsMissed, LISTENERS_MAX, NumberedEvent};
use crate::metrics::requests::{InFlightGuard, RequestKind};
use crate::redlock::clock::{BootTime, Clock};

/// The number of past events in an answer: the default and the maximum.
const PAST_DEFAULT: usize = 1_000;
const PAST_MAX: usize = 20_000;
/// The number of past events that are examined before other requests are served.
const PAST_AT_A_TIME: usize = 512;
/// The interval of comments while nothing happens: proxies close a connection that is silent for a minute.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// The maximum age of the last check of a reader's credentials when an event is sent: a check compares all keys.
const RECHECK: Duration = Duration::from_secs(1);
/// The last text of a stream whose reader lost its access.
const ACCESS_ENDED: &str = ": your access has ended\n\n";
/// The id of the last event that a reconnecting reader has seen.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// The delay before a reader reconnects. Milliseconds, in the stream's own notation.
const RETRY: &str = "retry: 1000\n\n";
/// Sent first if events after the reader's last one are no longer buffered.
const GAP: &str = "event: gap\ndata: {\"detail\":\"events between your last one and these are not known here\"}\n\n";

/// `GET /events`. Cancel: the subscription ends.
///
/// Errors: `invalid`, `not-acceptable`, `quota-exceeded`.
pub(crate) async fn events(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let mut fields = Fields::of_query(request.uri())?;
    if request.uri().query().is_some_and(asks_for_the_past) {
        let (access, accepted) =
            (RequestContext::access(&request), request_headers::accepted(request.headers(), &[ResponseFormat::Json]));
        drop(request);
        return past(&state, access, accepted, fields).await;
    }
    let (prefix, renewals) = (fields.text("prefix").unwrap_or_default(), fields.flag("renewals"));
    fields.finish(&["prefix", "renewals"])?;
    if refuses_events(request.headers()) {
        let detail = "this answer is text/event-stream, and the Accept header excludes it";
        return Err(Problem::new(ProblemKind::NotAcceptable, detail));
    }
    let last = request.headers().get(LAST_EVENT_ID).map(|v| v.to_str().unwrap_or_default());
    let access = RequestContext::access(&request);
    let permit = access.reserve_stream()?;
    let hub = Arc::clone(state.manager.events());
    let subscription = hub.subscribe(last).ok_or_else(too_many_readers)?;
    let in_flight = state.metrics.watch_stream(RequestKind::Events);
    let (parts, phase, checked_at) = (request.into_parts().0, Phase::Start, state.clock.now());
    let request = Request::from_parts(parts, Body::empty());
    let counted = (in_flight, permit);
    let reader = EventReader {
        state,
        request,
        access,
        checked_at,
        hub,
        prefix,
        renewals,
        subscription,
        phase,
        _counted: counted,
    };
    let body = Body::from_stream(stream::unfold(reader, EventReader::step));
    let content_type = (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    Ok((StatusCode::OK, [content_type, NO_BUFFERING], body).into_response())
}

/// A time, a kind or a limit makes it a request for past events, which is answered at once.
fn asks_for_the_past(query: &str) -> bool {
    let names = query.split('&').filter_map(|pair| pair.split('=').next());
    names.into_iter().any(|name| ["since", "from", "to", "at", "kind", "limit"].contains(&name))
}

/// The past events that match, newest first, as far as this instance knows them. Cancel: nothing is left behind.
async fn past(
    state: &AppState,
    access: Access,
    format: Result<ResponseFormat, Problem>,
    mut fields: Fields,
) -> Result<Response, Problem> {
    let filter = EventFilter::read(&mut fields, state.manager.wall_ms());
    let limit = fields.number("limit").map_or(PAST_DEFAULT, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    if !(1..=PAST_MAX).contains(&limit) {
        fields.wrong("limit", format!("must be from 1 to {PAST_MAX}"));
    }
    fields.finish(&[&EventFilter::FIELDS[..], &["limit"]].concat())?;
    format?;
    let _permit = state.history_limit.take(access.principal()).await;
    let known = state.manager.events().past();
    let (mut events, mut has_more) = (Vec::new(), false);
    for part in known.chunks(PAST_AT_A_TIME) {
        let matching = part.iter().filter(|event| filter.matches(event)).filter_map(|event| access.visible(event));
        for event in matching {
            has_more = events.len() == limit;
            if has_more {
                break;
            }
            events.push(Event { at: Some(format::time(event.at_ms)), name: None, ..(*event).clone() });
        }
        if has_more {
            break;
        }
        tokio::task::yield_now().await;
    }
    let gaps = state.manager.events().gaps(state.manager.wall_ms());
    let gaps = gaps.iter().filter(|gap| filter.reaches(gap)).map(to_wire::event_gap).collect();
    Ok(lock_responses::past_events(&PastEvents { events, has_more, gaps }))
}

fn too_many_readers() -> Problem {
    let detail = format!("{LISTENERS_MAX} readers follow the events of this instance, the maximum");
    Problem::new(ProblemKind::QuotaExceeded, detail).retry_after(Duration::from_secs(30))
}

fn refuses_events(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ACCEPT) && negotiation::weight_of(headers, StreamFormat::Events) == 0
}

/// The state of a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing was sent.
    Start,
    /// The buffered events were sent.
    Live,
    /// The last text was sent.
    Ended,
}

struct EventReader {
    state: AppState,
    /// The request of this stream, for the credentials in it.
    request: Request,
    access: Access,
    checked_at: BootTime,
    hub: Arc<EventHub>,
    prefix: String,
    renewals: bool,
    subscription: EventSubscription,
    phase: Phase,
    _counted: (InFlightGuard, Option<StreamPermit>),
}

impl EventReader {
    async fn step(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        let text = match self.phase {
            Phase::Start => self.start(),
            Phase::Live => self.next().await,
            Phase::Ended => return None,
        };
        Some((Ok(text.into()), self))
    }

    fn start(&mut self) -> String {
        self.phase = Phase::Live;
        let mut text = String::from(RETRY);
        if self.subscription.has_gap {
            text.push_str(GAP);
        }
        for event in self.subscription.take_backlog() {
            text.push_str(&self.encode(&event).unwrap_or_default());
        }
        text
    }

    fn end(&mut self, text: impl Into<String>) -> String {
        self.phase = Phase::Ended;
        text.into()
    }

    /// The next event, a heartbeat, or the reason for the end.
    async fn next(&mut self) -> String {
        let draining = self.state.manager.draining();
        let clock = self.state.clock;
        let mut heartbeat = std::pin::pin!(clock.sleep(HEARTBEAT));
        loop {
            let received = tokio::select! {
                biased;
                () = draining.cancelled() => return self.end(": this instance is shutting down\n\n"),
                received = self.subscription.next() => received,
                () = &mut heartbeat => match self.is_still_allowed(Duration::ZERO) {
                    true => return ":\n\n".into(),
                    false => return self.end(ACCESS_ENDED),
                },
            };
            match received {
                Ok(event) => {
                    if !self.is_still_allowed(RECHECK) {
                        return self.end(ACCESS_ENDED);
                    }
                    if let Some(text) = self.encode(&event) {
                        return text;
                    }
                }
                Err(EventsMissed(missed)) => {
                    let data = format!("{{\"missed\":{missed},\"detail\":\"you read too slowly\"}}");
                    return self.end(format!("event: dropped\ndata: {data}\n\n"));
                }
            }
        }
    }

    /// Whether the reader has access by the current rules, and its credentials were accepted at most `age_max` ago.
    fn is_still_allowed(&mut self, age_max: Duration) -> bool {
        let (now, renewed) = (self.state.clock.now(), self.access.renewed());
        let is_due = now.since(self.checked_at) >= age_max;
        self.access = renewed.unwrap_or_else(Access::nothing);
        if is_due {
            self.checked_at = now;
        }
        self.access.may_somewhere(Right::Events)
            && (!is_due || credentials::is_still_identified(&self.access, &self.request))
    }

    /// `None` for an event that the reader did not ask for or may not see. Events of nodes match every prefix.
    fn encode(&self, numbered: &NumberedEvent) -> Option<String> {
        let event = self.access.visible(&numbered.event)?;
        let matches = event.resource.as_deref().is_none_or(|name| name.starts_with(&self.prefix));
        let is_hidden_renewal = !self.renewals && event.event == EventKind::Extended.as_str();
        if !matches || is_hidden_renewal {
            return None;
        }
        let shown = Event { at: Some(format::time(event.at_ms)), name: None, ..(*event).clone() };
        let json = serde_json::to_string(&shown).expect("events are plain data");
        Some(format!("id: {}\nevent: {}\ndata: {json}\n\n", self.hub.event_id(numbered), event.event))
    }
}
