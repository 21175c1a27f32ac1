//! The HTTP layer. From the bottom: `connection`, `state`, `problem`, `negotiation` and the other files of this folder;
//! `middleware`, which wraps every handler; `api` and `ui`, the handlers; `router` and `lock_routes`; `server`, which accepts connections.

pub(crate) mod access;
pub mod allowed_hosts;
pub mod api;
pub(crate) mod connection;
pub(crate) mod format;
pub(crate) mod history_limit;
pub(crate) mod lock_routes;
pub(crate) mod log_request;
pub mod middleware;
pub mod negotiation;
pub mod path;
pub(crate) mod problem;
pub(crate) mod problem_kind;
pub(crate) mod request_context;
pub mod request_head;
pub(crate) mod router;
pub mod routes;
pub(crate) mod server;
pub mod state;
pub(crate) mod ui;
mod webdav_methods;
