//! Directives of a file and of the files that it includes.

use std::sync::Arc;

use model::diagnostic::{Diagnostic, Severity, Source as Quoted};
use model::{Invalid, Position};

use super::directive::{Block, Directive};
use super::lexer::{LexError, Lexer, Token, TokenKind};
use crate::files::FileError;
use crate::finding::Place;
use crate::{Finding, Severity as FindingSeverity, Source};

/// Bounds of a configuration with all that it includes.
const MAX_BYTES: usize = 32 << 20;
const MAX_DIRECTIVES: usize = 500_000;
const MAX_FILES: usize = 2_000;
const MAX_DEPTH: usize = 48;
const MAX_INCLUDE_DEPTH: usize = 16;

/// Parses a file and those that it includes.
pub(super) struct Parser<'s> {
    source: &'s Source<'s>,
    /// Findings about includes.
    pub findings: Vec<Finding>,
    bytes: usize,
    directives: usize,
    files: usize,
    blocks: usize,
    /// Files that are being read, outermost first.
    open: Vec<String>,
}

/// A file while it is parsed.
struct Text<'t> {
    name: Arc<str>,
    text: &'t str,
}

impl<'s> Parser<'s> {
    pub(super) fn new(source: &'s Source<'s>) -> Parser<'s> {
        Parser {
            source,
            findings: Vec::new(),
            bytes: 0,
            directives: 0,
            files: 0,
            blocks: 0,
            open: Vec::new(),
        }
    }

    /// Parses the first file.
    pub(super) fn parse(&mut self) -> Result<Block, Box<Diagnostic>> {
        let (name, text) = (self.source.file, self.source.text);
        let directives = self.parse_file(name, text, 0, None)?;
        Ok(self.block(directives))
    }

    fn block(&mut self, directives: Vec<Directive>) -> Block {
        self.blocks += 1;
        Block::new(self.blocks, directives)
    }

    fn parse_file(
        &mut self,
        name: &str,
        text: &str,
        depth: usize,
        included: Option<&Place>,
    ) -> Result<Vec<Directive>, Box<Diagnostic>> {
        self.bytes = self.bytes.saturating_add(text.len());
        self.files += 1;
        if self.bytes > MAX_BYTES || self.files > MAX_FILES {
            let limit = format!("{} MiB in {MAX_FILES} files", MAX_BYTES >> 20);
            let message = format!("the configuration is longer than {limit}");
            return Err(Box::new(at_place(name, included, message, "import its parts one by one")));
        }
        if text.contains('\0') {
            let message = "the file is not text: it contains NUL bytes";
            return Err(Box::new(at_place(
                name,
                included,
                message.to_owned(),
                "give a configuration of nginx",
            )));
        }
        self.open.push(name.to_owned());
        let file = Text { name: name.into(), text };
        let mut lexer = Lexer::new(text);
        let directives = self.directives(&file, &mut lexer, depth, None)?;
        self.open.pop();
        Ok(directives)
    }

    /// Parses up to the end of the text, or of the block whose name and place are given.
    fn directives(
        &mut self,
        file: &Text<'_>,
        lexer: &mut Lexer<'_>,
        depth: usize,
        block: Option<(&str, Position)>,
    ) -> Result<Vec<Directive>, Box<Diagnostic>> {
        let mut found = Vec::new();
        loop {
            let token = lexer.next().map_err(|error| file.broken(error))?;
            let name = match token.kind {
                TokenKind::Word(name) => name,
                TokenKind::End => match block {
                    None => return Ok(found),
                    Some((name, position)) => {
                        let message = format!("the block of `{name}` has no end");
                        return Err(file.error(position, message, "add a `}`"));
                    }
                },
                TokenKind::Close if block.is_some() => return Ok(found),
                TokenKind::Close => {
                    return Err(file.error(
                        token.position,
                        "unexpected `}`",
                        "remove it, or add a `{` before it",
                    ));
                }
                TokenKind::Semicolon | TokenKind::Open => {
                    let hint = "a directive begins with its name";
                    return Err(file.error(token.position, "a directive without a name", hint));
                }
            };
            self.directives += 1;
            if self.directives > MAX_DIRECTIVES {
                let message = format!("the configuration has more than {MAX_DIRECTIVES} directives");
                return Err(file.error(token.position, message, "import its parts one by one"));
            }
            self.directive(file, lexer, depth, name, token.position, &mut found)?;
        }
    }

    /// Parses the rest of a directive after its name.
    fn directive(
        &mut self,
        file: &Text<'_>,
        lexer: &mut Lexer<'_>,
        depth: usize,
        name: String,
        position: Position,
        found: &mut Vec<Directive>,
    ) -> Result<(), Box<Diagnostic>> {
        let place = Place { file: file.name.clone(), position };
        let mut args = Vec::new();
        loop {
            let Token { kind, position: here } = lexer.next().map_err(|error| file.broken(error))?;
            match kind {
                TokenKind::Word(word) => args.push(self.with_environment(word)),
                TokenKind::Semicolon if name == "include" => return self.include(args, place, depth, found),
                TokenKind::Semicolon => {
                    found.push(Directive::new(name, args, None, place));
                    return Ok(());
                }
                TokenKind::Open if name.ends_with("_by_lua_block") => {
                    lexer.skip_block().map_err(|error| file.broken(error))?;
                    found.push(Directive::new(name, args, None, place));
                    return Ok(());
                }
                TokenKind::Open if depth >= MAX_DEPTH => {
                    let message = format!("blocks are nested deeper than {MAX_DEPTH} levels");
                    return Err(file.error(here, message, "nginx's own blocks nest a few levels"));
                }
                TokenKind::Open => {
                    let inner = self.directives(file, lexer, depth + 1, Some((&name, position)))?;
                    let block = self.block(inner);
                    found.push(Directive::new(name, args, Some(block), place));
                    return Ok(());
                }
                TokenKind::Close | TokenKind::End => {
                    let message = format!("the directive `{}` has no end", shortened(&name));
                    return Err(file.error(position, message, "add a `;` after it, or a block in `{ }`"));
                }
            }
        }
    }

    /// Fills in `${NAME}` of the environment, as the start script of nginx's image does.
    fn with_environment(&self, word: String) -> String {
        if !word.contains("${") {
            return word;
        }
        let mut filled = String::with_capacity(word.len());
        let mut rest = word.as_str();
        while let Some(at) = rest.find("${") {
            let (before, after) = rest.split_at(at);
            filled.push_str(before);
            let name = after[2..].split_once('}').map(|(name, _)| name).filter(|name| is_environment(name));
            match name.and_then(|name| Some((name, (self.source.variables)(name)?))) {
                Some((name, value)) => {
                    filled.push_str(&value);
                    rest = &after[name.len() + 3..];
                }
                None => {
                    filled.push_str("${");
                    rest = &after[2..];
                }
            }
        }
        filled.push_str(rest);
        filled
    }

    fn include(
        &mut self,
        args: Vec<String>,
        place: Place,
        depth: usize,
        found: &mut Vec<Directive>,
    ) -> Result<(), Box<Diagnostic>> {
        let pattern = args.first().cloned().unwrap_or_default();
        let is_glob = pattern.contains(['*', '?', '[']);
        if is_types(&pattern) {
            found.push(Directive::new("include".to_owned(), args, None, place));
            return Ok(());
        }
        if self.open.len() > MAX_INCLUDE_DEPTH {
            let message = format!("files include each other deeper than {MAX_INCLUDE_DEPTH} levels");
            return Err(Box::new(at_place(&pattern, Some(&place), message, "remove an `include`")));
        }
        let (paths, moved) = match self.paths(&pattern, is_glob) {
            Ok(paths) => paths,
            Err(FileError::Absent) => {
                let message = format!("the included file {} does not exist", shortened(&pattern));
                let hint = "paths are relative to the folder of the first file";
                return Err(Box::new(at_place(&pattern, Some(&place), message, hint)));
            }
            Err(error) => {
                let mut directive = Directive::new("include".to_owned(), args, None, place);
                directive.unreadable = Some(error);
                found.push(directive);
                return Ok(());
            }
        };
        if moved {
            self.findings.push(Finding {
                place: place.clone(),
                severity: FindingSeverity::Cosmetic,
                construct: format!("include {}", shortened(&pattern)),
                effect: "files of /etc/nginx are read from the folder of the configuration".to_owned(),
                hint: None,
                resources: Vec::new(),
            });
        }
        for (path, text) in paths {
            if self.open.contains(&path) {
                let message = format!("{} includes itself", shortened(&path));
                return Err(Box::new(at_place(&path, Some(&place), message, "remove the `include`")));
            }
            found.extend(self.parse_file(&path, &text, depth, Some(&place))?);
        }
        Ok(())
    }

    /// The files of an include with their texts, and whether they were found beside the configuration
    /// instead of in /etc/nginx.
    fn paths(&self, pattern: &str, is_glob: bool) -> Result<(Vec<(String, String)>, bool), FileError> {
        match self.read_all(pattern, is_glob) {
            Err(FileError::Absent | FileError::Outside) if pattern.starts_with("/etc/nginx/") => {
                let beside = pattern.trim_start_matches("/etc/nginx/");
                match self.read_all(beside, is_glob) {
                    Ok(files) if !files.is_empty() => Ok((files, true)),
                    // The place that the file names counts.
                    _ => Err(FileError::Outside),
                }
            }
            other => other.map(|files| (files, false)),
        }
    }

    fn read_all(&self, pattern: &str, is_glob: bool) -> Result<Vec<(String, String)>, FileError> {
        let paths = if is_glob { self.source.files.matching(pattern)? } else { vec![pattern.to_owned()] };
        let read = |path: String| Ok((path.clone(), self.source.files.read(&path)?));
        paths.into_iter().map(read).collect()
    }
}

impl Text<'_> {
    fn broken(&self, error: LexError) -> Box<Diagnostic> {
        self.error(error.position, error.message, error.hint)
    }

    fn error(&self, position: Position, message: impl Into<String>, hint: &str) -> Box<Diagnostic> {
        let quoted = Quoted { file: &self.name, text: self.text };
        Box::new(quoted.at(Severity::Error, position, Invalid::new(message.into()).hint(hint)))
    }
}

/// An error about a file as a whole, at the place of its include.
fn at_place(name: &str, included: Option<&Place>, message: String, hint: &str) -> Diagnostic {
    let file = included.map_or(name, |place| &place.file);
    let mut diagnostic = Diagnostic::new(Severity::Error, file, message);
    if let Some(place) = included {
        (diagnostic.line, diagnostic.column) = (place.position.line, place.position.column);
    }
    diagnostic.hint = Some(hint.to_owned());
    diagnostic
}

/// The media types by file ending that nginx comes with; the gateway has its own.
pub(super) fn is_types(path: &str) -> bool {
    path.rsplit('/').next() == Some("mime.types")
}

/// Names of environment variables, unlike those of nginx, are in capitals.
fn is_environment(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_uppercase())
        && bytes.all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

fn shortened(text: &str) -> String {
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    if text.chars().count() > 80 { clean.take(79).chain(['…']).collect() } else { clean.collect() }
}
