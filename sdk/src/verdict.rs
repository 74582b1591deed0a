//! hot path
//!
//! What a condition comes to, and why it may come to nothing.

/// The outcome of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Holds,
    Fails,
    /// It depends on the request's body, which is not in memory yet.
    NeedsBody,
    /// It depends on something that cannot be read. A request must not pass on the strength of it.
    Unjudged(Unjudged),
}

/// Why a condition cannot be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unjudged {
    /// The body, or what it holds, is larger than is looked into.
    TooLarge,
    /// The body is not what its Content-Type says.
    Unreadable,
    /// A pattern with look-around or back-references took more steps than it may, or conditions
    /// look for too many values in a long body.
    Spent,
}

/// Why a variable cannot be read now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    NeedsBody,
    Unjudged(Unjudged),
}

/// How far conditions look into a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of a body that is held for a condition (`apisix.max_post_args_readable_size`).
    pub body: usize,
    /// Bytes of a GraphQL document (`graphql.max_size`).
    pub graphql: usize,
}

impl Bounds {
    /// APISIX's.
    pub const DEFAULT: Bounds = Bounds { body: 64 << 20, graphql: 1 << 20 };
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds::DEFAULT
    }
}

impl Unjudged {
    /// The status of the answer that refuses the request.
    pub fn status(self) -> u16 {
        match self {
            Unjudged::TooLarge => 413,
            Unjudged::Unreadable | Unjudged::Spent => 400,
        }
    }

    /// The reason, for the client.
    pub fn as_str(self) -> &'static str {
        match self {
            Unjudged::TooLarge => "the request's body is longer than a condition on it may look",
            Unjudged::Unreadable => "a condition on the request's body cannot read it",
            Unjudged::Spent => "a condition on the request takes too many steps to decide",
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

impl From<Doubt> for Verdict {
    fn from(doubt: Doubt) -> Verdict {
        match doubt {
            Doubt::NeedsBody => Verdict::NeedsBody,
            Doubt::Unjudged(why) => Verdict::Unjudged(why),
        }
    }
}

impl From<Unjudged> for Doubt {
    fn from(why: Unjudged) -> Doubt {
        Doubt::Unjudged(why)
    }
}
