//! The environment behind a small trait, so that tests run in parallel, and what of it is ours.
//! Knows the names of variables, not what their values mean.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::error::{ConfigError, Origin, Warning};
use super::keys::{KEYS, Key, VARIABLE_PREFIX, nearest};
use super::raw::{Layer, Raw};

/// Names the configuration file where `--config` does not.
pub(super) const FILE_VARIABLE: &str = "REDLOCKD_CONFIG";

/// Variables with our prefix that are no settings: what the client commands read, and what `run` hands to its command.
const CLIENT_VARIABLES: [&str; 6] = [
    "REDLOCKD_URL",
    "REDLOCKD_KEY_FILE",
    "REDLOCKD_RESOURCE",
    "REDLOCKD_FENCE",
    "REDLOCKD_TOKEN_FILE",
    "REDLOCKD_DEADLINE_MS",
];

/// Where environment variables come from.
pub trait Environment {
    /// The value of one variable.
    fn get(&self, name: &str) -> Option<OsString>;

    /// The names of all variables; those that are not Unicode are left out.
    fn names(&self) -> Vec<String>;
}

/// The environment of this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessEnvironment;

impl Environment for ProcessEnvironment {
    fn get(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name)
    }

    fn names(&self) -> Vec<String> {
        std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect()
    }
}

impl Environment for BTreeMap<String, String> {
    fn get(&self, name: &str) -> Option<OsString> {
        BTreeMap::get(self, name).map(OsString::from)
    }

    fn names(&self) -> Vec<String> {
        self.keys().cloned().collect()
    }
}

/// The value of a variable that is set to something: an empty one counts as not set, as
/// `VAR=${OTHER:-}` in a service definition means it.
pub(super) fn set(env: &impl Environment, name: &str) -> Option<OsString> {
    env.get(name).filter(|value| !value.is_empty())
}

/// The layer of the variables `REDLOCKD_<KEY>`, and a warning for each that is not a key.
pub(super) fn layer(env: &impl Environment, errors: &mut Vec<ConfigError>, warnings: &mut Vec<Warning>) -> Layer {
    let mut layer = Layer::new(Origin::Environment);
    for key in KEYS {
        let name = key.variable();
        match set(env, &name).map(OsString::into_string) {
            None => {}
            Some(Ok(text)) => layer.put(key.name, Raw::Text(text)),
            Some(Err(_)) => errors.push(ConfigError::hidden(key.name, Origin::Environment, "is not Unicode text")),
        }
    }
    let variables: Vec<String> = KEYS.iter().map(Key::variable).collect();
    let mut unknown: Vec<String> = env.names().into_iter().filter(|name| is_unknown(name, &variables)).collect();
    unknown.sort();
    warnings.extend(unknown.into_iter().map(|name| {
        let word = name.trim_start_matches(VARIABLE_PREFIX).to_ascii_lowercase();
        let nearest = nearest(&word, KEYS.iter().map(|k| k.name))
            .map(|key| format!("{VARIABLE_PREFIX}{}", key.to_ascii_uppercase()));
        Warning::UnknownVariable { name, nearest }
    }));
    layer
}

fn is_unknown(name: &str, variables: &[String]) -> bool {
    let ours = name == FILE_VARIABLE || CLIENT_VARIABLES.contains(&name);
    name.starts_with(VARIABLE_PREFIX) && !ours && !variables.iter().any(|v| v == name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    /// Every variable has a value that is not Unicode.
    struct Bytes;

    impl Environment for Bytes {
        fn get(&self, _: &str) -> Option<OsString> {
            Some(OsString::from_vec(vec![0xff]))
        }

        fn names(&self) -> Vec<String> {
            vec![FILE_VARIABLE.into(), "PATH".into()]
        }
    }

    #[test]
    fn a_value_that_is_not_text_is_refused_by_its_key() {
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        layer(&Bytes, &mut errors, &mut warnings);
        assert_eq!((errors.len(), warnings.len()), (KEYS.len(), 0));
        assert_eq!(errors[0].to_string(), "`listen` in the environment is not Unicode text");
    }

    #[test]
    fn the_environment_of_the_process_is_read() {
        assert_eq!(ProcessEnvironment.get("PATH"), std::env::var_os("PATH"));
        assert!(ProcessEnvironment.names().iter().any(|name| name == "PATH"));
    }
}
