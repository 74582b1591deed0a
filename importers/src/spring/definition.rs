//! Definitions of predicates and filters, as `Path=/a,/b` or with named arguments.

use super::settings::Item;
use crate::finding::Place;

/// A predicate or filter.
pub struct Definition<'s> {
    pub name: String,
    pub place: Place,
    /// As reports name it: `spring.cloud.gateway.routes[0].filters[1]`.
    pub path: String,
    arguments: Arguments<'s>,
}

enum Arguments<'s> {
    /// In the order of the text.
    Listed(Vec<String>),
    Named(Option<Item<'s>>),
}

impl<'s> Definition<'s> {
    /// Reads a definition. `None` if it has no name, or a variable in it has no value.
    pub fn read(item: &Item<'s>) -> Option<Definition<'s>> {
        let (place, path) = (item.place(), item.path().to_owned());
        if let Some(text) = item.text().filter(|text| !text.is_empty()) {
            let (name, arguments) = match text.split_once('=') {
                Some((name, rest)) => (name.trim().to_owned(), tokens(rest)),
                None => (text, Vec::new()),
            };
            return Some(Definition { name, place, path, arguments: Arguments::Listed(arguments) });
        }
        let name = item.get("name")?.some()?;
        Some(Definition { name, place, path, arguments: Arguments::Named(item.get("args")) })
    }

    /// One with listed arguments, for definitions that no file has.
    pub fn listed(name: &str, arguments: &[&str], place: Place, path: &str) -> Definition<'s> {
        let arguments = arguments.iter().map(|text| (*text).to_owned()).collect();
        let (name, path) = (name.to_owned(), path.to_owned());
        Definition { name, place, path, arguments: Arguments::Listed(arguments) }
    }

    /// An argument by its name, and its place among listed ones.
    pub fn argument(&self, name: &str, at: usize) -> Option<String> {
        match &self.arguments {
            Arguments::Listed(texts) => texts.get(at).cloned(),
            Arguments::Named(args) => {
                let args = args.as_ref()?;
                args.get(name).or_else(|| args.get(&format!("_genkey_{at}")))?.text()
            }
        }
    }

    /// An argument that only named arguments have.
    pub fn named(&self, name: &str) -> Option<Item<'s>> {
        match &self.arguments {
            Arguments::Listed(_) => None,
            Arguments::Named(args) => args.as_ref()?.get(name),
        }
    }

    /// All arguments, as a list under a name or one by one.
    pub fn list(&self, name: &str) -> Vec<String> {
        match &self.arguments {
            Arguments::Listed(texts) => texts.clone(),
            Arguments::Named(None) => Vec::new(),
            Arguments::Named(Some(args)) => match args.get(name) {
                Some(item) => item.texts(),
                None => {
                    let generated =
                        args.members().into_iter().filter(|(name, _)| name.starts_with("_genkey_"));
                    generated.filter_map(|(_, item)| item.some()).collect()
                }
            },
        }
    }

    /// How many arguments are listed; named ones do not count.
    pub fn count(&self) -> usize {
        match &self.arguments {
            Arguments::Listed(texts) => texts.len(),
            Arguments::Named(_) => 0,
        }
    }

    /// Marks all arguments as read: one finding is about all of them.
    pub fn whole(&self) {
        if let Arguments::Named(Some(args)) = &self.arguments {
            args.whole();
        }
    }

    /// An argument with a SpEL expression (`#{…}`), if there is one.
    pub fn expression(&self) -> Option<String> {
        let texts = match &self.arguments {
            Arguments::Listed(texts) => texts.clone(),
            Arguments::Named(None) => Vec::new(),
            Arguments::Named(Some(args)) => args.values().into_iter().map(str::to_owned).collect(),
        };
        texts.into_iter().find(|text| text.trim_start().starts_with("#{"))
    }
}

/// The parts of a text between commas, without empty ones, as Spring's `tokenizeToStringArray` finds them.
fn tokens(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}
