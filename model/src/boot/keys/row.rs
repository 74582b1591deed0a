//! One key of `config.yaml`.

use crate::boot::shape::Shape;

/// `access_log_format_escape`, of requests and of streams.
pub const LOG_ESCAPES: &[&str] = &["default", "json", "none"];

/// One key.
pub struct Row {
    /// Names joined with dots; `*` is any name.
    pub path: &'static str,
    pub shape: Shape,
    /// The value of an absent key, as it would be written in the file; empty for a key without a default.
    pub default: &'static str,
    /// The default in the documentation, where the value itself does not explain it.
    pub words: &'static str,
    /// A line of the documentation, in Markdown.
    pub meaning: &'static str,
    /// APISIX does not have it.
    pub ours: bool,
    /// Why the key has no effect here; `None` for those that have one.
    pub idle: Option<&'static str>,
    /// The value of an idle key, as JSON, that says what happens anyway and so needs no warning.
    pub anyway: &'static str,
}

/// A key that is used.
pub const fn row(path: &'static str, shape: Shape, default: &'static str, meaning: &'static str) -> Row {
    Row { path, shape, default, words: "", meaning, ours: false, idle: None, anyway: "" }
}

/// A key without effect.
pub const fn idle(path: &'static str, why: &'static str) -> Row {
    idle_unless(path, "", why)
}

/// A key without effect, whose value `anyway` needs no warning.
pub const fn idle_unless(path: &'static str, anyway: &'static str, why: &'static str) -> Row {
    Row { idle: Some(why), anyway, ..row(path, Shape::Any, "", "") }
}

impl Row {
    pub const fn ours(self) -> Row {
        Row { ours: true, ..self }
    }

    pub const fn words(self, words: &'static str) -> Row {
        Row { words, ..self }
    }
}
