//! The page of call-backs' targets and of hooks: the last answer of each, waiting messages, and hooks that are switched off.

use std::time::Duration;

use askama::Template;

use super::badges::{Badge, Severity, badge};
use super::format;
use super::layout::Layout;
use crate::api;

/// The result of a form of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HooksDone {
    /// A test was accepted.
    Accepted,
    /// A test was not accepted.
    NotAccepted,
    /// Messages are being sent again.
    Replayed,
}

impl HooksDone {
    /// The words in the address of the page.
    pub(crate) const NAMES: [&str; 3] = ["accepted", "not-accepted", "replayed"];

    pub(crate) fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// The meaning of a word.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        [Self::Accepted, Self::NotAccepted, Self::Replayed].into_iter().find(|done| done.as_str() == word)
    }

    fn class(self) -> &'static str {
        if self == Self::NotAccepted { "bad" } else { "good" }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Accepted => "The test was accepted.",
            Self::NotAccepted => "The test was not accepted: see its last try.",
            Self::Replayed => "The messages are sent again.",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TryCell {
    /// Whether the receiver accepted the message.
    pub state: Badge,
    /// The answer, and its duration.
    pub text: String,
    /// When the try ended.
    pub at: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TargetRow {
    /// As in `GET /hooks`.
    pub target: api::HookTarget,
    /// The principals that may name the target in a ticket.
    pub open_to: String,
    /// The next try of a call-back.
    pub next: String,
    pub last: Option<TryCell>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HookRow {
    /// As in `GET /hooks`.
    pub hook: api::HookState,
    /// On, failing or off.
    pub state: Badge,
    pub next: String,
    pub last: Option<TryCell>,
}

#[derive(Debug, Template)]
#[template(path = "hooks.html")]
pub(crate) struct HooksPage {
    layout: Layout,
    targets: Vec<TargetRow>,
    hooks: Vec<HookRow>,
    done: Option<HooksDone>,
}

impl HooksPage {
    /// The page for the instance that shows it.
    pub(crate) fn new(layout: Layout, status: &api::Hooks, done: Option<HooksDone>) -> Self {
        let target = |target: &api::HookTarget| TargetRow {
            open_to: target.principals.as_ref().map_or_else(
                || "everybody who may acquire".to_owned(),
                |names| if names.is_empty() { "nobody".to_owned() } else { names.join(", ") },
            ),
            last: target.last.as_ref().map(cell),
            next: clock(target.next_try_in_ms),
            target: target.clone(),
        };
        let hook = |hook: &api::HookState| HookRow {
            state: match hook.state.as_str() {
                "off" => badge("off", Severity::Bad),
                "failing" => badge("failing", Severity::Warn),
                _ => badge("on", Severity::Good),
            },
            next: clock(hook.next_try_in_ms),
            last: hook.last.as_ref().map(cell),
            hook: hook.clone(),
        };
        Self {
            layout: layout.without_refresh(),
            targets: status.targets.iter().map(target).collect(),
            hooks: status.hooks.iter().map(hook).collect(),
            done,
        }
    }
}

fn clock(ms: Option<u64>) -> String {
    ms.map_or_else(String::new, |ms| format::clock(Duration::from_millis(ms)))
}

fn cell(last: &api::HookTry) -> TryCell {
    let took = format::latency(Duration::from_millis(last.took_ms));
    TryCell {
        state: if last.accepted { badge("accepted", Severity::Good) } else { badge("not accepted", Severity::Warn) },
        text: format!("{} after {took}", last.answer),
        at: last.at.replace('T', " ").split('.').next().unwrap_or_default().to_owned(),
    }
}
