//! hot path
//!
//! Results of conditions, including the undecidable ones.

/// The result of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Holds,
    Fails,
    /// It depends on the request's body, which is not buffered yet.
    NeedsBody,
    /// It depends on a value that cannot be read. Such a request must not be let through.
    Undecidable(Undecidable),
}

/// Why a condition is undecidable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Undecidable {
    /// The body, or a part of it, exceeds the limit for conditions.
    TooLarge,
    /// The body does not match its Content-Type.
    Unreadable,
    /// A pattern with look-around or back-references exceeded its steps, or conditions read too
    /// many values of a long body.
    Spent,
}

/// Why a variable cannot be read now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadError {
    NeedsBody,
    Undecidable(Undecidable),
}

/// How much of a request's body conditions may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of a body that is buffered for a condition (`apisix.max_post_args_readable_size`).
    pub body: usize,
    /// Bytes of a GraphQL document (`graphql.max_size`).
    pub graphql: usize,
}

impl Bounds {
    /// The defaults of APISIX.
    pub const DEFAULT: Bounds = Bounds { body: 64 << 20, graphql: 1 << 20 };
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds::DEFAULT
    }
}

impl Undecidable {
    /// The status of the response that rejects the request.
    pub fn status(self) -> u16 {
        match self {
            Undecidable::TooLarge => 413,
            Undecidable::Unreadable | Undecidable::Spent => 400,
        }
    }

    /// The reason, for the client.
    pub fn as_str(self) -> &'static str {
        match self {
            Undecidable::TooLarge => "the request body exceeds the limit for conditions",
            Undecidable::Unreadable => "a condition cannot read the request body",
            Undecidable::Spent => "a condition on the request exceeds its step limit",
        }
    }
}

impl Verdict {
    pub(crate) fn of(truth: bool) -> Verdict {
        if truth { Verdict::Holds } else { Verdict::Fails }
    }

    pub(crate) fn negated_if(self, negate: bool) -> Verdict {
        match self {
            Verdict::Holds if negate => Verdict::Fails,
            Verdict::Fails if negate => Verdict::Holds,
            verdict => verdict,
        }
    }
}

impl From<ReadError> for Verdict {
    fn from(doubt: ReadError) -> Verdict {
        match doubt {
            ReadError::NeedsBody => Verdict::NeedsBody,
            ReadError::Undecidable(why) => Verdict::Undecidable(why),
        }
    }
}

impl From<Undecidable> for ReadError {
    fn from(why: Undecidable) -> ReadError {
        ReadError::Undecidable(why)
    }
}
