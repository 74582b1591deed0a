//! Masks, and the arguments of a query or a form that they apply to.

use std::borrow::Cow;

use model::Invalid;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use sdk::pattern::{Pattern, Replacement, Searches};

use super::{Kind, Rule};
use crate::query;

/// A mask.
#[derive(Debug)]
pub(super) enum Action {
    Remove,
    Replace(String),
    /// Replaces the first match.
    Regex(Box<(Pattern, Replacement)>),
}

/// The result of a mask.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Masked {
    Same,
    Text(Vec<u8>),
    /// It is left out.
    Withheld,
}

impl Action {
    pub(super) fn new(rule: &Rule) -> Result<Action, Invalid> {
        let required =
            |field: &str| Invalid::new(format!("property \"{field}\" is required")).at(format!("/{field}"));
        let value = || rule.value.as_deref().ok_or_else(|| required("value"));
        Ok(match rule.action {
            Kind::Remove => Action::Remove,
            Kind::Replace => Action::Replace(value()?.to_owned()),
            Kind::Regex => {
                let regex = rule.regex.as_deref().ok_or_else(|| required("regex"))?;
                let pattern = Pattern::new(regex, false).map_err(|invalid| invalid.under("/regex"))?;
                let replacement = Replacement::parse(value()?).map_err(|invalid| invalid.under("/value"))?;
                Action::Regex(Box::new((pattern, replacement)))
            }
        })
    }

    pub(super) fn apply(&self, value: &[u8], searches: &Searches) -> Masked {
        match self {
            Action::Remove => Masked::Withheld,
            Action::Replace(text) => Masked::Text(text.clone().into_bytes()),
            Action::Regex(regex) => match regex.0.captures(value, searches) {
                Ok(None) => Masked::Same,
                Ok(Some(captures)) => {
                    let mut out = Vec::new();
                    captures.replace(&regex.1, &mut out);
                    Masked::Text(out)
                }
                Err(_) => Masked::Withheld,
            },
        }
    }
}

/// Masks of the arguments of a query or a form.
#[derive(Debug)]
pub(super) struct Arguments {
    rules: Vec<(Box<[u8]>, Action)>,
    /// Further arguments are left out; 0 is no limit.
    most: usize,
}

impl Arguments {
    pub(super) fn new(most: usize) -> Arguments {
        Arguments { rules: Vec::new(), most }
    }

    pub(super) fn add(&mut self, name: &str, action: Action) {
        self.rules.push((name.as_bytes().into(), action));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The arguments with their masks; `None` if nothing is masked. Others stay byte by byte.
    pub(super) fn mask(&self, text: &[u8], searches: &Searches) -> Option<Vec<u8>> {
        let (mut out, mut is_masked) = (Vec::with_capacity(text.len()), false);
        // Of several arguments of one name, a replacement leaves one.
        let mut replaced = vec![false; self.rules.len()];
        for (at, pair) in text.split(|&byte| byte == b'&').enumerate() {
            let (name, value) = query::split(pair);
            let name = query::decode(name);
            if self.most > 0 && at >= self.most {
                is_masked = true;
                break;
            }
            let mut now = value.map(query::decode);
            let (mut is_left_out, mut is_new) = (false, false);
            for ((_, action), replaced) in
                self.rules.iter().zip(&mut replaced).filter(|((own, _), _)| **own == *name)
            {
                if matches!(action, Action::Replace(_)) {
                    is_left_out |= std::mem::replace(replaced, true);
                } else if matches!(action, Action::Regex(_)) && now.is_none() {
                    // A pattern matches values, and this argument has no value.
                    continue;
                }
                match action.apply(now.as_deref().unwrap_or_default(), searches) {
                    Masked::Same => {}
                    Masked::Text(text) => (now, is_new) = (Some(Cow::Owned(text)), true),
                    Masked::Withheld => is_left_out = true,
                }
            }
            is_masked |= is_left_out || is_new;
            if is_left_out {
                continue;
            }
            if !out.is_empty() {
                out.push(b'&');
            }
            match now {
                Some(value) if is_new => {
                    out.extend(percent_encode(&name, CODED).flat_map(str::bytes));
                    out.push(b'=');
                    out.extend(percent_encode(&value, CODED).flat_map(str::bytes));
                }
                _ => out.extend_from_slice(pair),
            }
        }
        is_masked.then_some(out)
    }
}

/// The characters that `ngx.encode_args` codes.
const CODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'*')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'!');
