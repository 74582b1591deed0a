//! The messages of a method, as tables that JSON and the wire format of protobuf are read by.
//!
//! Made once, with the configuration. Groups of proto2 are left out: their fields are ignored.

use hashbrown::HashMap;
use sdk::protos::DescriptorPool;
use sdk::protos::prost_reflect::{
    FieldDescriptor, Kind as Declared, MessageDescriptor, Syntax, Value as Constant,
};

use super::write;

/// The messages and enumerations that are reachable from those of a method.
#[derive(Debug, Default)]
pub(super) struct Types {
    pub messages: Vec<Message>,
    pub enums: Vec<Enum>,
    known_messages: HashMap<String, usize>,
    known_enums: HashMap<String, usize>,
}

#[derive(Debug, Default)]
pub(super) struct Message {
    /// By number.
    pub fields: Vec<Field>,
    by_name: HashMap<Box<str>, usize>,
    /// How many `oneof` there are.
    pub oneofs: usize,
    /// The fields that stand in JSON even without a value on the wire, with the value that they then have: by
    /// `auto_default_values`, by `use_default_values`, and by `use_default_metatable`.
    pub defaults: [Vec<(usize, Vec<u8>)>; 3],
}

#[derive(Debug)]
pub(super) struct Field {
    pub number: u32,
    pub name: Box<str>,
    pub kind: Kind,
    pub shape: Shape,
    pub oneof: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Single,
    List {
        packed: bool,
    },
    /// A list of messages with a key and a value.
    Map,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Double,
    Float,
    Int32,
    Int64,
    Uint32,
    Uint64,
    Sint32,
    Sint64,
    Fixed32,
    Fixed64,
    Sfixed32,
    Sfixed64,
    Bool,
    String,
    Bytes,
    /// Index of the message.
    Message(usize),
    /// Index of the enumeration.
    Enum(usize),
}

#[derive(Debug, Default)]
pub(super) struct Enum {
    by_name: HashMap<Box<str>, i32>,
    /// Names as JSON has them, by number; of several with one number, the first.
    by_number: HashMap<i32, Box<[u8]>>,
}

/// How values are encoded: the last three bits of a field's tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    Varint = 0,
    Fixed64 = 1,
    Bytes = 2,
    Fixed32 = 5,
}

/// A method that requests are made for.
#[derive(Debug)]
pub(super) struct Method {
    pub input: usize,
    pub output: usize,
    /// The server sends any number of messages.
    pub streams: bool,
}

impl Types {
    /// Adds the messages of a method; `None` if the proto has no such method.
    pub fn method(&mut self, pool: &DescriptorPool, service: &str, name: &str) -> Option<Method> {
        let service = pool.get_service_by_name(service)?;
        let method = service.methods().find(|method| method.name() == name)?;
        Some(Method {
            input: self.add(&method.input()),
            output: self.add(&method.output()),
            streams: method.is_server_streaming(),
        })
    }

    /// Adds a message and all that it may contain.
    pub fn message(&mut self, pool: &DescriptorPool, name: &str) -> Option<usize> {
        Some(self.add(&pool.get_message_by_name(name)?))
    }

    fn add(&mut self, root: &MessageDescriptor) -> usize {
        let mut waiting = Vec::new();
        let index = self.reserve(root, &mut waiting);
        // Not by recursion: messages may refer to each other in a long chain.
        while let Some((at, message)) = waiting.pop() {
            let built = self.build(&message, &mut waiting);
            self.messages[at] = built;
        }
        index
    }

    /// The index of a message, which is built later if it is a new one.
    fn reserve(
        &mut self,
        message: &MessageDescriptor,
        waiting: &mut Vec<(usize, MessageDescriptor)>,
    ) -> usize {
        if let Some(&known) = self.known_messages.get(message.full_name()) {
            return known;
        }
        let index = self.messages.len();
        self.messages.push(Message::default());
        self.known_messages.insert(message.full_name().to_owned(), index);
        waiting.push((index, message.clone()));
        index
    }

    fn build(
        &mut self,
        message: &MessageDescriptor,
        waiting: &mut Vec<(usize, MessageDescriptor)>,
    ) -> Message {
        let mut descriptors: Vec<FieldDescriptor> =
            message.fields().filter(|field| !field.is_group()).collect();
        descriptors.sort_by_key(FieldDescriptor::number);
        let is_proto3 = message.parent_file().syntax() != Syntax::Proto2;
        let oneofs: Vec<String> = message.oneofs().map(|oneof| oneof.full_name().to_owned()).collect();
        let mut built = Message { oneofs: oneofs.len(), ..Message::default() };
        for (index, field) in descriptors.iter().enumerate() {
            let kind = self.kind(field, waiting);
            let shape = match () {
                () if field.is_map() => Shape::Map,
                () if field.is_list() => Shape::List { packed: field.is_packed() },
                () => Shape::Single,
            };
            let oneof = field
                .containing_oneof()
                .and_then(|oneof| oneofs.iter().position(|name| name == oneof.full_name()));
            built.by_name.insert(field.name().into(), index);
            let [auto, all, lists] = &mut built.defaults;
            match shape {
                Shape::Single if is_proto3 && !field.supports_presence() => {
                    auto.push((index, kind.zero().to_vec()));
                    all.push((index, kind.zero().to_vec()));
                }
                Shape::Single if !is_proto3 && field.field_descriptor_proto().default_value.is_some() => {
                    all.push((index, declared_default(field)));
                }
                Shape::Single => {}
                Shape::List { .. } | Shape::Map if is_proto3 => {
                    for defaults in [auto, all, lists] {
                        defaults.push((index, Vec::new()));
                    }
                }
                Shape::List { .. } | Shape::Map => {}
            }
            let name = field.name().into();
            built.fields.push(Field { number: field.number(), name, kind, shape, oneof });
        }
        built
    }

    fn kind(&mut self, field: &FieldDescriptor, waiting: &mut Vec<(usize, MessageDescriptor)>) -> Kind {
        match field.kind() {
            Declared::Double => Kind::Double,
            Declared::Float => Kind::Float,
            Declared::Int32 => Kind::Int32,
            Declared::Int64 => Kind::Int64,
            Declared::Uint32 => Kind::Uint32,
            Declared::Uint64 => Kind::Uint64,
            Declared::Sint32 => Kind::Sint32,
            Declared::Sint64 => Kind::Sint64,
            Declared::Fixed32 => Kind::Fixed32,
            Declared::Fixed64 => Kind::Fixed64,
            Declared::Sfixed32 => Kind::Sfixed32,
            Declared::Sfixed64 => Kind::Sfixed64,
            Declared::Bool => Kind::Bool,
            Declared::String => Kind::String,
            Declared::Bytes => Kind::Bytes,
            Declared::Message(message) => Kind::Message(self.reserve(&message, waiting)),
            Declared::Enum(declared) => {
                if let Some(&known) = self.known_enums.get(declared.full_name()) {
                    return Kind::Enum(known);
                }
                let mut built = Enum::default();
                for value in declared.values() {
                    built.by_name.insert(value.name().into(), value.number());
                    let quoted = format!("\"{}\"", value.name()).into_bytes();
                    built.by_number.entry(value.number()).or_insert_with(|| quoted.into());
                }
                self.enums.push(built);
                self.known_enums.insert(declared.full_name().to_owned(), self.enums.len() - 1);
                Kind::Enum(self.enums.len() - 1)
            }
        }
    }
}

impl Message {
    pub fn by_number(&self, number: u32) -> Option<usize> {
        self.fields.binary_search_by_key(&number, |field| field.number).ok()
    }

    pub fn by_name(&self, name: &str) -> Option<&Field> {
        self.by_name.get(name).map(|&index| &self.fields[index])
    }
}

impl Enum {
    pub fn number(&self, name: &str) -> Option<i32> {
        self.by_name.get(name).copied()
    }

    /// The name of a number, in quotes.
    pub fn quoted(&self, number: i32) -> Option<&[u8]> {
        self.by_number.get(&number).map(|name| &**name)
    }
}

impl Kind {
    pub fn wire(self) -> Wire {
        match self {
            Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => Wire::Fixed64,
            Kind::Float | Kind::Fixed32 | Kind::Sfixed32 => Wire::Fixed32,
            Kind::String | Kind::Bytes | Kind::Message(_) => Wire::Bytes,
            _ => Wire::Varint,
        }
    }

    /// Zero, or a text or a message of no bytes.
    pub fn zero(self) -> &'static [u8] {
        match self.wire() {
            Wire::Varint | Wire::Bytes => &[0],
            Wire::Fixed32 => &[0; 4],
            Wire::Fixed64 => &[0; 8],
        }
    }
}

/// The default that a field of proto2 declares, as on the wire.
fn declared_default(field: &FieldDescriptor) -> Vec<u8> {
    let varint = |value: u64| {
        let mut out = Vec::new();
        sdk::protobuf::varint(value, &mut out);
        out
    };
    let signed = |value: i64| varint(value.cast_unsigned());
    match (field.default_value(), field.kind()) {
        (Constant::Bool(value), _) => varint(value.into()),
        (Constant::I32(value), Declared::Sfixed32) => value.to_le_bytes().to_vec(),
        (Constant::I32(value), Declared::Sint32) => varint(write::zigzag(value.into())),
        (Constant::I32(value) | Constant::EnumNumber(value), _) => signed(value.into()),
        (Constant::I64(value), Declared::Sfixed64) => value.to_le_bytes().to_vec(),
        (Constant::I64(value), Declared::Sint64) => varint(write::zigzag(value)),
        (Constant::I64(value), _) => signed(value),
        (Constant::U32(value), Declared::Fixed32) => value.to_le_bytes().to_vec(),
        (Constant::U32(value), _) => varint(value.into()),
        (Constant::U64(value), Declared::Fixed64) => value.to_le_bytes().to_vec(),
        (Constant::U64(value), _) => varint(value),
        (Constant::F32(value), _) => value.to_le_bytes().to_vec(),
        (Constant::F64(value), _) => value.to_le_bytes().to_vec(),
        (Constant::String(value), _) => prefixed(value.as_bytes()),
        (Constant::Bytes(value), _) => prefixed(&value),
        // Only single values have one.
        (Constant::Message(_) | Constant::List(_) | Constant::Map(_), _) => Vec::new(),
    }
}

fn prefixed(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write::bytes(bytes, &mut out);
    out
}
