//! Maps that each request uses. Their keys come from callers, so their hash has a key: aHash is cheaper than the standard
//! library's hash for short keys, and promises that nobody finds keys that collide who sees neither the process's random seeds nor
//! hashes. No hash leaves the process, nor does the order of these maps.

use std::sync::LazyLock;

pub(crate) use ahash::RandomState;

/// See the module.
pub(crate) type KeyedMap<K, V> = std::collections::HashMap<K, V, RandomState>;
/// See the module.
pub(crate) type KeyedSet<K> = std::collections::HashSet<K, RandomState>;

/// For hashes that are compared with each other within the process.
pub(crate) static HASHING: LazyLock<RandomState> = LazyLock::new(RandomState::new);
