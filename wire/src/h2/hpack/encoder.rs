//! hot path
//!
//! Encoding of field blocks.

use super::DEFAULT_TABLE_SIZE;
use super::fixed::FIELDS;
use super::policy::{self, Policy, Rule};
use super::table::{Entry, Table};
use crate::field_list::{About, BEHIND, BETWEEN};
use crate::h1::encode::decimal;
use crate::names::{Name, lower, same_in_any_case, short};
use crate::prefixed::{put_integer, put_lower, put_text};

/// Flags and bits of the representations (RFC 7541 section 6).
const INDEXED: (u8, u32) = (0x80, 7);
const INSERTED: (u8, u32) = (0x40, 6);
const PLAIN: (u8, u32) = (0x00, 4);
const NEVER: (u8, u32) = (0x10, 4);
const SIZE: (u8, u32) = (0x20, 5);

/// The index of the first entry of the dynamic table.
const FIRST: usize = FIELDS.len() + 1;

/// Slots for the hashes of fields. A hash selects several of them, as two fields of each block that
/// replace each other would never be indexed.
const SLOTS: usize = 128;
const WAYS: usize = 4;

/// Pseudo-header fields of a request (RFC 9113 section 8.3.1, RFC 8441).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pseudo {
    Authority,
    Method,
    Path,
    Protocol,
    Scheme,
}

impl Pseudo {
    /// The name, and the first entry of the static table that has it.
    fn entry(self) -> (&'static [u8], u8) {
        match self {
            Pseudo::Authority => (b":authority", 1),
            Pseudo::Method => (b":method", 2),
            Pseudo::Path => (b":path", 4),
            Pseudo::Protocol => (b":protocol", 0),
            Pseudo::Scheme => (b":scheme", 6),
        }
    }
}

/// Encodes the blocks of one connection.
///
/// A field is inserted into the dynamic table when it is encoded for the second time, so that
/// values that never repeat evict nothing, without a list of all such names.
#[derive(Debug)]
pub struct Encoder {
    table: Table,
    /// Entries inserted so far, modulo 2^16.
    inserted: u16,
    /// For each name, by [`Text::key`], the value of `inserted` at the entry that was used last. Most fields repeat
    /// the last value of their name, and are found here without a hash of the value.
    recent: [u16; KEYS],
    /// Hashes of fields and of names, in the slots that they select. Empty until a field may be
    /// indexed.
    slots: Vec<Slot>,
    /// The table's size from the next block on, and the smallest one since the last block.
    next: usize,
    least: usize,
}

/// Keys of names: the known ones, pseudo-header fields by their index in the static table, and a few for all others.
const KEYS: usize = PSEUDO + 8 + OTHERS;
const PSEUDO: usize = Name::KNOWN.len() + 1;
const OTHERS: usize = 32;

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    hash: u16,
    /// The value of `inserted` at the entry of the hash; 0 for a field that came once.
    number: u16,
}

impl Default for Encoder {
    fn default() -> Encoder {
        Encoder::new()
    }
}

impl Encoder {
    pub fn new() -> Encoder {
        let size = DEFAULT_TABLE_SIZE;
        Encoder {
            table: Table::new(size),
            inserted: 0,
            recent: [0; KEYS],
            slots: Vec::new(),
            next: size,
            least: size,
        }
    }

    /// Applies the peer's SETTINGS_HEADER_TABLE_SIZE from the next block on. More than 4096 bytes
    /// are never used.
    pub fn set_max_table_size(&mut self, peer_setting: u32) {
        self.next = DEFAULT_TABLE_SIZE.min(peer_setting as usize);
        self.least = self.least.min(self.next);
    }

    /// Starts a block: a change of the table's size is signalled first, and its minimum before it
    /// (RFC 7541 section 4.2).
    #[inline]
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if self.least != self.table.limit() || self.next != self.least {
            self.resize(out);
        }
    }

    #[cold]
    fn resize(&mut self, out: &mut Vec<u8>) {
        for size in [self.least, self.next] {
            if size != self.table.limit() {
                self.table.set_limit(size);
                put_integer(SIZE.0, SIZE.1, size, out);
            }
        }
        self.least = self.next;
    }

    /// Appends a field. The name may be in any case and is written in lower case; `id` is the name's
    /// [`Name::from_bytes`].
    pub fn put(&mut self, id: Name, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let Policy { rule, index } = policy::of(id);
        match rule {
            Rule::Index if id == Name::AcceptEncoding && value == FIELDS[ACCEPT_ENCODING - 1].value() => {
                put_integer(INDEXED.0, INDEXED.1, ACCEPT_ENCODING, out);
            }
            Rule::Index => self.indexed(Text { id, name, value, index }, out),
            Rule::Plain => literal(PLAIN, index.into(), name, value, out),
            Rule::Never => literal(NEVER, index.into(), name, value, out),
        }
    }

    /// Appends a field with a decimal number, such as Content-Length.
    pub fn put_number(&mut self, id: Name, name: &[u8], value: u64, out: &mut Vec<u8>) {
        put_name(PLAIN, policy::of(id).index.into(), name, out);
        let at = out.len();
        out.push(0);
        decimal(value, out);
        // At most twenty digits.
        out[at] = (out.len() - at - 1) as u8;
    }

    /// Appends the status of a response, which must come before all other fields.
    #[inline]
    pub fn put_status(&mut self, status: u16, out: &mut Vec<u8>) {
        let index = match status {
            200 => 8,
            204 => 9,
            206 => 10,
            304 => 11,
            400 => 12,
            404 => 13,
            500 => 14,
            _ => {
                let digits =
                    [status / 100 % 10, status / 10 % 10, status % 10].map(|digit| b'0' + digit as u8);
                return literal(PLAIN, 8, b"", &digits, out);
            }
        };
        out.push(INDEXED.0 | index);
    }

    /// Appends a pseudo-header field of a request, which must come before all other fields.
    pub fn put_pseudo(&mut self, pseudo: Pseudo, value: &[u8], out: &mut Vec<u8>) {
        let index = match (pseudo, value) {
            (Pseudo::Method, b"GET") => 2,
            (Pseudo::Method, b"POST") => 3,
            (Pseudo::Path, b"/") => 4,
            (Pseudo::Path, b"/index.html") => 5,
            (Pseudo::Scheme, b"http") => 6,
            (Pseudo::Scheme, b"https") => 7,
            _ => {
                let (name, index) = pseudo.entry();
                // A query may hold a secret, and its values hardly repeat.
                if pseudo == Pseudo::Path && memchr::memchr(b'?', value).is_some() {
                    return literal(PLAIN, index.into(), name, value, out);
                }
                return self.indexed(Text { id: Name::Other, name, value, index }, out);
            }
        };
        out.push(INDEXED.0 | index);
    }

    /// Appends a field that is indexed once it repeats.
    #[inline]
    fn indexed(&mut self, text: Text<'_>, out: &mut Vec<u8>) {
        match self.find_recent(&text) {
            Some(age) => put_integer(INDEXED.0, INDEXED.1, FIRST + age, out),
            None => self.search(text, out),
        }
    }

    /// The age of the entry that was used last for the name, if it has the value.
    #[inline]
    fn find_recent(&self, text: &Text<'_>) -> Option<usize> {
        // An age that is wrong because of overflow does no harm, as the texts are compared.
        let age = usize::from(self.inserted.wrapping_sub(self.recent[text.key()]));
        let entry = self.table.get(age)?;
        (text.is_name(&self.table, entry) && text.is_value(&self.table, entry)).then_some(age)
    }

    /// As [`Encoder::indexed`] for a field whose name had another value last.
    fn search(&mut self, text: Text<'_>, out: &mut Vec<u8>) {
        // An entry takes at most a quarter of the table.
        if text.name.len() + text.value.len() + 32 > self.table.limit() / 4 {
            return self.unindexed(&text, text.hash_name(), out);
        }
        if self.slots.is_empty() {
            self.slots.resize(SLOTS, Slot::default());
        }
        let of_name = text.hash_name();
        let hash = text.hash(of_name);
        let Some(slot) = self.find(hash) else {
            self.note(hash, 0);
            return self.unindexed(&text, of_name, out);
        };
        if let Some((age, entry)) = self.entry(slot)
            && text.is_name(&self.table, entry)
            && text.is_value(&self.table, entry)
        {
            self.recent[text.key()] = slot.number;
            return put_integer(INDEXED.0, INDEXED.1, FIRST + age, out);
        }
        self.insert(&text, hash, of_name, out);
    }

    /// Appends a literal that is not inserted.
    fn unindexed(&self, text: &Text<'_>, of_name: u64, out: &mut Vec<u8>) {
        let form = if text.is_secret() { NEVER } else { PLAIN };
        literal(form, self.name_index(text, of_name), text.name, text.value, out);
    }

    /// Appends a literal and inserts it.
    fn insert(&mut self, text: &Text<'_>, hash: u64, of_name: u64, out: &mut Vec<u8>) {
        if text.is_secret() {
            return self.unindexed(text, of_name, out);
        }
        let index = self.name_index(text, of_name);
        literal(INSERTED, index, text.name, text.value, out);
        // The line is put together behind the block, for a moment.
        let end = out.len();
        put_lower(text.name, out);
        out.extend_from_slice(BETWEEN);
        out.extend_from_slice(text.value);
        out.extend_from_slice(BEHIND);
        let about = About { name: text.name.len() as u32, id: text.id, is_clean: false };
        self.table.insert(&out[end..], about);
        out.truncate(end);
        self.inserted = self.inserted.wrapping_add(1);
        let number = self.inserted;
        self.recent[text.key()] = number;
        self.note(hash, number);
        if text.index == 0 {
            self.note(of_name, number);
        }
    }

    /// The index of an entry with the same name; 0 if none is known.
    fn name_index(&self, text: &Text<'_>, of_name: u64) -> usize {
        if text.index != 0 {
            return text.index.into();
        }
        match self.find(of_name).and_then(|slot| self.entry(slot)) {
            Some((age, entry)) if text.is_name(&self.table, entry) => FIRST + age,
            _ => 0,
        }
    }

    #[inline]
    fn find(&self, hash: u64) -> Option<Slot> {
        let tag = tag(hash);
        self.slots.get(ways(hash))?.iter().find(|slot| slot.hash == tag).copied()
    }

    /// Remembers a hash in the least useful of its slots.
    fn note(&mut self, hash: u64, number: u16) {
        let (tag, inserted, live) = (tag(hash), self.inserted, self.table.len());
        let uselessness = |slot: &Slot| match (slot.hash, slot.number) {
            (hash, _) if hash == tag => usize::MAX,
            (0, _) => usize::MAX - 1,
            (_, 0) => usize::MAX - 3,
            (_, number) => match usize::from(inserted.wrapping_sub(number)) {
                age if age < live => age,
                _ => usize::MAX - 2,
            },
        };
        let slot = self
            .slots
            .get_mut(ways(hash))
            .and_then(|ways| ways.iter_mut().max_by_key(|slot| uselessness(slot)));
        if let Some(slot) = slot {
            *slot = Slot { hash: tag, number };
        }
    }

    /// The age and the entry of a slot, unless it was evicted. The caller compares the texts, so
    /// overflow of the count does no harm.
    #[inline]
    fn entry(&self, slot: Slot) -> Option<(usize, Entry)> {
        let age = usize::from(self.inserted.wrapping_sub(slot.number));
        if slot.number == 0 { None } else { self.table.get(age).map(|entry| (age, entry)) }
    }
}

/// The static entry with the value that all browsers once sent.
const ACCEPT_ENCODING: usize = 16;

/// A field that may be indexed.
struct Text<'a> {
    id: Name,
    name: &'a [u8],
    value: &'a [u8],
    /// The index of its name in the static table, or 0.
    index: u8,
}

impl Text<'_> {
    /// The key of the name; some unknown names share one.
    #[inline]
    fn key(&self) -> usize {
        match (self.id, self.index) {
            (Name::Other, 0) => {
                let end = self.name.last_chunk::<4>().map_or(0, |end| u32::from_le_bytes(*end) | 0x2020_2020);
                PSEUDO + 8 + (end.wrapping_mul(0x9e37_79b9) >> 27) as usize
            }
            (Name::Other, index) => PSEUDO + usize::from(index & 7),
            (id, _) => id as usize,
        }
    }

    #[inline]
    fn hash_name(&self) -> u64 {
        match (self.id, self.index) {
            (Name::Other, 0) => hash(0, self.name, lower),
            (Name::Other, index) => mix(1, index.into()),
            (id, _) => mix(2, id as u64),
        }
    }

    #[inline]
    fn hash(&self, of_name: u64) -> u64 {
        hash(of_name, self.value, |word| word)
    }

    #[inline]
    fn is_name(&self, table: &Table, entry: Entry) -> bool {
        if self.id != Name::Other || entry.about.id != Name::Other {
            return self.id == entry.about.id;
        }
        if self.name.len() != entry.about.name as usize {
            return false;
        }
        let (first, second) = table.name(entry);
        if second.is_empty() && self.name == first {
            return true;
        }
        let (start, end) = self.name.split_at(first.len());
        same_in_any_case(start, first) && same_in_any_case(end, second)
    }

    #[inline]
    fn is_value(&self, table: &Table, entry: Entry) -> bool {
        let (first, second) = table.value(entry);
        if second.is_empty() {
            return self.value == first;
        }
        match self.value.split_at_checked(first.len()) {
            Some((start, end)) => start == first && end == second,
            None => false,
        }
    }

    fn is_secret(&self) -> bool {
        self.id == Name::Other && self.index == 0 && policy::is_secret(self.name)
    }
}

#[inline]
fn mix(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The hash of a text, continued from another one. It only finds candidates: texts are compared.
#[inline]
fn hash(from: u64, text: &[u8], map: impl Fn(u64) -> u64) -> u64 {
    let hash = mix(from, text.len() as u64);
    let Some(last) = text.last_chunk::<8>() else { return mix(hash, map(short(text))) };
    let (words, _) = text.as_chunks::<8>();
    let hash = words.iter().fold(hash, |hash, word| mix(hash, map(u64::from_le_bytes(*word))));
    mix(hash, map(u64::from_le_bytes(*last)))
}

/// The slots of a hash.
#[inline]
fn ways(hash: u64) -> std::ops::Range<usize> {
    let start = (hash >> 32) as usize % (SLOTS / WAYS) * WAYS;
    start..start + WAYS
}

/// The part of a hash that a slot keeps; 0 is an empty slot.
#[inline]
fn tag(hash: u64) -> u16 {
    (hash >> 48) as u16 | 1
}

/// Appends a literal. Texts are not Huffman-coded: one that repeats is sent only twice, and others
/// are cheaper to write and to read. Coding saves a quarter of such bytes, and for decoding alone a
/// peer pays about 15 instructions for each.
#[inline]
fn literal(form: (u8, u32), index: usize, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    put_name(form, index, name, out);
    put_text(value, out);
}

/// Appends a form and a name: its index, or its text if that is 0.
#[inline]
fn put_name((flags, bits): (u8, u32), index: usize, name: &[u8], out: &mut Vec<u8>) {
    put_integer(flags, bits, index, out);
    if index == 0 {
        put_integer(0, 7, name.len(), out);
        put_lower(name, out);
    }
}
