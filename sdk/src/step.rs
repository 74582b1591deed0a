//! hot path
//!
//! The result of calling a plugin instance.

use std::pin::Pin;

use bytes::Bytes;
use wire::Fields;

use crate::verdict::Undecidable;

/// A future on one worker; it never crosses threads.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The result of calling an instance, before the upstream in every phase, and in filters that may
/// do more than change their argument.
#[derive(Debug)]
pub enum Step {
    /// Continue with the next instance.
    Next,
    /// Respond to the client now; later instances of this phase and the upstream are skipped. In a
    /// filter: replace the response.
    Reply(Reply),
    /// Call [`crate::Plugin::wait`] of this instance, await it, then act on its result.
    Wait,
    /// Buffer the request's body first (up to this many bytes), then call this instance again. Not
    /// in filters: the request has been forwarded by then.
    Body(usize),
    /// A condition of the instance is undecidable: the request is rejected.
    Refuse(Undecidable),
}

/// Information about a response before it is made; see [`crate::Plugin::sure_answer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SureAnswer {
    /// The status is known.
    Status(u16),
    /// The status depends on the request.
    Unknown,
}

/// A response made by the gateway. Fields set earlier by [`crate::Exchange::set_response_header`]
/// are applied to it, and the header and body filters of the chain process it as any other
/// response.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    pub status: u16,
    /// Set on the response in this order; names in their usual spelling.
    pub headers: Vec<(&'static str, Vec<u8>)>,
    /// Further headers, whose names are known only at run time, such as those of a stored response.
    pub fields: Option<Box<Fields>>,
    pub body: Bytes,
    /// The body is not `body`, but the source set by [`crate::Exchange::stream_body`].
    pub streamed: bool,
    /// Why the request is refused, for the operator (`$sluice_reason`, explain); empty in an ordinary
    /// response. The client does not see it.
    pub reason: &'static str,
    /// Exit callbacks ([`crate::Exchange::filter_replies`]) leave it as it is: a script made it and has called them.
    pub is_final: bool,
}

impl Reply {
    /// A response without a body.
    pub fn status(status: u16) -> Reply {
        Reply { status, ..Reply::default() }
    }

    /// A plain text response.
    pub fn text(status: u16, body: impl Into<Bytes>) -> Reply {
        Reply {
            status,
            headers: vec![("Content-Type", b"text/plain; charset=utf-8".to_vec())],
            body: body.into(),
            ..Reply::default()
        }
    }

    /// A JSON response as APISIX writes tables: the object and a newline.
    pub fn json(status: u16, value: &serde_json::Value) -> Reply {
        let mut body = serde_json::to_vec(value).unwrap_or_default();
        body.push(b'\n');
        Reply {
            status,
            headers: vec![("Content-Type", b"application/json".to_vec())],
            body: body.into(),
            ..Reply::default()
        }
    }

    /// Marks the response as a refusal for this reason.
    #[must_use]
    pub fn because(mut self, reason: &'static str) -> Reply {
        self.reason = reason;
        self
    }

    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<Vec<u8>>) -> Reply {
        self.headers.push((name, value.into()));
        self
    }
}
