//! The only file that draws randomness. Tokens come from the operating system's generator; the
//! simulator brings a seeded source.

use super::types::{AttemptId, TOKEN_RANDOM_BYTES, Token};

/// A source of random bytes.
pub trait Entropy: Clone + Send + Sync + 'static {
    /// Fills `into`. For tokens the source must be cryptographically strong.
    fn fill(&self, into: &mut [u8]);

    /// 64 random bits.
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

    /// A fresh token.
    fn token(&self) -> Token {
        let mut bytes = [0; TOKEN_RANDOM_BYTES];
        self.fill(&mut bytes);
        Token::from_random(bytes)
    }

    /// A fresh attempt id.
    fn attempt(&self) -> AttemptId {
        AttemptId::from_random(self.bits())
    }
}

/// The operating system's generator, getrandom(2).
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    /// Panics: where the operating system has no randomness to give, no lock may be granted.
    #[expect(clippy::disallowed_methods, reason = "this is the one file that draws randomness")]
    fn fill(&self, into: &mut [u8]) {
        getrandom::fill(into).expect("the operating system's random generator works");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// T32: tokens do not repeat, whoever draws them in the same microsecond.
    #[test]
    fn t32_a_million_tokens_hold_no_duplicate() {
        let draw = || (0..500_000).map(|_| SystemEntropy.token().reveal().to_owned()).collect::<Vec<_>>();
        let other = std::thread::spawn(draw);
        let mut seen: HashSet<String> = draw().into_iter().collect();
        seen.extend(other.join().expect("no panic"));
        assert_eq!(seen.len(), 1_000_000);
    }

    #[test]
    fn below_stays_below() {
        assert_eq!(SystemEntropy.below(0), 0);
        assert!((0..1_000).all(|_| SystemEntropy.below(3) < 3));
    }
}
