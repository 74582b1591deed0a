//! A cache of values found in a request's body.

use std::cell::{Cell, OnceCell, RefCell};

use super::body::{self, Path};
use super::graphql::{self, Operation, Part};
use super::value::Value;
use crate::exchange::Exchange;
use crate::verdict::{ReadError, Undecidable};

/// Longer values are not cached.
const KEEP_TEXT: usize = 64 << 10;
/// Lists and objects of longer bodies are not cached.
const KEEP_TREES_OF: usize = 1 << 20;

/// A body is searched for each path in the conditions. This number of paths is searched in a body
/// of any length …
const PATHS: usize = 4;
/// … and further ones until all searches together have read this many bytes.
const SEARCHED: usize = 64 << 20;

type Lookup = Result<Option<Value<'static>>, ReadError>;

/// Values that variables found in a body; a note on the exchange while conditions are evaluated.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    found: RefCell<Vec<(Path, Lookup)>>,
    searches: Cell<usize>,
    searched: Cell<usize>,
    operation: OnceCell<Result<Option<Operation>, ReadError>>,
}

impl Parsed {
    /// Counts a search through `bytes` bytes, if the limits allow it.
    fn may_search(&self, bytes: usize) -> bool {
        let searches = self.searches.get() + 1;
        let searched = self.searched.get().saturating_add(bytes);
        let may = searches <= PATHS || searched <= SEARCHED;
        if may {
            self.searches.set(searches);
            self.searched.set(searched);
        }
        may
    }
}

/// Finds the value at a path.
pub(super) fn at<'a>(x: &'a Exchange<'_>, path: &Path) -> Result<Option<Value<'a>>, ReadError> {
    let Some(parsed) = x.note::<Parsed>() else { return body::find(x, path) };
    if let Some((_, known)) = parsed.found.borrow().iter().find(|(known, _)| known == path) {
        return known.clone();
    }
    if !parsed.may_search(x.body().len()) {
        return Err(Undecidable::Spent.into());
    }
    let found = body::find(x, path);
    let keep = match &found {
        Ok(Some(Value::Text(text))) => text.len() <= KEEP_TEXT,
        Ok(Some(Value::Json(_))) => x.body().len() <= KEEP_TREES_OF,
        _ => true,
    };
    if keep {
        let owned = found.clone().map(|value| value.map(Value::into_owned));
        parsed.found.borrow_mut().push((path.clone(), owned));
    }
    found
}

/// A part of the GraphQL operation in the body or the query.
pub(super) fn part<'a>(x: &'a Exchange<'_>, part: Part) -> Result<Option<Value<'a>>, ReadError> {
    match x.note::<Parsed>() {
        Some(parsed) => match parsed.operation.get_or_init(|| graphql::operation(x)) {
            Ok(operation) => Ok(operation.as_ref().map(|operation| operation.part(part))),
            Err(doubt) => Err(*doubt),
        },
        None => Ok(graphql::operation(x)?.map(|operation| operation.part(part).into_owned())),
    }
}
