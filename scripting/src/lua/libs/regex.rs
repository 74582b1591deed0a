//! `ngx.re`: `match`, `find`, `gmatch`, `sub` and `gsub`, on the patterns that routes use too.
//!
//! The search and the filling of templates are here. Functions that make replacements are called by Lua code
//! (`lua/ngx_re.lua`), so they may wait.

use std::cell::RefCell;
use std::rc::Rc;

use hashbrown::HashMap;
use mlua::{Error, Function, Lua, LuaString, MultiValue, Result, Table, Value};
use sdk::pattern::{Captures, Pattern, Replacement, Searches, StepLimit};

use super::super::small;
use super::call::function;

/// Compiled patterns kept in each of two generations.
const KEPT: usize = 256;
/// The longest pattern and template.
const LONGEST: usize = 64 << 10;
/// The longest text of options.
const LONGEST_OPTIONS: usize = 64;
/// The longest result of a replacement.
const LONGEST_RESULT: usize = 64 << 20;

/// A compiled pattern with its options.
struct Compiled {
    pattern: Pattern,
    is_anchored: bool,
    names: Vec<(usize, String)>,
}

/// Compiled patterns by text and options. When the young generation is full, it becomes the old one; patterns in
/// use move back, and the rest is freed with the next change.
#[derive(Default)]
struct Cache {
    young: HashMap<(Vec<u8>, Vec<u8>), Rc<Compiled>, foldhash::fast::RandomState>,
    old: HashMap<(Vec<u8>, Vec<u8>), Rc<Compiled>, foldhash::fast::RandomState>,
}

impl Cache {
    fn get(&mut self, pattern: &[u8], options: &[u8]) -> Result<Rc<Compiled>> {
        let key = (pattern.to_vec(), options.to_vec());
        if let Some(known) = self.young.get(&key) {
            return Ok(known.clone());
        }
        let compiled = match self.old.remove(&key) {
            Some(known) => known,
            None => Rc::new(compile(pattern, options)?),
        };
        if self.young.len() >= KEPT {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, compiled.clone());
        Ok(compiled)
    }
}

fn compile(pattern: &[u8], options: &[u8]) -> Result<Compiled> {
    if options.len() > LONGEST_OPTIONS {
        return Err(Error::runtime(format!("options are longer than {LONGEST_OPTIONS} bytes")));
    }
    let (mut ignores_case, mut is_anchored, mut flags) = (false, false, String::new());
    for &option in options {
        match option {
            b'i' => ignores_case = true,
            b'a' => is_anchored = true,
            b'm' | b's' | b'x' | b'u' if !flags.contains(char::from(option)) => {
                flags.push(char::from(option))
            }
            b'U' if !flags.contains('u') => flags.push('u'),
            // Compiled once, JIT and the other algorithm change no result; names may be repeated or not.
            b'o' | b'j' | b'd' | b'D' | b'J' | b'm' | b's' | b'x' | b'u' | b'U' => {}
            other => {
                let (other, all) = (char::from(other), String::from_utf8_lossy(options));
                return Err(Error::runtime(format!("unknown flag \"{other}\" (flags \"{all}\")")));
            }
        }
    }
    if pattern.len() > LONGEST {
        return Err(Error::runtime(format!("pcre_compile() failed: pattern is longer than {LONGEST} bytes")));
    }
    let text = std::str::from_utf8(pattern)
        .map_err(|_| Error::runtime("pcre_compile() failed: pattern is not UTF-8"))?;
    let flagged = if flags.is_empty() { text.to_owned() } else { format!("(?{flags}){text}") };
    let pattern = Pattern::new(&flagged, ignores_case).map_err(|invalid| {
        Error::runtime(format!("pcre_compile() failed: {} in \"{text}\"", invalid.reason))
    })?;
    let names = pattern.group_names();
    let names =
        names.iter().enumerate().filter_map(|(group, name)| Some((group, (*name)?.to_owned()))).collect();
    Ok(Compiled { pattern, is_anchored, names })
}

impl Compiled {
    fn search<'t>(&self, text: &'t [u8], from: usize, searches: &Searches) -> Result<Option<Captures<'t>>> {
        let found = self.pattern.captures_at(text, from, searches);
        let found = found.map_err(|StepLimit| Error::runtime("pcre_exec() failed: -8 (match limit)"))?;
        Ok(found.filter(|found| !self.is_anchored || found.whole().0 == from))
    }

    /// The groups of a match as Lua has them: texts, and `false` for a group without one.
    fn table(&self, lua: &Lua, found: &Captures<'_>, into: Option<Table>) -> Result<Table> {
        let table = match into {
            Some(table) => table,
            None => lua.create_table_with_capacity(found.count(), 1 + self.names.len())?,
        };
        let text = |group: usize| match found.group(group) {
            Some(text) => small::string(lua, text).map(Value::String),
            None => Ok(Value::Boolean(false)),
        };
        for group in 0..found.count() {
            table.raw_set(group, text(group)?)?;
        }
        for (group, name) in &self.names {
            // Of groups with the same name, the one with a text counts.
            if found.group(*group).is_some() || table.raw_get::<Value>(name.as_str())?.is_nil() {
                table.raw_set(name.as_str(), text(*group)?)?;
            }
        }
        Ok(table)
    }
}

/// The offset after a match: past it, and at least one byte on after an empty match.
fn after(found: &Captures<'_>) -> usize {
    let (start, end) = found.whole();
    if start == end { end + 1 } else { end }
}

type Arguments = (LuaString, LuaString, Option<LuaString>);

fn options_of(options: Option<&LuaString>) -> Vec<u8> {
    options.map(|options| options.as_bytes().to_vec()).unwrap_or_default()
}

/// The native group. Positions count from 1; an error is a second result.
pub(super) fn add_native(lua: &Lua, group: &Table) -> Result<()> {
    let cache = Rc::new(RefCell::new(Cache::default()));
    let get = move |pattern: &LuaString, options: Option<&LuaString>| {
        cache.borrow_mut().get(&pattern.as_bytes(), &options_of(options))
    };
    group.raw_set("search", search(lua, get.clone())?)?;
    group.raw_set("iterate", iterate(lua, get.clone())?)?;
    group.raw_set("replace", replace(lua, get)?)
}

trait Get: Fn(&LuaString, Option<&LuaString>) -> Result<Rc<Compiled>> + Clone + 'static {}
impl<F: Fn(&LuaString, Option<&LuaString>) -> Result<Rc<Compiled>> + Clone + 'static> Get for F {}

/// `search(text, pattern, options, from, group, into)`: with a group its first and last position, otherwise the
/// table of groups; last the position after the match.
fn search(lua: &Lua, get: impl Get) -> Result<Function> {
    type More = (Option<i64>, Option<usize>, Option<Table>);
    function(lua, "search", move |lua, args: (LuaString, LuaString, Option<LuaString>, Option<i64>, Option<usize>, Option<Table>)| {
        let (text, pattern, options, from, group, into) = args;
        let more: More = (from, group, into);
        let found = (|| {
            let compiled = get(&pattern, options.as_ref())?;
            let text = text.as_bytes();
            let from = more.0.map_or(0, |from| usize::try_from(from - 1).unwrap_or(0));
            let Some(found) = compiled.search(&text, from, &Searches::default())? else {
                return Ok(MultiValue::new());
            };
            let next = Value::Integer(found.whole().1 as i64 + 1);
            let Some(group) = more.1 else {
                let table = compiled.table(lua, &found, more.2.clone())?;
                return Ok(MultiValue::from_vec(vec![Value::Table(table), next]));
            };
            if group >= found.count() {
                return Err(Error::runtime("nth out of bound"));
            }
            let (first, last) = match found.position(group) {
                Some((start, end)) => (Value::Integer(start as i64 + 1), Value::Integer(end as i64)),
                None => (Value::Nil, Value::Nil),
            };
            Ok(MultiValue::from_vec(vec![first, last, next]))
        })();
        returned(lua, found)
    })
}

/// A runtime error as `nil, nil, text`, so that `ngx.re` returns it.
fn returned(lua: &Lua, result: Result<MultiValue>) -> Result<MultiValue> {
    match result {
        Err(Error::RuntimeError(text)) => {
            let text = Value::String(small::string(lua, text)?);
            Ok(MultiValue::from_vec(vec![Value::Nil, Value::Nil, Value::Nil, text]))
        }
        other => other,
    }
}

/// `iterate(text, pattern, options)`: a function that returns the next table of groups and the positions of its
/// match.
fn iterate(lua: &Lua, get: impl Get) -> Result<Function> {
    function(lua, "iterate", move |lua, (text, pattern, options): Arguments| {
        let compiled = match get(&pattern, options.as_ref()) {
            Ok(compiled) => compiled,
            Err(Error::RuntimeError(text)) => return Ok((None, Some(text))),
            Err(error) => return Err(error),
        };
        let (searches, mut from) = (Searches::default(), 0);
        let next = lua.create_function_mut(move |lua, ()| {
            let text = text.as_bytes();
            let found = match compiled.search(&text, from, &searches) {
                Ok(found) => found,
                Err(error) => {
                    from = usize::MAX;
                    return returned(lua, Err(error));
                }
            };
            let Some(found) = found else {
                from = usize::MAX;
                return Ok(MultiValue::new());
            };
            from = after(&found);
            let (start, end) = found.whole();
            let table = Value::Table(compiled.table(lua, &found, None)?);
            Ok(MultiValue::from_vec(vec![
                table,
                Value::Integer(start as i64 + 1),
                Value::Integer(end as i64),
            ]))
        })?;
        Ok((Some(next), None))
    })
}

/// `replace(text, pattern, template, options, all)`: the new text, the number of replacements.
fn replace(lua: &Lua, get: impl Get) -> Result<Function> {
    type Args = (LuaString, LuaString, LuaString, Option<LuaString>, bool);
    function(lua, "replace", move |lua, (text, pattern, template, options, all): Args| {
        let done = (|| {
            let compiled = get(&pattern, options.as_ref())?;
            let text = text.as_bytes();
            let template = template.as_bytes();
            let parts = template_of(&template)?;
            let (mut out, mut from, mut kept, mut count) = (Vec::new(), 0, 0, 0);
            let searches = Searches::default();
            while let Some(found) = compiled.search(&text, from, &searches)? {
                let (start, end) = found.whole();
                out.extend_from_slice(&text[kept..start]);
                parts.expand(&found, &mut out);
                if out.len() > LONGEST_RESULT {
                    return Err(Error::runtime(format!("result is longer than {LONGEST_RESULT} bytes")));
                }
                (kept, from, count) = (end, after(&found), count + 1);
                if !all {
                    break;
                }
            }
            out.extend_from_slice(&text[kept..]);
            let out = if count == 0 { Value::Nil } else { Value::String(small::string(lua, out)?) };
            Ok(MultiValue::from_vec(vec![out, Value::Integer(count)]))
        })();
        returned(lua, done)
    })
}

/// A template, with bytes that are not UTF-8 if it has no groups.
enum Template {
    Groups(Replacement),
    Plain(Vec<u8>),
}

fn template_of(template: &[u8]) -> Result<Template> {
    if template.len() > LONGEST && template.contains(&b'$') {
        return Err(Error::runtime(format!("template is longer than {LONGEST} bytes")));
    }
    if !template.contains(&b'$') {
        return Ok(Template::Plain(template.to_vec()));
    }
    let text = std::str::from_utf8(template).map_err(|_| Error::runtime("template is not UTF-8"))?;
    let invalid = |_| Error::runtime(format!("failed to compile the replacement template \"{text}\""));
    Replacement::parse(text).map(Template::Groups).map_err(invalid)
}

impl Template {
    fn expand(&self, found: &Captures<'_>, out: &mut Vec<u8>) {
        match self {
            Template::Groups(replacement) => replacement.expand(found, out),
            Template::Plain(text) => out.extend_from_slice(text),
        }
    }
}
