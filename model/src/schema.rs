//! JSON schemas that speak as APISIX does.
//!
//! APISIX checks with api7's `jsonschema` for Lua: it stops at the first error,
//! words it in its own way, fills defaults while it walks, and sees values as
//! Lua does (an empty list and an empty map are the same; `1.0` is an integer;
//! `null` is `userdata`). Tools compare those words, so they are kept to the
//! byte, and each refusal also carries a pointer, what was expected, what was
//! there, and a hint. Where Lua's hash order would decide which error comes
//! first, the order of the schema decides here.
//!
//! It never fetches a remote reference; `$ref` works inside one document.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, OnceLock};

use serde_json::Value;

use crate::{Invalid, Kind};

mod alternatives;
mod check;
mod circle;
mod compile;
mod lua;
mod misfit;
mod pattern;
mod plain;
mod resources;
mod work;

pub(crate) use check::has;
pub use lua::type_name as lua_type;
pub(crate) use lua::{json_name, quoted};

use compile::{Compiler, Shared, Subschema};

/// A compiled schema.
#[derive(Debug)]
pub struct Schema {
    root: Subschema,
    shared: SharedSchemas,
    /// Values come from clients, see [`Schema::for_clients`].
    of_clients: bool,
    /// Values are checked and not filled in.
    check_only: bool,
}

/// The schemas that contain themselves or are shared: references to them are weak.
type SharedSchemas = Arc<OnceLock<Vec<Arc<Shared>>>>;

/// Compiles schemas of one document, for values of clients, which are only checked.
///
/// A schema that several references lead to is compiled once, and one bound holds for all.
pub struct Schemas<'d> {
    compiler: Compiler<'d>,
    shared: SharedSchemas,
    made: RefCell<BTreeMap<String, Arc<Schema>>>,
}

impl<'d> Schemas<'d> {
    /// The schemas of this document.
    pub fn of(document: &'d Value) -> Schemas<'d> {
        Schemas {
            compiler: Compiler::sharing(document),
            shared: SharedSchemas::default(),
            made: RefCell::default(),
        }
    }

    /// Compiles the schema at a pointer. No value fits it before [`Schemas::finish`].
    ///
    /// # Errors
    /// As for [`Schema::at`].
    pub fn at(&self, pointer: &str) -> Result<Arc<Schema>, Invalid> {
        if let Some(made) = self.made.borrow().get(pointer) {
            return Ok(made.clone());
        }
        let root = self.compiler.root(pointer)?;
        let schema =
            Arc::new(Schema { root, shared: self.shared.clone(), of_clients: true, check_only: true });
        self.made.borrow_mut().insert(pointer.to_owned(), schema.clone());
        Ok(schema)
    }

    /// Compiles the schemas that references lead to.
    ///
    /// # Errors
    /// One of them is invalid or contains itself; the pointer leads into the document.
    pub fn finish(self) -> Result<(), Invalid> {
        // It was empty.
        let _ = self.shared.set(self.compiler.complete()?);
        Ok(())
    }
}

impl Schema {
    /// Compiles a schema (draft 4 to 7, the keywords api7's `jsonschema` knows).
    ///
    /// # Errors
    /// A keyword of the wrong shape, a pattern that does not compile, or a
    /// `$ref` that leads nowhere or round in a circle; the pointer leads into the schema.
    pub fn new(schema: &Value) -> Result<Schema, Invalid> {
        Schema::at(schema, "")
    }

    /// As [`Schema::new`], the schema at a pointer of a document, to which its references are relative.
    ///
    /// # Errors
    /// As for [`Schema::new`]; there is nothing at the pointer.
    pub fn at(document: &Value, pointer: &str) -> Result<Schema, Invalid> {
        let compiler = Compiler::new(document);
        let root = compiler.root(pointer)?;
        let shared = SharedSchemas::from(OnceLock::from(compiler.complete()?));
        Ok(Schema { root, shared, of_clients: false, check_only: false })
    }

    /// Checks values of clients, in a bounded number of steps.
    ///
    /// A text that looks like a reference to a secret is a text like any other; in configurations it is checked only
    /// when it is resolved.
    #[must_use]
    pub fn for_clients(self) -> Schema {
        Schema { of_clients: true, ..self }
    }

    /// Checks `value`, as if absent properties had their defaults.
    ///
    /// # Errors
    /// The first thing wrong.
    pub fn check(&self, value: &Value) -> Result<(), Invalid> {
        self.walk(&mut value.clone())
    }

    /// Checks `value` and gives it back with defaults filled in, in the shapes
    /// the schema asks for: `1.0` becomes `1` where an integer is wanted, and an
    /// empty list or map becomes the other where that is wanted, as Lua cannot
    /// tell them apart.
    ///
    /// # Errors
    /// The first thing wrong.
    pub fn parse(&self, mut value: Value) -> Result<Value, Invalid> {
        self.walk(&mut value)?;
        Ok(value)
    }

    fn walk(&self, value: &mut Value) -> Result<(), Invalid> {
        self.begin(value);
        let walked = self.root.walk(value);
        if work::is_given_up() {
            return Err(Invalid::new("the check was given up: it takes too many steps"));
        }
        walked?;
        match pattern::is_in_doubt() {
            false => Ok(()),
            true => Err(Invalid::new(
                "a pattern with look-around was given up: its text is too long, or it takes too many steps",
            )),
        }
    }

    fn begin(&self, value: &Value) {
        pattern::begin();
        // Without schemas that contain themselves, the steps of a configuration are bounded by its schema.
        let bounded = self.of_clients || self.shared.get().is_some_and(|shared| !shared.is_empty());
        work::begin(value, work::Check { of_client: self.of_clients, check_only: self.check_only, bounded });
    }

    /// Fills defaults up to the first thing wrong, and says nothing about it.
    pub fn fill_defaults(&self, value: &mut Value) {
        // A refusal means the rest of the value is not known to fit; what was filled stays.
        self.begin(value);
        let _ = self.root.walk::<misfit::Unsaid>(value);
    }
}

/// The schema of a kind of resource.
///
/// Plugins inside are only known to be an object here: their own schemas belong
/// to them. That of plugin metadata accepts any object for the same reason.
/// A secret's depends on its manager; see [`of_secret`].
pub fn of_kind(kind: Kind) -> &'static Schema {
    // Compiled when first needed: a node that is given routes only never needs the others.
    static KINDS: [OnceLock<Schema>; Kind::ALL.len()] = [const { OnceLock::new() }; Kind::ALL.len()];
    KINDS[kind.index()].get_or_init(|| built_in(&document(kind)))
}

/// The JSON document behind [`of_kind`], as `GET /apisix/admin/schema/route` prints it.
pub fn document(kind: Kind) -> Value {
    resources::of_kind(kind)
}

/// The schema of a secret kept by `manager` (`vault`, `aws` or `gcp`).
pub fn of_secret(manager: &str) -> Option<&'static Schema> {
    SECRETS.iter().find(|(name, _)| *name == manager).map(|(_, schema)| schema)
}

/// The JSON document behind [`of_secret`].
pub fn document_of_secret(manager: &str) -> Option<Value> {
    resources::of_secrets().into_iter().find(|(name, _)| *name == manager).map(|(_, document)| document)
}

static SECRETS: LazyLock<Vec<(&'static str, Schema)>> = LazyLock::new(|| {
    resources::of_secrets().into_iter().map(|(name, document)| (name, built_in(&document))).collect()
});

/// The documents of what is no resource, by APISIX's names: an upstream's chash key, the list of plugins.
pub fn unkeyed() -> impl Iterator<Item = (&'static str, Value)> {
    [
        ("plugins", resources::plugins()),
        ("upstream_hash_header_schema", resources::hash_header()),
        ("upstream_hash_vars_schema", resources::hash_vars()),
    ]
    .into_iter()
}

/// Returns the schema of an upstream's chash key, by `hash_on`.
pub(crate) fn of_hash_key(hash_on: &str) -> Option<&'static Schema> {
    static VARS: LazyLock<Schema> = LazyLock::new(|| built_in(&resources::hash_vars()));
    static HEADER: LazyLock<Schema> = LazyLock::new(|| built_in(&resources::hash_header()));
    match hash_on {
        "vars" => Some(&VARS),
        "header" | "cookie" => Some(&HEADER),
        _ => None,
    }
}

fn built_in(document: &Value) -> Schema {
    // The documents are constants of this crate and a test compiles each of them.
    Schema::new(document).expect("the built-in schemas compile")
}

#[cfg(test)]
mod tests;
