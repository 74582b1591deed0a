//! The masks of a body.

use sdk::Exchange;
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
    pub(super) fn mask(&self, kind: Kind, text: &[u8], searches: &Searches) -> Masked {
        if kind == Kind::Unreadable {
            return Masked::Withheld;
        }
        if !self.paths.is_empty()
            && let Ok(value) = tree::read(text)
        {
            return self.mask_json(value, searches);
        }
        // Without a media type, a text may only look like a form.
        let is_form = match kind {
            Kind::Form => true,
            Kind::Unknown => {
                !text.trim_ascii_start().starts_with(b"{") && !text.trim_ascii_start().starts_with(b"[")
            }
            Kind::Other | Kind::Unreadable => false,
        };
        if self.form.is_empty() || !is_form {
            return Masked::Withheld;
        }
        self.form.mask(text, searches).map_or(Masked::Same, Masked::Text)
    }

    /// The value is written again: of several members of one name, the text would show those that were not masked.
    fn mask_json(&self, mut value: Value, searches: &Searches) -> Masked {
        for (path, action) in &self.paths {
            path.edit(&mut value, &mut |value| mask_value(value, action, searches));
        }
        Masked::Text(value.to_string().into_bytes())
    }
}

/// The kind of a body, as its headers describe it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Form,
    /// There is no media type.
    Unknown,
    Other,
    /// It is coded, or has several media types.
    Unreadable,
}

impl Kind {
    pub(super) fn of(x: &Exchange<'_>) -> Kind {
        const FORM: &[u8] = b"application/x-www-form-urlencoded";
        let fields = &x.request().fields;
        let mut kinds = fields.all(b"Content-Type");
        let (kind, is_ambiguous) = (kinds.next(), kinds.next().is_some());
        let mut codings = fields.all(b"Content-Encoding");
        if is_ambiguous || codings.any(|coding| !coding.eq_ignore_ascii_case(b"identity")) {
            return Kind::Unreadable;
        }
        let Some(kind) = kind else { return Kind::Unknown };
        let name = kind.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
        if name.eq_ignore_ascii_case(FORM) { Kind::Form } else { Kind::Other }
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
