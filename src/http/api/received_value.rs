//! The values of a request's fields as received, and the JSON object that has them.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The maximum number of elements of a list, or of repetitions of a field, that are read: more than any endpoint takes.
pub const LIST_MAX: usize = 32;

/// The members of a JSON object; `None` is null, `Err` names a wrong type.
pub(super) type Pairs = Vec<(String, Result<Option<String>, &'static str>)>;

/// A value as received.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Given {
    Text(String),
    /// As written, for hints.
    Number(String),
    Bool(bool),
    Null,
    /// Its first elements, at most [`LIST_MAX`].
    List(Vec<Given>),
    Pairs(Pairs),
}

impl Given {
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Text(_) => "a string",
            Self::Number(_) => "a number",
            Self::Bool(_) => "a boolean",
            Self::Null => "null",
            Self::List(_) => "an array",
            Self::Pairs(_) => "an object",
        }
    }

    /// Whether both have the same meaning: a boolean or a number of a JSON body is text in a query.
    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        let scalar = |given: &Self| match given {
            Self::Text(text) | Self::Number(text) => Some(text.clone()),
            Self::Bool(value) => Some(value.to_string()),
            Self::Null | Self::List(_) | Self::Pairs(_) => None,
        };
        self == other || scalar(self).is_some_and(|this| scalar(other) == Some(this))
    }
}

/// Accepts any JSON value and keeps those that a field can have.
impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyValue;
        impl<'de> Visitor<'de> for AnyValue {
            type Value = Given;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }
            fn visit_str<E>(self, v: &str) -> Result<Given, E> {
                Ok(Given::Text(v.to_owned()))
            }
            fn visit_bool<E>(self, v: bool) -> Result<Given, E> {
                Ok(Given::Bool(v))
            }
            fn visit_u64<E>(self, v: u64) -> Result<Given, E> {
                Ok(Given::Number(v.to_string()))
            }
            fn visit_i64<E>(self, v: i64) -> Result<Given, E> {
                Ok(Given::Number(v.to_string()))
            }
            fn visit_f64<E>(self, v: f64) -> Result<Given, E> {
                Ok(Given::Number(v.to_string()))
            }
            fn visit_unit<E>(self) -> Result<Given, E> {
                Ok(Given::Null)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Given, A::Error> {
                let mut list = Vec::new();
                while list.len() < LIST_MAX
                    && let Some(element) = seq.next_element()?
                {
                    list.push(element);
                }
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Given::List(list))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Given, A::Error> {
                let mut pairs = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, Given>()? {
                    let value = match value {
                        Given::Text(text) => Ok(Some(text)),
                        Given::Null => Ok(None),
                        other => Err(other.type_name()),
                    };
                    pairs.push((key, value));
                }
                Ok(Given::Pairs(pairs))
            }
        }
        deserializer.deserialize_any(AnyValue)
    }
}

/// The top level of a JSON body: all members in order, so that repeated ones are detected.
pub(super) struct Members(pub(super) Vec<(String, Given)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Members;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }
            // Generated clients send null if the body is optional.
            fn visit_unit<E>(self) -> Result<Members, E> {
                Ok(Members(Vec::new()))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    members.push(entry);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_any(Object)
    }
}
