//! Files in which each function holds its breaks beside itself, chosen by a number.
//!
//! A function becomes `match number(F) { 3 => { its body, broken }, 4 => {..}, _ => { its body } }`.
//! Breaks that cannot stand so (in a `const fn`, in what is evaluated at build time, where a type is
//! `impl Trait`) are put in alone, one build each.

use super::known::Known;
use super::list::{Mutant, Place};
use super::report::Outcome;
use crate::shell::root;
use anyhow::{Context, Result, bail};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Read by the code under test; 0 or none is the code as it is.
pub const VARIABLE: &str = "MUTANT";

/// In the place of a number: the code as it is, which notes in a file which functions are reached.
pub const NOTE: u32 = u32::MAX;

/// Where they are noted, each in four bytes.
pub const NOTES: &str = "MUTANT_NOTES";

/// Tells the number, once for the whole process.
const MODULE: &str = r#"
#[doc(hidden)]
pub mod mutant_number {
    use std::sync::atomic::{AtomicBool, Ordering};

    pub fn number(function: u32) -> u32 {
        static NUMBER: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
        let read = || std::env::var("MUTANT").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        let number = *NUMBER.get_or_init(read);
        if number == u32::MAX {
            note(function);
        }
        number
    }

    fn note(function: u32) {
        static SEEN: [AtomicBool; 1 << 16] = [const { AtomicBool::new(false) }; 1 << 16];
        if SEEN[function as usize % SEEN.len()].swap(true, Ordering::Relaxed) {
            return;
        }
        if let Some(path) = std::env::var_os("MUTANT_NOTES") {
            let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
            let _ = file.and_then(|mut file| std::io::Write::write_all(&mut file, &function.to_le_bytes()));
        }
    }
}
"#;

/// A break that makes code unreachable, or a sum overflow, is still a break to be tried.
const ALLOW: &str = "#![allow(warnings, arithmetic_overflow, unconditional_panic, clippy::all)] ";

/// Where the compiler found a mistake in one of the files.
pub struct Error {
    pub file: String,
    pub line: usize,
    pub text: String,
}

/// Where in a written file the code of one break lies, or a function as it is.
struct Arm {
    lines: Range<usize>,
    /// The index of the break; none: the function itself, with those of its breaks.
    mutant: Option<usize>,
    function: Place,
    /// Of the function: that of its first break.
    number: u32,
}

#[derive(PartialEq, Clone, Copy)]
enum Way {
    Together,
    Alone,
    Unviable,
}

pub struct Switched {
    mutants: Vec<Mutant>,
    ways: Vec<Way>,
    /// The original text of each file.
    texts: HashMap<String, String>,
    arms: HashMap<String, Vec<Arm>>,
    /// Under which number each break's function is noted as reached.
    functions: HashMap<usize, u32>,
}

impl Switched {
    /// What an earlier run found to be no program, or to take a build of its own, is not put in.
    pub fn new(mutants: Vec<Mutant>, known: &mut Known) -> Result<Switched> {
        let mut texts = HashMap::new();
        for mutant in &mutants {
            if !texts.contains_key(&mutant.file) {
                let text = std::fs::read_to_string(root().join(&mutant.file))
                    .with_context(|| format!("cannot read {}", mutant.file))?;
                texts.insert(mutant.file.clone(), text);
            }
        }
        let way = |mutant: &Mutant| match &mutant.function {
            _ if known.outcome(mutant) == Some(Outcome::Unviable) => Way::Unviable,
            _ if known.is_alone(mutant) => Way::Alone,
            Some(function) if !function.return_type.contains("impl ") => Way::Together,
            _ => Way::Alone,
        };
        let ways = mutants.iter().map(way).collect();
        Ok(Switched { mutants, ways, texts, arms: HashMap::new(), functions: HashMap::new() })
    }

    /// The room's files with all breaks that can stand together. Number 0 is the code as it is.
    pub fn files(&mut self, room: &str) -> Result<HashMap<String, String>> {
        let mut files = HashMap::new();
        for (file, text) in &self.texts {
            let of_file: Vec<_> =
                (0..self.mutants.len()).filter(|at| self.mutants[*at].file == *file).collect();
            let (written, arms, constant) = write(text, &of_file, &self.mutants, &self.ways)?;
            constant.into_iter().for_each(|at| self.ways[at] = Way::Alone);
            let numbers = arms.iter().filter_map(|arm| Some((arm.mutant?, arm.number)));
            self.functions.extend(numbers);
            self.arms.insert(file.clone(), arms);
            files.insert(file.clone(), written);
        }
        add_module(room, &mut files)?;
        Ok(files)
    }

    /// The same, but with this one put into its file, which has no other.
    pub fn files_with(&self, room: &str, mutant: &Mutant) -> Result<HashMap<String, String>> {
        let mut files = HashMap::new();
        for (file, text) in &self.texts {
            let of_file: Vec<_> =
                (0..self.mutants.len()).filter(|at| self.mutants[*at].file == *file).collect();
            let written = match *file == mutant.file {
                true => broken(text, 0..text.len(), mutant)?,
                false => write(text, &of_file, &self.mutants, &self.ways)?.0,
            };
            files.insert(file.clone(), written);
        }
        add_module(room, &mut files)?;
        Ok(files)
    }

    /// Takes out what the compiler refuses; returns those that are no program at all.
    pub fn leave_out(&mut self, errors: &[Error]) -> Result<Vec<Mutant>> {
        let mut unviable = HashSet::new();
        let mut changed = false;
        for error in errors {
            let arms = self.arms.get(&error.file).map_or(&[][..], Vec::as_slice);
            let Some(arm) = arms.iter().find(|arm| arm.lines.contains(&error.line)) else {
                continue;
            };
            match arm.mutant {
                Some(at) => {
                    self.ways[at] = Way::Unviable;
                    changed |= unviable.insert(at);
                }
                // The function does not stand in a `match`: each of its breaks goes alone.
                None => {
                    for (at, mutant) in self.mutants.iter().enumerate() {
                        let same = mutant.file == error.file && self.ways[at] == Way::Together;
                        if same && outermost(&self.mutants, mutant) == Some(arm.function) {
                            self.ways[at] = Way::Alone;
                            changed = true;
                        }
                    }
                }
            }
        }
        if !changed {
            let texts: Vec<_> = errors.iter().take(3).map(|error| error.text.as_str()).collect();
            bail!("the room does not build, and no break is to blame:\n{}", texts.join("\n"));
        }
        Ok(unviable.into_iter().map(|at| self.mutants[at].clone()).collect())
    }

    /// Those that are built together, with their numbers and those of their functions.
    pub fn together(&self) -> impl Iterator<Item = (usize, u32, &Mutant)> {
        let all = self.mutants.iter().enumerate().zip(&self.ways);
        all.filter(|(_, way)| **way == Way::Together)
            .map(|((at, mutant), _)| (at + 1, self.functions.get(&at).copied().unwrap_or_default(), mutant))
    }

    /// Those that are built one by one.
    pub fn alone(&self) -> impl Iterator<Item = &Mutant> {
        self.of(Way::Alone)
    }

    /// Those that are no program.
    pub fn unviable(&self) -> impl Iterator<Item = &Mutant> {
        self.of(Way::Unviable)
    }

    fn of(&self, wanted: Way) -> impl Iterator<Item = &Mutant> {
        self.mutants.iter().zip(&self.ways).filter(move |(_, way)| **way == wanted).map(|(mutant, _)| mutant)
    }
}

/// The written file, its arms, and which breaks stand in a `const fn`.
fn write(
    text: &str,
    of_file: &[usize],
    mutants: &[Mutant],
    ways: &[Way],
) -> Result<(String, Vec<Arm>, Vec<usize>)> {
    let mut functions: Vec<(Place, Vec<usize>)> = Vec::new();
    let mut constant = Vec::new();
    for &at in of_file.iter().filter(|at| ways[**at] == Way::Together) {
        let start = outermost(mutants, &mutants[at]).context("a break without its function")?;
        match functions.iter_mut().find(|(found, _)| *found == start) {
            Some((_, list)) => list.push(at),
            None => functions.push((start, vec![at])),
        }
    }
    functions.sort_by_key(|(start, _)| *start);
    let (mut out, mut arms, mut done) = (String::with_capacity(text.len() * 8), Vec::new(), 0);
    let mut lines = Lines::default();
    for (start, list) in functions {
        let Some(function) = of_file
            .iter()
            .find_map(|at| mutants[*at].function.as_ref().filter(|function| function.span.start == start))
        else {
            bail!("{start:?}: a function without its span");
        };
        let whole = offset(text, function.span.start)..offset(text, function.span.end);
        let open = whole.start + text[whole.clone()].find('{').context("a function without a body")?;
        if text[whole.start..open].contains("const fn") {
            constant.extend(list);
            continue;
        }
        let body = open..whole.end;
        out += &text[done..open];
        let number = u32::try_from(list[0] + 1).context("too many breaks")?;
        out += &format!("{{ match crate::mutant_number::number({number}) {{\n");
        for at in list {
            let from = lines.count(&out);
            let code = broken(text, body.clone(), &mutants[at])?;
            out += &format!("{} => {code}\n", at + 1);
            arms.push(Arm { lines: from..lines.count(&out), mutant: Some(at), function: start, number });
        }
        let from = lines.count(&out);
        out += &format!("_ => {}\n", &text[body.clone()]);
        arms.push(Arm { lines: from..lines.count(&out), mutant: None, function: start, number });
        out += "} }";
        done = body.end;
    }
    out += &text[done..];
    Ok((out, arms, constant))
}

/// Where the outermost function around a break begins.
fn outermost(mutants: &[Mutant], mutant: &Mutant) -> Option<Place> {
    let own = mutant.function.as_ref()?.span;
    let around = mutants.iter().filter(|other| other.file == mutant.file);
    around
        .filter_map(|other| other.function.as_ref())
        .filter(|other| other.span.start <= own.start && own.end <= other.span.end)
        .map(|other| other.span.start)
        .min()
}

/// The piece of the text with the break in it.
fn broken(text: &str, piece: Range<usize>, mutant: &Mutant) -> Result<String> {
    let (start, end) = (offset(text, mutant.span.start), offset(text, mutant.span.end));
    if start < piece.start || piece.end < end {
        bail!("{}: lies outside of its function", mutant.name);
    }
    Ok(format!("{} {} {}", &text[piece.start..start], mutant.replacement, &text[end..piece.end]))
}

fn offset(text: &str, place: Place) -> usize {
    let line: usize = text.split_inclusive('\n').take(place.line - 1).map(str::len).sum();
    let columns = text[line..].char_indices().map(|(at, _)| at).chain([text.len() - line]);
    line + columns.take(place.column).last().unwrap_or(0)
}

/// Puts what tells the number at the end of the room's lib.rs, and of each test that has source files in it.
fn add_module(room: &str, files: &mut HashMap<String, String>) -> Result<()> {
    let path = format!("{room}/src/lib.rs");
    let text = match files.remove(&path) {
        Some(text) => text,
        None => std::fs::read_to_string(root().join(&path)).with_context(|| format!("cannot read {path}"))?,
    };
    files.insert(path, format!("{ALLOW}{text}{MODULE}"));
    // A test that takes a source file as a module of its own is the root of that module.
    for entry in std::fs::read_dir(root().join(room).join("tests")).into_iter().flatten() {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            let text =
                std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            if text.contains("#[path = \"../src/") {
                let file = path.strip_prefix(root()).unwrap_or(&path).to_string_lossy().into_owned();
                files.insert(file, text + MODULE);
            }
        }
    }
    // A function with dozens of breaks in it, copied to where it is called, would never be built.
    for text in files.values_mut() {
        *text =
            text.replace("#[inline(always)]", "#[inline(never)]").replace("#[inline]", "#[inline(never)]");
    }
    Ok(())
}

/// Counts lines from 1 as a text grows.
#[derive(Default)]
struct Lines {
    seen: usize,
    count: usize,
}

impl Lines {
    /// The line that comes next in the text.
    fn count(&mut self, text: &str) -> usize {
        self.count += text[self.seen..].matches('\n').count();
        self.seen = text.len();
        self.count + 1
    }
}

#[cfg(test)]
mod tests {
    use super::super::list::{Function, Mutant, Place, Span};
    use super::{Way, broken, offset, write};

    fn span(from: (usize, usize), to: (usize, usize)) -> Span {
        let place = |(line, column)| Place { line, column };
        Span { start: place(from), end: place(to) }
    }

    fn mutant(at: Span, replacement: &str, function: Span) -> Mutant {
        Mutant {
            file: "a.rs".to_owned(),
            name: String::new(),
            replacement: replacement.to_owned(),
            span: at,
            function: Some(Function { return_type: String::new(), span: function }),
        }
    }

    #[test]
    fn places_count_characters() {
        let text = "é\naéb\n";
        assert_eq!(offset(text, Place { line: 1, column: 1 }), 0);
        assert_eq!(offset(text, Place { line: 1, column: 2 }), 2);
        assert_eq!(offset(text, Place { line: 2, column: 3 }), 6);
        assert_eq!(&text[offset(text, Place { line: 2, column: 3 })..], "b\n");
    }

    #[test]
    fn a_function_holds_its_breaks_beside_itself() {
        let text = "fn f() -> bool {\n    1 < 2\n}\nconst fn g() -> u8 { 1 + 1 }\n";
        let f = span((1, 1), (3, 2));
        let mutants = [
            mutant(span((2, 5), (2, 10)), "true", f),
            mutant(span((2, 7), (2, 8)), ">", f),
            mutant(span((4, 24), (4, 25)), "-", span((4, 1), (4, 29))),
        ];
        assert_eq!(broken(text, 0..text.len(), &mutants[1]).unwrap().lines().nth(1), Some("    1  >  2"));
        let (written, arms, constant) = write(text, &[0, 1, 2], &mutants, &[Way::Together; 3]).unwrap();
        let expected = "fn f() -> bool { match crate::mutant_number::number(1) {\n1 => {\n     true \n}\n2 => {\n    1  >  2\n}\n\
                        _ => {\n    1 < 2\n}\n} }\nconst fn g() -> u8 { 1 + 1 }\n";
        assert_eq!(written, expected);
        let found: Vec<_> = arms.iter().map(|arm| (arm.lines.clone(), arm.mutant)).collect();
        assert_eq!(found, [(2..5, Some(0)), (5..8, Some(1)), (8..11, None)]);
        assert_eq!(constant, [2], "what is evaluated at build time cannot ask for a number");
    }

    #[test]
    fn what_lies_in_an_inner_function_is_broken_in_the_outer_one() {
        let text = "fn f() {\n    fn g() { 1 + 1 }\n    2 + 2\n}\n";
        let (f, g) = (span((1, 1), (4, 2)), span((2, 5), (2, 21)));
        let mutants = [mutant(span((3, 7), (3, 8)), "-", f), mutant(span((2, 16), (2, 17)), "*", g)];
        let (written, arms, _) = write(text, &[0, 1], &mutants, &[Way::Together; 2]).unwrap();
        assert_eq!(arms.len(), 3);
        assert_eq!(written.matches("mutant_number").count(), 1);
        assert!(written.contains("1  *  1") && written.contains("2  -  2"));
    }
}
