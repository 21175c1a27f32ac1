//! The environment, behind a trait so that tests run in parallel, and the variables that set settings.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::error::{ConfigError, Origin, Warning};
use super::raw::{Layer, RawValue};
use super::setting_macro::{Setting, VARIABLE_PREFIX, nearest, renamed};
use super::settings::SETTINGS;

/// Path of the configuration file, unless `--config` names it.
pub(super) const FILE_VARIABLE: &str = "REDLOCKD_CONFIG";

/// Variables with the prefix that are no settings: the client commands read them, or `run` sets them for its command.
const CLIENT_VARIABLES: [&str; 6] = [
    "REDLOCKD_URL",
    "REDLOCKD_KEY_FILE",
    "REDLOCKD_RESOURCE",
    "REDLOCKD_FENCE",
    "REDLOCKD_TOKEN_FILE",
    "REDLOCKD_DEADLINE_MS",
];

/// A source of environment variables.
pub trait Environment {
    /// The value of one variable.
    fn get(&self, name: &str) -> Option<OsString>;

    /// The names of all variables, except those that are not Unicode.
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

/// The value of a variable. An empty one counts as not set, as `VAR=${OTHER:-}` intends in a service definition.
pub(super) fn set(env: &impl Environment, name: &str) -> Option<OsString> {
    env.get(name).filter(|value| !value.is_empty())
}

/// The layer of the variables `REDLOCKD_<KEY>`, and a warning for each unknown one.
pub(super) fn layer(env: &impl Environment, errors: &mut Vec<ConfigError>, warnings: &mut Vec<Warning>) -> Layer {
    let mut layer = Layer::new(Origin::Environment);
    for setting in SETTINGS {
        match set(env, &setting.variable()).map(OsString::into_string) {
            None => {}
            Some(Ok(text)) => layer.put(setting.name, RawValue::Text(text)),
            Some(Err(_)) => errors.push(ConfigError::hidden(setting.name, Origin::Environment, "is not Unicode text")),
        }
    }
    let variables: Vec<String> = SETTINGS.iter().map(Setting::variable).collect();
    let mut unknown: Vec<String> = env.names().into_iter().filter(|name| is_unknown(name, &variables)).collect();
    unknown.sort();
    for name in unknown {
        let word = name.trim_start_matches(VARIABLE_PREFIX).to_ascii_lowercase();
        if renamed(&word).is_some() {
            // Refused with its present name when the layer is applied.
            layer.put(word, RawValue::Text(String::new()));
            continue;
        }
        let nearest = nearest(&word, SETTINGS.iter().map(|setting| setting.name))
            .map(|setting| format!("{VARIABLE_PREFIX}{}", setting.to_ascii_uppercase()));
        warnings.push(Warning::UnknownVariable { name, nearest });
    }
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
    fn value_that_is_not_unicode_is_refused() {
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        layer(&Bytes, &mut errors, &mut warnings);
        assert_eq!((errors.len(), warnings.len()), (SETTINGS.len(), 0));
        assert_eq!(errors[0].to_string(), "`listen` in the environment is not Unicode text");
    }

    #[test]
    fn environment_of_the_process_is_read() {
        assert_eq!(ProcessEnvironment.get("PATH"), std::env::var_os("PATH"));
        assert!(ProcessEnvironment.names().iter().any(|name| name == "PATH"));
    }
}
