//! The masks of a body.

use sdk::pattern::Searches;
use serde_json::Value;

use super::rules::{Action, Arguments, Masked};
use crate::json_path::{Edit, Path};
use crate::tree;

/// The masks of JSON, and those of a form.
#[derive(Debug)]
pub(super) struct BodyRules {
    paths: Vec<(Path, Action)>,
    pub(super) form: Arguments,
}

impl BodyRules {
    pub(super) fn new(max_args: usize) -> BodyRules {
        BodyRules { paths: Vec::new(), form: Arguments::new(max_args) }
    }

    pub(super) fn add_path(&mut self, path: &str, action: Action) -> Result<(), &'static str> {
        let path = Path::parse(path)?;
        if path.is_root() {
            return Err("it must lead to a part of the body");
        }
        self.paths.push((path, action));
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.form.is_empty()
    }

    /// The body with its masks. Rules for JSON and for forms may stand side by side: a form is no JSON.
    pub(super) fn mask(&self, text: &[u8], searches: &Searches) -> Masked {
        if !self.paths.is_empty() {
            match tree::read(text) {
                Ok(value) => return self.mask_json(value, searches),
                // A text that only looks like a form.
                Err(_) if self.form.is_empty() || text.trim_ascii_start().starts_with(b"{") => {
                    return Masked::Withheld;
                }
                Err(_) => {}
            }
        }
        self.form.mask(text, searches).map_or(Masked::Same, Masked::Text)
    }

    fn mask_json(&self, mut value: Value, searches: &Searches) -> Masked {
        let mut is_masked = false;
        for (path, action) in &self.paths {
            is_masked |= path.edit(&mut value, &mut |value| mask_value(value, action, searches));
        }
        if is_masked { Masked::Text(value.to_string().into_bytes()) } else { Masked::Same }
    }
}

fn mask_value(value: &Value, action: &Action, searches: &Searches) -> Edit {
    let text = match (action, value) {
        (Action::Regex(_), Value::String(text)) => text.as_bytes(),
        // As in APISIX, only texts are searched.
        (Action::Regex(_), _) => return Edit::Keep,
        (Action::Remove | Action::Replace(_), _) => b"",
    };
    match action.apply(text, searches) {
        Masked::Same => Edit::Keep,
        Masked::Text(text) => Edit::Set(Value::String(String::from_utf8_lossy(&text).into_owned())),
        Masked::Withheld => Edit::Remove,
    }
}
