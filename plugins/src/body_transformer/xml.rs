//! XML read into tables, as xml2lua does for APISIX: an element is its text, or a table of its children
//! by name, without prefixes; several of a name are a list; attributes stand under `_attr`.
//!
//! There are no entities but XML's own five and characters by number, and no document types.

use std::rc::Rc;

use indexmap::IndexMap;
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::value::{Table, Value, table, text};

/// The deepest nesting of elements.
const DEEPEST: usize = 128;

/// The most bytes that the tables of this text may take.
pub(super) fn weight(body: &[u8]) -> usize {
    let marks = body.iter().filter(|byte| matches!(byte, b'<' | b'=')).count();
    marks.saturating_mul(512).saturating_add(2 * body.len())
}

#[derive(Default)]
struct Element {
    name: Vec<u8>,
    attributes: IndexMap<Rc<[u8]>, Value>,
    texts: Vec<Vec<u8>>,
    /// A text that goes on behind an entity.
    open: bool,
    children: IndexMap<Rc<[u8]>, Vec<Value>>,
}

/// # Errors
/// Describes the first fault in the document.
pub(super) fn read(body: &[u8]) -> Result<Table, String> {
    let mut reader = Reader::from_reader(body);
    let mut stack = vec![Element::default()];
    loop {
        let event = reader.read_event().map_err(|error| error.to_string())?;
        let depth = stack.len();
        // The first one is the document, and is never taken off.
        let Some(top) = stack.last_mut() else { return Err("no element".into()) };
        match event {
            Event::Start(start) => {
                top.open = false;
                if depth > DEEPEST {
                    return Err("elements stand in each other too deep".into());
                }
                stack.push(element(&start)?);
            }
            Event::Empty(start) => {
                top.open = false;
                top.take(element(&start)?);
            }
            Event::End(_) => {
                if let Some(done) = stack.pop_if(|_| depth > 1)
                    && let Some(parent) = stack.last_mut()
                {
                    parent.take(done);
                }
            }
            Event::Text(words) => top.write(words.as_bytes()),
            Event::CData(words) => top.write(words.as_bytes()),
            Event::GeneralRef(name) => {
                let mut resolved = Vec::new();
                entity(name.as_bytes(), &mut resolved)?;
                top.write(&resolved);
            }
            Event::DocType(_) => return Err("document types are not read".into()),
            Event::Eof => break,
            Event::Decl(_) | Event::PI(_) | Event::Comment(_) => top.open = false,
        }
    }
    match stack.pop() {
        Some(document) if stack.is_empty() && !document.children.is_empty() => Ok(document.members()),
        _ => Err("an element has no end, or the document has no element".into()),
    }
}

fn element(start: &BytesStart<'_>) -> Result<Element, String> {
    let mut made = Element { name: start.name().as_ref().as_bytes().to_vec(), ..Element::default() };
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|error| error.to_string())?;
        let mut value = Vec::new();
        let mut rest = attribute.value.as_bytes();
        while let Some(at) = rest.iter().position(|&byte| byte == b'&') {
            value.extend_from_slice(&rest[..at]);
            let end = rest[at..].iter().position(|&byte| byte == b';').ok_or("an entity has no end")?;
            entity(&rest[at + 1..at + end], &mut value)?;
            rest = &rest[at + end + 1..];
        }
        value.extend_from_slice(rest);
        made.attributes.insert(plain(attribute.key.as_ref().as_bytes()).into(), text(&value));
    }
    Ok(made)
}

/// A name without its prefix.
fn plain(name: &[u8]) -> &[u8] {
    name.rsplit(|&byte| byte == b':').next().unwrap_or(name)
}

fn entity(name: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    match name {
        b"amp" => out.push(b'&'),
        b"lt" => out.push(b'<'),
        b"gt" => out.push(b'>'),
        b"quot" => out.push(b'"'),
        b"apos" => out.push(b'\''),
        [b'#', digits @ ..] => {
            let digits = std::str::from_utf8(digits).unwrap_or_default();
            let number = match digits.strip_prefix('x') {
                Some(hex) => u32::from_str_radix(hex, 16).ok(),
                None => digits.parse().ok(),
            };
            let character = number.and_then(char::from_u32).ok_or("no such character")?;
            out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
        _ => return Err("entities of one's own are not read".into()),
    }
    Ok(())
}

impl Element {
    fn write(&mut self, bytes: &[u8]) {
        match self.texts.last_mut().filter(|_| self.open) {
            Some(last) => last.extend_from_slice(bytes),
            None => self.texts.push(bytes.to_vec()),
        }
        self.open = true;
    }

    fn take(&mut self, child: Element) {
        let name = plain(&child.name).into();
        self.children.entry(name).or_default().push(child.value());
    }

    fn value(mut self) -> Value {
        let words = self.words();
        match &words[..] {
            [] if self.children.is_empty() && self.attributes.is_empty() => text(b""),
            [only] if self.children.is_empty() && self.attributes.is_empty() => text(only),
            _ => {
                self.texts = words;
                table(self.members())
            }
        }
    }

    /// The texts that are more than blanks, without those around them.
    fn words(&self) -> Vec<Vec<u8>> {
        self.texts
            .iter()
            .map(|words| words.trim_ascii())
            .filter(|words| !words.is_empty())
            .map(<[u8]>::to_vec)
            .collect()
    }

    fn members(self) -> Table {
        let mut made = Table::of_list(self.words().iter().map(|words| text(words)).collect(), false);
        if !self.attributes.is_empty() {
            let map = self.attributes.into_iter().collect();
            made.map.insert((*b"_attr").into(), table(Table::of_members(map)));
        }
        for (name, mut all) in self.children {
            let value = match all.len() {
                1 => all.swap_remove(0),
                _ => table(Table::of_list(all, false)),
            };
            made.map.insert(name, value);
        }
        made
    }
}
