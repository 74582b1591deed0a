//! Templates in the syntax of lua-resty-template, read into a tree.
//!
//! Of Lua, that is: `if`, `for` over numbers, `pairs` and `ipairs`, `local`, assignments, and expressions
//! with calls of the functions that [`super::run`] has. Anything else is refused when the
//! configuration is checked, with its line.

use std::sync::Arc;

use model::Invalid;

use super::tokens::{KEYWORDS, Token, error, tokens};

/// A template.
#[derive(Debug)]
pub(super) struct Template {
    pub body: Vec<Stmt>,
    /// Variables that it names as they are, in `_ctx.var.NAME`. A run may ask for more, and for names that it makes.
    pub vars: Vec<Arc<str>>,
}

#[derive(Debug)]
pub(super) enum Stmt {
    Text(Arc<[u8]>),
    Out { escape: bool, value: Expr },
    If { branches: Vec<(Expr, Vec<Stmt>)>, otherwise: Vec<Stmt> },
    Count { name: Arc<str>, from: Expr, to: Expr, step: Option<Expr>, body: Vec<Stmt> },
    Each { list: bool, key: Arc<str>, value: Option<Arc<str>>, of: Expr, body: Vec<Stmt> },
    Local(Arc<str>, Option<Expr>),
    Assign(Expr, Expr),
    Call(Expr),
}

#[derive(Debug)]
pub(super) enum Expr {
    Nil,
    Bool(bool),
    Number(f64),
    Text(Arc<[u8]>),
    Name(Arc<str>),
    Index(Box<Expr>, Box<Expr>),
    Call(Box<Expr>, Vec<Expr>),
    Method(Box<Expr>, Arc<str>, Vec<Expr>),
    Binary(&'static str, Box<Expr>, Box<Expr>),
    Unary(&'static str, Box<Expr>),
    Table(Vec<(Option<Expr>, Expr)>),
}

/// How deep statements may be nested, and how deep the tree of an expression may be: both are walked by
/// recursion, in threads whose stacks are bounded.
const DEEPEST: usize = 100;

impl Template {
    /// # Errors
    /// Names the first part that is not understood, with its line.
    pub fn parse(text: &[u8]) -> Result<Template, Invalid> {
        let mut parser = Parser { tokens: tokens(text)?, at: 0, depth: 0, height: 0, vars: Vec::new() };
        let body = parser.block()?;
        match parser.peek() {
            Token::Over => Ok(Template { body, vars: parser.vars }),
            token => Err(parser.unexpected(&token.clone(), "the end of the template")),
        }
    }
}

struct Parser {
    tokens: Vec<(Token, usize)>,
    at: usize,
    /// How deep the recursion of the parser is.
    depth: usize,
    /// How deep the tree of the expression that was read last is. A chain such as `a.b.c` or `1 + 2 + 3` is read
    /// without recursion, but its tree is as deep as it is long.
    height: usize,
    vars: Vec<Arc<str>>,
}

impl Parser {
    fn index(&mut self, of: Expr, key: Expr) -> Expr {
        if let (Expr::Index(_, outer), Expr::Text(name)) = (&of, &key)
            && matches!(&**outer, Expr::Text(outer) if **outer == *b"var")
            && let Ok(name) = std::str::from_utf8(name)
            && self.vars.len() < super::run::MOST_VARS
            && self.vars.iter().all(|known| **known != *name)
        {
            self.vars.push(name.into());
        }
        Expr::Index(Box::new(of), Box::new(key))
    }

    fn peek(&self) -> &Token {
        // The last one says that it is over, and is never taken.
        &self.tokens[self.at].0
    }

    fn line(&self) -> usize {
        self.tokens[self.at].1
    }

    fn take(&mut self) -> Token {
        let token = self.peek().clone();
        self.at += usize::from(token != Token::Over);
        token
    }

    fn unexpected(&self, found: &Token, expected: &str) -> Invalid {
        let found = match found {
            Token::Text(_) | Token::Out(_) => "an output".to_owned(),
            Token::End => "the end of an output".to_owned(),
            Token::Name(name) => format!("`{name}`"),
            Token::Number(number) => format!("`{number}`"),
            Token::String(_) => "a text".to_owned(),
            Token::Sign(sign) => format!("`{sign}`"),
            Token::Over => "the end".to_owned(),
        };
        error(self.line(), format!("{found} where {expected} was expected"))
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Token::Name(name) if **name == *word)
    }

    fn word(&mut self, word: &str) -> bool {
        let is = self.is_word(word);
        self.at += usize::from(is);
        is
    }

    fn sign(&mut self, sign: &str) -> bool {
        let is = matches!(self.peek(), Token::Sign(found) if *found == sign);
        self.at += usize::from(is);
        is
    }

    fn expect_word(&mut self, word: &str) -> Result<(), Invalid> {
        if self.word(word) { Ok(()) } else { Err(self.unexpected(self.peek(), &format!("`{word}`"))) }
    }

    fn expect_sign(&mut self, sign: &str) -> Result<(), Invalid> {
        if self.sign(sign) { Ok(()) } else { Err(self.unexpected(self.peek(), &format!("`{sign}`"))) }
    }

    fn name(&mut self) -> Result<Arc<str>, Invalid> {
        match self.peek() {
            Token::Name(name) if !KEYWORDS.contains(&&**name) => {
                let name = name.clone();
                self.at += 1;
                Ok(name)
            }
            token => Err(self.unexpected(token, "a name")),
        }
    }

    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Parser) -> Result<T, Invalid>) -> Result<T, Invalid> {
        if self.depth >= DEEPEST {
            return Err(self.too_deep());
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// An expression was made of others, the highest of which is `inner`.
    fn above(&mut self, inner: usize) -> Result<(), Invalid> {
        if inner >= DEEPEST {
            return Err(self.too_deep());
        }
        self.height = inner + 1;
        Ok(())
    }

    fn too_deep(&self) -> Invalid {
        error(self.line(), format!("expressions or statements are nested more than {DEEPEST} deep"))
    }

    fn block(&mut self) -> Result<Vec<Stmt>, Invalid> {
        let mut all = Vec::new();
        loop {
            match self.peek() {
                Token::Over => return Ok(all),
                Token::Name(name) if matches!(&**name, "end" | "else" | "elseif") => return Ok(all),
                Token::Sign(";") => self.at += 1,
                _ => all.push(self.deeper(Parser::statement)?),
            }
        }
    }

    fn statement(&mut self) -> Result<Stmt, Invalid> {
        match self.peek().clone() {
            Token::Text(text) => {
                self.at += 1;
                Ok(Stmt::Text(text))
            }
            Token::Out(escape) => {
                self.at += 1;
                let value = if *self.peek() == Token::End { Expr::Nil } else { self.expr()? };
                match self.take() {
                    Token::End => Ok(Stmt::Out { escape, value }),
                    token => Err(self.unexpected(&token, "the end of the output")),
                }
            }
            Token::Name(_) if self.word("if") => self.branches(),
            Token::Name(_) if self.word("for") => self.loops(),
            Token::Name(_) if self.word("local") => {
                let name = self.name()?;
                let value = if self.sign("=") { Some(self.expr()?) } else { None };
                Ok(Stmt::Local(name, value))
            }
            Token::Name(name) if KEYWORDS.contains(&&*name) => {
                Err(self.unexpected(&Token::Name(name), "a statement"))
            }
            _ => {
                let target = self.suffixed()?;
                match target {
                    Expr::Call(..) | Expr::Method(..) => Ok(Stmt::Call(target)),
                    Expr::Name(_) | Expr::Index(..) => {
                        self.expect_sign("=")?;
                        Ok(Stmt::Assign(target, self.expr()?))
                    }
                    _ => Err(self.unexpected(self.peek(), "a statement")),
                }
            }
        }
    }

    fn branches(&mut self) -> Result<Stmt, Invalid> {
        let (mut branches, mut otherwise) = (Vec::new(), Vec::new());
        loop {
            let condition = self.expr()?;
            self.expect_word("then")?;
            branches.push((condition, self.block()?));
            if self.word("elseif") {
                continue;
            }
            if self.word("else") {
                otherwise = self.block()?;
            }
            self.expect_word("end")?;
            return Ok(Stmt::If { branches, otherwise });
        }
    }

    fn loops(&mut self) -> Result<Stmt, Invalid> {
        let name = self.name()?;
        if self.sign("=") {
            let from = self.expr()?;
            self.expect_sign(",")?;
            let to = self.expr()?;
            let step = if self.sign(",") { Some(self.expr()?) } else { None };
            let body = self.body()?;
            return Ok(Stmt::Count { name, from, to, step, body });
        }
        let value = if self.sign(",") { Some(self.name()?) } else { None };
        self.expect_word("in")?;
        let list = match self.take() {
            Token::Name(name) if *name == *"pairs" => false,
            Token::Name(name) if *name == *"ipairs" => true,
            token => return Err(self.unexpected(&token, "`pairs` or `ipairs`")),
        };
        self.expect_sign("(")?;
        let of = self.expr()?;
        self.expect_sign(")")?;
        let body = self.body()?;
        Ok(Stmt::Each { list, key: name, value, of, body })
    }

    fn body(&mut self) -> Result<Vec<Stmt>, Invalid> {
        self.expect_word("do")?;
        let body = self.block()?;
        self.expect_word("end")?;
        Ok(body)
    }

    fn expr(&mut self) -> Result<Expr, Invalid> {
        self.deeper(|parser| parser.binary(0))
    }

    /// Operators that bind stronger than `least`.
    fn binary(&mut self, least: u8) -> Result<Expr, Invalid> {
        let mut left = self.unary()?;
        loop {
            let sign = match self.peek() {
                Token::Name(name) if **name == *"or" => "or",
                Token::Name(name) if **name == *"and" => "and",
                Token::Sign(sign) => sign,
                _ => "",
            };
            // How strong it binds to its left and to its right.
            let (l, r) = match sign {
                "or" => (1, 1),
                "and" => (2, 2),
                "<" | ">" | "<=" | ">=" | "~=" | "==" => (3, 3),
                ".." => (5, 4),
                "+" | "-" => (6, 6),
                "*" | "/" | "%" => (7, 7),
                "^" => (10, 9),
                _ => (0, 0),
            };
            if l <= least {
                return Ok(left);
            }
            self.at += 1;
            let height = self.height;
            let right = self.deeper(|parser| parser.binary(r))?;
            self.above(height.max(self.height))?;
            left = Expr::Binary(sign, Box::new(left), Box::new(right));
        }
    }

    fn unary(&mut self) -> Result<Expr, Invalid> {
        let sign = match self.peek() {
            Token::Name(name) if **name == *"not" => "not",
            Token::Sign(sign @ ("-" | "#")) => sign,
            _ => return self.suffixed(),
        };
        self.at += 1;
        let value = self.deeper(|parser| parser.binary(8))?;
        self.above(self.height)?;
        Ok(Expr::Unary(sign, Box::new(value)))
    }

    fn suffixed(&mut self) -> Result<Expr, Invalid> {
        let mut value = self.primary()?;
        loop {
            let height = std::mem::take(&mut self.height);
            value = match self.peek().clone() {
                Token::Sign(".") => {
                    self.at += 1;
                    let name = self.name()?;
                    self.index(value, Expr::Text(name.as_bytes().into()))
                }
                Token::Sign("[") => {
                    self.at += 1;
                    let key = self.expr()?;
                    self.expect_sign("]")?;
                    self.index(value, key)
                }
                Token::Sign(":") => {
                    self.at += 1;
                    let name = self.name()?;
                    Expr::Method(Box::new(value), name, self.arguments()?)
                }
                Token::Sign("(" | "{") | Token::String(_) => {
                    let arguments = self.arguments()?;
                    self.check_require(&value, &arguments)?;
                    Expr::Call(Box::new(value), arguments)
                }
                _ => {
                    self.height = height;
                    return Ok(value);
                }
            };
            self.above(height.max(self.height))?;
        }
    }

    /// A module that is not there is better known now than with each request.
    fn check_require(&self, called: &Expr, arguments: &[Expr]) -> Result<(), Invalid> {
        match (called, arguments) {
            (Expr::Name(name), [Expr::Text(module)])
                if &**name == "require" && super::library::module(module).is_none() =>
            {
                let module = String::from_utf8_lossy(module);
                Err(error(self.line(), format!("there is no module `{module}`"))
                    .hint(super::library::REQUIRED))
            }
            _ => Ok(()),
        }
    }

    /// Leaves the height of the highest argument.
    fn arguments(&mut self) -> Result<Vec<Expr>, Invalid> {
        self.height = 0;
        if let Token::String(text) = self.peek().clone() {
            self.at += 1;
            return Ok(vec![Expr::Text(text)]);
        }
        if matches!(self.peek(), Token::Sign("{")) {
            return Ok(vec![self.expr()?]);
        }
        self.expect_sign("(")?;
        let (mut all, mut highest) = (Vec::new(), 0);
        if self.sign(")") {
            return Ok(all);
        }
        loop {
            all.push(self.expr()?);
            highest = highest.max(self.height);
            self.height = highest;
            if self.sign(")") {
                return Ok(all);
            }
            self.expect_sign(",")?;
        }
    }

    fn primary(&mut self) -> Result<Expr, Invalid> {
        self.height = 1;
        match self.take() {
            Token::Number(number) => Ok(Expr::Number(number)),
            Token::String(text) => Ok(Expr::Text(text)),
            Token::Name(name) => match &*name {
                "nil" => Ok(Expr::Nil),
                "true" => Ok(Expr::Bool(true)),
                "false" => Ok(Expr::Bool(false)),
                word if KEYWORDS.contains(&word) => {
                    self.at -= 1;
                    Err(self.unexpected(&Token::Name(name.clone()), "a value"))
                }
                _ => Ok(Expr::Name(name)),
            },
            Token::Sign("(") => {
                let value = self.expr()?;
                self.expect_sign(")")?;
                Ok(value)
            }
            Token::Sign("{") => {
                let (mut all, mut highest) = (Vec::new(), 0);
                while !self.sign("}") {
                    all.push(self.member()?);
                    highest = highest.max(self.height);
                    if !self.sign(",") && !self.sign(";") {
                        self.expect_sign("}")?;
                        break;
                    }
                }
                self.above(highest)?;
                Ok(Expr::Table(all))
            }
            token => Err(self.unexpected(&token, "a value")),
        }
    }

    fn member(&mut self) -> Result<(Option<Expr>, Expr), Invalid> {
        if self.sign("[") {
            let key = self.expr()?;
            let height = self.height;
            self.expect_sign("]")?;
            self.expect_sign("=")?;
            let value = self.expr()?;
            self.height = self.height.max(height);
            return Ok((Some(key), value));
        }
        let named = matches!(self.tokens.get(self.at + 1), Some((Token::Sign("="), _)));
        if let (Token::Name(name), true) = (self.peek().clone(), named) {
            self.at += 2;
            return Ok((Some(Expr::Text(name.as_bytes().into())), self.expr()?));
        }
        Ok((None, self.expr()?))
    }
}
