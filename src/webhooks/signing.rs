//! Signatures of messages by Standard Webhooks 1.0.0 (`v1`, HMAC-SHA256), and the older header `X-Hub-Signature-256`. The
//! same code verifies a received message for `redlockd hook verify`.
//!
//! Source: <https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use data_encoding::HEXLOWER;
use ring::hmac;

use crate::types::Invalid;

/// The prefix of a secret's text.
const SECRET_PREFIX: &str = "whsec_";
/// Allowed length of a secret's bytes, by the specification.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// Length of a new secret. Bytes.
const NEW_SECRET_BYTES: usize = 32;
/// Maximum difference between a message's time and the receiver's clock. Seconds.
pub const TOLERANCE_S: u64 = 300;
/// The version of the signatures.
const VERSION: &str = "v1,";

/// A secret that signs messages. `Debug` hides it.
#[derive(Clone)]
pub struct SigningSecret {
    /// The decoded bytes of the secret.
    key: hmac::Key,
    /// The text of the secret: the key of `X-Hub-Signature-256`.
    text_key: hmac::Key,
}

impl std::fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningSecret(…)")
    }
}

impl SigningSecret {
    /// Parses `whsec_` and 24 to 64 bytes in base64.
    ///
    /// Errors: [`Invalid`], which does not repeat the text.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let wrong = || {
            Invalid(format!(
                "must be one line with `{SECRET_PREFIX}` and the base64 of {} to {} bytes: `redlockd hook secret` makes one",
                SECRET_BYTES.start(),
                SECRET_BYTES.end()
            ))
        };
        let bytes = text.strip_prefix(SECRET_PREFIX).and_then(|encoded| STANDARD.decode(encoded).ok());
        let bytes = bytes.filter(|bytes| SECRET_BYTES.contains(&bytes.len())).ok_or_else(wrong)?;
        let key = |bytes: &[u8]| hmac::Key::new(hmac::HMAC_SHA256, bytes);
        Ok(Self { key: key(&bytes), text_key: key(text.as_bytes()) })
    }

    /// A key for a purpose other than signatures.
    pub(super) fn derive(&self, purpose: &[u8]) -> hmac::Tag {
        hmac::sign(&self.key, purpose)
    }

    /// A new secret as text. `fill` draws strong randomness.
    pub fn generate(fill: impl FnOnce(&mut [u8])) -> String {
        let mut bytes = [0; NEW_SECRET_BYTES];
        fill(&mut bytes);
        format!("{SECRET_PREFIX}{}", STANDARD.encode(bytes))
    }
}

/// The three parts that a `v1` signature covers.
#[derive(Debug, Clone, Copy)]
pub struct SignedContent<'a> {
    /// The header `webhook-id`.
    pub id: &'a str,
    /// `webhook-timestamp`: the time of the try, seconds since 1970.
    pub timestamp_s: u64,
    /// The bytes that are sent.
    pub body: &'a [u8],
}

impl SignedContent<'_> {
    fn context(&self, key: &hmac::Key) -> hmac::Context {
        let mut context = hmac::Context::with_key(key);
        context.update(self.id.as_bytes());
        context.update(format!(".{}.", self.timestamp_s).as_bytes());
        context.update(self.body);
        context
    }

    /// The header `webhook-signature`: one entry for each secret, so that a receiver may have either while a secret is replaced.
    pub fn signature(&self, secrets: &[SigningSecret]) -> String {
        let sign = |secret: &SigningSecret| format!("{VERSION}{}", STANDARD.encode(self.context(&secret.key).sign()));
        secrets.iter().map(sign).collect::<Vec<_>>().join(" ")
    }

    /// Checks the header `webhook-signature` at `now_s`. One entry that matches one secret is enough.
    ///
    /// Errors: one sentence.
    pub fn verify(&self, header: &str, secrets: &[SigningSecret], now_s: u64) -> Result<(), &'static str> {
        if now_s.abs_diff(self.timestamp_s) > TOLERANCE_S {
            return Err("the message is more than 5 minutes older or newer than this clock");
        }
        let entries = header.split_ascii_whitespace().filter_map(|entry| entry.strip_prefix(VERSION));
        let received: Vec<Vec<u8>> = entries.filter_map(|encoded| STANDARD.decode(encoded).ok()).collect();
        if received.is_empty() {
            return Err("`webhook-signature` has no signature `v1,…`");
        }
        for secret in secrets {
            let mut signed = format!("{}.{}.", self.id, self.timestamp_s).into_bytes();
            signed.extend_from_slice(self.body);
            if received.iter().any(|signature| hmac::verify(&secret.key, &signed, signature).is_ok()) {
                return Ok(());
            }
        }
        Err("no signature fits the secret: the body was changed, or the secret is another one")
    }
}

/// The header `X-Hub-Signature-256`. It covers only the body, without a time, so a copy of the message passes for ever.
pub fn hub_signature(secret: &SigningSecret, body: &[u8]) -> String {
    format!("sha256={}", HEXLOWER.encode(hmac::sign(&secret.text_key, body).as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const NEW: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

    fn secret(text: &str) -> SigningSecret {
        SigningSecret::parse(text).expect("a secret")
    }

    /// The example of the specification's reference implementations.
    #[test]
    fn the_published_example_has_the_published_signature() {
        let body = br#"{"test": 2432232314}"#;
        let content = SignedContent { id: "msg_p5jXN8AQM9LWM0D4loKWxJek", timestamp_s: 1_614_265_330, body };
        let signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(content.signature(&[secret(OLD)]), signature);
        assert_eq!(content.verify(signature, &[secret(OLD)], 1_614_265_330), Ok(()));
    }

    #[test]
    fn while_a_secret_is_replaced_either_one_verifies_and_nothing_else_does() {
        let content = SignedContent { id: "evt_1", timestamp_s: 1_000_000, body: b"{}" };
        let both = content.signature(&[secret(NEW), secret(OLD)]);
        let check = |content: SignedContent<'_>, header: &str, text: &str, now| {
            content.verify(header, &[secret(text)], now).is_ok()
        };
        for text in [OLD, NEW] {
            assert!(check(content, &both, text, 1_000_300) && check(content, &both, text, 999_700), "{text}");
            assert!(!check(content, &both, text, 1_000_301) && !check(content, &both, text, 999_699), "{text}");
        }
        let one = content.signature(&[secret(OLD)]);
        assert!(!check(content, &one, NEW, 1_000_000));
        for changed in [
            SignedContent { id: "evt_2", ..content },
            SignedContent { timestamp_s: 1_000_001, ..content },
            SignedContent { body: b"{ }", ..content },
        ] {
            assert!(!check(changed, &one, OLD, 1_000_000), "{changed:?}");
        }
        for header in ["", "v1", "v1,", "v1a,AAAA", "v2,g0hM", "v1,!!"] {
            assert!(!check(content, header, OLD, 1_000_000), "{header}");
        }
    }

    #[test]
    fn secrets_are_checked_made_and_never_printed() {
        let made = SigningSecret::generate(|bytes| bytes.fill(7));
        assert_eq!(format!("{:?}", secret(&made)), "SigningSecret(…)");
        for wrong in ["", "whsec_", "whsec_AAAA", &OLD[6..], "whsec_!", &format!("whsec_{}", "A".repeat(88)), "whsk_AA"]
        {
            let why = SigningSecret::parse(wrong).expect_err(wrong).0;
            assert!(!why.contains("AAAA"), "{why}");
        }
    }

    /// `printf '{}' | openssl dgst -sha256 -hmac whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw`
    #[test]
    fn the_older_header_is_keyed_with_the_secrets_text() {
        let header = hub_signature(&secret(OLD), b"{}");
        assert_eq!(header, "sha256=6cbbcdf2c8016ca85b50543b19e8e121ef16137967bdfa3ce660972922bafaeb");
    }
}
