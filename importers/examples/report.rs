//! Prints the resources and findings of files: `report FORMAT FILE…`; with `-v`, the resources too. Variables of files are
//! those of the environment.

#![allow(clippy::disallowed_macros, clippy::disallowed_methods, reason = "a tool for development")]

use importers::{FileError, Files, Format, Severity, Source};

struct NoFiles;

impl Files for NoFiles {
    fn read(&self, _path: &str) -> Result<String, FileError> {
        Err(FileError::Absent)
    }

    fn matching(&self, _pattern: &str) -> Result<Vec<String>, FileError> {
        Ok(Vec::new())
    }
}

fn main() {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let verbose = args.iter().position(|arg| arg == "-v").map(|at| args.remove(at)).is_some();
    let format = args.first().and_then(|name| Format::from_name(name));
    let Some(format) = format else {
        eprintln!("usage: report [-v] FORMAT FILE…");
        std::process::exit(2);
    };
    let (mut good, mut files) = (0, 0);
    for file in &args[1..] {
        files += 1;
        let text =
            std::fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        let source = Source {
            file,
            text: &text,
            files: &NoFiles,
            variables: &|name| std::env::var(name).ok(),
            profiles: &[],
        };
        match importers::import(format, &source) {
            Ok(import) => {
                let routes = import.resources.iter().filter(|resource| {
                    matches!(resource.key.kind, model::Kind::Route | model::Kind::StreamRoute)
                });
                let (mut all, mut open) = (0, 0);
                for route in routes {
                    all += 1;
                    open += usize::from(import.guards(&route.key).next().is_none());
                }
                good += usize::from(all > 0 && open * 10 >= all * 9);
                let count = |severity| import.count(severity);
                println!(
                    "{file}: {open} of {all} routes open, {} guard, {} behaviour, {} cosmetic",
                    count(Severity::Guard),
                    count(Severity::Behaviour),
                    count(Severity::Cosmetic)
                );
                if verbose {
                    for resource in &import.resources {
                        println!("  {} {}", resource.key, resource.value);
                    }
                }
                import.findings.iter().for_each(|finding| println!("  {finding}"));
            }
            Err(error) => println!("{file}: {error}"),
        }
    }
    println!("{good} of {files} files have at least 90 % of their routes open");
}
