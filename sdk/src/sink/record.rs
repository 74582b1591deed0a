//! Records of log entries, and where they go.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};

/// The destination of entries: a sink of the program, and its settings.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Destination {
    /// The name of the sink: `file`, `http`, `tcp`, `udp`.
    pub sink: &'static str,
    /// Host names and ports of its servers, which are equivalent. The control plane resolves the names.
    pub servers: Vec<(String, u16)>,
    /// The sink's settings, which only it reads.
    pub settings: Value,
}

impl Destination {
    pub fn server(sink: &'static str, host: String, port: u16, settings: Value) -> Destination {
        Destination { sink, servers: vec![(host, port)], settings }
    }

    /// A file to which each entry is appended as soon as it arrives. A plugin's comes from
    /// [`crate::Build::log_file`].
    pub fn file(path: &str) -> Destination {
        Destination { sink: "file", servers: Vec::new(), settings: json!({"path": path}) }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.servers.first(), self.settings.get("path").and_then(Value::as_str)) {
            (Some((host, port)), _) => write!(f, "{} {host}:{port}", self.sink),
            (None, Some(path)) => f.write_str(path),
            (None, None) => f.write_str(self.sink),
        }
    }
}

/// The addresses of each server of a destination.
pub type Addresses = Arc<[Vec<SocketAddr>]>;

/// A record of an exchange.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// Values that a sink encodes apart from the entry, by name.
    pub fields: Fields,
    /// The entry, as its logger has formatted it.
    pub bytes: Vec<u8>,
}

/// The field with the number of gateways that the entry's request passed through. A sink over HTTP sends the largest one
/// of a batch, so that a loop back to this gateway ends.
pub const HOPS: &str = "hops";

/// See [`Record::fields`].
pub type Fields = Vec<(&'static str, Vec<u8>)>;

impl Record {
    pub(super) fn size(&self) -> usize {
        self.fields.iter().map(|(_, value)| value.len()).sum::<usize>() + self.bytes.len()
    }
}

impl From<Vec<u8>> for Record {
    fn from(bytes: Vec<u8>) -> Record {
        Record { fields: Vec::new(), bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_equal_by_their_settings_in_any_order() {
        let to = |text: &str| {
            let settings = serde_json::from_str(text).unwrap();
            Destination::server("tcp", "h.test".to_owned(), 514, settings)
        };
        let hash = |to: &Destination| {
            use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
            BuildHasherDefault::<DefaultHasher>::default().hash_one(to)
        };
        let (one, same) = (to(r#"{"a": 1, "b": 2}"#), to(r#"{"b": 2, "a": 1}"#));
        assert_eq!((&one, hash(&one)), (&same, hash(&same)));
        assert_ne!(one, to(r#"{"a": 1, "b": 3}"#));
        assert_eq!(one.to_string(), "tcp h.test:514");
        assert_eq!(Destination::file("/a.log").to_string(), "/a.log");
        assert_eq!(Destination { sink: "none", ..Destination::file("") }.to_string(), "");
    }

    #[test]
    fn fields_count_as_bytes_do() {
        let record = Record { fields: vec![("host", b"abc".to_vec())], bytes: b"de".to_vec() };
        assert_eq!((record.size(), Record::from(b"de".to_vec()).size()), (5, 2));
    }
}
