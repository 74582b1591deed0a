//! The schemas and shapes of a document, each compiled once, with bounds for the whole document.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use model::Invalid;
use model::schema::{Schema, Schemas};
use serde_json::Value;

use super::document::Place;
use super::values::Shape;

/// Compiles the schemas of a document.
pub(super) struct Compiled<'d> {
    schemas: Schemas<'d>,
    /// By pointer.
    shapes: RefCell<BTreeMap<String, Arc<Shape>>>,
    /// Schemas that shapes may still look into.
    looks: Cell<usize>,
    /// Operations, parameters and kinds of bodies that may still come.
    parts: Cell<usize>,
}

/// Schemas that all shapes look into.
const LOOKS: usize = 200_000;

/// Operations, parameters and kinds of bodies; one that several references lead to counts for each.
const PARTS: usize = 50_000;

impl<'d> Compiled<'d> {
    pub fn of(document: &'d Value) -> Compiled<'d> {
        Compiled {
            schemas: Schemas::of(document),
            shapes: RefCell::default(),
            looks: Cell::new(LOOKS),
            parts: Cell::new(PARTS),
        }
    }

    /// Counts an operation, a parameter or a kind of bodies.
    pub fn count(&self, place: &Place<'_>) -> Result<(), Invalid> {
        take(&self.parts).map_err(|invalid| invalid.at(place.pointer.clone()))
    }

    /// The schema at a place. Values come from clients.
    pub fn schema(&self, place: &Place<'_>) -> Result<Arc<Schema>, Invalid> {
        let place = place.followed()?;
        self.schemas.at(&place.pointer).map_err(|invalid| invalid.under(&place.pointer))
    }

    /// The shape of the schema at a place.
    pub fn shape(&self, place: &Place<'_>) -> Result<Arc<Shape>, Invalid> {
        let place = place.followed()?;
        if let Some(shape) = self.shapes.borrow().get(&place.pointer) {
            return Ok(shape.clone());
        }
        let shape = Arc::new(Shape::of(&place, &|| take(&self.looks))?);
        self.shapes.borrow_mut().insert(place.pointer, shape.clone());
        Ok(shape)
    }

    /// Compiles the schemas that references lead to.
    pub fn finish(self) -> Result<(), Invalid> {
        self.schemas.finish()
    }
}

fn take(left: &Cell<usize>) -> Result<(), Invalid> {
    let rest = left.get().checked_sub(1).ok_or_else(|| Invalid::new("the document is too large"))?;
    left.set(rest);
    Ok(())
}
