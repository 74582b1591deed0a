//! A section of a checked `config.yaml`: its values, or the defaults of the table of [`keys`].

use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::Value;

use super::shape::Shape;
use super::{keys, values};
use crate::Invalid;

/// The file, or a section of it. An absent or null setting has the default of the table.
#[derive(Clone, Copy)]
pub struct Section<'a> {
    root: &'a Value,
    /// The pointers of `root` and of the section in the file.
    from: &'static str,
    pub(super) at: &'static str,
}

impl<'a> Section<'a> {
    pub(super) fn of(root: &'a Value) -> Section<'a> {
        Section { root, from: "", at: "" }
    }

    /// The settings of a plugin, as a pointer into the file such as `/plugin_attr/redirect`, and as far as written.
    pub fn attr(at: &'static str, written: Option<&'a Value>) -> Section<'a> {
        Section { root: written.unwrap_or(&Value::Null), from: at, at }
    }

    /// A section of the whole file.
    pub(super) fn below(self, at: &'static str) -> Section<'a> {
        Section { at, ..self }
    }

    /// The written value.
    pub fn get(self, pointer: &str) -> Option<&'a Value> {
        let pointer = format!("{}{pointer}", self.at);
        self.root.pointer(&pointer[self.from.len()..]).filter(|value| !value.is_null())
    }

    /// The written value, else the default; `None` if there is neither. The shape of the key has been checked before,
    /// so `read` cannot fail.
    pub(super) fn read<T>(self, pointer: &str, read: impl Fn(&'a Value) -> Result<T, Invalid>) -> Option<T> {
        let (_, default) = self.row(pointer);
        self.get(pointer).and_then(|value| read(value).ok()).or_else(|| read(default).ok())
    }

    /// The value of a setting that has a default.
    pub(super) fn value<T>(self, pointer: &str, read: impl Fn(&'a Value) -> Result<T, Invalid>) -> T {
        self.read(pointer, read).unwrap_or_else(|| unreachable!("{}{pointer} has no default", self.at))
    }

    fn row(self, pointer: &str) -> (&'static keys::Row, &'static Value) {
        let path = format!("{}{pointer}", self.at)[1..].replace('/', ".");
        keys::find(&path).unwrap_or_else(|| unreachable!("{path} is not in the table of keys"))
    }

    pub fn bool(self, pointer: &str) -> bool {
        self.value(pointer, values::switch)
    }

    pub fn count(self, pointer: &str) -> u64 {
        let (min, max) = match self.row(pointer).0.shape {
            Shape::Count { min, max } => (min, max),
            _ => (0, u64::MAX),
        };
        self.value(pointer, |value| values::count(value, min, max))
    }

    /// A number of things in memory.
    pub fn number(self, pointer: &str) -> usize {
        usize::try_from(self.count(pointer)).unwrap_or(usize::MAX)
    }

    pub fn port(self, pointer: &str) -> u16 {
        self.value(pointer, values::port)
    }

    pub fn networks(self, pointer: &str) -> Vec<IpNet> {
        self.value(pointer, |value| values::list(value, values::network))
    }

    /// Ascending upper bounds of latencies, in milliseconds.
    pub fn buckets(self, pointer: &str) -> Vec<f64> {
        self.value(pointer, values::buckets)
    }

    pub fn time(self, pointer: &str) -> Duration {
        self.value(pointer, values::time)
    }

    /// Bytes, within the bounds of the setting.
    pub fn size(self, pointer: &str) -> u64 {
        let bytes = self.value(pointer, values::size);
        match self.row(pointer).0.shape {
            Shape::Within(least, most) => bytes.clamp(least, most),
            _ => bytes,
        }
    }

    /// Bytes in memory.
    pub fn bytes(self, pointer: &str) -> usize {
        usize::try_from(self.size(pointer)).unwrap_or(usize::MAX)
    }

    pub fn text(self, pointer: &str) -> Option<&'a str> {
        self.read(pointer, values::text)
    }

    pub fn texts(self, pointer: &str) -> Option<Vec<String>> {
        self.read(pointer, |value| values::list(value, |item| values::text(item).map(str::to_owned)))
    }

    /// The address of the section `at`.
    pub(super) fn address(self, at: &'static str) -> SocketAddr {
        let at = self.below(at);
        SocketAddr::new(at.value("/ip", values::ip), at.port("/port"))
    }
}
