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
    if let Some(pool) = set(content) {
        return Ok(pool);
    }
    if depth(content) > DEEPEST {
        return refused(format!("it is nested deeper than {DEEPEST} levels"));
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
fn set(content: &str) -> Option<DescriptorPool> {
    let bytes = STANDARD.decode(content.trim()).ok()?;
    let decoded = catch_unwind(AssertUnwindSafe(|| DescriptorPool::decode(bytes.as_slice())));
    decoded.ok()?.ok().filter(|pool| pool.files().len() > 0)
}

/// How deep brackets nest, those in texts and comments included.
fn depth(content: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in content.bytes() {
        match byte {
            b'{' | b'[' | b'(' | b'<' => depth += 1,
            b'}' | b']' | b')' | b'>' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
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
        for open in ["message A {", "message A { option (a) = { b: [", "{", "[<("] {
            let invalid = compile(&open.repeat(100_000)).unwrap_err();
            assert!(invalid.reason.contains("deeper"), "{}", invalid.reason);
        }
    }
}
