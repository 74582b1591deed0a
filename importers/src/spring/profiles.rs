//! Profiles: which are active, and which documents they activate.

use super::settings::Settings;

/// Groups that name each other end here.
const MAX_PROFILES: usize = 32;

/// The active profiles of an application.
pub struct Profiles {
    active: Vec<String>,
    /// Given by the user, so that the file does not choose them.
    given: bool,
}

impl Profiles {
    pub fn new(given: &[String]) -> Profiles {
        let given_profiles: Vec<String> = given.iter().flat_map(|names| listed(names)).collect();
        Profiles { given: !given_profiles.is_empty(), active: given_profiles }
    }

    /// Reads `spring.profiles.active`, `.include` and `.group` of a document without a condition of its own.
    pub fn read(&mut self, document: &Settings<'_>) {
        if condition(document).is_some() {
            return;
        }
        let Some(profiles) = document.get("spring.profiles") else { return };
        let texts = |name: &str| profiles.get(name).map(|item| item.texts()).unwrap_or_default();
        if !self.given {
            let active = texts("active");
            // Later documents of a file override earlier ones.
            if !active.is_empty() {
                self.active = active;
            }
        }
        self.active.extend(texts("include"));
        let mut at = 0;
        while at < self.active.len().min(MAX_PROFILES) {
            let members = texts(&format!("group.{}", self.active[at]));
            let new: Vec<String> = members.into_iter().filter(|name| !self.active.contains(name)).collect();
            self.active.extend(new);
            at += 1;
        }
        self.active.truncate(MAX_PROFILES);
    }

    /// The active profiles, those that override others last; `default` if there is no other.
    pub fn active(&self) -> &[String] {
        &self.active
    }

    /// Whether a document is in use.
    pub fn activates(&self, document: &Settings<'_>) -> bool {
        condition(document).is_none_or(|condition| self.holds(&condition))
    }

    /// Whether one of the expressions between commas holds.
    fn holds(&self, condition: &str) -> bool {
        condition.split(',').any(|expression| Parser { rest: expression, profiles: self, depth: 0 }.or())
    }

    fn is_active(&self, name: &str) -> bool {
        match self.active.is_empty() {
            true => name == "default",
            false => self.active.iter().any(|active| active == name),
        }
    }
}

/// The profiles that a document is for; `spring.profiles` is the key of Spring Boot before 2.4.
fn condition(document: &Settings<'_>) -> Option<String> {
    let key =
        document.get("spring.config.activate.on-profile").or_else(|| document.get("spring.profiles"))?;
    Some(key.texts().join(",")).filter(|condition| !condition.is_empty())
}

fn listed(names: &str) -> impl Iterator<Item = String> {
    names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned)
}

/// An expression such as `prod & (eu | !us)`.
struct Parser<'a> {
    rest: &'a str,
    profiles: &'a Profiles,
    depth: usize,
}

impl Parser<'_> {
    fn or(&mut self) -> bool {
        let mut holds = self.and();
        while self.takes('|') {
            holds |= self.and();
        }
        holds
    }

    fn and(&mut self) -> bool {
        let mut holds = self.one();
        while self.takes('&') {
            holds &= self.one();
        }
        holds
    }

    fn one(&mut self) -> bool {
        self.depth += 1;
        if self.depth > 64 {
            return false;
        }
        if self.takes('!') {
            return !self.one();
        }
        if self.takes('(') {
            let holds = self.or();
            self.takes(')');
            return holds;
        }
        let rest = self.rest.trim_start();
        let end = rest.find(['|', '&', '!', '(', ')']).unwrap_or(rest.len());
        self.rest = &rest[end..];
        self.profiles.is_active(rest[..end].trim())
    }

    fn takes(&mut self, c: char) -> bool {
        let rest = self.rest.trim_start();
        match rest.strip_prefix(c) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_hold_for_active_profiles() {
        let profiles = Profiles::new(&["prod,eu".to_owned()]);
        for (expression, expected) in [
            ("prod", true),
            ("dev", false),
            ("dev, eu", true),
            ("prod & (eu | us)", true),
            ("prod & !eu", false),
            ("!dev", true),
            ("default", false),
            ("((((", false),
        ] {
            assert_eq!(profiles.holds(expression), expected, "{expression}");
        }
        assert!(Profiles::new(&[]).holds("default"));
        assert!(!Profiles::new(&[]).holds(&"!(".repeat(10_000)));
    }
}
