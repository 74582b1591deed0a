//! Ids of resources, from the names in the file.

use std::collections::{HashMap, HashSet};

use model::Kind;

/// The ids in use.
#[derive(Default)]
pub(super) struct Names {
    used: HashSet<(Kind, String)>,
    /// The number that the next resource of a name may get.
    next: HashMap<(Kind, String), usize>,
}

impl Names {
    /// An id of this kind that is like a name: characters that an id cannot have become dashes, and a
    /// number follows if the id is in use.
    pub(super) fn id(&mut self, kind: Kind, name: &str) -> String {
        let allowed =
            |c: char| c.is_ascii_alphanumeric() || "-_".contains(c) || (c == '.' && kind != Kind::Consumer);
        let text: String = name.chars().map(|c| if allowed(c) { c } else { '-' }).take(56).collect();
        let text = match text.trim_matches(['-', '.']) {
            "" => kind.collection().trim_end_matches('s'),
            text => text,
        };
        let mut id = text.to_owned();
        if self.used.insert((kind, id.clone())) {
            return id;
        }
        let number = self.next.entry((kind, id.clone())).or_insert(2);
        while !self.used.insert((kind, id.clone())) {
            id = format!("{text}-{number}");
            *number += 1;
        }
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_readable_valid_and_unique() {
        let mut names = Names::default();
        for (kind, name, id) in [
            (Kind::Route, "a b/c", "a-b-c"),
            (Kind::Route, "a-b-c", "a-b-c-2"),
            (Kind::Service, "a-b-c", "a-b-c"),
            (Kind::Route, "", "route"),
            (Kind::Route, "..", "route-2"),
            (Kind::Consumer, "jo.e@example.com", "jo-e-example-com"),
        ] {
            assert_eq!(names.id(kind, name), id);
        }
        let long = names.id(Kind::Route, &"x".repeat(300));
        assert!(model::Key::new(Kind::Route, long).check().is_ok());
    }
}
