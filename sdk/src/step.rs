//! hot path
//!
//! What a stage answers when it is asked.

use bytes::Bytes;

use crate::verdict::Unjudged;

/// What an instance answers when it is asked: before the upstream in every phase, and in filters that
/// do more than to change what they are shown.
#[derive(Debug)]
pub enum Step {
    /// Go on with the next stage.
    Next,
    /// Answer the client now; no later instance of this phase and no upstream is asked. In a filter:
    /// instead of the response.
    Reply(Reply),
    /// Call [`crate::Plugin::wait`] of this stage and await it, then act on what it gives.
    Wait,
    /// Read the request's body into memory first (up to so many bytes), then call this instance again.
    /// Not in filters: the request is gone by then.
    Body(usize),
    /// A condition of the stage cannot be judged: the request is refused.
    Refuse(Unjudged),
}

/// What is known of an answer before it is made; see [`crate::Plugin::sure_answer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SureAnswer {
    /// It has this status.
    Status(u16),
    /// Its status is decided with the request.
    Unknown,
}

/// An answer made by the gateway. Fields set earlier by
/// [`crate::Exchange::set_response_header`] are laid over it, and the header
/// and body filters of the chain see it as any other answer.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    pub status: u16,
    /// Set on the answer in this order; names in their usual spelling.
    pub headers: Vec<(&'static str, Vec<u8>)>,
    pub body: Bytes,
}

impl Reply {
    /// An answer without a body.
    pub fn status(status: u16) -> Reply {
        Reply { status, ..Reply::default() }
    }

    /// A plain text answer.
    pub fn text(status: u16, body: impl Into<Bytes>) -> Reply {
        Reply {
            status,
            headers: vec![("Content-Type", b"text/plain; charset=utf-8".to_vec())],
            body: body.into(),
        }
    }

    /// A JSON answer as APISIX writes tables: the object and a newline.
    pub fn json(status: u16, value: &serde_json::Value) -> Reply {
        let mut body = serde_json::to_vec(value).unwrap_or_default();
        body.push(b'\n');
        Reply { status, headers: vec![("Content-Type", b"application/json".to_vec())], body: body.into() }
    }

    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<Vec<u8>>) -> Reply {
        self.headers.push((name, value.into()));
        self
    }
}
