//! Directives of a configuration, with their places and whether they were used.

use std::cell::Cell;
use std::collections::HashMap;

use crate::files::FileError;
use crate::finding::Place;

/// A directive: `name args…;` or `name args… { … }`.
#[derive(Debug)]
pub(super) struct Directive {
    pub name: String,
    pub args: Vec<String>,
    pub block: Option<Block>,
    pub place: Place,
    /// Whether a part of the importer looked at it, or it is without effect in nginx, too.
    used: Cell<bool>,
    /// Of an `include` whose files cannot be read.
    pub unreadable: Option<FileError>,
}

/// The directives in a pair of braces, or in a whole file.
#[derive(Debug)]
pub(super) struct Block {
    /// Unique within an import.
    pub id: usize,
    pub directives: Vec<Directive>,
    /// The places of the directives of each name: a file may have thousands of servers in one block, and each location
    /// looks for some fifty names around it.
    by_name: HashMap<String, Vec<usize>>,
}

impl Block {
    pub(super) fn new(id: usize, directives: Vec<Directive>) -> Block {
        let mut by_name: HashMap<String, Vec<usize>> = HashMap::new();
        for (at, directive) in directives.iter().enumerate() {
            match by_name.get_mut(&directive.name) {
                Some(places) => places.push(at),
                None => _ = by_name.insert(directive.name.clone(), vec![at]),
            }
        }
        Block { id, directives, by_name }
    }

    /// The directives of a name, in their order.
    pub(super) fn named(&self, name: &str) -> impl Iterator<Item = &Directive> {
        self.by_name.get(name).into_iter().flatten().map(|at| &self.directives[*at])
    }
}

impl Directive {
    pub(super) fn new(name: String, args: Vec<String>, block: Option<Block>, place: Place) -> Directive {
        Directive { name, args, block, place, used: Cell::new(false), unreadable: None }
    }

    /// The argument at an index; empty if there are fewer.
    pub(super) fn arg(&self, index: usize) -> &str {
        self.args.get(index).map_or("", String::as_str)
    }

    /// The first argument is `on`, or `off`.
    pub(super) fn flag(&self) -> Option<bool> {
        match self.arg(0) {
            "on" => Some(true),
            "off" => Some(false),
            _ => None,
        }
    }

    /// The directives in its braces.
    pub(super) fn children(&self) -> &[Directive] {
        self.block.as_ref().map_or(&[], |block| &block.directives)
    }

    pub(super) fn mark_used(&self) -> &Directive {
        self.used.set(true);
        self
    }

    pub(super) fn mark_all_used(&self) {
        self.mark_used();
        self.children().iter().for_each(Directive::mark_all_used);
    }

    pub(super) fn is_used(&self) -> bool {
        self.used.get()
    }

    /// As in a report: `proxy_pass http://a;`, shortened.
    pub(super) fn text(&self) -> String {
        let mut text = self.name.clone();
        for arg in &self.args {
            text.push(' ');
            text.extend(arg.chars().map(|c| if c.is_control() { ' ' } else { c }));
        }
        if text.chars().count() > 100 {
            text = text.chars().take(99).collect();
            text.push('…');
        }
        text
    }
}
