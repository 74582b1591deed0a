//! Files that no gateway wrote: each format rejects them with a message, or imports them, in bounded time.

#![allow(clippy::disallowed_macros, clippy::disallowed_methods, reason = "a test")]

#[path = "support/any_file.rs"]
mod any_file;

use std::time::{Duration, Instant};

use importers::{FileError, Files, Format, Source};

/// Far above what any of them takes, so that only unbounded work fails.
const BOUND: Duration = Duration::from_secs(30);

/// A folder whose files all have this text.
struct Folder<'a>(&'a str);

impl Files for Folder<'_> {
    fn read(&self, _path: &str) -> Result<String, FileError> {
        Ok(self.0.to_owned())
    }

    fn matching(&self, pattern: &str) -> Result<Vec<String>, FileError> {
        Ok(vec![pattern.replace('*', "a"), pattern.replace('*', "b")])
    }
}

/// Imports a text of which all further files are copies. Returns the error.
fn error(format: Format, text: &str) -> Option<String> {
    let start = Instant::now();
    let file = match format {
        Format::Nginx => "nginx.conf",
        _ => "file.yml",
    };
    let source = Source { file, text, files: &Folder(text), variables: &|_| None, profiles: &[] };
    let result = importers::import(format, &source);
    let (taken, begin) = (start.elapsed(), text.get(..40).unwrap_or(text));
    assert!(taken < BOUND, "{format:?} took {taken:?} for {begin:?}");
    let error = result.err().map(|error| error.to_string());
    assert!(error.as_ref().is_none_or(|error| !error.is_empty()));
    error
}

#[test]
fn texts_that_are_no_files_of_gateways_are_errors() {
    let deep_braces = "a {\n".repeat(100_000);
    let deep_lists = "[".repeat(200_000);
    let bomb: String = (0..40)
        .map(|at| match at {
            0 => "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned(),
            _ => format!("a{at}: &a{at} [{}]\n", vec![format!("*a{}", at - 1); 9].join(", ")),
        })
        .collect();
    let binary: String = (0..50_000u32).map(|at| char::from((at * 7 % 128) as u8)).collect();
    for format in Format::ALL {
        for text in [&deep_braces, &deep_lists, &binary] {
            assert!(error(format, text).is_some(), "{format:?}: {:?}", &text[..20]);
        }
        if format != Format::Nginx {
            assert!(error(format, &bomb).is_some(), "{format:?} expands aliases without a bound");
        }
    }
}

#[test]
fn files_that_include_themselves_are_errors() {
    for (format, text) in [
        (Format::Nginx, "events {}\nhttp { include nginx.conf; }\n"),
        (Format::Nginx, "include *.conf;\n"),
        (Format::SpringCloudGateway, "spring.config.import: file:file.yml\n"),
        (Format::Zuul, "spring.config.import: file:file.yml\n"),
        (Format::Zuul, "spring.config.import: file:a.yml\n"),
    ] {
        let error = error(format, text).unwrap_or_else(|| panic!("{format:?} takes {text:?}"));
        assert!(error.contains("itself"), "{error}");
    }
}

#[test]
fn the_fuzz_target_holds_for_the_fixtures() {
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let mut count = 0;
    for format in ["kong", "envoy", "nginx", "spring", "zuul"] {
        for file in std::fs::read_dir(fixtures.join(format)).unwrap() {
            let Ok(text) = std::fs::read_to_string(file.unwrap().path()) else { continue };
            any_file::check(&text);
            count += 1;
        }
    }
    assert!(count > 5, "{count} fixtures");
}
