//! Resources that are not served as they are written.

use crate::{Invalid, Key};

/// A resource that is not served as it is written, and why. The compiler, the store and the check of
/// references all report in this form, and the control API shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Rejected {
    pub key: Key,
    pub invalid: Invalid,
    pub served: Served,
}

/// How a rejected resource is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    LastGoodForm,
    Nothing,
    /// Requests that match it are refused: it lacks a secret, or lacked one before the mistake it has now. No other
    /// resource that matches is served in its place, as that may protect less.
    Refusal,
    /// All but what it names, which does not exist.
    Incomplete,
}

impl Rejected {
    /// Whether its last good form is served.
    pub fn kept(&self) -> bool {
        self.served == Served::LastGoodForm
    }
}

impl Served {
    pub const ALL: [Served; 4] = [Served::LastGoodForm, Served::Nothing, Served::Refusal, Served::Incomplete];

    /// The form that takes the place of a rejected one: the last good one, if there was one.
    pub fn last_good(there_is_one: bool) -> Served {
        if there_is_one { Served::LastGoodForm } else { Served::Nothing }
    }

    /// As the control API says it.
    pub fn as_str(self) -> &'static str {
        match self {
            Served::LastGoodForm => "last good form served",
            Served::Nothing => "left out",
            Served::Refusal => "refused",
            Served::Incomplete => "names what does not exist",
        }
    }
}
