//! Words of nginx's configuration language: quotes, escapes, comments, and the signs `;`, `{`, `}`.

use model::Position;

/// A word or a sign, and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub kind: TokenKind,
    pub position: Position,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// Without its quotes and escapes.
    Word(String),
    /// `;`
    Semicolon,
    /// `{`
    Open,
    /// `}`
    Close,
    End,
}

/// A text that is no sequence of words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LexError {
    pub message: String,
    pub hint: &'static str,
    pub position: Position,
}

/// Reads a text word by word.
pub(super) struct Lexer<'t> {
    rest: std::str::Chars<'t>,
    position: Position,
}

impl<'t> Lexer<'t> {
    pub(super) fn new(text: &'t str) -> Lexer<'t> {
        let text = text.strip_prefix('\u{FEFF}').unwrap_or(text);
        Lexer { rest: text.chars(), position: Position { line: 1, column: 1 } }
    }

    /// The next word or sign; [`TokenKind::End`] at the end of the text.
    pub(super) fn next(&mut self) -> Result<Token, LexError> {
        self.skip_space();
        let position = self.position;
        let kind = match self.peek() {
            None => TokenKind::End,
            Some(';') => self.sign(TokenKind::Semicolon),
            Some('{') => self.sign(TokenKind::Open),
            Some('}') => self.sign(TokenKind::Close),
            Some(quote @ ('"' | '\'')) => TokenKind::Word(self.quoted(quote)?),
            Some(_) => TokenKind::Word(self.plain()),
        };
        Ok(Token { kind, position })
    }

    /// Skips a block of another language (Lua) up to the `}` that ends it; its `{` was read.
    pub(super) fn skip_block(&mut self) -> Result<(), LexError> {
        let start = self.position;
        let mut depth = 1;
        while let Some(c) = self.bump() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Ok(());
            }
        }
        Err(LexError { message: "the block has no end".to_owned(), hint: "add a `}`", position: start })
    }

    fn peek(&self) -> Option<char> {
        self.rest.clone().next()
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.rest.next()?;
        if c == '\n' {
            self.position = Position { line: self.position.line.saturating_add(1), column: 1 };
        } else {
            self.position.column = self.position.column.saturating_add(1);
        }
        Some(c)
    }

    fn sign(&mut self, kind: TokenKind) -> TokenKind {
        self.bump();
        kind
    }

    fn skip_space(&mut self) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' | '\r' | '\n' => {
                    self.bump();
                }
                '#' => while self.bump().is_some_and(|c| c != '\n') {},
                _ => return,
            }
        }
    }

    fn quoted(&mut self, quote: char) -> Result<String, LexError> {
        let start = self.position;
        self.bump();
        let mut word = String::new();
        loop {
            match self.bump() {
                None => {
                    let message = format!("the text in {quote} has no end");
                    return Err(LexError { message, hint: "close the quotes", position: start });
                }
                Some(c) if c == quote => break,
                Some('\\') => self.escaped(&mut word),
                Some(c) => word.push(c),
            }
        }
        match self.peek() {
            None | Some(' ' | '\t' | '\r' | '\n' | ';' | '{' | ')') => Ok(word),
            Some(c) => Err(LexError {
                message: format!("unexpected `{c}` after a text in quotes"),
                hint: "write a space or `;` there, or quote the whole word",
                position: self.position,
            }),
        }
    }

    fn plain(&mut self) -> String {
        let mut word = String::new();
        let mut after_dollar = false;
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' | '\r' | '\n' | ';' => break,
                '{' if !after_dollar => break,
                _ => {}
            }
            self.bump();
            if c == '\\' {
                self.escaped(&mut word);
            } else {
                word.push(c);
            }
            after_dollar = c == '$';
        }
        word
    }

    /// The character after a backslash. An unknown escape keeps its backslash, as in nginx.
    fn escaped(&mut self, word: &mut String) {
        match self.bump() {
            Some(c @ ('"' | '\'' | '\\')) => word.push(c),
            Some('t') => word.push('\t'),
            Some('r') => word.push('\r'),
            Some('n') => word.push('\n'),
            Some(c) => word.extend(['\\', c]),
            None => word.push('\\'),
        }
    }
}
