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

/// The text of a number: it can stand in any head.
#[derive(Debug, Clone, Copy)]
pub struct Digits<'b>(&'b [u8]);

/// Memory for the text of a number.
#[derive(Default)]
pub struct NumberBuffer {
    whole: itoa::Buffer,
    decimal: [u8; 24],
}

impl NumberBuffer {
    #[inline]
    pub fn whole(&mut self, number: u64) -> Digits<'_> {
        Digits(self.whole.format(number).as_bytes())
    }

    /// Seconds as APISIX 3.18 prints them: two decimals at most, rounded down, without trailing zeros.
    #[inline]
    pub fn seconds(&mut self, ms: u64) -> Digits<'_> {
        let whole = self.whole.format(ms / 1000).as_bytes();
        let hundredths = (ms % 1000 / 10) as u8;
        if hundredths == 0 {
            return Digits(whole);
        }
        let point = whole.len();
        self.decimal[..point].copy_from_slice(whole);
        self.decimal[point..point + 3].copy_from_slice(&[
            b'.',
            b'0' + hundredths / 10,
            b'0' + hundredths % 10,
        ]);
        Digits(&self.decimal[..point + if hundredths.is_multiple_of(10) { 2 } else { 3 }])
    }
}

impl Digits<'_> {
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        self.0
    }
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

    #[test]
    fn seconds_have_two_decimals_at_most() {
        for (ms, text) in [
            (60_000, "60"),
            (59_999, "59.99"),
            (500, "0.5"),
            (9, "0"),
            (10, "0.01"),
            (u64::MAX, "18446744073709551.61"),
        ] {
            assert_eq!(NumberBuffer::default().seconds(ms).as_bytes(), text.as_bytes(), "{ms}");
        }
    }
}
