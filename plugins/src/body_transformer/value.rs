//! The values of templates, and Lua's rules for them: what is true, equal, less, a number.

use std::cell::RefCell;
use std::rc::Rc;

use super::members::Members;

/// A value.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Nil,
    /// JSON's, which is not Lua's nil.
    Null,
    Bool(bool),
    Number(f64),
    Text(Rc<[u8]>),
    Table(Rc<RefCell<Table>>),
    /// A function, by its name.
    Function(&'static str),
    Module(&'static str),
    /// `_ctx`, and `_ctx.var`.
    Context,
    Vars,
    Multipart(Rc<RefCell<Parts>>),
}

#[derive(Debug, Default)]
pub(super) struct Table {
    pub list: Vec<Value>,
    pub map: Members,
    /// An empty one is written as a list.
    pub is_list: bool,
}

impl Table {
    pub fn of_list(list: Vec<Value>, is_list: bool) -> Table {
        Table { list, map: Members::default(), is_list }
    }

    pub fn of_members(map: Members) -> Table {
        Table { list: Vec::new(), map, is_list: false }
    }
}

/// Tables may stand in each other deeper than a stack is: a template may go from each to the one in it.
impl Drop for Table {
    fn drop(&mut self) {
        let tables = |table: &mut Table, rest: &mut Vec<Rc<RefCell<Table>>>| {
            let values = table.list.drain(..).chain(std::mem::take(&mut table.map).into_values());
            rest.extend(values.filter_map(|value| match value {
                Value::Table(inner) => Some(inner),
                _ => None,
            }));
        };
        let mut rest = Vec::new();
        tables(self, &mut rest);
        while let Some(table) = rest.pop() {
            if let Some(inner) = Rc::into_inner(table) {
                tables(&mut inner.into_inner(), &mut rest);
            }
        }
    }
}

/// The parts of a multipart body, which a template may change.
#[derive(Debug)]
pub(super) struct Parts {
    pub boundary: Vec<u8>,
    pub all: Vec<(Vec<u8>, Vec<u8>)>,
}

pub(super) fn text(bytes: &[u8]) -> Value {
    Value::Text(bytes.into())
}

pub(super) fn table(table: Table) -> Value {
    Value::Table(Rc::new(RefCell::new(table)))
}

/// A value of JSON.
pub(super) fn of_json(json: serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(truth) => Value::Bool(truth),
        serde_json::Value::Number(number) => Value::Number(number.as_f64().unwrap_or_default()),
        serde_json::Value::String(string) => text(string.as_bytes()),
        serde_json::Value::Array(list) => {
            table(Table::of_list(list.into_iter().map(of_json).collect(), true))
        }
        serde_json::Value::Object(map) => table(of_members(map)),
    }
}

pub(super) fn of_members(map: serde_json::Map<String, serde_json::Value>) -> Table {
    let map = map.into_iter().map(|(key, value)| (key.into_bytes().into(), of_json(value))).collect();
    Table::of_members(map)
}

pub(super) fn truth(value: &Value) -> bool {
    !matches!(value, Value::Nil | Value::Bool(false))
}

pub(super) fn name_of(value: &Value) -> &'static str {
    match value {
        Value::Nil => "nil",
        Value::Null | Value::Multipart(_) => "userdata",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::Text(_) => "string",
        Value::Function(_) => "function",
        Value::Table(_) | Value::Module(_) | Value::Context | Value::Vars => "table",
    }
}

pub(super) fn get(table: &Table, key: &Value) -> Value {
    let found = match key {
        Value::Text(name) => table.map.get(name),
        Value::Number(at) if *at >= 1.0 && at.fract() == 0.0 => table.list.get(*at as usize - 1),
        _ => None,
    };
    found.cloned().unwrap_or(Value::Nil)
}

pub(super) fn put(table: &mut Table, key: &Value, value: Value) -> Result<(), String> {
    match key {
        Value::Text(name) => table.map.insert(name.clone(), value),
        Value::Number(at) if at.fract() == 0.0 && *at >= 1.0 && *at <= (table.list.len() + 1) as f64 => {
            let index = *at as usize - 1;
            let last = index + 1 == table.list.len();
            match (table.list.get_mut(index), value) {
                // Neither do nils before it count any more.
                (Some(_), Value::Nil) if last => {
                    table.list.pop();
                    while matches!(table.list.last(), Some(Value::Nil)) {
                        table.list.pop();
                    }
                }
                (Some(old), value) => *old = value,
                (None, Value::Nil) => {}
                (None, value) => table.list.push(value),
            }
        }
        _ => return Err("templates put values under names, and at a list's places".into()),
    }
    Ok(())
}

pub(super) fn equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Nil, Value::Nil) | (Value::Null, Value::Null) => true,
        (Value::Bool(left), Value::Bool(right)) => left == right,
        (Value::Number(left), Value::Number(right)) => left == right,
        (Value::Text(left), Value::Text(right)) => left == right,
        (Value::Table(left), Value::Table(right)) => Rc::ptr_eq(left, right),
        _ => false,
    }
}

pub(super) fn less(left: &Value, right: &Value, or_equal: bool) -> Result<bool, String> {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => {
            Ok(if or_equal { left <= right } else { left < right })
        }
        (Value::Text(left), Value::Text(right)) => Ok(if or_equal { left <= right } else { left < right }),
        _ => Err(format!("attempt to compare {} with {}", name_of(left), name_of(right))),
    }
}

/// A number, or a text that is one.
pub(super) fn arithmetic(value: &Value) -> Result<f64, String> {
    let refused = || format!("attempt to perform arithmetic on a {} value", name_of(value));
    match value {
        Value::Number(number) => Ok(*number),
        Value::Text(text) => {
            let text = std::str::from_utf8(text).map_err(|_| refused())?.trim();
            if let Some(hex) = text.strip_prefix("0x") {
                return u64::from_str_radix(hex, 16).map(|number| number as f64).map_err(|_| refused());
            }
            text.parse().map_err(|_| refused())
        }
        _ => Err(refused()),
    }
}
