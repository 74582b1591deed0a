//! Circles: files of a room that need each other, directly or through others.
//!
//! A circle can only be read, changed and tested as a whole. `xtask/walls.toml` bounds its files; a room
//! above the bound has a budget there, which only falls.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde::Deserialize;
use syn::visit::{self, Visit};
use syn::{ItemMod, ItemUse, Meta, UseTree, Visibility};

use super::source::Source;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Circles {
    /// Files of a circle.
    pub most: usize,
    /// The same for rooms that are still above it.
    #[serde(default)]
    pub budget: BTreeMap<String, usize>,
}

/// Names from the root of a room: `["down", "h2", "stream"]`.
type Path = Vec<String>;

/// Lists the rooms with a circle above the bound, and notes budgets that can be lowered.
pub fn check(rules: &Circles, sources: &[Source]) -> Result<Vec<String>> {
    let mut rooms: BTreeMap<&str, Room> = BTreeMap::new();
    for source in sources {
        let Some((room, file)) = source.path.split_once("/src/") else { continue };
        let module = module(file);
        let names = Names::read(&module, &source.text).with_context(|| source.path.clone())?;
        rooms.entry(room).or_default().insert(module, names);
    }
    let mut wrong = Vec::new();
    for (name, room) in &rooms {
        let circle = largest(&edges(room));
        let budget = rules.budget.get(*name).copied().unwrap_or(rules.most);
        if circle.len() > budget {
            let files: Vec<_> = circle.iter().map(|module| module.join("/")).collect();
            wrong.push(format!(
                "{name}: a circle of {} files, at most {budget}: move what they share into a leaf: {}",
                files.len(),
                files.join(" ")
            ));
        } else if circle.len() < budget && rules.budget.contains_key(*name) {
            println!("note: the largest circle of {name} has {} files; lower its budget", circle.len());
        }
    }
    Ok(wrong)
}

/// The module of a file: `down/h2/mod.rs` and `down/h2.rs` are `down::h2`.
fn module(file: &str) -> Path {
    let path = file.trim_end_matches(".rs").trim_end_matches("/mod");
    if matches!(path, "lib" | "main" | "mod") {
        return Vec::new();
    }
    path.split('/').map(str::to_owned).collect()
}

/// The modules of a room and the names that each of them mentions.
type Room = BTreeMap<Path, Names>;

/// Names of the own room in a file, its test modules left out.
#[derive(Default)]
struct Names {
    module: Path,
    mentioned: Vec<Path>,
    /// By the name under which others see it.
    exported: BTreeMap<String, Path>,
}

impl Names {
    fn read(module: &Path, text: &str) -> syn::Result<Names> {
        let mut names = Names { module: module.clone(), ..Names::default() };
        names.visit_file(&syn::parse_file(text)?);
        Ok(names)
    }

    /// From the root of the room. A path without `crate`, `self` or `super` may begin with a child.
    fn absolute(&self, path: &[String]) -> Path {
        let supers = path.iter().take_while(|part| *part == "super").count();
        let (base, rest) = match path.first().map(String::as_str) {
            Some("crate") => (&[][..], &path[1..]),
            Some("self") => (&self.module[..], &path[1..]),
            _ => (&self.module[..self.module.len().saturating_sub(supers)], &path[supers..]),
        };
        base.iter().chain(rest).cloned().collect()
    }

    fn add_use(&mut self, before: &mut Path, tree: &UseTree, public: bool) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.add_use(before, &path.tree, public);
                before.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_use(before, tree, public)),
            UseTree::Glob(_) => self.mentioned.push(self.absolute(before)),
            UseTree::Name(name) => self.add_name(before, &name.ident.to_string(), &name.ident, public),
            UseTree::Rename(name) => self.add_name(before, &name.ident.to_string(), &name.rename, public),
        }
    }

    fn add_name(&mut self, before: &Path, name: &str, seen_as: &syn::Ident, public: bool) {
        let mut path = before.clone();
        if name != "self" {
            path.push(name.to_owned());
        }
        let path = self.absolute(&path);
        if public {
            // A re-export is not a dependency of its own: its users are counted as using the
            // re-exported file.
            self.exported.insert(seen_as.to_string(), path);
        } else {
            self.mentioned.push(path);
        }
    }
}

impl Visit<'_> for Names {
    fn visit_item_use(&mut self, item: &ItemUse) {
        let public = !matches!(item.vis, Visibility::Inherited);
        self.add_use(&mut Vec::new(), &item.tree, public);
    }

    fn visit_item_mod(&mut self, item: &ItemMod) {
        let test = |meta: &Meta| matches!(meta, Meta::List(list) if list.tokens.to_string() == "test");
        if !item.attrs.iter().any(|attribute| attribute.path().is_ident("cfg") && test(&attribute.meta)) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let parts: Path = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if parts.len() > 1 {
            self.mentioned.push(self.absolute(&parts));
        }
        visit::visit_path(self, path);
    }
}

/// Which modules each one needs, besides those within itself: a module leads its parts by nature, and only
/// what the parts need of it can close a circle.
fn edges(room: &Room) -> BTreeMap<&Path, BTreeSet<&Path>> {
    let needs = |names: &Names| names.mentioned.iter().filter_map(|path| file_of(room, path)).collect();
    let mut edges: BTreeMap<&Path, BTreeSet<&Path>> =
        room.iter().map(|(module, names)| (module, needs(names))).collect();
    for (module, needed) in &mut edges {
        needed.retain(|other| !other.starts_with(module));
    }
    edges
}

/// The file in which a name stands, through the modules that pass it on.
fn file_of<'r>(room: &'r Room, path: &[String]) -> Option<&'r Path> {
    let mut path = path.to_vec();
    // A chain of exports is short; one that leads back to itself ends here.
    for _ in 0..8 {
        let length = (0..=path.len()).rev().find(|&length| room.contains_key(&path[..length]))?;
        let (module, names) = room.get_key_value(&path[..length])?;
        match path.get(length).and_then(|name| names.exported.get(name)) {
            Some(exported) => path = exported.iter().chain(&path[length + 1..]).cloned().collect(),
            // A path that no module of the room begins is a library's.
            None => return (length > 0 || path.len() == 1).then_some(module),
        }
    }
    None
}

/// The largest set of modules that all need each other.
fn largest<'r>(edges: &BTreeMap<&'r Path, BTreeSet<&'r Path>>) -> Vec<&'r Path> {
    let reached: BTreeMap<_, _> = edges.keys().map(|&from| (from, reach(edges, from))).collect();
    let circle = |from: &&'r Path| -> Vec<&'r Path> {
        reached[from].iter().copied().filter(|to| reached[to].contains(from)).collect()
    };
    edges.keys().map(circle).max_by_key(Vec::len).unwrap_or_default()
}

fn reach<'r>(edges: &BTreeMap<&'r Path, BTreeSet<&'r Path>>, from: &'r Path) -> BTreeSet<&'r Path> {
    let mut reached = BTreeSet::new();
    let mut next = vec![from];
    while let Some(module) = next.pop() {
        for &needed in &edges[module] {
            if reached.insert(needed) {
                next.push(needed);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::{Circles, check};
    use crate::tidy::source::Source;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let rules = Circles { most: 2, budget: [("b".to_owned(), 3)].into() };
        let sources: Vec<_> =
            files.iter().map(|(path, text)| Source::new((*path).into(), (*text).into())).collect();
        check(&rules, &sources).expect("files that parse")
    }

    const THREE: [(&str, &str); 3] = [
        ("a/src/one.rs", "use crate::two::Two;"),
        ("a/src/two/mod.rs", "use crate::three::Three;"),
        ("a/src/three.rs", "fn f() { super::one::g() }"),
    ];

    #[test]
    fn a_circle_above_the_bound_is_named() {
        let wrong = found(&THREE);
        assert_eq!(wrong.len(), 1);
        assert!(wrong[0].contains("a circle of 3 files"), "{}", wrong[0]);
        assert!(wrong[0].ends_with("one three two"), "{}", wrong[0]);
        assert!(found(&THREE[..2]).is_empty());
    }

    #[test]
    fn a_budget_allows_more() {
        let other: Vec<_> = THREE.iter().map(|(path, text)| (path.replace("a/", "b/"), *text)).collect();
        let other: Vec<_> = other.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        assert!(found(&other).is_empty());
    }

    #[test]
    fn names_that_are_passed_on_count_for_their_own_file() {
        let wrong = found(&[
            ("a/src/lib.rs", "pub use one::One; mod one; mod two;"),
            ("a/src/one.rs", "use crate::two::Two;"),
            ("a/src/two.rs", "use crate::One;"),
            ("a/src/three.rs", "use crate::One; #[cfg(test)] mod tests { use crate::four; }"),
            ("a/src/four.rs", "use crate::three;"),
            ("a/src/parts.rs", "mod part; fn f() { part::g() }"),
            ("a/src/parts/part.rs", "use super::super::parts; use crate::four;"),
        ]);
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}
