//! The only file that draws randomness. Tokens come from the operating system's generator; the simulation has a seeded source.

use std::cell::RefCell;

use crate::types::{AttemptId, TOKEN_RANDOM_BYTES, Token};

/// Bytes drawn from the operating system at a time, per thread. An acquire and its release take some 60 bytes in four pieces; a
/// system call for each would be a third of their system calls.
const DRAWN_BYTES: usize = 512;

/// A source of random bytes.
pub trait Entropy: Clone + Send + Sync + 'static {
    /// Fills `into`. For tokens the source must be cryptographically strong.
    fn fill(&self, into: &mut [u8]);

    /// 64 uniformly distributed bits.
    fn bits(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// A number below `bound` (zero for a zero bound). The bias is below 2^-40 for bounds under 2^24.
    fn below(&self, bound: u64) -> u64 {
        let wide = u128::from(self.bits()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the high half of a 128-bit product")
    }

    /// A new token of random bytes.
    fn token(&self) -> Token {
        let mut bytes = [0; TOKEN_RANDOM_BYTES];
        self.fill(&mut bytes);
        Token::from_random(bytes)
    }

    /// A new attempt id.
    fn attempt(&self) -> AttemptId {
        AttemptId::from_random(self.bits())
    }
}

/// Drawn bytes that are not used yet.
struct Drawn {
    bytes: [u8; DRAWN_BYTES],
    left: usize,
}

thread_local! {
    static DRAWN: RefCell<Drawn> = const { RefCell::new(Drawn { bytes: [0; DRAWN_BYTES], left: 0 }) };
}

/// The operating system's generator, getrandom(2). Each byte is used once, and erased from the buffer.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    /// Panics if the operating system has no randomness: without it no lock may be granted.
    fn fill(&self, into: &mut [u8]) {
        if into.len() > DRAWN_BYTES {
            return draw(into);
        }
        DRAWN.with_borrow_mut(|drawn| {
            if drawn.left < into.len() {
                draw(&mut drawn.bytes);
                drawn.left = DRAWN_BYTES;
            }
            let start = drawn.left - into.len();
            let used = &mut drawn.bytes[start..drawn.left];
            into.copy_from_slice(used);
            used.fill(0);
            drawn.left = start;
        });
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the one file that draws randomness")]
fn draw(into: &mut [u8]) {
    getrandom::fill(into).expect("the operating system's random generator works");
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// T32: tokens do not repeat, also when two threads draw them in the same microsecond.
    #[test]
    fn t32_a_million_tokens_are_distinct() {
        let draw = || (0..500_000).map(|_| SystemEntropy.token().reveal().to_owned()).collect::<Vec<_>>();
        let other = std::thread::spawn(draw);
        let mut seen: HashSet<String> = draw().into_iter().collect();
        seen.extend(other.join().expect("no panic"));
        assert_eq!(seen.len(), 1_000_000);
    }

    #[test]
    fn no_byte_is_used_twice() {
        let mut seen = HashSet::new();
        for length in (8..64).chain([DRAWN_BYTES, DRAWN_BYTES + 1]).cycle().take(2_000) {
            let mut bytes = vec![0; length];
            SystemEntropy.fill(&mut bytes);
            assert!(bytes.windows(8).any(|w| w != [0; 8]));
            for window in bytes.windows(8) {
                assert!(seen.insert(<[u8; 8]>::try_from(window).expect("eight")), "{window:?} came twice");
            }
        }
    }

    #[test]
    fn below_is_less_than_its_bound() {
        assert_eq!(SystemEntropy.below(0), 0);
        assert!((0..1_000).all(|_| SystemEntropy.below(3) < 3));
    }
}
