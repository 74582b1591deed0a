//! The properties of all documents as one tree, that remembers which parts were read.
//!
//! Later sources override earlier ones, a list as a whole, as in Spring Boot. Names are compared
//! without dashes, underscores and case.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use model::{Document, Position};
use serde_json::Value;

use super::names::{self, Segment};
use super::placeholders;
use super::properties::Property;
use crate::files::Variables;
use crate::finding::Place;
use crate::node::Node;

/// The properties of an application.
pub struct Settings<'a> {
    root: Branch,
    variables: Variables<'a>,
    sources: usize,
    unresolved: RefCell<Vec<Unresolved>>,
}

/// A value that names a variable without a value.
#[derive(Debug, Clone)]
pub struct Unresolved {
    pub variable: String,
    pub path: String,
    pub place: Place,
}

/// A property and those below its name.
#[derive(Default)]
struct Branch {
    value: Option<String>,
    place: Option<Place>,
    /// In the order of the files, by their names as written.
    members: Vec<(String, Branch)>,
    places: BTreeMap<String, usize>,
    items: BTreeMap<usize, Branch>,
    /// The source of `items`, counted from 1.
    source: usize,
    read: Cell<bool>,
    whole: Cell<bool>,
    /// The value names a variable that is not set, which was reported.
    unresolved: Cell<bool>,
}

/// A property, or a group of them.
#[derive(Clone)]
pub struct Item<'s> {
    settings: &'s Settings<'s>,
    branch: &'s Branch,
    path: String,
}

impl<'a> Settings<'a> {
    pub fn new(variables: Variables<'a>) -> Settings<'a> {
        Settings { root: Branch::default(), variables, sources: 0, unresolved: RefCell::default() }
    }

    /// Adds a source, which overrides those before it.
    pub fn add(&mut self, properties: Vec<Property>) {
        self.sources += 1;
        for property in properties {
            let mut branch = &mut self.root;
            for segment in &property.name {
                branch.place.get_or_insert_with(|| property.place.clone());
                branch = branch.child(segment, self.sources);
            }
            branch.items.clear();
            branch.value = Some(property.value);
            branch.place = Some(property.place);
        }
    }

    /// The property or group of this name, if there is one.
    pub fn get(&self, name: &str) -> Option<Item<'_>> {
        self.root().get(name)
    }

    /// The group of all.
    pub fn root(&self) -> Item<'_> {
        Item { settings: self, branch: &self.root, path: String::new() }
    }

    /// The properties that were not read, as the largest groups of them, in the order of the files.
    pub fn unread(&self) -> Vec<Item<'_>> {
        let mut found = Vec::new();
        self.root().collect_unread(&mut found);
        found.sort_by(|a, b| a.branch.place.cmp(&b.branch.place));
        found
    }

    /// The values read so far that name variables without a value.
    pub fn unresolved(&self) -> Vec<Unresolved> {
        self.unresolved.borrow().clone()
    }

    /// A text with its variables replaced.
    ///
    /// # Errors
    /// The name of a variable without a value.
    pub fn resolve(&self, text: &str) -> Result<String, String> {
        let lookup = |name: &str| {
            let variable = || (self.variables)(name);
            let relaxed = || {
                let name: String = name.chars().filter(|c| *c != '-').collect();
                (self.variables)(&name.replace(['.', '[', ']'], "_").to_uppercase())
            };
            let property = || {
                let item = self.get(name)?;
                item.branch.read.set(true);
                item.branch.value.clone()
            };
            variable().or_else(relaxed).or_else(property)
        };
        placeholders::replace(text, &lookup)
    }
}

impl Branch {
    fn child(&mut self, segment: &Segment, source: usize) -> &mut Branch {
        match segment {
            Segment::Index(index) => {
                if self.source != source {
                    self.items.clear();
                    self.source = source;
                }
                self.value = None;
                self.items.entry(*index).or_default()
            }
            Segment::Name(name) => {
                let next = self.members.len();
                let at = *self.places.entry(names::uniform(name)).or_insert(next);
                if at == next {
                    self.members.push((name.clone(), Branch::default()));
                }
                &mut self.members[at].1
            }
        }
    }

    fn children(&self) -> impl Iterator<Item = (Segment, &Branch)> {
        let members = self.members.iter().map(|(name, branch)| (Segment::Name(name.clone()), branch));
        members.chain(self.items.iter().map(|(index, branch)| (Segment::Index(*index), branch)))
    }

    fn collect_values<'b>(&'b self, found: &mut Vec<&'b str>) {
        found.extend(self.value.as_deref());
        let items = self.items.values();
        self.members
            .iter()
            .map(|(_, branch)| branch)
            .chain(items)
            .for_each(|branch| branch.collect_values(found));
    }

    fn is_empty(&self) -> bool {
        self.value.as_ref().is_none_or(String::is_empty) && self.children().all(|(_, child)| child.is_empty())
    }

    fn is_touched(&self) -> bool {
        self.read.get() || self.whole.get() || self.children().any(|(_, child)| child.is_touched())
    }
}

impl<'s> Item<'s> {
    /// The member of this name, which may lead several levels down: `client.service-url`.
    pub fn get(&self, name: &str) -> Option<Item<'s>> {
        let mut item = self.clone();
        for segment in names::parse(name) {
            let branch = match &segment {
                Segment::Index(index) => item.branch.items.get(index)?,
                Segment::Name(name) => {
                    let at = *item.branch.places.get(&names::uniform(name))?;
                    &item.branch.members[at].1
                }
            };
            item = item.below(&segment, branch);
        }
        Some(item)
    }

    /// The first member of these names that is there.
    pub fn any(&self, names: &[&str]) -> Option<Item<'s>> {
        names.iter().find_map(|name| self.get(name))
    }

    /// The value with its variables replaced, and without surrounding white space. `None` for a group, and for
    /// a value with a variable that is not set.
    pub fn text(&self) -> Option<String> {
        self.branch.read.set(true);
        let value = self.branch.value.as_deref()?;
        match self.settings.resolve(value) {
            Ok(text) => Some(text.trim().to_owned()),
            Err(variable) => {
                let unresolved = Unresolved { variable, path: self.path.clone(), place: self.place() };
                if !self.branch.unresolved.replace(true) {
                    self.settings.unresolved.borrow_mut().push(unresolved);
                }
                None
            }
        }
    }

    /// The same, if it is not empty.
    pub fn some(&self) -> Option<String> {
        self.text().filter(|text| !text.is_empty())
    }

    /// The value as written.
    pub fn raw(&self) -> Option<&'s str> {
        self.branch.read.set(true);
        self.branch.value.as_deref()
    }

    pub fn bool(&self) -> Option<bool> {
        match self.text()?.to_ascii_lowercase().as_str() {
            "true" | "on" | "yes" | "1" => Some(true),
            "false" | "off" | "no" | "0" => Some(false),
            _ => None,
        }
    }

    pub fn u64(&self) -> Option<u64> {
        self.text()?.replace('_', "").parse().ok()
    }

    /// The items of a list, in order.
    pub fn items(&self) -> Vec<Item<'s>> {
        self.branch.read.set(true);
        let items = self.branch.items.iter().enumerate().take_while(|(at, (index, _))| at == *index);
        items.map(|(_, (index, branch))| self.below(&Segment::Index(*index), branch)).collect()
    }

    /// The texts of a list, or the parts of a text between commas.
    pub fn texts(&self) -> Vec<String> {
        let items = self.items();
        if !items.is_empty() {
            return items.iter().filter_map(Item::some).collect();
        }
        let text = self.text().unwrap_or_default();
        text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    /// The members of a group by their names as written.
    pub fn members(&self) -> Vec<(&'s str, Item<'s>)> {
        self.branch.read.set(true);
        let member = |(name, branch): &'s (String, Branch)| {
            (name.as_str(), self.below(&Segment::Name(name.clone()), branch))
        };
        self.branch.members.iter().map(member).collect()
    }

    /// All values at and below it as written, not marked as read.
    pub fn values(&self) -> Vec<&'s str> {
        let mut found = Vec::new();
        self.branch.collect_values(&mut found);
        found
    }

    /// Marks it and all below it as read.
    pub fn whole(&self) {
        self.branch.whole.set(true);
    }

    /// Whether neither it nor anything below it has a value.
    pub fn is_empty(&self) -> bool {
        self.branch.is_empty()
    }

    /// Whether all below it was read.
    pub fn is_read(&self) -> bool {
        let mut found = Vec::new();
        self.collect_unread(&mut found);
        found.is_empty()
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn place(&self) -> Place {
        let start = || Place { file: "".into(), position: Position::START };
        self.branch.place.clone().unwrap_or_else(start)
    }

    fn below(&self, segment: &Segment, branch: &'s Branch) -> Item<'s> {
        let mut path = self.path.clone();
        names::append(&mut path, segment);
        Item { settings: self.settings, branch, path }
    }

    fn collect_unread(&self, found: &mut Vec<Item<'s>>) {
        if self.branch.whole.get() {
            return;
        }
        if !self.path.is_empty() && !self.branch.is_touched() {
            found.push(self.clone());
            return;
        }
        if self.branch.value.is_some() && !self.branch.read.get() {
            found.push(self.clone());
        }
        for (segment, branch) in self.branch.children() {
            self.below(&segment, branch).collect_unread(found);
        }
    }
}

/// The properties of a document of YAML.
pub fn of_yaml(file: &str, document: Document) -> Vec<Property> {
    let tree = crate::node::Tree::new(file, document);
    let mut found = Vec::new();
    flatten_yaml(&tree.root(), &mut Vec::new(), &mut found);
    found
}

fn flatten_yaml(node: &Node<'_>, name: &mut Vec<Segment>, found: &mut Vec<Property>) {
    let length = name.len();
    match node.value() {
        Value::Object(members) if !members.is_empty() => {
            for (key, member) in node.members() {
                name.extend(names::parse(key));
                flatten_yaml(&member, name, found);
                name.truncate(length);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in node.items().into_iter().enumerate() {
                name.push(Segment::Index(index));
                flatten_yaml(&item, name, found);
                name.truncate(length);
            }
        }
        _ if name.is_empty() => {}
        _ => found.push(Property {
            name: name.clone(),
            value: node.text().unwrap_or_default(),
            place: node.place(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use model::yaml::{self, Variables};

    use super::*;

    fn settings(texts: &[&str]) -> Settings<'static> {
        let mut settings = Settings::new(&|name| (name == "HOME_URL").then(|| "http://h".to_owned()));
        for text in texts {
            settings.add(of_yaml("t.yml", yaml::parse(text, Variables::Keep).unwrap()));
        }
        settings
    }

    #[test]
    fn names_are_relaxed_and_later_sources_win() {
        let text = "a:\n  default-filters: [x, y, z]\n  n: 1\n  m: {p: 1, q: 2}\n";
        let later = "a.defaultFilters: [w]\na.m.Q: 3\n";
        let settings = settings(&[text, later]);
        let texts = settings.get("a.default_filters").map(|item| item.texts());
        assert_eq!(texts, Some(vec!["w".to_owned()]));
        assert_eq!(settings.get("a.m.q").and_then(|item| item.u64()), Some(3));
        assert_eq!(settings.get("a.m.p").and_then(|item| item.u64()), Some(1));
        let unread: Vec<_> = settings.unread().iter().map(|item| item.path().to_owned()).collect();
        assert_eq!(unread, ["a.n"]);
    }

    #[test]
    fn variables_come_from_the_environment_and_the_file() {
        let text = "u: ${home.url}/${x.y:a}/${b:${c:d}}\nx: {y: 1}\nz: ${none}\n";
        let settings = settings(&[text]);
        assert_eq!(settings.get("u").and_then(|item| item.text()).as_deref(), Some("http://h/1/d"));
        assert_eq!(settings.get("z").and_then(|item| item.text()), None);
        assert_eq!(settings.unresolved()[0].variable, "none");
    }
}
