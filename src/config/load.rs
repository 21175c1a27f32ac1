//! Applies the layers (defaults < file < environment < command line), then checks the rules between settings.

use std::path::PathBuf;

use super::environment::{self, Environment, FILE_VARIABLE};
use super::error::{ConfigError, ConfigErrors, Origin, Warning};
use super::file;
use super::raw::{Layer, NodeEntry, RawValue};
use super::rules;
use super::settings::Config;

/// The embedded nodes' state directory if neither the settings nor the environment name one.
const DATA_DIR: &str = "/var/lib/redlockd";

/// The settings of the command line.
#[derive(Debug, Clone, Default)]
pub struct Inputs {
    /// `--config`; by default the variable `REDLOCKD_CONFIG`, else no file.
    pub file: Option<PathBuf>,
    /// Settings with their values as text; if a setting occurs twice, the later value counts.
    pub flags: Vec<(String, String)>,
    /// `--node`, each `URL` or `NAME=URL`; if empty, the other layers' nodes.
    pub nodes: Vec<String>,
}

/// A configuration and its warnings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// The checked configuration, with all layers applied.
    pub config: Config,
    /// Warnings to log at the start.
    pub warnings: Vec<Warning>,
}

impl Inputs {
    /// Reads and checks all layers. Reads one file at most and changes nothing.
    ///
    /// Errors: [`ConfigErrors`], all of them; rules between settings are only checked if each setting is valid.
    pub fn load(self, env: &impl Environment) -> Result<Loaded, ConfigErrors> {
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        let mut config = Config::declared();
        let path = self.file.or_else(|| environment::set(env, FILE_VARIABLE).map(PathBuf::from));
        match path.map(|path| file::read(&path)) {
            None => {}
            Some(Ok(layer)) => apply(layer, &mut config, &mut errors),
            Some(Err(problems)) => errors.extend(problems),
        }
        apply(environment::layer(env, &mut errors, &mut warnings), &mut config, &mut errors);
        let mut flags = Layer::new(Origin::Flag);
        for (key, value) in self.flags {
            flags.put(key, RawValue::Text(value));
        }
        if !self.nodes.is_empty() {
            flags.put("nodes", RawValue::Nodes(self.nodes.iter().map(|node| NodeEntry::split(node)).collect()));
        }
        apply(flags, &mut config, &mut errors);
        if config.data_dir.as_os_str().is_empty() {
            config.data_dir = data_dir(env);
        }
        if errors.is_empty() {
            let (broken, odd) = rules::check(&config);
            errors.extend(broken);
            warnings.extend(odd);
        }
        if errors.is_empty() { Ok(Loaded { config, warnings }) } else { Err(ConfigErrors(errors)) }
    }
}

/// Puts one layer over the configuration; a later list replaces the earlier one.
fn apply(layer: Layer, config: &mut Config, errors: &mut Vec<ConfigError>) {
    for (name, raw) in layer.entries {
        if let Err(error) = config.set(&name, layer.origin, raw) {
            errors.push(error);
        }
    }
}

/// The data directory, independent of the working directory.
fn data_dir(env: &impl Environment) -> PathBuf {
    let under = |variable: &str, rest: &str| {
        environment::set(env, variable).map(PathBuf::from).filter(|dir| dir.is_absolute()).map(|dir| dir.join(rest))
    };
    // systemd separates several directories with colons; use the first.
    let state = environment::set(env, "STATE_DIRECTORY")
        .and_then(|dirs| dirs.into_string().ok())
        .and_then(|dirs| dirs.split(':').next().map(PathBuf::from));
    state
        .or_else(|| under("XDG_STATE_HOME", "redlockd"))
        .or_else(|| under("HOME", ".local/state/redlockd"))
        .unwrap_or_else(|| DATA_DIR.into())
}

impl Default for Config {
    /// The declared defaults, independent of the environment.
    fn default() -> Self {
        Self { data_dir: DATA_DIR.into(), ..Self::declared() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Write;
    use std::time::Duration;

    use super::super::file::DEFAULTS;
    use super::super::settings::SETTINGS;
    use super::*;
    use proptest::prelude::*;

    type Variables = BTreeMap<String, String>;

    fn variables(pairs: &[(&str, &str)]) -> Variables {
        pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(text.as_bytes()).expect("writable");
        file
    }

    fn flags(pairs: &[(&str, &str)]) -> Inputs {
        Inputs { flags: pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(), ..Inputs::default() }
    }

    fn refusal(inputs: Inputs, env: &Variables) -> String {
        inputs.load(env).expect_err("refused").to_string()
    }

    #[test]
    fn defaults_are_valid_without_a_warning() {
        let loaded = Inputs::default().load(&Variables::new()).expect("the defaults are good");
        assert_eq!(loaded, Loaded { config: Config::default(), warnings: vec![] });
        let c = loaded.config;
        assert_eq!((c.listen.to_string().as_str(), c.nodes.len(), c.embedded_nodes), ("127.0.0.1:5625", 0, 1));
        assert_eq!((c.node_timeout, c.default_ttl), (Duration::from_millis(50), Duration::from_secs(30)));
        assert!(SETTINGS.iter().all(|setting| c.origin_of(setting.name) == Some(Origin::Default)));
        assert_eq!(c.origin_of("frobnicate"), None);
    }

    #[test]
    fn each_layer_overrides_the_earlier_ones() {
        let file = file("connections_per_node = 2\nretry_max = \"1s\"\nnode_timeout = \"40ms\"\n");
        let env = variables(&[("REDLOCKD_RETRY_MAX", "2s"), ("REDLOCKD_NODE_TIMEOUT", "30ms")]);
        let inputs = Inputs { file: Some(file.path().into()), ..flags(&[("node_timeout", "20ms")]) };
        let c = inputs.load(&env).expect("good").config;
        assert_eq!((c.connections_per_node, c.origin_of("connections_per_node")), (2, Some(Origin::File)));
        assert_eq!((c.retry_max, c.origin_of("retry_max")), (Duration::from_secs(2), Some(Origin::Environment)));
        assert_eq!((c.node_timeout, c.origin_of("node_timeout")), (Duration::from_millis(20), Some(Origin::Flag)));
    }

    #[test]
    fn list_of_nodes_replaces_the_earlier_one() {
        let file = file("[[node]]\nname = \"f\"\nurl = \"redis://f\"\n");
        let env = variables(&[("REDLOCKD_NODES", "redis://a, b=redis://b ,redis://c")]);
        let ids = |inputs: Inputs, env: &Variables| -> Vec<String> {
            let config = inputs.load(env).expect("good").config;
            config.nodes.iter().map(|n| n.id().as_str().to_owned()).collect()
        };
        let from_file = || Inputs { file: Some(file.path().into()), ..Inputs::default() };
        assert_eq!(ids(from_file(), &Variables::new()), ["f"]);
        assert_eq!(ids(from_file(), &env), ["a:6379", "b", "c:6379"]);
        assert_eq!(ids(Inputs { nodes: vec!["x=redis://x".into()], ..from_file() }, &env), ["x"]);
    }

    #[test]
    fn file_may_be_named_in_the_environment_and_config_overrides_it() {
        let (one, two) = (file("connections_per_node = 2"), file("connections_per_node = 3"));
        let env = variables(&[("REDLOCKD_CONFIG", one.path().to_str().expect("a plain path"))]);
        assert_eq!(Inputs::default().load(&env).expect("good").config.connections_per_node, 2);
        let inputs = Inputs { file: Some(two.path().into()), ..Inputs::default() };
        assert_eq!(inputs.load(&env).expect("good").config.connections_per_node, 3);
    }

    #[test]
    fn unknown_setting_is_refused_with_the_nearest_name() {
        let file = file("node_timout = \"50ms\"\n[server]\nport = 1");
        let inputs = Inputs { file: Some(file.path().into()), ..Inputs::default() };
        let text = refusal(inputs, &Variables::new());
        assert!(
            text.contains("`node_timout` in the configuration file is not a setting: did you mean `node_timeout`?"),
            "{text}"
        );
        assert!(text.contains("`server` in the configuration file is not a setting"), "{text}");
    }

    #[test]
    fn unknown_variable_is_a_warning_and_empty_one_is_not_set() {
        let env = variables(&[
            ("REDLOCKD_CONNECTIONS_PER_NODES", "2"),
            ("REDLOCKD_CONNECTIONS_PER_NODE", ""),
            ("CONNECTIONS_PER_NODE", "x"),
            ("REDLOCKD_SERVICE_HOST", "x"),
        ]);
        let loaded = Inputs::default().load(&env).expect("good");
        assert_eq!(loaded.config.connections_per_node, 1);
        let texts: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "the environment variable REDLOCKD_CONNECTIONS_PER_NODES is not a setting and is ignored: did you mean REDLOCKD_CONNECTIONS_PER_NODE?",
                "the environment variable REDLOCKD_SERVICE_HOST is not a setting and is ignored",
            ]
        );
    }

    #[test]
    fn all_errors_are_reported_and_rules_need_valid_values() {
        let env = variables(&[("REDLOCKD_CONNECTIONS_PER_NODE", "0"), ("REDLOCKD_GUARD", "1s")]);
        let text = refusal(flags(&[("retry_max", "5"), ("frob", "1")]), &env);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(!text.contains("lock_delay"), "{text}");
        assert!(refusal(Inputs::default(), &variables(&[("REDLOCKD_GUARD", "1s")])).contains("`lock_delay`"));
    }

    #[test]
    fn state_directory_does_not_depend_on_the_working_directory() {
        let dir = |pairs: &[(&str, &str)]| Inputs::default().load(&variables(pairs)).expect("good").config.data_dir;
        assert_eq!(dir(&[]), PathBuf::from("/var/lib/redlockd"));
        assert_eq!(dir(&[("HOME", "/home/a")]), PathBuf::from("/home/a/.local/state/redlockd"));
        assert_eq!(dir(&[("HOME", "/home/a"), ("XDG_STATE_HOME", "/s")]), PathBuf::from("/s/redlockd"));
        assert_eq!(
            dir(&[("HOME", "/home/a"), ("XDG_STATE_HOME", "s")]),
            PathBuf::from("/home/a/.local/state/redlockd")
        );
        assert_eq!(dir(&[("STATE_DIRECTORY", "/var/lib/r:/x"), ("HOME", "/h")]), PathBuf::from("/var/lib/r"));
        assert_eq!(dir(&[("REDLOCKD_DATA_DIR", "here"), ("HOME", "/h")]), PathBuf::from("here"));
    }

    #[test]
    fn shipped_file_sets_every_setting_to_its_default() {
        let file = file(DEFAULTS);
        let inputs = Inputs { file: Some(file.path().into()), ..Inputs::default() };
        let mut config = inputs.load(&Variables::new()).expect("good").config;
        assert!(SETTINGS.iter().all(|setting| config.origin_of(setting.name) == Some(Origin::File)));
        config.origins = Config::default().origins;
        assert_eq!(config, Config::default());
    }

    #[test]
    fn former_name_is_refused_in_every_layer() {
        let text = "is called `connections_per_node` since 0.1.0";
        let file = file("lanes = 2");
        let inputs = Inputs { file: Some(file.path().into()), ..Inputs::default() };
        assert!(refusal(inputs, &Variables::new()).contains(text));
        assert!(refusal(Inputs::default(), &variables(&[("REDLOCKD_LANES", "2")])).contains(text));
        assert!(refusal(flags(&[("lanes", "2")]), &Variables::new()).contains(text));
    }

    proptest! {
        /// Of the layers that set a setting, the highest counts and is its origin.
        #[test]
        fn highest_layer_counts(
            in_file in proptest::option::of(1_u64..=16), in_env in proptest::option::of(1_u64..=16),
            in_flags in proptest::option::of(1_u64..=16),
        ) {
            let file = file(&in_file.map_or(String::new(), |n| format!("connections_per_node = {n}")));
            let env = in_env.map(|n| ("REDLOCKD_CONNECTIONS_PER_NODE".to_owned(), n.to_string())).into_iter().collect::<Variables>();
            let flags = in_flags.map(|n| ("connections_per_node".to_owned(), n.to_string())).into_iter().collect();
            let config = Inputs { file: Some(file.path().into()), flags, nodes: vec![] }.load(&env).expect("good").config;
            let (expected, origin) = match (in_file, in_env, in_flags) {
                (_, _, Some(n)) => (n, Origin::Flag),
                (_, Some(n), None) => (n, Origin::Environment),
                (Some(n), None, None) => (n, Origin::File),
                (None, None, None) => (1, Origin::Default),
            };
            prop_assert_eq!((config.connections_per_node as u64, config.origin_of("connections_per_node")), (expected, Some(origin)));
        }

        /// Every setting can be set to its default by file, environment and flag, and only its origin changes.
        #[test]
        fn every_setting_can_be_set_in_every_layer(index in 0..SETTINGS.len(), layer in 0..3_usize) {
            let setting = &SETTINGS[index];
            let text = setting.default.trim_matches('"').to_owned();
            // An empty text counts as not set in the environment, and an empty list of nodes is refused.
            prop_assume!(layer == 0 || (!text.is_empty() && setting.name != "nodes"));
            let file = file(&if layer == 0 { format!("{} = {}", setting.name, setting.default) } else { String::new() });
            let env = (layer == 1).then(|| (setting.variable(), text.clone())).into_iter().collect::<Variables>();
            let flags = (layer == 2).then(|| (setting.name.to_owned(), text)).into_iter().collect();
            let loaded = Inputs { file: Some(file.path().into()), flags, nodes: vec![] }.load(&env).expect("good");
            let mut config = loaded.config;
            prop_assert_eq!(config.origin_of(setting.name), Some([Origin::File, Origin::Environment, Origin::Flag][layer]));
            config.origins = Config::default().origins;
            prop_assert_eq!(config, Config::default());
        }
    }
}
