//! The route table. The router, the layers and the metric labels are built from it, and a test compares it with
//! `openapi.yaml` both ways.

use crate::metrics::RouteLabels;

/// The operation of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Acquire,
    /// Extend or edit a lease.
    Extend,
    /// Release a lease, or end another client's lease.
    Release,
    /// Acquire several locks, all or none.
    AcquireSet,
    /// Extend several leases.
    ExtendSet,
    /// Release several leases.
    ReleaseSet,
    Inspect,
    CheckFence,
    ShowTicket,
    /// Change the end of a ticket's lease.
    KeepTicket,
    EndTicket,
    /// Acquire a lock for Terraform.
    TerraformLock,
    /// Release a lock of Terraform.
    TerraformUnlock,
    List,
    Nodes,
    /// Change the set of nodes.
    ChangeNode,
    /// Change guard, lock delay or fence TTL.
    ChangeTerms,
    Events,
    /// Show targets and hooks.
    Hooks,
    /// Send a test to a target or a hook.
    TestHook,
    /// Send messages of a hook again.
    ReplayHook,
    /// Liveness: the process answers.
    Live,
    /// Readiness: locks can be granted.
    Ready,
    /// The Prometheus endpoint.
    Metrics,
    OpenApi,
    /// The description of a kind of problem.
    ProblemPage,
    /// Redirects to the dashboard.
    Root,
    /// A page of the dashboard.
    Ui(UiRoute),
}

/// A page, form or file of the dashboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UiRoute {
    /// `/ui`: redirects to `/ui/`.
    Home,
    /// The list of locks.
    Locks,
    Lock,
    /// The confirmation page of a revocation.
    AskRevoke,
    /// Revokes the lease.
    Revoke,
    /// The confirmation page of a forced release.
    AskRelease,
    /// Releases the lock at once.
    Release,
    /// The form that takes a lock for a time.
    AskTake,
    /// Takes a lock for a time.
    Take,
    /// Releases a lock that the same principal has taken on a page.
    GiveBack,
    Waiters,
    Owners,
    /// The holders of each name over time.
    Timeline,
    Nodes,
    /// Latency of rounds.
    Latency,
    Events,
    /// Targets and hooks.
    Hooks,
    /// Sends a test to a target or a hook.
    TestHook,
    /// Sends messages of a hook again.
    ReplayHook,
    /// The actions for each alert.
    Runbooks,
    Login,
    /// Starts a session.
    LogIn,
    /// Ends the session.
    LogOut,
    /// The event stream for the script of the pages, which has a session and no key.
    Stream,
    /// Style, script or icon.
    Asset,
}

/// One method of one path.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    /// In upper case. `GET` routes answer `HEAD` as well; `HEAD` is listed where the contract mentions it.
    pub method: &'static str,
    /// As in `openapi.yaml`; the metric label.
    pub path: &'static str,
    /// The path in axum's notation.
    pub pattern: &'static str,
    pub operation: Operation,
    /// The status codes, besides those of every path (405, 500).
    pub codes: &'static [u16],
}

/// The data of a route for the layers around its handler. Each layer gets it when the router is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatchedRoute {
    /// As in `openapi.yaml`.
    pub path: &'static str,
    /// `None`: the path exists, the method does not (405).
    pub operation: Option<Operation>,
}

impl From<&Route> for MatchedRoute {
    fn from(route: &Route) -> Self {
        Self { path: route.path, operation: Some(route.operation) }
    }
}

const fn route(
    method: &'static str,
    path: &'static str,
    pattern: &'static str,
    operation: Operation,
    codes: &'static [u16],
) -> Route {
    Route { method, path, pattern, operation, codes }
}

const LOCKS: &str = "/locks";
const LOCK: &str = "/locks/{resource}";
const LOCK_PATTERN: &str = "/locks/{*resource}";
const FENCE: &str = "/fences/{resource}";
const FENCE_PATTERN: &str = "/fences/{*resource}";
const TICKET: &str = "/tickets/{ticket}";
const TICKET_PATTERN: &str = "/tickets/{*ticket}";
const TERRAFORM: &str = "/terraform/{resource}";
const TERRAFORM_LOCK: &str = "/terraform/{resource}/lock";
const TERRAFORM_PATTERN: &str = "/terraform/{*resource}";
const PROBLEM: &str = "/problems/{slug}";
const UI_LOCK: &str = "/ui/locks/{resource}";
const UI_LOCK_PATTERN: &str = "/ui/locks/{*resource}";
const UI_REVOKE: &str = "/ui/revoke/{resource}";
const UI_REVOKE_PATTERN: &str = "/ui/revoke/{*resource}";
const UI_RELEASE: &str = "/ui/release/{resource}";
const UI_RELEASE_PATTERN: &str = "/ui/release/{*resource}";
const UI_TAKE: &str = "/ui/take/{resource}";
const UI_TAKE_PATTERN: &str = "/ui/take/{*resource}";
const UI_GIVE_BACK: &str = "/ui/give-back/{resource}";
const UI_GIVE_BACK_PATTERN: &str = "/ui/give-back/{*resource}";
const UI_ASSET: &str = "/ui/static/{file}";

const ACQUIRE_CODES: &[u16] = &[200, 201, 202, 400, 401, 403, 406, 409, 410, 413, 415, 421, 423, 429, 503];
const EXTEND_CODES: &[u16] = &[200, 400, 401, 403, 406, 409, 410, 412, 413, 415, 421, 429, 503];
const RELEASE_CODES: &[u16] = &[202, 204, 400, 401, 403, 404, 409, 410, 412, 413, 415, 421, 429, 503];
const SET_CODES: &[u16] = &[200, 400, 401, 403, 406, 409, 410, 413, 415, 421, 429, 503];
const SET_RELEASE_CODES: &[u16] = &[200, 400, 401, 403, 409, 410, 413, 415, 421, 429, 503];
const INSPECT_CODES: &[u16] = &[200, 304, 400, 401, 403, 404, 406, 421, 429, 503];
const TICKET_CODES: &[u16] = &[200, 400, 401, 404, 406, 421, 429, 503];
const KEEP_TICKET_CODES: &[u16] = &[200, 400, 401, 403, 404, 406, 409, 410, 413, 415, 421, 429, 503];
const END_TICKET_CODES: &[u16] = &[204, 400, 401, 403, 404, 410, 421, 429, 503];
const FENCE_CODES: &[u16] = &[200, 400, 401, 403, 406, 410, 412, 421, 429, 503];
const TERRAFORM_LOCK_CODES: &[u16] = &[200, 400, 401, 403, 410, 413, 415, 421, 423, 429, 503];
const TERRAFORM_UNLOCK_CODES: &[u16] = &[200, 400, 401, 403, 409, 410, 413, 415, 421, 429, 503];
const NODE_CODES: &[u16] = &[200, 400, 401, 403, 404, 406, 413, 415, 421, 429, 503];
const TERMS_CODES: &[u16] = &[200, 400, 401, 403, 406, 413, 415, 421, 429, 503];
const HOOK_CODES: &[u16] = &[200, 400, 401, 403, 404, 406, 413, 415, 421, 429];
const HOOK_FORM_CODES: &[u16] = &[303, 400, 401, 403, 404, 413, 415, 421, 429];
const READ_CODES: &[u16] = &[200, 400, 401, 403, 406, 421, 429];

const PAGE_CODES: &[u16] = &[200, 400, 401, 403, 421, 429];
const LOCK_PAGE_CODES: &[u16] = &[200, 400, 401, 403, 421, 429, 503];
const FORM_CODES: &[u16] = &[303, 400, 401, 403, 404, 412, 413, 415, 421, 429, 503];

const TAKE_CODES: &[u16] = &[303, 400, 401, 403, 413, 415, 421, 423, 429, 503];
const GIVE_BACK_CODES: &[u16] = &[303, 400, 401, 403, 409, 410, 413, 415, 421, 429, 503];

const LOGIN_CODES: &[u16] = &[303, 400, 403, 413, 415, 421];
const STREAM_CODES: &[u16] = &[200, 400, 401, 403, 406, 421, 429];

const fn page(path: &'static str, route: UiRoute) -> Route {
    Route { method: "GET", path, pattern: path, operation: Operation::Ui(route), codes: PAGE_CODES }
}

/// Every route of the API and the pages.
pub const ROUTES: [Route; 55] = [
    route("POST", LOCK, LOCK_PATTERN, Operation::Acquire, ACQUIRE_CODES),
    route("PATCH", LOCK, LOCK_PATTERN, Operation::Extend, EXTEND_CODES),
    route("DELETE", LOCK, LOCK_PATTERN, Operation::Release, RELEASE_CODES),
    route("GET", LOCK, LOCK_PATTERN, Operation::Inspect, INSPECT_CODES),
    route("HEAD", LOCK, LOCK_PATTERN, Operation::Inspect, INSPECT_CODES),
    route("GET", FENCE, FENCE_PATTERN, Operation::CheckFence, FENCE_CODES),
    route("GET", TICKET, TICKET_PATTERN, Operation::ShowTicket, TICKET_CODES),
    route("PATCH", TICKET, TICKET_PATTERN, Operation::KeepTicket, KEEP_TICKET_CODES),
    route("DELETE", TICKET, TICKET_PATTERN, Operation::EndTicket, END_TICKET_CODES),
    route("POST", LOCKS, LOCKS, Operation::AcquireSet, ACQUIRE_CODES),
    route("PATCH", LOCKS, LOCKS, Operation::ExtendSet, SET_CODES),
    route("DELETE", LOCKS, LOCKS, Operation::ReleaseSet, SET_RELEASE_CODES),
    route("GET", LOCKS, LOCKS, Operation::List, READ_CODES),
    route("LOCK", TERRAFORM, TERRAFORM_PATTERN, Operation::TerraformLock, TERRAFORM_LOCK_CODES),
    route("UNLOCK", TERRAFORM, TERRAFORM_PATTERN, Operation::TerraformUnlock, TERRAFORM_UNLOCK_CODES),
    route("POST", TERRAFORM_LOCK, TERRAFORM_PATTERN, Operation::TerraformLock, TERRAFORM_LOCK_CODES),
    route("DELETE", TERRAFORM_LOCK, TERRAFORM_PATTERN, Operation::TerraformUnlock, TERRAFORM_UNLOCK_CODES),
    route("GET", "/nodes", "/nodes", Operation::Nodes, READ_CODES),
    route("POST", "/nodes", "/nodes", Operation::ChangeTerms, TERMS_CODES),
    route("POST", "/nodes/{node}", "/nodes/{*node}", Operation::ChangeNode, NODE_CODES),
    route("GET", "/events", "/events", Operation::Events, &[200, 400, 401, 403, 406, 421, 429]),
    route("GET", "/hooks", "/hooks", Operation::Hooks, READ_CODES),
    route("POST", "/hooks/{name}/test", "/hooks/{name}/test", Operation::TestHook, HOOK_CODES),
    route("POST", "/hooks/{name}/replay", "/hooks/{name}/replay", Operation::ReplayHook, HOOK_CODES),
    route("GET", "/health/live", "/health/live", Operation::Live, &[200]),
    route("GET", "/health/ready", "/health/ready", Operation::Ready, &[200, 400, 503]),
    route("GET", "/metrics", "/metrics", Operation::Metrics, &[200, 401, 403, 421, 429]),
    route("GET", "/openapi.yaml", "/openapi.yaml", Operation::OpenApi, &[200]),
    route("GET", PROBLEM, PROBLEM, Operation::ProblemPage, &[200, 404]),
    route("GET", "/", "/", Operation::Root, &[307]),
    route("GET", "/ui", "/ui", Operation::Ui(UiRoute::Home), &[307, 401, 403, 421]),
    page("/ui/", UiRoute::Locks),
    route("GET", UI_LOCK, UI_LOCK_PATTERN, Operation::Ui(UiRoute::Lock), LOCK_PAGE_CODES),
    route("GET", UI_REVOKE, UI_REVOKE_PATTERN, Operation::Ui(UiRoute::AskRevoke), LOCK_PAGE_CODES),
    route("POST", UI_REVOKE, UI_REVOKE_PATTERN, Operation::Ui(UiRoute::Revoke), FORM_CODES),
    route("GET", UI_RELEASE, UI_RELEASE_PATTERN, Operation::Ui(UiRoute::AskRelease), LOCK_PAGE_CODES),
    route("POST", UI_RELEASE, UI_RELEASE_PATTERN, Operation::Ui(UiRoute::Release), FORM_CODES),
    route("GET", UI_TAKE, UI_TAKE_PATTERN, Operation::Ui(UiRoute::AskTake), PAGE_CODES),
    route("POST", UI_TAKE, UI_TAKE_PATTERN, Operation::Ui(UiRoute::Take), TAKE_CODES),
    route("POST", UI_GIVE_BACK, UI_GIVE_BACK_PATTERN, Operation::Ui(UiRoute::GiveBack), GIVE_BACK_CODES),
    page("/ui/waiters", UiRoute::Waiters),
    page("/ui/owners", UiRoute::Owners),
    page("/ui/timeline", UiRoute::Timeline),
    page("/ui/nodes", UiRoute::Nodes),
    page("/ui/latency", UiRoute::Latency),
    page("/ui/events", UiRoute::Events),
    page("/ui/hooks", UiRoute::Hooks),
    route("POST", "/ui/hooks/test", "/ui/hooks/test", Operation::Ui(UiRoute::TestHook), HOOK_FORM_CODES),
    route("POST", "/ui/hooks/replay", "/ui/hooks/replay", Operation::Ui(UiRoute::ReplayHook), HOOK_FORM_CODES),
    page("/ui/runbooks", UiRoute::Runbooks),
    route("GET", "/ui/login", "/ui/login", Operation::Ui(UiRoute::Login), &[200, 303, 400, 421]),
    route("POST", "/ui/login", "/ui/login", Operation::Ui(UiRoute::LogIn), LOGIN_CODES),
    route("POST", "/ui/logout", "/ui/logout", Operation::Ui(UiRoute::LogOut), LOGIN_CODES),
    route("GET", "/ui/stream", "/ui/stream", Operation::Ui(UiRoute::Stream), STREAM_CODES),
    route("GET", UI_ASSET, UI_ASSET, Operation::Ui(UiRoute::Asset), &[200, 404, 421]),
];

/// The label sets of all routes, for [`crate::metrics::Metrics::new`].
pub fn labels() -> Vec<RouteLabels> {
    ROUTES.iter().map(|r| RouteLabels { route: r.path, method: r.method, codes: r.codes }).collect()
}
