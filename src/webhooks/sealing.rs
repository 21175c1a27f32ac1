//! Encrypts the URLs of call-backs before they are stored on the nodes: a reader of the nodes must not be able to
//! resume workflows. All instances have the same keys, so that each can send call-backs that another has stored.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use super::signing::SigningSecret;

/// The purpose for which a key is derived: secrets of targets must not open anything.
const PURPOSE: &[u8] = b"redlockd: addresses of call-backs";

/// Seals and opens addresses. `Debug` does not show the key.
#[derive(Clone)]
pub struct SealingKey(LessSafeKey);

impl std::fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SealingKey(…)")
    }
}

impl SealingKey {
    /// Derives the key from a secret that the instances share.
    pub(super) fn of(secret: &SigningSecret) -> Option<Self> {
        let derived = secret.derive(PURPOSE);
        UnboundKey::new(&CHACHA20_POLY1305, derived.as_ref()).ok().map(|key| Self(LessSafeKey::new(key)))
    }

    /// The sealed text. `context` is not secret; the same `context` is needed to open it. `nonce`: random; 2^32 of
    /// them for one key repeat none with a probability of 2^-33.
    pub fn seal(&self, text: &str, context: &str, nonce: [u8; NONCE_LEN]) -> Option<String> {
        let mut bytes = text.as_bytes().to_vec();
        let unique = Nonce::assume_unique_for_key(nonce);
        self.0.seal_in_place_append_tag(unique, Aad::from(context.as_bytes()), &mut bytes).ok()?;
        Some(STANDARD.encode([&nonce[..], &bytes].concat()))
    }

    /// The opened text; `None` if it was sealed with another key or for another context, or was not sealed.
    pub fn open(&self, sealed: &str, context: &str) -> Option<String> {
        let bytes = STANDARD.decode(sealed).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN)?;
        let (nonce, mut sealed) = (Nonce::try_assume_unique_for_key(nonce).ok()?, sealed.to_vec());
        let text = self.0.open_in_place(nonce, Aad::from(context.as_bytes()), &mut sealed).ok()?;
        String::from_utf8(text.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_is_opened_by_its_key_for_its_ticket_only() {
        let key = |fill: u8| {
            let text = SigningSecret::generate(|bytes| bytes.fill(fill));
            SealingKey::of(&SigningSecret::parse(&text).expect("a secret")).expect("a key")
        };
        let (url, own) = ("https://n8n.example.com/webhook-waiting/17?signature=5e", key(1));
        let sealed = own.seal(url, "tk_1", [7; NONCE_LEN]).expect("sealed");
        assert!(!sealed.contains("n8n") && !format!("{own:?}").contains('1'));
        assert_eq!(own.open(&sealed, "tk_1").as_deref(), Some(url));
        assert_eq!(own.open(&sealed, "tk_2"), None, "moved to another ticket");
        assert_eq!(key(2).open(&sealed, "tk_1"), None, "another key");
        assert!(sealed != own.seal(url, "tk_1", [8; NONCE_LEN]).expect("sealed"));
        let mut forged = STANDARD.decode(&sealed).expect("base64");
        forged[20] ^= 1;
        for wrong in ["", "AAAA", "%", &STANDARD.encode(forged)] {
            assert_eq!(own.open(wrong, "tk_1"), None, "{wrong}");
        }
    }
}
