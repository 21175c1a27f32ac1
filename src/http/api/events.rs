//! `GET /events`: what happens in the cluster as server-sent events. Apart from the other handlers,
//! since its answer has no end. A reader that cannot keep up is told so and let go.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;

use super::convert;
use super::fields::Fields;
use super::negotiation::{self, StreamFormat};
use super::problem::Problem;
use super::problem_kind::ProblemKind;
use crate::api::Event;
use crate::auth::rule::Right;
use crate::http::middleware::auth::Access;
use crate::http::state::AppState;
use crate::manager::events::{EventHub, EventKind, EventSubscription, EventsMissed, LISTENERS_MAX, NumberedEvent};
use crate::metrics::requests::{InFlightGuard, RequestKind};
use crate::redlock::clock::Clock;

/// Between comments while nothing happens: proxies close what is silent for a minute.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Where a reader says what it has seen.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// How long a reader waits before it comes back. Milliseconds, in the stream's own notation.
const RETRY: &str = "retry: 1000\n\n";

/// Cancel: the reader's place is given up.
///
/// Errors: `invalid`, `not-acceptable`, `quota-exceeded`.
pub async fn events(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let mut fields = Fields::default();
    fields.add_query(request.uri().query().unwrap_or_default())?;
    let prefix = fields.text("prefix").unwrap_or_default();
    let renewals = fields.flag("renewals");
    fields.finish(&["prefix", "renewals"])?;
    if accepts_no_events(request.headers()) {
        let detail = "this answer is text/event-stream, and the Accept header excludes it";
        return Err(Problem::new(ProblemKind::NotAcceptable, detail));
    }
    let last = request.headers().get(LAST_EVENT_ID).map(|v| v.to_str().unwrap_or_default());
    let access = Access::of(&request);
    let hub = Arc::clone(state.manager.events());
    let listening = hub.subscribe(last).ok_or_else(|| {
        Problem::new(ProblemKind::QuotaExceeded, format!("{LISTENERS_MAX} listen to this instance already"))
            .retry_after(Duration::from_secs(30))
    })?;
    let _flight = state.metrics.watch_stream(RequestKind::Events);
    let reader = Reader { state, access, hub, prefix, renewals, listening, said: Said::Nothing, _flight };
    let body = Body::from_stream(stream::unfold(reader, Reader::step));
    let kind = (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    let unbuffered = (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok((StatusCode::OK, [kind, unbuffered], body).into_response())
}

fn accepts_no_events(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ACCEPT) && negotiation::weight_of(headers, StreamFormat::Events) == 0
}

/// How far a stream is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    Nothing,
    Backlog,
    End,
}

struct Reader {
    state: AppState,
    access: Access,
    hub: Arc<EventHub>,
    prefix: String,
    renewals: bool,
    listening: EventSubscription,
    said: Said,
    _flight: InFlightGuard,
}

type Step = Option<(Result<Bytes, Infallible>, Reader)>;

impl Reader {
    async fn step(mut self) -> Step {
        match self.said {
            Said::Nothing => {
                self.said = Said::Backlog;
                let mut text = String::from(RETRY);
                if self.listening.has_gap {
                    text.push_str("event: gap\ndata: {\"detail\":\"events between your last one and these are not known here\"}\n\n");
                }
                for told in self.listening.take_backlog() {
                    text.push_str(&self.show(&told).unwrap_or_default());
                }
                Some((Ok(text.into()), self))
            }
            Said::Backlog => {
                let text = self.next().await;
                Some((Ok(text.into()), self))
            }
            Said::End => None,
        }
    }

    /// What is to be said next: an event, a heartbeat, or why it ends.
    async fn next(&mut self) -> String {
        let draining = self.state.manager.draining();
        let clock = self.state.clock;
        let mut silence = std::pin::pin!(clock.sleep(HEARTBEAT));
        loop {
            let told = tokio::select! {
                biased;
                () = draining.cancelled() => {
                    self.said = Said::End;
                    return ": this instance is shutting down\n\n".into();
                }
                told = self.listening.next() => told,
                () = &mut silence => return ":\n\n".into(),
            };
            match told {
                Ok(told) => {
                    // The rules may have changed since the stream began.
                    let Some(access) = self.access.renewed() else {
                        self.said = Said::End;
                        return ": your access has ended\n\n".into();
                    };
                    self.access = access;
                    if let Some(text) = self.show(&told) {
                        return text;
                    }
                }
                Err(EventsMissed(missed)) => {
                    self.said = Said::End;
                    return format!(
                        "event: dropped\ndata: {{\"missed\":{missed},\"detail\":\"you read too slowly\"}}\n\n"
                    );
                }
            }
        }
    }

    /// `None` for what this reader did not ask for or may not hear. Events of nodes pass every prefix.
    fn show(&self, told: &NumberedEvent) -> Option<String> {
        let event = told.event.as_ref();
        let may_hear = match event.resource.as_deref() {
            Some(name) => self.access.may_text(Right::Events, name),
            None => self.access.may_somewhere(Right::Metrics),
        };
        let is_asked = event.resource.as_deref().is_none_or(|name| name.starts_with(&self.prefix));
        if !may_hear || !is_asked || (!self.renewals && event.event == EventKind::Extended.as_str()) {
            return None;
        }
        let shown = Event { at: Some(convert::time(event.at_ms)), name: None, ..event.clone() };
        let json = serde_json::to_string(&shown).expect("events are plain data");
        Some(format!("id: {}\nevent: {}\ndata: {json}\n\n", self.hub.event_id(told), event.event))
    }
}
