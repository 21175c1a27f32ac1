//! Tokens of an issuer of the tests' own: what is accepted, and everything around it that is not.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proptest::prelude::*;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::json;

use super::super::access_file;
use super::super::authenticator::Authenticator;
use super::super::principal::PrincipalLimits;
use super::super::principals::{Credential, IdentifyError};
use super::*;

const ISSUER: &str = "https://issuer.example";
/// Some time in 2027. Milliseconds since 1970.
const NOW_MS: u64 = 1_800_000_000_000;
const NOW_S: i64 = 1_800_000_000;

fn b64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// A private key of the issuer.
enum Signing {
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl Signing {
    fn p256() -> Self {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).expect("a key");
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random);
        Self::P256(pair.expect("a key"))
    }

    fn ed25519() -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
        Self::Ed25519(Ed25519KeyPair::from_pkcs8(document.as_ref()).expect("a key"))
    }

    fn algorithm(&self) -> &'static str {
        if matches!(self, Self::P256(_)) { "ES256" } else { "EdDSA" }
    }

    fn public(&self) -> &[u8] {
        match self {
            Self::P256(pair) => pair.public_key().as_ref(),
            Self::Ed25519(pair) => pair.public_key().as_ref(),
        }
    }

    fn jwk(&self, id: &str) -> Value {
        match self {
            Self::P256(_) => {
                let (x, y) = self.public()[1..].split_at(32);
                json!({ "kty": "EC", "crv": "P-256", "x": b64(x), "y": b64(y), "kid": id, "use": "sig", "alg": "ES256" })
            }
            Self::Ed25519(_) => json!({ "kty": "OKP", "crv": "Ed25519", "x": b64(self.public()), "kid": id }),
        }
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", b64(header.to_string()), b64(claims.to_string()));
        let signature = match self {
            Self::P256(pair) => pair.sign(&SystemRandom::new(), message.as_bytes()).expect("signed"),
            Self::Ed25519(pair) => pair.sign(message.as_bytes()),
        };
        format!("{message}.{}", b64(signature))
    }

    /// With the usual header.
    fn token(&self, id: &str, claims: &Value) -> String {
        self.sign(&json!({ "typ": "JWT", "alg": self.algorithm(), "kid": id }), claims)
    }
}

fn key_set(keys: &[Value]) -> KeySet {
    KeySet::parse(json!({ "keys": keys }).to_string().as_bytes()).expect("keys")
}

fn file() -> String {
    format!(
        "[[issuer]]\nname = \"forge\"\nissuer = \"{ISSUER}\"\naudience = [\"locks\", \"other\"]\n\
         jwks = \"https://issuer.example/keys\"\nalgorithms = [\"ES256\", \"EdDSA\"]\n\
         [[principal]]\nname = \"main\"\nallow = [\"acquire:**\"]\n\
         tokens = [{{ issuer = \"forge\", claims = {{ repository = \"acme/shop\", ref = [\"refs/heads/main\", \"refs/tags/v*\"] }} }}]\n\
         [[principal]]\nname = \"any\"\ntokens = [{{ issuer = \"forge\", claims = {{ repository = \"acme/*\", protected = \"true\" }} }}]\n"
    )
}

fn issuer() -> Issuer {
    access_file::parse(&file()).expect("a good file").issuers()[0].clone()
}

fn claims() -> Value {
    json!({
        "iss": ISSUER, "aud": "locks", "sub": "repo:acme/shop:ref:refs/heads/main", "repository": "acme/shop",
        "ref": "refs/heads/main", "iat": NOW_S, "nbf": NOW_S, "exp": NOW_S + 300,
    })
}

/// The usual claims with some replaced; null removes one.
fn with(changes: Value) -> Value {
    let mut all = claims();
    for (name, value) in changes.as_object().expect("an object") {
        match value {
            Value::Null => drop(all.as_object_mut().expect("an object").remove(name)),
            value => all[name] = value.clone(),
        }
    }
    all
}

fn outcome(token: &str, keys: &KeySet) -> Result<Map<String, Value>, TokenError> {
    verify(token.as_bytes(), &issuer(), keys, NOW_MS, Duration::ZERO)
}

#[test]
fn a_token_that_a_key_of_the_issuer_signed_is_accepted() {
    for key in [Signing::p256(), Signing::ed25519()] {
        let (keys, other) = (key_set(&[key.jwk("a"), Signing::p256().jwk("b")]), Signing::p256());
        let accepted = outcome(&key.token("a", &claims()), &keys).expect("valid");
        assert_eq!(accepted["repository"], "acme/shop");
        assert!(matches!(
            outcome(&other.token("a", &claims()), &keys),
            Err(TokenError::Refused(_) | TokenError::UnknownKey)
        ));
        assert_eq!(outcome(&key.token("c", &claims()), &keys), Err(TokenError::UnknownKey));
    }
}

#[test]
fn the_algorithm_is_the_issuers_and_not_the_tokens() {
    let key = Signing::p256();
    let keys = key_set(&[key.jwk("a")]);
    let message = |algorithm: &str| {
        format!("{}.{}", b64(json!({ "alg": algorithm, "kid": "a" }).to_string()), b64(claims().to_string()))
    };
    // Without a signature.
    for word in ["none", "None", "nOnE", ""] {
        assert_eq!(outcome(&format!("{}.", message(word)), &keys), Err(TokenError::Malformed), "{word}");
    }
    // With the public key as the shared secret.
    let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key.public());
    let forged = format!("{0}.{1}", message("HS256"), b64(ring::hmac::sign(&secret, message("HS256").as_bytes())));
    assert_eq!(outcome(&forged, &keys), Err(TokenError::Algorithm));
    // A good signature under the name of another algorithm, and an algorithm that is not named for the issuer.
    let renamed = key.sign(&json!({ "alg": "EdDSA", "kid": "a" }), &claims());
    assert_eq!(outcome(&renamed, &keys), Err(TokenError::UnknownKey));
    let only = Issuer { algorithms: vec![Algorithm::EdDSA], ..issuer() };
    let token = key.token("a", &claims());
    assert_eq!(verify(token.as_bytes(), &only, &keys, NOW_MS, Duration::ZERO), Err(TokenError::Algorithm));
}

#[test]
fn the_key_is_the_issuers_and_not_the_tokens() {
    let (key, attacker) = (Signing::p256(), Signing::p256());
    let keys = key_set(&[key.jwk("a")]);
    for header in [
        json!({ "alg": "ES256", "kid": "a", "jwk": attacker.jwk("a") }),
        json!({ "alg": "ES256", "jwk": attacker.jwk("a") }),
        json!({ "alg": "ES256", "kid": "a", "jku": "https://attacker.example/keys" }),
        json!({ "alg": "ES256", "kid": "a", "x5u": "https://attacker.example/keys" }),
    ] {
        assert!(matches!(outcome(&attacker.sign(&header, &claims()), &keys), Err(TokenError::Refused(_))), "{header}");
    }
    let critical = json!({ "alg": "ES256", "kid": "a", "crit": ["b64"], "b64": false });
    assert_eq!(outcome(&key.sign(&critical, &claims()), &keys), Err(TokenError::Malformed));
    // Without an id, the only key that fits.
    let without_id = key.sign(&json!({ "alg": "ES256" }), &claims());
    assert!(outcome(&without_id, &keys).is_ok());
    assert_eq!(outcome(&without_id, &key_set(&[key.jwk("a"), attacker.jwk("b")])), Err(TokenError::UnknownKey));
}

#[test]
fn times_are_checked_with_the_allowance_for_clocks() {
    let key = Signing::ed25519();
    let keys = key_set(&[key.jwk("a")]);
    let at = |changes: Value| outcome(&key.token("a", &with(changes)), &keys).map(drop);
    for (changes, expected) in [
        (json!({ "exp": NOW_S - 29 }), Ok(())),
        (json!({ "exp": NOW_S - 30 }), Err(TokenError::Expired)),
        (json!({ "exp": (NOW_S as f64) - 29.5 }), Ok(())),
        (json!({ "nbf": NOW_S + 30 }), Ok(())),
        (json!({ "nbf": NOW_S + 31 }), Err(TokenError::NotYet)),
        (json!({ "iat": NOW_S + 31 }), Err(TokenError::NotYet)),
        (json!({ "nbf": null, "iat": null }), Ok(())),
    ] {
        assert_eq!(at(changes.clone()), expected, "{changes}");
    }
    for changes in
        [json!({ "exp": null }), json!({ "exp": "9999999999" }), json!({ "exp": true }), json!({ "nbf": "0" })]
    {
        assert!(matches!(at(changes.clone()), Err(TokenError::Refused(_))), "{changes}");
    }
}

#[test]
fn issuer_and_audience_are_exactly_those_of_the_access_file() {
    let key = Signing::p256();
    let keys = key_set(&[key.jwk("a")]);
    let at = |changes: Value| outcome(&key.token("a", &with(changes)), &keys);
    for good in [json!({ "aud": "other" }), json!({ "aud": ["elsewhere", "locks"] })] {
        assert!(at(good.clone()).is_ok(), "{good}");
    }
    for bad in [
        json!({ "aud": "elsewhere" }),
        json!({ "aud": ["elsewhere"] }),
        json!({ "aud": [] }),
        json!({ "aud": null }),
        json!({ "aud": 1 }),
        json!({ "aud": { "locks": 1 } }),
        json!({ "iss": "https://issuer.example/" }),
        json!({ "iss": "https://issuer.example.evil" }),
        json!({ "iss": null }),
        json!({ "iss": [ISSUER] }),
    ] {
        assert!(at(bad.clone()).is_err(), "{bad}");
    }
}

#[test]
fn claims_select_the_principal() {
    let key = Signing::p256();
    let authenticator =
        Authenticator::with_principals(access_file::parse(&file()).expect("good"), PrincipalLimits::default());
    let who = |claims: &Value| {
        let token = key.token("a", claims);
        let found = authenticator.identify(&Credential::Key(token.as_bytes()), NOW_MS);
        found.map(|principal| principal.name.to_string()).map_err(|error| match error {
            IdentifyError::Token(why) => why,
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(who(&claims()), Err(TokenError::NoKeys));
    authenticator.replace_keys(&issuer().keys, Some(key_set(&[key.jwk("a")])));
    for (changes, expected) in [
        (json!({}), Ok("main")),
        (json!({ "ref": "refs/tags/v1.0" }), Ok("main")),
        (json!({ "ref": "refs/heads/main2", "protected": true }), Ok("any")),
        (json!({ "repository": "acme/other", "protected": "true" }), Ok("any")),
        (json!({ "ref": "refs/heads/main2" }), Err(TokenError::NoPrincipal)),
        (json!({ "ref": null }), Err(TokenError::NoPrincipal)),
        (json!({ "ref": ["refs/heads/main"] }), Err(TokenError::NoPrincipal)),
        (json!({ "repository": "acme", "protected": "true" }), Err(TokenError::NoPrincipal)),
        (json!({ "repository": "evil/acme/shop", "protected": "true" }), Err(TokenError::NoPrincipal)),
        (json!({ "iss": "https://evil.example" }), Err(TokenError::UnknownIssuer)),
    ] {
        assert_eq!(who(&with(changes.clone())), expected.map(str::to_owned), "{changes}");
    }
    // Another key of the issuer: the new set brings it, and the old one ends.
    let next = Signing::p256();
    let token = next.token("b", &claims());
    let identify = |token: &str| authenticator.identify(&Credential::Key(token.as_bytes()), NOW_MS).map(drop);
    assert!(!authenticator.take_lacks_key());
    assert_eq!(identify(&token), Err(IdentifyError::Token(TokenError::UnknownKey)));
    assert!(authenticator.take_lacks_key() && !authenticator.take_lacks_key());
    authenticator.replace_keys(&issuer().keys, Some(key_set(&[next.jwk("b")])));
    assert_eq!(identify(&token), Ok(()));
    assert!(identify(&key.token("a", &claims())).is_err());
    // An access file without the issuer.
    authenticator.replace(access_file::parse("").expect("good"));
    assert_eq!(identify(&token), Err(IdentifyError::Token(TokenError::UnknownIssuer)));
}

#[test]
fn a_key_set_is_reduced_to_keys_that_verify_signatures() {
    let key = Signing::p256();
    let odd = [
        json!({ "kty": "oct", "k": b64("secret"), "kid": "a", "alg": "HS256" }),
        json!({ "kty": "RSA", "n": "AQAB", "e": "AQAB", "use": "enc" }),
        json!({ "kty": "EC", "crv": "P-521", "x": "AA", "y": "AA" }),
        json!({ "kty": "future" }),
        json!(1),
    ];
    assert_eq!(key_set(&[&odd[..], &[key.jwk("a")]].concat()).len(), 1);
    for (text, word) in [
        (json!({ "keys": odd }).to_string(), "none that can verify"),
        (json!({ "keys": [] }).to_string(), "none that can verify"),
        ("{}".to_owned(), "no JWK set"),
        ("[".to_owned(), "no JWK set"),
        (format!("{{\"keys\":[]}}{}", " ".repeat(256 * 1024)), "more than"),
    ] {
        let why = KeySet::parse(text.as_bytes()).expect_err(word);
        assert!(why.contains(word), "{why}");
    }
}

#[test]
fn mistakes_in_issuers_and_token_rules_are_named() {
    let issuer = "[[issuer]]\nname = \"f\"\nissuer = \"https://i.example\"\naudience = \"l\"\njwks = \"/keys\"\n";
    let rule = |tokens: &str| format!("{issuer}[[principal]]\nname = \"ci\"\ntokens = {tokens}\n");
    access_file::parse(&rule("[{ issuer = \"f\", claims = { sub = \"a*\" } }]")).expect("good");
    for (text, word) in [
        (issuer.replace("audience = \"l\"\n", ""), "`audience`"),
        (issuer.replace("/keys", "keys"), "`jwks`"),
        (issuer.replace("/keys", "http://i.example/keys"), "https://"),
        (issuer.replace("/keys", "https://user:pass@i.example/keys"), "no credentials"),
        (format!("{issuer}algorithms = [\"HS256\"]\n"), "is none of RS256"),
        (format!("{issuer}algorithms = [\"none\"]\n"), "is none of RS256"),
        (format!("{issuer}algorithms = []\n"), "at least one"),
        (format!("{issuer}clock_skew = \"1h\"\n"), "at most 5m"),
        (format!("{issuer}secret = 1\n"), "`secret` is unknown"),
        (format!("{issuer}{issuer}"), "the same `name`"),
        (rule("[{ issuer = \"g\", claims = { sub = \"a\" } }]"), "no [[issuer]]"),
        (rule("[{ issuer = \"f\", claims = {} }]"), "every token"),
        (rule("[{ issuer = \"f\" }]"), "must be a list such as"),
        (rule("[{ issuer = \"f\", claims = { sub = \"*\" } }]"), "not `*` alone"),
        (rule("[{ issuer = \"f\", claims = { sub = \"a*b*\" } }]"), "may end in `*`"),
        (rule("[{ issuer = \"f\", claims = { sub = [] } }]"), "texts or lists of texts"),
        (rule("[{ issuer = \"f\", claims = { sub = 1 } }]"), "list of texts"),
    ] {
        let mistakes = access_file::parse(&text).expect_err(word).join("\n");
        assert!(mistakes.contains(word), "{word}: {mistakes}");
    }
}

proptest! {
    /// No change of any character of a good token is accepted.
    #[test]
    fn a_changed_token_is_refused(at in 0_usize..600, to in "[A-Za-z0-9_.-]") {
        let key = Signing::ed25519();
        let (keys, good) = (key_set(&[key.jwk("a")]), key.token("a", &claims()));
        prop_assert!(outcome(&good, &keys).is_ok());
        let at = at % good.len();
        let changed = format!("{}{to}{}", &good[..at], &good[at + 1..]);
        prop_assume!(changed != good);
        prop_assert!(outcome(&changed, &keys).is_err(), "{}", changed);
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,60}|eyJ[A-Za-z0-9_-]{0,40}\\.eyJ[A-Za-z0-9_-]{0,40}\\.[A-Za-z0-9_-]{0,20}") {
        let keys = key_set(&[Signing::ed25519().jwk("a")]);
        let _ = claimed_issuer(text.as_bytes(), &[issuer()]);
        prop_assert!(outcome(&text, &keys).is_err());
    }
}
