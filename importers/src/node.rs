//! A value of a YAML or JSON file, with its place, that remembers which of its parts were read.
//!
//! An importer asks for the members that it knows. Afterwards [`Tree::unread`] gives the places of
//! everything that it did not ask for, which become findings.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;

use model::document::Document;
use model::invalid::push_pointer;
use serde_json::Value;

use crate::finding::Place;

/// A parsed file.
pub struct Tree {
    pub file: Arc<str>,
    document: Document,
    read: RefCell<Read>,
}

/// RFC 6901 pointers of the parts that were read.
#[derive(Default)]
struct Read {
    parts: HashSet<String>,
    /// Those read with everything below them.
    whole: HashSet<String>,
}

/// A value within a file.
#[derive(Clone)]
pub struct Node<'a> {
    tree: &'a Tree,
    value: &'a Value,
    pointer: String,
}

impl Tree {
    pub fn new(file: &str, document: Document) -> Tree {
        Tree { file: file.into(), document, read: RefCell::default() }
    }

    /// The top of the file.
    pub fn root(&self) -> Node<'_> {
        Node { tree: self, value: &self.document.value, pointer: String::new() }
    }

    /// Where the value of a pointer stands.
    pub fn place(&self, pointer: &str) -> Place {
        Place { file: self.file.clone(), position: self.document.nearest_position(pointer) }
    }

    /// The parts that were not read, without those below them, in the order of the file.
    pub fn unread(&self) -> Vec<Node<'_>> {
        let mut found = Vec::new();
        self.root().collect_unread(&self.read.borrow(), &mut found);
        found
    }
}

impl<'a> Node<'a> {
    /// The member of an object.
    pub fn get(&self, name: &str) -> Option<Node<'a>> {
        let value = self.value.get(name)?;
        Some(self.below(name, value))
    }

    /// The same, but a null is like an absent member.
    pub fn some(&self, name: &str) -> Option<Node<'a>> {
        self.get(name).filter(|node| !node.value.is_null())
    }

    /// The member of one of these names, in their order: the spellings of several versions.
    pub fn any(&self, names: &[&str]) -> Option<Node<'a>> {
        names.iter().find_map(|name| self.some(name))
    }

    /// The items of a list; empty for anything else.
    pub fn items(&self) -> Vec<Node<'a>> {
        let Value::Array(items) = self.value else { return Vec::new() };
        items.iter().enumerate().map(|(at, value)| self.below(&at.to_string(), value)).collect()
    }

    /// The members of an object, each marked as read; empty for anything else.
    pub fn members(&self) -> Vec<(&'a str, Node<'a>)> {
        let Value::Object(members) = self.value else { return Vec::new() };
        members.iter().map(|(name, value)| (name.as_str(), self.below(name, value))).collect()
    }

    /// The names of an object's members, not marked as read.
    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        self.value.as_object().into_iter().flat_map(|members| members.keys().map(String::as_str))
    }

    /// The value without its parts being marked as read.
    pub fn value(&self) -> &'a Value {
        self.value
    }

    /// The value; all its parts count as read.
    pub fn whole(&self) -> &'a Value {
        self.tree.read.borrow_mut().whole.insert(self.pointer.clone());
        self.value
    }

    pub fn str(&self) -> Option<&'a str> {
        self.value.as_str()
    }

    /// A text, or a number or boolean as text.
    pub fn text(&self) -> Option<String> {
        match self.value {
            Value::String(text) => Some(text.clone()),
            Value::Number(_) | Value::Bool(_) => Some(self.value.to_string()),
            _ => None,
        }
    }

    /// A boolean, also one written as text.
    pub fn bool(&self) -> Option<bool> {
        self.value.as_bool().or_else(|| self.str()?.parse().ok())
    }

    /// A number that is not negative, also one written as text.
    pub fn u64(&self) -> Option<u64> {
        self.value.as_u64().or_else(|| self.str()?.trim().parse().ok())
    }

    /// A number, also one written as text.
    pub fn f64(&self) -> Option<f64> {
        self.value.as_f64().or_else(|| self.str()?.trim().parse().ok())
    }

    /// Its texts, if it is a list of texts; itself, if it is a text.
    pub fn texts(&self) -> Vec<String> {
        match self.value {
            Value::Array(_) => self.items().iter().filter_map(Node::text).collect(),
            _ => self.text().into_iter().collect(),
        }
    }

    /// RFC 6901.
    pub fn pointer(&self) -> &str {
        &self.pointer
    }

    /// The pointer as people write paths: `services[0].routes[1].paths`.
    pub fn path(&self) -> String {
        let mut path = String::new();
        for part in self.pointer.split('/').skip(1) {
            let part = part.replace("~1", "/").replace("~0", "~");
            if part.bytes().all(|byte| byte.is_ascii_digit()) {
                path.push_str(&format!("[{part}]"));
            } else {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(&part);
            }
        }
        path
    }

    pub fn place(&self) -> Place {
        Place { file: self.tree.file.clone(), position: self.tree.document.nearest_position(&self.pointer) }
    }

    fn below(&self, name: &str, value: &'a Value) -> Node<'a> {
        let mut pointer = self.pointer.clone();
        push_pointer(&mut pointer, name);
        self.tree.read.borrow_mut().parts.insert(pointer.clone());
        Node { tree: self.tree, value, pointer }
    }

    fn collect_unread(&self, read: &Read, found: &mut Vec<Node<'a>>) {
        if read.whole.contains(&self.pointer) {
            return;
        }
        let children: Vec<(String, &'a Value)> = match self.value {
            Value::Object(members) => members.iter().map(|(name, value)| (name.clone(), value)).collect(),
            Value::Array(items) => {
                items.iter().enumerate().map(|(at, value)| (at.to_string(), value)).collect()
            }
            _ => return,
        };
        for (name, value) in children {
            let mut pointer = self.pointer.clone();
            push_pointer(&mut pointer, &name);
            let node = Node { tree: self.tree, value, pointer };
            if read.parts.contains(&node.pointer) {
                node.collect_unread(read, found);
            } else if !read.whole.contains(&node.pointer) {
                found.push(node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use model::yaml::{self, Variables};

    use super::*;

    #[test]
    fn parts_that_were_not_read_are_found() {
        let text = "a: {b: 1, c: [x, z]}\nd: {e: {f: 1}}\ng: 2\n";
        let tree = Tree::new("t.yaml", yaml::parse(text, Variables::Keep).unwrap());
        let a = tree.root().get("a").unwrap();
        assert_eq!(a.get("b").and_then(|b| b.u64()), Some(1));
        assert_eq!(tree.root().get("d").map(|d| d.whole().clone()), Some(serde_json::json!({"e": {"f": 1}})));
        let unread = tree.unread();
        let paths: Vec<_> = unread.iter().map(Node::path).collect();
        assert_eq!(paths, ["a.c", "g"]);
        assert_eq!(unread[1].place().to_string(), "t.yaml:3:4");
        assert_eq!(a.get("c").unwrap().texts(), ["x", "z"]);
        assert_eq!(tree.unread().len(), 1);
    }

    #[test]
    fn scalars_may_be_written_as_text() {
        let text = "{n: '5', b: 'true', t: 8080, none: null}";
        let tree = Tree::new("t.yaml", yaml::parse(text, Variables::Keep).unwrap());
        let root = tree.root();
        assert_eq!(root.get("n").and_then(|n| n.u64()), Some(5));
        assert_eq!(root.get("b").and_then(|b| b.bool()), Some(true));
        assert_eq!(root.get("t").and_then(|t| t.text()).as_deref(), Some("8080"));
        assert!(root.some("none").is_none());
        assert!(root.any(&["x", "t"]).is_some());
    }
}
