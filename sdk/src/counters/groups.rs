//! Named groups of plugin instances that share a counter, and the settings of each group.
#![expect(clippy::disallowed_types, reason = "taken when a plugin instance is built, never by a request")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde_json::Value;

/// The groups in use. Accessed only while configuration is checked and compiled.
#[derive(Debug, Default)]
pub struct Groups {
    by_name: Mutex<HashMap<String, Weak<Value>>>,
}

/// The membership of a plugin instance; the group exists as long as it has members.
#[derive(Debug, Clone)]
pub struct Group {
    _settings: Arc<Value>,
}

impl Groups {
    /// Whether the group is in use with different settings. A reference to a secret is taken for its value: that is
    /// not known when a configuration is only checked.
    pub fn conflicts(&self, name: &str, settings: &Value) -> bool {
        let groups = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        let known = groups.get(name).and_then(Weak::upgrade);
        let is_reference = |value: &Value| {
            value
                .as_str()
                .is_some_and(|text| ["$env://", "$secret://"].iter().any(|start| starts(text, start)))
        };
        match (known.as_deref(), settings) {
            (Some(Value::Object(known)), Value::Object(settings)) => {
                let same =
                    |(name, value)| known.get(name).is_some_and(|own| own == value || is_reference(value));
                known.len() != settings.len() || !settings.iter().all(same)
            }
            (known, settings) => known.is_some_and(|known| known != settings),
        }
    }

    /// Joins the group; the latest settings become the group's.
    pub fn join(&self, name: &str, settings: &Value) -> Group {
        let mut groups = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        groups.retain(|_, known| known.strong_count() > 0);
        let known = groups.get(name).and_then(Weak::upgrade).filter(|known| **known == *settings);
        let settings = known.unwrap_or_else(|| {
            let settings = Arc::new(settings.clone());
            groups.insert(name.to_owned(), Arc::downgrade(&settings));
            settings
        });
        Group { _settings: settings }
    }
}

fn starts(text: &str, start: &str) -> bool {
    text.get(..start.len()).is_some_and(|own| own.eq_ignore_ascii_case(start))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_group_lasts_as_long_as_its_members() {
        let groups = Groups::default();
        let (two, three) = (json!({"count": 2}), json!({"count": 3}));
        assert!(!groups.conflicts("g", &two));
        let first = groups.join("g", &two);
        let second = groups.join("g", &two);
        assert!(groups.conflicts("g", &three) && !groups.conflicts("g", &two));
        drop(first);
        assert!(groups.conflicts("g", &three));
        drop(second);
        assert!(!groups.conflicts("g", &three));
        let _third = groups.join("g", &json!({"count": 2, "password": "p"}));
        for (settings, conflicts) in [
            (json!({"count": 2, "password": "p"}), false),
            (json!({"count": 2, "password": "$env://P"}), false),
            (json!({"count": 2, "password": "$Secret://vault/a/b"}), false),
            (json!({"count": 2, "password": "q"}), true),
            (json!({"count": 2, "user": "$env://P"}), true),
            (json!({"count": 2}), true),
        ] {
            assert_eq!(groups.conflicts("g", &settings), conflicts, "{settings}");
        }
    }

    #[test]
    fn a_group_outlives_other_members() {
        let groups = Groups::default();
        let (two, three) = (json!({"count": 2}), json!({"count": 3}));
        let _first = groups.join("g", &two);
        drop(groups.join("g", &two));
        assert!(groups.conflicts("g", &three), "a later member has left, the group still exists");
        drop(groups.join("gone", &two));
        let _other = groups.join("other", &two);
        assert!(groups.conflicts("g", &three));
        assert_eq!(groups.by_name.lock().unwrap().len(), 2, "the group without members is removed");
    }
}
