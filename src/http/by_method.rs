//! A path with methods that are none of the router's own (`LOCK`, `UNLOCK` of WebDAV, which Terraform sends).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::extract::Request;
use axum::handler::Handler;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use axum::routing::MethodRouter;

/// Methods with their handlers.
pub(super) type Methods<S> = Vec<(&'static str, MethodRouter<S>)>;

/// Whether the router knows a method. The routes have no others of its own.
pub(super) fn is_own(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE")
}

/// The handlers of one path. Each answers whatever method it is called with. Cheap to clone.
#[derive(Clone)]
pub(super) struct ByMethod<S>(Arc<Handlers<S>>);

struct Handlers<S> {
    by_method: Methods<S>,
    /// For other methods.
    otherwise: MethodRouter<S>,
    /// The methods.
    allow: HeaderValue,
}

impl<S> ByMethod<S> {
    /// `otherwise`: for other methods; its answer gets the header `Allow`.
    pub(super) fn new(by_method: Methods<S>, otherwise: MethodRouter<S>) -> Self {
        let names = by_method.iter().map(|(method, _)| *method).collect::<Vec<_>>().join(",");
        let allow = HeaderValue::from_str(&names).expect("methods of the table are ASCII");
        Self(Arc::new(Handlers { by_method, otherwise, allow }))
    }
}

impl<S: Clone + Send + Sync + 'static> Handler<(), S> for ByMethod<S> {
    type Future = Pin<Box<dyn Future<Output = Response> + Send>>;

    fn call(self, request: Request, state: S) -> Self::Future {
        let Handlers { by_method, otherwise, allow } = &*self.0;
        match by_method.iter().find(|(method, _)| *method == request.method().as_str()) {
            Some((_, handler)) => Box::pin(handler.clone().call(request, state)),
            None => {
                let (answer, allow) = (otherwise.clone().call(request, state), allow.clone());
                Box::pin(async move {
                    let mut answer = answer.await;
                    answer.headers_mut().insert(header::ALLOW, allow);
                    answer
                })
            }
        }
    }
}
