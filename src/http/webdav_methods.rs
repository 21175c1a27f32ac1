//! Routes with methods that the router does not know (`LOCK` and `UNLOCK` of WebDAV, which Terraform sends).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::extract::Request;
use axum::handler::Handler;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use axum::routing::MethodRouter;

use super::routes::Route;

/// The routes of a path with their handlers.
pub(super) type Methods<S> = Vec<(&'static Route, MethodRouter<S>)>;

/// Whether the router knows a method. The routes have no other method that it knows.
pub(super) fn is_own(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE")
}

/// The handlers of one path. Each answers any method with which it is called. Cheap to clone.
#[derive(Clone)]
pub(super) struct ByMethod<S>(Arc<Handlers<S>>);

struct Handlers<S> {
    by_method: Methods<S>,
    /// For all other methods.
    otherwise: MethodRouter<S>,
}

impl<S> ByMethod<S> {
    /// `otherwise`: for all other methods; its answer gets the header `Allow`.
    pub(super) fn new(by_method: Methods<S>, otherwise: MethodRouter<S>) -> Self {
        Self(Arc::new(Handlers { by_method, otherwise }))
    }

    /// The methods of the routes that fit a path best: some routes end in `/lock`.
    fn allow(&self, path: &str) -> HeaderValue {
        let tail = |route: &Route| route.path.rsplit('}').next().unwrap_or_default();
        let fitting = || self.0.by_method.iter().map(|(route, _)| *route).filter(|route| path.ends_with(tail(route)));
        let longest = fitting().map(|route| tail(route).len()).max();
        let names = fitting().filter(|route| Some(tail(route).len()) == longest).map(|route| route.method);
        let names = names.collect::<Vec<_>>().join(",");
        HeaderValue::from_str(&names).expect("methods of the table are ASCII")
    }
}

impl<S: Clone + Send + Sync + 'static> Handler<(), S> for ByMethod<S> {
    type Future = Pin<Box<dyn Future<Output = Response> + Send>>;

    fn call(self, request: Request, state: S) -> Self::Future {
        let Handlers { by_method, otherwise } = &*self.0;
        match by_method.iter().find(|(route, _)| route.method == request.method().as_str()) {
            Some((_, handler)) => Box::pin(handler.clone().call(request, state)),
            None => {
                let allow = self.allow(request.uri().path());
                let answer = otherwise.clone().call(request, state);
                Box::pin(async move {
                    let mut answer = answer.await;
                    answer.headers_mut().insert(header::ALLOW, allow);
                    answer
                })
            }
        }
    }
}
