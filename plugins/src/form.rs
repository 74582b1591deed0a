//! Forms that the gateway sends (`application/x-www-form-urlencoded`).

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

/// All but the unreserved characters, which are never escaped (RFC 3986 section 2.3).
pub(crate) const UNRESERVED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The arguments of a form, encoded.
#[derive(Clone, Default)]
pub(crate) struct Form(Vec<u8>);

impl Form {
    pub fn with(mut self, name: &str, value: impl AsRef<[u8]>) -> Form {
        self.add(name, value);
        self
    }

    pub fn add(&mut self, name: &str, value: impl AsRef<[u8]>) {
        if !self.0.is_empty() {
            self.0.push(b'&');
        }
        self.0.extend_from_slice(escape(name).as_bytes());
        self.0.push(b'=');
        self.0.extend_from_slice(escape(value).as_bytes());
    }

    /// Whether it has this argument, whose name needs no escape.
    pub fn has(&self, name: &str) -> bool {
        let pairs = self.0.split(|byte| *byte == b'&');
        pairs
            .into_iter()
            .any(|pair| pair.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"=")))
    }

    pub fn bytes(self) -> Vec<u8> {
        self.0
    }
}

pub(crate) fn escape(text: impl AsRef<[u8]>) -> String {
    percent_encode(text.as_ref(), UNRESERVED).to_string()
}
