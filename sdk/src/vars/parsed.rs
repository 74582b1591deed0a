//! A request's body, parsed once for all who read it, or for one reader alone.

use std::cell::OnceCell;

use serde_json::Value as Json;

use super::graphql::Operation;
use super::value::Value;
use super::{body, graphql};
use crate::exchange::Exchange;

/// What variables found in a body so far; a note on the exchange.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    tree: OnceCell<Option<Json>>,
    operation: OnceCell<Option<Operation>>,
}

/// Reads from the body's tree.
pub(super) fn tree<'a>(
    x: &'a Exchange<'_>,
    read: impl for<'t> Fn(&'t Json) -> Option<Value<'t>>,
) -> Option<Value<'a>> {
    match x.note::<Parsed>() {
        Some(parsed) => read(parsed.tree.get_or_init(|| body::tree(x)).as_ref()?),
        None => body::tree(x).as_ref().and_then(|tree| read(tree).map(Value::into_owned)),
    }
}

/// Reads from the GraphQL operation of the body or the query.
pub(super) fn operation<'a>(
    x: &'a Exchange<'_>,
    read: impl for<'t> Fn(&'t Operation) -> Value<'t>,
) -> Option<Value<'a>> {
    match x.note::<Parsed>() {
        Some(parsed) => Some(read(parsed.operation.get_or_init(|| graphql::operation(x)).as_ref()?)),
        None => graphql::operation(x).map(|operation| read(&operation).into_owned()),
    }
}
