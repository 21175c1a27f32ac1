//! How a lease shares its resource: not at all, with other shared leases, or as one of a number of permits.

use std::fmt;

use serde::Serialize;

/// The minimum number of permits: one would be an exclusive lease.
pub const PERMITS_MIN: u8 = 2;
/// The maximum number of permits of one resource.
pub const PERMITS_MAX: u8 = 100;

/// How many permits of a resource may be held at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct PermitLimit(u8);

impl PermitLimit {
    /// `None` unless the number is between [`PERMITS_MIN`] and [`PERMITS_MAX`].
    pub fn new(limit: u64) -> Option<Self> {
        u8::try_from(limit).ok().filter(|limit| (PERMITS_MIN..=PERMITS_MAX).contains(limit)).map(Self)
    }

    /// The number of permits.
    pub fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for PermitLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The mode that a request asks for. The attempt chooses the slot of a permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WantedMode {
    /// Shared with no other lease.
    Exclusive,
    /// Shared with other shared leases.
    Shared,
    /// Shared with other permits of the same limit.
    Permit {
        /// The number of permits.
        limit: PermitLimit,
    },
}

impl WantedMode {
    /// Whether leases of both modes can be held at the same time; permits only up to their limit.
    pub fn is_compatible(self, other: Self) -> bool {
        self == other && self != Self::Exclusive
    }

    /// The word in answers and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
            Self::Permit { .. } => "permit",
        }
    }

    /// The number of permits; `None` for other modes.
    pub fn limit(self) -> Option<PermitLimit> {
        match self {
            Self::Permit { limit } => Some(limit),
            Self::Exclusive | Self::Shared => None,
        }
    }
}

/// The mode of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Shared with no other lease.
    Exclusive,
    /// Shared with other shared leases.
    Shared,
    /// One of several numbered permits.
    Permit {
        /// The permit's number, from 0; no other lease of the resource has it.
        slot: u8,
        /// The number of permits.
        limit: PermitLimit,
    },
}

impl Mode {
    /// The mode of a permit; `None` if the slot is not below the limit.
    pub fn permit(slot: u8, limit: PermitLimit) -> Option<Self> {
        (slot < limit.get()).then_some(Self::Permit { slot, limit })
    }

    /// The mode that a request for such a lease asks for.
    pub fn wanted(self) -> WantedMode {
        match self {
            Self::Exclusive => WantedMode::Exclusive,
            Self::Shared => WantedMode::Shared,
            Self::Permit { limit, .. } => WantedMode::Permit { limit },
        }
    }

    /// The number of the permit, from 0; `None` for other modes.
    pub fn slot(self) -> Option<u8> {
        match self {
            Self::Permit { slot, .. } => Some(slot),
            Self::Exclusive | Self::Shared => None,
        }
    }

    /// Whether two leases of one resource may have these modes at the same time.
    pub fn is_compatible(self, other: Self) -> bool {
        self.wanted().is_compatible(other.wanted()) && (self.slot().is_none() || self.slot() != other.slot())
    }
}

/// A set of permit slots.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SlotSet(u128);

impl SlotSet {
    /// Whether the set contains this slot.
    pub fn contains(self, slot: u8) -> bool {
        1_u128.checked_shl(slot.into()).is_some_and(|bit| self.0 & bit != 0)
    }

    /// The slots, from the lowest.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..PERMITS_MAX).filter(move |slot| self.contains(*slot))
    }
}

impl FromIterator<u8> for SlotSet {
    /// Numbers that are no slots are left out.
    fn from_iter<T: IntoIterator<Item = u8>>(slots: T) -> Self {
        let bit = |slot: u8| 1_u128.checked_shl(slot.into()).filter(|_| slot < PERMITS_MAX).unwrap_or(0);
        Self(slots.into_iter().fold(0, |all, slot| all | bit(slot)))
    }
}

/// The permit that an attempt asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SlotChoice {
    /// The first slot; `None`: any.
    pub slot: Option<u8>,
    /// The slots that other requests of the same instance are asking for.
    pub avoid: SlotSet,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_slots_has_what_was_put_in() {
        let slots: SlotSet = [0, 99, 3, 100, 255].into_iter().collect();
        assert_eq!(slots.iter().collect::<Vec<_>>(), [0, 3, 99]);
        assert!(!slots.contains(1) && !slots.contains(100) && !slots.contains(255));
    }

    #[test]
    fn only_what_may_be_held_together_is_compatible() {
        let limit = |n| PermitLimit::new(n).expect("in range");
        let permit = |slot, n| Mode::permit(slot, limit(n)).expect("a slot");
        let (a, b, other) = (permit(0, 3), permit(2, 3), permit(1, 2));
        assert!(Mode::Shared.is_compatible(Mode::Shared) && a.is_compatible(b));
        for (one, two) in [
            (Mode::Exclusive, Mode::Exclusive),
            (Mode::Exclusive, Mode::Shared),
            (Mode::Exclusive, a),
            (Mode::Shared, a),
            (a, a),
            (b, other),
        ] {
            assert!(!one.is_compatible(two) && !two.is_compatible(one), "{one:?} {two:?}");
        }
        assert!(a.wanted().is_compatible(a.wanted()), "two requests get different slots");
        assert_eq!((PermitLimit::new(1), PermitLimit::new(101), Mode::permit(3, limit(3))), (None, None, None));
    }
}
