//! One resource of the desired configuration, as it was understood.
//!
//! A typed resource takes several times the room of its text, and is looked at when it is compiled and hardly
//! ever again. An entry that knows the text it was read from can release the typed form, which is read from the
//! text again when it is needed: reading is pure, so it is the same.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::{Key, Resource};

/// A resource under its key, with its revisions.
#[derive(Clone)]
pub struct Entry {
    pub key: Key,
    /// Empty at rest.
    typed: OnceLock<Resource>,
    /// The text that `typed` was read from, if that is known.
    text: Option<Arc<str>>,
    /// The store's revision when the key came to be.
    pub created: u64,
    /// The store's revision of this value.
    pub modified: u64,
}

impl Entry {
    /// An entry that stays typed.
    pub fn new(key: Key, resource: Resource, created: u64, modified: u64) -> Entry {
        Entry { key, typed: OnceLock::from(resource), text: None, created, modified }
    }

    /// An entry that can be put to rest: `resource` was read from this JSON.
    pub fn of_text(key: Key, resource: Resource, text: Arc<str>, created: u64, modified: u64) -> Entry {
        Entry { text: Some(text), ..Entry::new(key, resource, created, modified) }
    }

    /// The resource, which from now on stays in memory; see [`Entry::at_rest`].
    pub fn resource(&self) -> &Resource {
        self.typed.get_or_init(|| self.read())
    }

    /// The resource for one look, after which an entry at rest still is.
    pub fn peek(&self) -> Cow<'_, Resource> {
        self.typed.get().map_or_else(|| Cow::Owned(self.read()), Cow::Borrowed)
    }

    /// The same entry without its typed form; `None` if that takes no memory already, or could not be read again.
    pub fn at_rest(&self) -> Option<Entry> {
        let text = self.text.as_ref().filter(|_| self.typed.get().is_some())?;
        Some(Entry { key: self.key.clone(), typed: OnceLock::new(), text: Some(text.clone()), ..*self })
    }

    /// Whether the value may contain this text, which must be one that JSON writes without escapes. Certain
    /// only where the answer is no.
    pub fn may_contain(&self, text: &str) -> bool {
        // JSON may have any character as an escape.
        let found = |json: &Arc<str>| {
            let json = json.as_bytes();
            memchr::memmem::find(json, text.as_bytes()).is_some() || memchr::memchr(b'\\', json).is_some()
        };
        self.text.as_ref().is_none_or(found)
    }

    fn read(&self) -> Resource {
        let value = self.text.as_deref().map(serde_json::from_str);
        let value = value.and_then(Result::ok).unwrap_or_default();
        #[expect(
            clippy::expect_used,
            reason = "the constructors are given what was read from this very text"
        )]
        Resource::read(self.key.kind, &self.key.id, value)
            .expect("a text that was read once can be read again")
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        (&self.key, self.created, self.modified) == (&other.key, other.created, other.modified)
            && self.peek() == other.peek()
    }
}

/// As text the typed form, at rest or not.
impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("key", &self.key)
            .field("resource", &self.peek())
            .field("created", &self.created)
            .field("modified", &self.modified)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    fn entry(text: &str) -> Entry {
        let resource = Resource::parse(Kind::Route, "1", &serde_json::from_str(text).unwrap()).unwrap();
        Entry::of_text(Key::new(Kind::Route, "1"), resource, text.into(), 3, 7)
    }

    #[test]
    fn an_entry_at_rest_is_the_same_when_it_is_looked_at_again() {
        let awake = entry(
            r#"{"uri":"/a","host":"A.com","plugins":{"key-auth":null},"upstream":{"nodes":{"a:80":1}}}"#,
        );
        let resting = awake.at_rest().unwrap();
        assert!(resting.typed.get().is_none() && resting.at_rest().is_none());
        assert_eq!(resting, awake);
        assert!(resting.typed.get().is_none(), "comparing leaves it at rest");
        assert_eq!(resting.resource(), awake.resource());
        assert!(resting.at_rest().is_some());
        assert_ne!(resting, entry(r#"{"uri":"/b","plugins":{}}"#));
    }

    #[test]
    fn an_entry_without_a_text_stays_typed() {
        let entry = entry(r#"{"uri":"/a","plugins":{}}"#);
        let entry = Entry::new(entry.key.clone(), entry.resource().clone(), 1, 1);
        assert!(entry.at_rest().is_none());
        assert!(entry.may_contain("anything"));
    }

    #[test]
    fn what_a_value_may_contain_is_known_unless_it_has_escapes() {
        let plain = entry(r#"{"uri":"/a","plugins":{"key-auth":{}}}"#);
        assert!(plain.may_contain("key-auth") && !plain.may_contain("jwt-auth"));
        let escaped = entry(r#"{"uri":"/a","plugins":{"key\u002dauth":{}}}"#);
        assert!(escaped.may_contain("key-auth"));
        assert!(escaped.resource().plugins().unwrap().contains_key("key-auth"));
    }
}
