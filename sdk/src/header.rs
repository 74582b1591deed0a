//! hot path
//!
//! Names of header fields: text, or a name that was checked and looked up when the plugin was
//! built.

use wire::fields::check_name;
use wire::{BadField, Name};

/// The name of a header, checked and looked up once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderName {
    id: Name,
    text: Box<str>,
}

/// A name to access a header by: `&str`, [`HeaderName`] or a known [`Name`].
pub trait Named {
    fn id(&self) -> Name;
    fn text(&self) -> &[u8];
    /// # Errors
    /// The text is not a token (RFC 9110 section 5.6.2).
    fn check(&self) -> Result<(), BadField>;
}

impl HeaderName {
    /// # Errors
    /// The text is not a token (RFC 9110 section 5.6.2).
    pub fn new(text: &str) -> Result<HeaderName, BadField> {
        check_name(text.as_bytes())?;
        Ok(HeaderName { id: Name::from_bytes(text.as_bytes()), text: text.into() })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it is this known name.
    pub fn is(&self, name: Name) -> bool {
        name != Name::Other && self.id == name
    }
}

impl Named for str {
    #[inline]
    fn id(&self) -> Name {
        Name::from_bytes(self.as_bytes())
    }

    #[inline]
    fn text(&self) -> &[u8] {
        self.as_bytes()
    }

    #[inline]
    fn check(&self) -> Result<(), BadField> {
        check_name(self.as_bytes())
    }
}

impl Named for HeaderName {
    #[inline]
    fn id(&self) -> Name {
        self.id
    }

    #[inline]
    fn text(&self) -> &[u8] {
        self.text.as_bytes()
    }

    #[inline]
    fn check(&self) -> Result<(), BadField> {
        Ok(())
    }
}

impl Named for Name {
    #[inline]
    fn id(&self) -> Name {
        *self
    }

    #[inline]
    fn text(&self) -> &[u8] {
        self.as_str().as_bytes()
    }

    #[inline]
    fn check(&self) -> Result<(), BadField> {
        if *self == Name::Other { Err(BadField::Name) } else { Ok(()) }
    }
}

impl Named for String {
    #[inline]
    fn id(&self) -> Name {
        self.as_str().id()
    }

    #[inline]
    fn text(&self) -> &[u8] {
        self.as_bytes()
    }

    #[inline]
    fn check(&self) -> Result<(), BadField> {
        self.as_str().check()
    }
}

impl<N: Named + ?Sized> Named for &N {
    #[inline]
    fn id(&self) -> Name {
        (**self).id()
    }

    #[inline]
    fn text(&self) -> &[u8] {
        (**self).text()
    }

    #[inline]
    fn check(&self) -> Result<(), BadField> {
        (**self).check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: impl Named) -> (Name, Vec<u8>, bool) {
        (name.id(), name.text().to_vec(), name.check().is_ok())
    }

    #[test]
    fn all_kinds_of_names_agree() {
        for name in ["Host", "X-Own", "not a name"] {
            let owned = name.to_owned();
            assert_eq!(named(name), named(&owned));
            let lent: &&str = &name;
            assert_eq!(named(name), named(lent));
            assert_eq!(named(name), named(owned));
        }
        assert_eq!(named(Name::Host), (Name::Host, b"Host".to_vec(), true));
        assert!(named("X-Own").2 && !named("not a name").2);
        assert!(!named(Name::Other).2, "it has no text");
    }
}
