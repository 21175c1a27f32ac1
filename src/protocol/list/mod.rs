//! List: one page of the index of held leases.

/// Arguments of [`Request::List`](super::request::Request::List).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListArgs {
    /// 0 for the first page, then [`Reply::Page`](super::reply::Reply::Page)'s `next`.
    pub cursor: u64,
    /// The number of leases wanted.
    pub count: u32,
}
