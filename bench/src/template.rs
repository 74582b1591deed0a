//! Configuration files as Jinja templates, which resemble the resulting files.

use std::path::Path;

use anyhow::{Context, Result};
use minijinja::{Environment, UndefinedBehavior, Value};

/// Renders `template` with `values` and writes it to `path`.
///
/// # Errors
/// A name in the template has no value, or the file cannot be written.
pub fn write(path: &Path, template: &str, values: Value) -> Result<()> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    let text = environment
        .render_str(template, values)
        .with_context(|| format!("the template of {}", path.display()))?;
    std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use minijinja::context;

    use super::*;

    #[test]
    fn a_missing_value_is_an_error() {
        let folder = std::env::temp_dir();
        let path = folder.join(format!("bench-template-{}", std::process::id()));
        write(&path, "{{ a }}{% for p in ps %}-{{ p }}{% endfor %}\n", context! { a => 1, ps => ["x", "y"] })
            .unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1-x-y\n");
        std::fs::remove_file(&path).unwrap();
        assert!(write(&path, "{{ b }}", context! { a => 1 }).is_err());
    }
}
