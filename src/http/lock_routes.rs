//! The shortest way to the handlers of one lock, which serve most requests: without a search for the route and without the
//! copies and boxes of the router. The layers are those of the router, in the same order.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use tower::{Layer, Service, service_fn};

use super::api::locks;
use super::middleware::auth::AuthLayer;
use super::middleware::stack::{Answer, RequestLayer};
use super::path::LOCKS_PREFIX;
use super::router;
use super::routes::{Operation, ROUTES};
use super::state::AppState;

type Handler = Arc<dyn Fn(Request) -> Answer + Send + Sync>;

/// The router, and beside it the handlers of one lock. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Routes {
    pub(super) router: Router,
    /// `POST`, `PATCH` and `DELETE` of a lock.
    locks: Option<Arc<[(Method, Handler); 3]>>,
}

impl Routes {
    /// The handler of a request for one lock; `None`: the router has it.
    pub(super) fn direct<B>(&self, request: &axum::http::Request<B>) -> Option<&Handler> {
        let resource = request.uri().path().strip_prefix(LOCKS_PREFIX)?;
        let (_, handler) = self.locks.as_ref()?.iter().find(|(method, _)| method == request.method())?;
        (!resource.is_empty()).then_some(handler)
    }
}

/// All requests go to the router.
impl From<Router> for Routes {
    fn from(router: Router) -> Self {
        Self { router, locks: None }
    }
}

/// All routes of the service.
pub(crate) fn routes(state: AppState) -> Routes {
    let (acquire, extend, release) = (state.clone(), state.clone(), state.clone());
    let acquire = service_fn(move |request| locks::acquire(State(acquire.clone()), request).map(Ok));
    let answer = |answer: Result<Response, _>| Ok(answer.into_response());
    let extend = service_fn(move |request| locks::extend(State(extend.clone()), request).map(answer));
    let release = service_fn(move |request| locks::release(State(release.clone()), request).map(answer));
    let locks = [
        (Method::POST, layered(&state, Operation::Acquire, acquire)),
        (Method::PATCH, layered(&state, Operation::Extend, extend)),
        (Method::DELETE, layered(&state, Operation::Release, release)),
    ];
    Routes { router: router::router(state), locks: Some(Arc::new(locks)) }
}

/// A handler inside the layers of its route.
fn layered<S>(state: &AppState, operation: Operation, handler: S) -> Handler
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    let route = ROUTES.iter().find(|route| route.operation == operation).expect("every operation has a route");
    let auth = AuthLayer::new(Arc::clone(&state.authenticator), Arc::clone(&state.settings), route);
    let layer = RequestLayer::new(Arc::clone(&state.metrics), state.audit.clone(), Arc::clone(&state.settings));
    let service = layer.matched(route.into()).layer(auth.layer(handler));
    Arc::new(move |request| service.clone().call(request))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_a_lock_go_to_their_handlers_and_all_else_to_the_router() {
        let handler = || -> Handler { Arc::new(|_| Answer::new(None, Box::pin(std::future::pending()))) };
        let methods = [Method::POST, Method::PATCH, Method::DELETE];
        let locks = methods.clone().map(|method| (method, handler()));
        let routes = Routes { router: Router::new(), locks: Some(Arc::new(locks)) };
        let direct = |method: &Method, uri: &str| {
            let request = axum::http::Request::builder().method(method).uri(uri).body(()).expect("a request");
            let (found, locks) = (routes.direct(&request).cloned()?, routes.locks.clone()?);
            locks.iter().position(|(_, handler)| Arc::ptr_eq(handler, &found))
        };
        for (index, method) in methods.iter().enumerate() {
            for uri in ["/locks/a", "/locks/a/b?ttl=1", "/locks/a/", "/locks//", "http://x/locks/a", "/locks/%20"] {
                assert_eq!(direct(method, uri), Some(index), "{method} {uri}");
            }
            for uri in ["/locks", "/locks/", "/locks?x", "/", "/lock/a", "/ui/locks/a", "*"] {
                assert_eq!(direct(method, uri), None, "{method} {uri}");
            }
        }
        for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::PUT] {
            assert_eq!(direct(&method, "/locks/a"), None, "{method}");
        }
    }
}
