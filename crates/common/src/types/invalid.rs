//! Why an input is refused.

/// Why an input is not a value of its type. The text is safe to show to a client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub String);

impl Invalid {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}
