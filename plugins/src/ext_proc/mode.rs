//! The parts of an exchange that the server sees.

use serde::Deserialize;

/// `ProcessingMode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(from = "Words")]
pub(super) struct Mode {
    pub request_headers: bool,
    pub response_headers: bool,
    pub request_body: BodyMode,
    pub response_body: BodyMode,
    pub request_trailers: bool,
    pub response_trailers: bool,
}

/// How the server sees a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum BodyMode {
    None,
    Streamed,
    Buffered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Sends {
    Send,
    Skip,
}

/// As it stands in the settings, with all defaults.
#[derive(Deserialize)]
#[serde(default)]
#[expect(clippy::struct_field_names, reason = "Envoy's names")]
struct Words {
    request_header_mode: Sends,
    response_header_mode: Sends,
    request_body_mode: BodyMode,
    response_body_mode: BodyMode,
    request_trailer_mode: Sends,
    response_trailer_mode: Sends,
}

impl Default for Words {
    fn default() -> Words {
        Words {
            request_header_mode: Sends::Send,
            response_header_mode: Sends::Send,
            request_body_mode: BodyMode::None,
            response_body_mode: BodyMode::None,
            request_trailer_mode: Sends::Skip,
            response_trailer_mode: Sends::Skip,
        }
    }
}

impl From<Words> for Mode {
    fn from(words: Words) -> Mode {
        Mode {
            request_headers: words.request_header_mode == Sends::Send,
            response_headers: words.response_header_mode == Sends::Send,
            request_body: words.request_body_mode,
            response_body: words.response_body_mode,
            request_trailers: words.request_trailer_mode == Sends::Send,
            response_trailers: words.response_trailer_mode == Sends::Send,
        }
    }
}

impl Default for Mode {
    fn default() -> Mode {
        Mode::HEADERS
    }
}

impl Mode {
    /// Envoy's default.
    pub const HEADERS: Mode = Mode {
        request_headers: true,
        response_headers: true,
        request_body: BodyMode::None,
        response_body: BodyMode::None,
        request_trailers: false,
        response_trailers: false,
    };

    /// Whether the server sees something of responses.
    pub fn sees_responses(self) -> bool {
        self.response_headers || self.response_body != BodyMode::None
    }
}

impl BodyMode {
    /// The mode of a number of `BodySendMode`; the others are not supported.
    pub fn of_number(number: u64) -> Option<BodyMode> {
        match number {
            0 => Some(BodyMode::None),
            1 => Some(BodyMode::Streamed),
            2 => Some(BodyMode::Buffered),
            _ => None,
        }
    }
}
