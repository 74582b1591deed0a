//! Headers that a server sets and removes.

use sdk::{Exchange, Name};

use crate::auth::Vouched;
use crate::protobuf::{Field, Fields, Malformed, number, text};

/// Headers that an answer may set or remove.
pub(crate) const MOST_HEADERS: usize = 1000;

/// The effect on a header that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Replace,
    Append,
    AddIfAbsent,
    ReplaceIfPresent,
}

impl Action {
    pub fn applies(self, is_there: bool) -> bool {
        match self {
            Action::Replace | Action::Append => true,
            Action::AddIfAbsent => !is_there,
            Action::ReplaceIfPresent => is_there,
        }
    }
}

/// A header that the server sets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Header<'m> {
    pub name: &'m str,
    pub value: &'m [u8],
    pub action: Action,
}

/// A name or value is invalid.
#[derive(Debug)]
pub(crate) struct Invalid;

impl<'m> Header<'m> {
    /// Reads a `HeaderValueOption`. One without a name is skipped.
    pub fn read(message: &'m [u8]) -> Result<Option<Header<'m>>, Malformed> {
        let mut found = Header { name: "", value: b"", action: Action::Replace };
        let mut action = 0;
        for field in Fields::of(message) {
            match field? {
                (1, Field::Bytes(header)) => {
                    for field in Fields::of(header) {
                        match field? {
                            (1, Field::Bytes(name)) => found.name = text(name)?,
                            // `value`, or `raw_value`.
                            (2 | 3, Field::Bytes(value)) if !value.is_empty() => found.value = value,
                            _ => {}
                        }
                    }
                }
                (2, Field::Bytes(append)) if number(append, 1)?.unwrap_or(0) != 0 => {
                    found.action = Action::Append;
                }
                (3, Field::Number(value)) => action = value,
                _ => {}
            }
        }
        // As in Envoy, its default gives way to `append`.
        match action {
            0 => {}
            1 => found.action = Action::AddIfAbsent,
            2 => found.action = Action::Replace,
            3 => found.action = Action::ReplaceIfPresent,
            _ => return Err(Malformed),
        }
        Ok((!found.name.is_empty()).then_some(found))
    }

    /// Changes the request.
    pub fn change_request(&self, x: &mut Exchange<'_>, vouched: &mut Vouched) -> Result<(), Invalid> {
        if !is_changeable(self.name) || !self.action.applies(x.header(self.name).is_some()) {
            return Ok(());
        }
        let changed = match self.action {
            Action::Append => x.add_header(self.name, self.value),
            _ => {
                x.remove_lookalikes(self.name);
                x.set_header(self.name, self.value)
            }
        };
        changed.map_err(|_| Invalid)?;
        [self.name.as_bytes(), self.value].into_iter().for_each(|part| vouched.add(part));
        Ok(())
    }

    /// Changes the response.
    pub fn change_response(&self, x: &mut Exchange<'_>) -> Result<(), Invalid> {
        if !is_changeable(self.name) || !self.action.applies(x.response_header(self.name).is_some()) {
            return Ok(());
        }
        let changed = match self.action {
            Action::Append => x.add_response_header(self.name, self.value),
            _ => x.set_response_header(self.name, self.value),
        };
        changed.map_err(|_| Invalid)
    }
}

/// Removes headers of the request.
pub(crate) fn remove_from_request(x: &mut Exchange<'_>, names: &[&str], vouched: &mut Vouched) {
    for name in names.iter().filter(|name| is_changeable(name)) {
        x.remove_lookalikes(*name);
        x.remove_header(*name);
        vouched.add(name.as_bytes());
    }
}

/// Whether a header is not part of the framing or of the connection, nor taken for one by a server that reads `_` as `-`.
pub(crate) fn is_changeable(name: &str) -> bool {
    let is_fixed = matches!(
        Name::from_lookalike(name.as_bytes()),
        Name::Host
            | Name::ContentLength
            | Name::TransferEncoding
            | Name::Connection
            | Name::KeepAlive
            | Name::Upgrade
            | Name::Te
            | Name::Trailer
    );
    !name.starts_with(':') && !is_fixed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_the_framing_cannot_be_changed_in_any_spelling() {
        for name in ["Host", "Transfer_Encoding", "content_LENGTH", "keep_alive", "te", ":path"] {
            assert!(!is_changeable(name), "{name}");
        }
        assert!(is_changeable("x_host") && is_changeable("content-type"));
    }
}
