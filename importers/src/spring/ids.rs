//! Ids of resources, from names in the file.

use std::collections::HashSet;

/// Gives each name an id of its own.
#[derive(Default)]
pub struct Ids {
    used: HashSet<String>,
}

impl Ids {
    /// A name as an id: letters, digits, `-`, `_` and `.`, at most 64, unique.
    pub fn take(&mut self, name: &str) -> String {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let mut id: String = name.chars().map(|c| if fits(c) { c } else { '-' }).take(56).collect();
        if id.trim_matches('-').is_empty() {
            id = "route".to_owned();
        }
        let base = id.clone();
        let mut count = 1;
        while !self.used.insert(id.clone()) {
            count += 1;
            id = format!("{base}-{count}");
        }
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique() {
        let mut ids = Ids::default();
        let long = "x".repeat(100);
        let taken: Vec<String> =
            ["a b/ü", "a b/ü", "", &long, &long].iter().map(|name| ids.take(name)).collect();
        assert_eq!(taken[..3], ["a-b--", "a-b---2", "route"]);
        assert!(taken[4].ends_with("-2") && taken[4].len() <= 64);
    }
}
