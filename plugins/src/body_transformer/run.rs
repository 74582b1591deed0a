//! Running a template.
//!
//! A run is bounded: each step costs, and so does each byte of a text that is made. A table that is put
//! into another is copied, so that no table can hold itself.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use super::library::{MODULES, PIECE, known};
use super::parse::{Expr, Stmt, Template};
use super::value::{Parts, Table, Value, arithmetic, equal, get, less, name_of, put, table, text, truth};
use crate::lua::write_number;
use hashbrown::HashMap;

/// The request, values and bounds that a template runs with.
pub(super) struct Input<'a> {
    pub request: Request<'a>,
    pub fields: Table,
    pub body: Option<&'a [u8]>,
    pub multipart: Option<Parts>,
    pub bounds: super::Bounds,
}

/// The request, as templates see it.
pub(super) struct Request<'a> {
    /// Bytes that the search of a variable may go through.
    pub size: usize,
    pub consumer: Option<&'a str>,
    /// Seconds since the Unix epoch.
    pub now: u64,
    pub var: &'a mut dyn FnMut(&str) -> Value,
}

/// Why a run that has taken all its steps is given up.
pub(super) const TOO_MANY_STEPS: &str =
    "the template takes too many steps: more than plugin_attr.body-transformer.max_steps in config.yaml";

/// The number of variables remembered at most.
pub(super) const MOST_VARS: usize = 64;

/// Tables may stand in each other so deep.
pub(super) const DEEPEST: usize = 128;

/// Runs a template.
///
/// # Errors
/// Describes the failure, in Lua's words where it has some.
pub(super) fn run(template: &Template, input: Input<'_>) -> Result<Vec<u8>, String> {
    let mut run = Run {
        request: input.request,
        out: Vec::new(),
        locals: Vec::new(),
        globals: Vec::new(),
        context: Rc::new(RefCell::new(input.fields)),
        body: input.body.map_or(Value::Nil, text),
        multipart: input.multipart.map_or(Value::Nil, |parts| Value::Multipart(Rc::new(RefCell::new(parts)))),
        vars: HashMap::new(),
        left: input.bounds.steps,
        most: input.bounds.output,
    };
    run.block(&template.body)?;
    Ok(run.out)
}

pub(super) struct Run<'a> {
    pub request: Request<'a>,
    out: Vec<u8>,
    locals: Vec<(Arc<str>, Value)>,
    globals: Vec<(Arc<str>, Value)>,
    context: Rc<RefCell<Table>>,
    body: Value,
    multipart: Value,
    /// The request's variables that were asked for.
    vars: HashMap<Box<[u8]>, Value>,
    left: u64,
    pub most: usize,
}

impl Run<'_> {
    pub fn spend(&mut self, steps: usize) -> Result<(), String> {
        self.left = self.left.checked_sub(steps as u64).ok_or(TOO_MANY_STEPS)?;
        Ok(())
    }

    /// Pays for the search of a name: variables are gone through one after the other.
    fn search(&mut self) -> Result<(), String> {
        self.spend((self.locals.len() + self.globals.len()) / 16)
    }

    /// Pays for a look at all of a text: to compare it, to find what is under it, to read a number.
    pub fn look(&mut self, value: &Value) -> Result<(), String> {
        match value {
            Value::Text(text) => self.spend(text.len() / 64),
            _ => Ok(()),
        }
    }

    /// Pays for a text.
    pub fn made(&mut self, bytes: Vec<u8>) -> Result<Value, String> {
        self.spend(bytes.len() / 64)?;
        Ok(Value::Text(bytes.into()))
    }

    fn block(&mut self, stmts: &[Stmt]) -> Result<(), String> {
        let scope = self.locals.len();
        for stmt in stmts {
            self.spend(1)?;
            self.statement(stmt)?;
        }
        self.locals.truncate(scope);
        Ok(())
    }

    fn statement(&mut self, stmt: &Stmt) -> Result<(), String> {
        match stmt {
            Stmt::Text(text) => self.write(text),
            Stmt::Out { escape, value } => match self.eval(value)? {
                Value::Nil | Value::Null => Ok(()),
                // It may become six times as long, so it is made piece by piece.
                Value::Text(text) if *escape => {
                    text.chunks(PIECE).try_for_each(|piece| self.write(&html(piece)))
                }
                value => {
                    let text = self.text_of(&value)?;
                    self.write(&text)
                }
            },
            Stmt::If { branches, otherwise } => {
                for (condition, body) in branches {
                    if truth(&self.eval(condition)?) {
                        return self.block(body);
                    }
                }
                self.block(otherwise)
            }
            Stmt::Count { name, from, to, step, body } => {
                let (from, to) = (self.number(from)?, self.number(to)?);
                let step = step.as_ref().map_or(Ok(1.0), |step| self.number(step))?;
                if step == 0.0 || !step.is_finite() {
                    return Err("'for' step is zero".into());
                }
                let mut at = from;
                while if step > 0.0 { at <= to } else { at >= to } {
                    self.spend(1)?;
                    self.with(&[(name, Value::Number(at))], body)?;
                    at += step;
                }
                Ok(())
            }
            Stmt::Each { list, key, value, of, body } => {
                let of = self.eval(of)?;
                let Value::Table(of) = of else {
                    return Err(format!(
                        "bad argument #1 to 'for iterator' (table expected, got {})",
                        name_of(&of)
                    ));
                };
                let of = of.borrow();
                let mut all: Vec<(Value, Value)> = Vec::new();
                for (index, element) in of.list.iter().enumerate() {
                    match element {
                        // A list has ended at its first nil, where it was not asked for all its places.
                        Value::Nil if *list => break,
                        Value::Nil => {}
                        element => all.push((Value::Number((index + 1) as f64), element.clone())),
                    }
                }
                if !*list {
                    all.extend(of.map.iter().map(|(key, value)| (Value::Text(key.clone()), value.clone())));
                }
                // A place that is nil is passed over, and passed all the same.
                let places = if *list { all.len() } else { of.list.len() + of.map.places() };
                drop(of);
                self.spend(places)?;
                for (at, element) in all {
                    match value {
                        Some(value) => self.with(&[(key, at), (value, element)], body)?,
                        None => self.with(&[(key, at)], body)?,
                    }
                }
                Ok(())
            }
            Stmt::Local(name, value) => {
                let value = value.as_ref().map_or(Ok(Value::Nil), |value| self.eval(value))?;
                self.locals.push((name.clone(), value));
                Ok(())
            }
            Stmt::Assign(target, value) => {
                let value = self.eval(value)?;
                self.assign(target, value)
            }
            Stmt::Call(call) => self.eval(call).map(drop),
        }
    }

    /// Runs a loop's body with its variables.
    fn with(&mut self, names: &[(&Arc<str>, Value)], body: &[Stmt]) -> Result<(), String> {
        let scope = self.locals.len();
        for (name, value) in names {
            self.locals.push(((*name).clone(), value.clone()));
        }
        self.block(body)?;
        self.locals.truncate(scope);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.spend(bytes.len() / 64)?;
        if self.out.len() + bytes.len() > self.most {
            return Err("the output is too long".into());
        }
        self.out.extend_from_slice(bytes);
        Ok(())
    }

    fn assign(&mut self, target: &Expr, value: Value) -> Result<(), String> {
        match target {
            Expr::Name(name) => {
                self.search()?;
                if let Some((_, old)) = self.locals.iter_mut().rev().find(|(known, _)| known == name) {
                    *old = value;
                } else if let Some((_, old)) = self.globals.iter_mut().find(|(known, _)| known == name) {
                    *old = value;
                } else {
                    self.globals.push((name.clone(), value));
                }
                Ok(())
            }
            Expr::Index(of, key) => {
                let (of, key) = (self.eval(of)?, self.eval(key)?);
                let Value::Table(of) = of else {
                    return Err(format!("attempt to index a {} value", name_of(&of)));
                };
                let value = self.copy(value, 0)?;
                self.look(&key)?;
                put(&mut of.borrow_mut(), &key, value)
            }
            _ => Err("cannot assign".into()),
        }
    }

    pub fn copy(&mut self, value: Value, depth: usize) -> Result<Value, String> {
        let Value::Table(from) = value else { return Ok(value) };
        if depth == DEEPEST {
            return Err("tables stand in each other too deep".into());
        }
        let from = from.borrow();
        self.spend(1 + from.list.len() + from.map.places())?;
        let mut to = Table::of_list(Vec::new(), from.is_list);
        for element in &from.list {
            to.list.push(self.copy(element.clone(), depth + 1)?);
        }
        for (key, element) in from.map.iter() {
            self.spend(key.len() / 64)?;
            to.map.insert(key.clone(), self.copy(element.clone(), depth + 1)?);
        }
        Ok(table(to))
    }

    fn eval(&mut self, expr: &Expr) -> Result<Value, String> {
        self.spend(1)?;
        match expr {
            Expr::Nil => Ok(Value::Nil),
            Expr::Bool(truth) => Ok(Value::Bool(*truth)),
            Expr::Number(number) => Ok(Value::Number(*number)),
            Expr::Text(bytes) => self.made(bytes.to_vec()),
            Expr::Name(name) => {
                self.search()?;
                Ok(self.name(name))
            }
            Expr::Index(of, key) => {
                let (of, key) = (self.eval(of)?, self.eval(key)?);
                self.index(&of, &key)
            }
            Expr::Call(function, arguments) => {
                let function = self.eval(function)?;
                let mut values = Vec::new();
                for argument in arguments {
                    values.push(self.eval(argument)?);
                }
                match function {
                    Value::Function(name) => self.call(name, &values),
                    other => Err(format!("attempt to call a {} value", name_of(&other))),
                }
            }
            Expr::Method(of, name, arguments) => {
                let of = self.eval(of)?;
                let mut values = vec![of.clone()];
                for argument in arguments {
                    values.push(self.eval(argument)?);
                }
                match &of {
                    Value::Text(_) | Value::Number(_) => match known(&format!("string.{name}")) {
                        Some(function) => self.call(function, &values),
                        None => Err(format!("attempt to call method '{name}' (not known to templates)")),
                    },
                    Value::Multipart(parts) => self.part(parts, name, &values),
                    other => Err(format!("attempt to index a {} value", name_of(other))),
                }
            }
            Expr::Binary(sign, left, right) => self.binary(sign, left, right),
            Expr::Unary(sign, value) => {
                let value = self.eval(value)?;
                match (*sign, &value) {
                    ("not", value) => Ok(Value::Bool(!truth(value))),
                    ("#", Value::Text(text)) => Ok(Value::Number(text.len() as f64)),
                    ("#", Value::Table(table)) => Ok(Value::Number(table.borrow().list.len() as f64)),
                    ("#", other) => Err(format!("attempt to get length of a {} value", name_of(other))),
                    _ => Ok(Value::Number(-self.arithmetic(&value)?)),
                }
            }
            Expr::Table(members) => {
                let mut made = Table::default();
                for (key, value) in members {
                    let value = self.eval(value)?;
                    let value = self.copy(value, 1)?;
                    match key {
                        Some(key) => {
                            let key = self.eval(key)?;
                            self.look(&key)?;
                            put(&mut made, &key, value)?;
                        }
                        None => made.list.push(value),
                    }
                }
                Ok(table(made))
            }
        }
    }

    fn name(&self, name: &str) -> Value {
        let here = self.locals.iter().rev().chain(&self.globals).find(|(known, _)| **known == *name);
        if let Some((_, value)) = here {
            return value.clone();
        }
        if name == "context" {
            return Value::Table(self.context.clone());
        }
        if let Some(value) = self.context.borrow().map.get(name.as_bytes()) {
            return value.clone();
        }
        self.helper(name.as_bytes()).unwrap_or_else(|| {
            let module =
                MODULES.into_iter().find(|module| *module == name && !matches!(name, "core" | "cjson"));
            module.map(Value::Module).or_else(|| known(name).map(Value::Function)).unwrap_or(Value::Nil)
        })
    }

    /// The values and functions that APISIX puts beneath the fields.
    fn helper(&self, name: &[u8]) -> Option<Value> {
        match name {
            b"_ctx" => Some(Value::Context),
            b"_body" => Some(self.body.clone()),
            b"_multipart" => Some(self.multipart.clone()),
            b"_escape_json" => Some(Value::Function("_escape_json")),
            b"_escape_xml" => Some(Value::Function("_escape_xml")),
            _ => None,
        }
    }

    fn index(&mut self, of: &Value, key: &Value) -> Result<Value, String> {
        self.look(key)?;
        let name = match key {
            Value::Text(name) => &**name,
            _ => b"",
        };
        Ok(match of {
            Value::Table(table) => match get(&table.borrow(), key) {
                Value::Nil if Rc::ptr_eq(table, &self.context) => self.helper(name).unwrap_or(Value::Nil),
                value => value,
            },
            Value::Context => match name {
                b"var" => Value::Vars,
                b"consumer" => self.request.consumer.map_or(Value::Nil, |name| {
                    let mut fields = Table::default();
                    fields.map.insert((*b"username").into(), text(name.as_bytes()));
                    fields.map.insert((*b"consumer_name").into(), text(name.as_bytes()));
                    table(fields)
                }),
                b"consumer_name" => self.request.consumer.map_or(Value::Nil, |name| text(name.as_bytes())),
                b"route_id" | b"route_name" | b"service_id" => self.var(name)?,
                _ => Value::Nil,
            },
            Value::Vars => self.var(name)?,
            Value::Module(module) => {
                let path = format!("{module}.{}", String::from_utf8_lossy(name));
                let inner = MODULES.into_iter().find(|module| **module == path).map(Value::Module);
                inner.or_else(|| known(&path).map(Value::Function)).unwrap_or(Value::Nil)
            }
            other => return Err(format!("attempt to index a {} value", name_of(other))),
        })
    }

    /// A variable of the request, which stays what it is. To find it the first time may take a look at all that the
    /// client sent.
    fn var(&mut self, name: &[u8]) -> Result<Value, String> {
        if let Some(value) = self.vars.get(name) {
            return Ok(value.clone());
        }
        self.spend(self.request.size / 64)?;
        let value = std::str::from_utf8(name).map_or(Value::Nil, |name| (self.request.var)(name));
        if self.vars.len() < MOST_VARS {
            self.vars.insert(name.into(), value.clone());
        }
        Ok(value)
    }

    fn binary(&mut self, sign: &str, left: &Expr, right: &Expr) -> Result<Value, String> {
        let left = self.eval(left)?;
        match sign {
            "and" => return if truth(&left) { self.eval(right) } else { Ok(left) },
            "or" => return if truth(&left) { Ok(left) } else { self.eval(right) },
            _ => {}
        }
        let right = self.eval(right)?;
        if sign != ".." {
            self.look(&left)?;
            self.look(&right)?;
        }
        match sign {
            "==" => Ok(Value::Bool(equal(&left, &right))),
            "~=" => Ok(Value::Bool(!equal(&left, &right))),
            "<" => Ok(Value::Bool(less(&left, &right, false)?)),
            ">" => Ok(Value::Bool(less(&right, &left, false)?)),
            "<=" => Ok(Value::Bool(less(&left, &right, true)?)),
            ">=" => Ok(Value::Bool(less(&right, &left, true)?)),
            ".." => {
                for side in [&left, &right] {
                    if !matches!(side, Value::Text(_) | Value::Number(_)) {
                        return Err(format!("attempt to concatenate a {} value", name_of(side)));
                    }
                }
                let mut both = self.text_of(&left)?;
                both.extend_from_slice(&self.text_of(&right)?);
                self.may_be(both.len())?;
                self.made(both)
            }
            _ => {
                let (left, right) = (arithmetic(&left)?, arithmetic(&right)?);
                Ok(Value::Number(match sign {
                    "+" => left + right,
                    "-" => left - right,
                    "*" => left * right,
                    "/" => left / right,
                    "%" => left - (left / right).floor() * right,
                    _ => left.powf(right),
                }))
            }
        }
    }

    fn number(&mut self, expr: &Expr) -> Result<f64, String> {
        let value = self.eval(expr)?;
        self.arithmetic(&value)
    }

    /// A number, or a text that is one.
    pub fn arithmetic(&mut self, value: &Value) -> Result<f64, String> {
        self.look(value)?;
        arithmetic(value)
    }

    /// As `tostring` has it.
    pub fn text_of(&mut self, value: &Value) -> Result<Vec<u8>, String> {
        let bytes = match value {
            Value::Nil => b"nil".to_vec(),
            Value::Bool(truth) => truth.to_string().into_bytes(),
            Value::Number(number) => {
                let mut text = String::new();
                write_number(*number, &mut text);
                text.into_bytes()
            }
            Value::Text(text) => text.to_vec(),
            other => format!("{}: 0x0", name_of(other)).into_bytes(),
        };
        self.spend(bytes.len() / 64)?;
        Ok(bytes)
    }
}

/// As lua-resty-template escapes an output.
fn html(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for &byte in text {
        match byte {
            b'&' => out.extend_from_slice(b"&amp;"),
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'"' => out.extend_from_slice(b"&quot;"),
            b'\'' => out.extend_from_slice(b"&#39;"),
            b'/' => out.extend_from_slice(b"&#47;"),
            _ => out.push(byte),
        }
    }
    out
}
