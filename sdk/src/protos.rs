//! Compiles protos: protobuf text, or a set of descriptors in base64.
//!
//! Plugins get the result by [`crate::Build::proto`]. Nothing here runs on a worker.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::Invalid;
use protox::Compiler;
use protox::file::{File, FileResolver, GoogleFileResolver};
pub use protox::prost_reflect;
use protox::prost_reflect::{DynamicMessage, Value};

pub use protox::prost_reflect::DescriptorPool;

/// Finds the compiled proto resource of an id.
pub type LookUp<'l> = dyn Fn(&str) -> Option<DescriptorPool> + 'l;

/// File name of the text, in its own imports and in messages.
const NAME: &str = "content.proto";

/// How deep brackets may nest: the compiler takes stack for each level.
const DEEPEST: usize = 64;

/// Compiles the content of a proto.
///
/// # Errors
/// `invalid content: …`, as APISIX begins it; what follows is the compiler's own.
pub fn compile(content: &str) -> Result<DescriptorPool, Invalid> {
    let refused = |why: String| {
        Err(Invalid::new(format!("invalid content: {why}"))
            .at("/content")
            .expected("protobuf text, or a FileDescriptorSet in base64")
            .hint("imports other than google/protobuf/* must be part of the descriptor set: protoc --include_imports"))
    };
    match set(content) {
        Ok(Some(pool)) => return Ok(pool),
        Ok(None) => {}
        Err(why) => return refused(why.to_owned()),
    }
    match depth(content) {
        Ok(depth) if depth > DEEPEST => {
            return refused(format!("it is nested deeper than {DEEPEST} levels"));
        }
        Ok(_) => {}
        Err(why) => return refused(why.to_owned()),
    }
    let text = Text { text: content.to_owned(), known: GoogleFileResolver::new() };
    let compiled = catch_unwind(AssertUnwindSafe(|| {
        let mut compiler = Compiler::with_file_resolver(text);
        compiler.include_imports(true).open_file(NAME)?;
        Ok::<_, protox::Error>(compiler.descriptor_pool())
    }));
    match compiled {
        Ok(Ok(pool)) => Ok(pool),
        // Its debug form is the one that says where.
        Ok(Err(error)) => refused(format!("{error:?}")),
        Err(_) => refused("the compiler has failed at it".to_owned()),
    }
}

/// A text in memory, and what every compiler brings along.
struct Text {
    text: String,
    known: GoogleFileResolver,
}

impl FileResolver for Text {
    fn resolve_path(&self, _path: &Path) -> Option<String> {
        Some(NAME.to_owned())
    }

    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        match name {
            NAME => File::from_source(NAME, &self.text),
            name => self.known.open_file(name),
        }
    }
}

/// A set of descriptors in base64, if it is one.
///
/// # Errors
/// Options of the set are still text: resolving them takes stack for each level of that text.
fn set(content: &str) -> Result<Option<DescriptorPool>, &'static str> {
    let Ok(bytes) = STANDARD.decode(content.trim()) else { return Ok(None) };
    let decoded = catch_unwind(AssertUnwindSafe(|| {
        let Some(text) = has_text_options(&bytes) else { return Ok(None) };
        if text {
            return Err("options of the descriptor set are still text (uninterpreted_option)");
        }
        Ok(DescriptorPool::decode(bytes.as_slice()).ok())
    }));
    Ok(decoded.unwrap_or(Ok(None))?.filter(|pool| pool.files().len() > 0))
}

/// Whether an option anywhere in a set of descriptors is still the text of a proto. Compilers resolve all options
/// before they write a set. `None` if it is no set, or nests too deep to tell.
fn has_text_options(set: &[u8]) -> Option<bool> {
    let of = DescriptorPool::global().get_message_by_name("google.protobuf.FileDescriptorSet");
    // Decoding has a limit of depth, and so has the search in its result.
    of.and_then(|of| DynamicMessage::decode(of, set).ok()).map(|set| has_text_option(&set))
}

fn has_text_option(message: &DynamicMessage) -> bool {
    fn in_value(value: &Value) -> bool {
        match value {
            Value::Message(message) => has_text_option(message),
            Value::List(list) => list.iter().any(in_value),
            _ => false,
        }
    }
    message.fields().any(|(field, value)| field.name() == "uninterpreted_option" || in_value(value))
}

/// How deep brackets nest outside of strings and comments.
///
/// # Errors
/// A string or comment that the compiler would refuse: it might see brackets where this function sees none.
fn depth(content: &str) -> Result<usize, &'static str> {
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut rest = content.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = match (byte, after.first()) {
            (b'"' | b'\'', _) => after_string(byte, after)?,
            (b'#', _) | (b'/', Some(b'/')) => {
                let end = after.iter().position(|&byte| byte == b'\n');
                end.map_or(&[][..], |end| &after[end..])
            }
            (b'/', Some(b'*')) => after_comment(&after[1..])?,
            _ => after,
        };
        match byte {
            b'{' | b'[' | b'(' | b'<' => depth += 1,
            b'}' | b']' | b')' | b'>' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    Ok(deepest)
}

/// The text behind a string that has begun with `quote`.
fn after_string(quote: u8, mut rest: &[u8]) -> Result<&[u8], &'static str> {
    while let Some((&byte, after)) = rest.split_first() {
        rest = match byte {
            b'\n' | 0 => break,
            b'\\' => after_escape(after).ok_or("a string has an invalid escape")?,
            byte if byte == quote => return Ok(after),
            _ => after,
        };
    }
    Err("a string is not terminated")
}

/// The text behind the character, or the digits, of an escape.
fn after_escape(rest: &[u8]) -> Option<&[u8]> {
    let (&kind, after) = rest.split_first()?;
    let digits = match kind {
        b'a' | b'b' | b'f' | b'n' | b'r' | b't' | b'v' | b'?' | b'\\' | b'\'' | b'"' | b'0'..=b'7' => 0,
        b'x' | b'X' => 1,
        b'u' => 4,
        b'U' => 8,
        _ => return None,
    };
    let (hexadecimal, after) = after.split_at_checked(digits)?;
    hexadecimal.iter().all(u8::is_ascii_hexdigit).then_some(after)
}

/// The text behind a block comment that has begun.
fn after_comment(rest: &[u8]) -> Result<&[u8], &'static str> {
    let end = rest.windows(2).position(|pair| pair == b"*/" || pair == b"/*");
    match end.map(|end| rest.split_at(end)) {
        Some((_, end)) if end.starts_with(b"*/") => Ok(&end[2..]),
        Some(_) => Err("a block comment begins in another one"),
        None => Err("a block comment is not terminated"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: &str = r#"
        syntax = "proto3";
        package hello;
        import "google/protobuf/empty.proto";
        // The greeting.
        service Hello { rpc SayHi (Request) returns (google.protobuf.Empty) {} }
        message Request { string name = 1; repeated Inner inner = 2; message Inner { map<string, int32> a = 1; } }
    "#;

    #[test]
    fn text_and_descriptor_sets_pass() {
        for content in [HELLO, "syntax = \"proto3\";", "CgkKB2EucHJvdG8=", "CgkKB2EucHJvdG8=\n"] {
            assert!(compile(content).is_ok(), "{content}");
        }
    }

    #[test]
    fn what_is_neither_is_refused_with_its_place() {
        for content in [
            "nope",
            "CgkKB2EucHJvdG8",
            "syntax = \"proto3\"; message A { Missing b = 1; }",
            "syntax = \"proto3\"; message A { string b = 1; string c = 1; }",
            "syntax = \"proto3\"; import \"other.proto\";",
            "syntax = \"proto3\"; import \"/etc/hostname\";",
            "syntax = \"proto3\"; import \"content.proto\";",
            "\u{0}",
        ] {
            let invalid = compile(content).unwrap_err();
            assert!(invalid.reason.starts_with("invalid content: "), "{}", invalid.reason);
            assert_eq!(invalid.pointer, "/content");
        }
        let invalid = compile("syntax = \"proto3\";\nmessage A {\n  string = 1;\n}").unwrap_err();
        assert!(invalid.reason.contains("3:10"), "{}", invalid.reason);
    }

    #[test]
    fn what_nests_without_end_is_refused_before_it_is_compiled() {
        let opens = ["message A {", "message A { option (a) = { b: [", "{", "[<("];
        // Strings and comments that end before the brackets begin.
        let starts = [
            "",
            "// \"\n",
            "/* \" */",
            "/** **/",
            "/*\n\"\n*/",
            "\"\\\"\"",
            "'\"'",
            "\"//\"",
            "\"/*\"",
            "# '\n",
        ];
        for open in opens {
            for start in starts {
                let invalid = compile(&format!("{start}{}", open.repeat(100_000))).unwrap_err();
                assert!(invalid.reason.contains("deeper"), "{start}: {}", invalid.reason);
            }
        }
        // The compiler ends such strings and comments in ways of its own.
        for start in
            ["\"\n", "\"\\q\"", "\"\\x\"", "\"\\u12\"", "\"\\", "\"", "/*", "/*/", "/* /* */", "\"\0\""]
        {
            let invalid = compile(&format!("{start}{}", "{".repeat(100_000))).unwrap_err();
            assert!(
                ["string", "block comment"].iter().any(|part| invalid.reason.contains(part)),
                "{start}: {}",
                invalid.reason
            );
        }
    }

    #[test]
    fn brackets_in_strings_and_comments_are_text() {
        let many = "{[(<".repeat(100);
        for (start, end) in [("// \"", ""), ("/* ' // ", " */"), ("/**\n * ", "\n **/")] {
            assert!(compile(&format!("syntax = \"proto3\";\n{start}{many}{end}")).is_ok(), "{start}");
        }
        for quoted in [format!("\"{many}\\\"'{many}\""), format!("'{many}\\'\"{many}\\x41\\u00e4\\101'")] {
            let text =
                format!("syntax = \"proto2\"; message A {{ optional string a = 1 [default = {quoted}]; }}");
            assert!(compile(&text).is_ok(), "{text}");
        }
    }

    #[test]
    fn descriptor_sets_with_options_in_text_are_refused() {
        // A file that is named `a`, with one message, whose options are `inner`.
        let set = |inner: &[u8]| {
            let field = |tag: u8, content: &[u8]| [&[tag, content.len() as u8], content].concat();
            let message = [field(0x0a, b"M"), field(0x3a, inner)].concat();
            let file = [field(0x0a, b"a"), field(0x22, &message)].concat();
            STANDARD.encode(field(0x0a, &file))
        };
        // The option `deprecated`, resolved.
        assert!(compile(&set(&[0x18, 1])).is_ok());
        // A part of a name and an aggregate.
        let text = [&[0xba, 0x3e, 16, 0x12, 5, 0x0a, 1, b'x', 0x10, 0, 0x42, 7][..], b"a{b:{}}"].concat();
        let invalid = compile(&set(&text)).unwrap_err();
        assert!(invalid.reason.contains("uninterpreted_option"), "{}", invalid.reason);
    }
}
