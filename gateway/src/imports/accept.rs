//! The guards that the user has accepted.

use importers::Finding;
use model::{Diagnostic, Invalid, Severity};

use crate::cli;

/// Which guards need not keep a route from being served.
#[derive(Debug, Clone)]
pub struct Accepted {
    all: bool,
    /// Files and lines.
    places: Vec<(String, u32)>,
}

impl Accepted {
    /// # Errors
    /// A place that is no `FILE:LINE`.
    pub fn read(options: &cli::Import) -> Result<Accepted, Box<Diagnostic>> {
        let mut places = Vec::new();
        for text in &options.accept {
            let place = text.rsplit_once(':').filter(|(file, _)| !file.is_empty());
            let place = place.and_then(|(file, line)| Some((file.to_owned(), line.parse::<u32>().ok()?)));
            let Some(place) = place else {
                let invalid =
                    Invalid::new("the place cannot be read").expected("FILE:LINE, such as kong.yml:12");
                let mut wrong = Diagnostic::new(Severity::Error, &format!("--accept {text}"), invalid.reason);
                wrong.expected = invalid.expected;
                return Err(Box::new(wrong));
            };
            places.push(place);
        }
        Ok(Accepted { all: options.accept_guards, places })
    }

    /// Whether a finding is accepted.
    pub fn covers(&self, finding: &Finding) -> bool {
        let place = &finding.place;
        self.all
            || self
                .places
                .iter()
                .any(|(file, line)| *line == place.position.line && is_same_file(file, &place.file))
    }

    /// The places that no finding has, as they were written.
    pub fn unused<'f>(&self, findings: impl Iterator<Item = &'f Finding> + Clone) -> Vec<String> {
        let is_used = |(file, line): &&(String, u32)| {
            let mut findings = findings.clone();
            findings.any(|one| *line == one.place.position.line && is_same_file(file, &one.place.file))
        };
        let unused = self.places.iter().filter(|place| !is_used(place));
        unused.map(|(file, line)| format!("{file}:{line}")).collect()
    }
}

/// Whether a name given by the user is that of a file: the whole path, or its last parts.
fn is_same_file(given: &str, file: &str) -> bool {
    let given = given.trim_start_matches("./");
    let rest = file.trim_start_matches("./").strip_suffix(given);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_by_its_path_or_the_end_of_it() {
        for (given, file, same) in [
            ("kong.yml", "conf/kong.yml", true),
            ("./conf/kong.yml", "conf/kong.yml", true),
            ("/etc/kong.yml", "/etc/kong.yml", true),
            ("ong.yml", "conf/kong.yml", false),
            ("other/kong.yml", "conf/kong.yml", false),
        ] {
            assert_eq!(is_same_file(given, file), same, "{given} {file}");
        }
    }

    #[test]
    fn a_place_has_a_file_and_a_line() {
        let read = |text: &str| {
            Accepted::read(&cli::Import { accept: vec![text.to_owned()], ..cli::Import::default() })
        };
        assert_eq!(read("a:b.yml:12").unwrap().places, [("a:b.yml".to_owned(), 12)]);
        for wrong in ["kong.yml", "12", ":12", "kong.yml:x"] {
            assert!(read(wrong).unwrap_err().file.contains(wrong), "{wrong}");
        }
    }
}
