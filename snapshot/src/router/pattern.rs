//! hot path
//!
//! Path patterns: the literal prefix, and the check of the variable rest.

use std::cell::OnceCell;
use std::sync::{Arc, LazyLock};

use sdk::engine::Matched;
use smallvec::SmallVec;
use wire::Span;

use super::Mode;

/// A parsed path of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pattern<'a> {
    /// A path without variable parts.
    Exact(&'a str),
    /// A literal prefix, and the check of the rest.
    Prefix(&'a str, Rest),
}

/// The check of the text after a pattern's literal prefix; by default anything matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rest(Option<Arc<Varying>>);

#[derive(Debug, PartialEq, Eq)]
enum Varying {
    /// Anything; captured under this name.
    Tail(Box<str>),
    Segments(Segments),
}

/// Shared by the most frequent patterns, which end in a plain `*`: it stays cached.
static EXT: LazyLock<Arc<Varying>> = LazyLock::new(|| Arc::new(Varying::Tail(rest_name(""))));

/// A pattern split into segments. The groups of pieces surround the `*` ones; there is always one
/// group more than there are `*`.
#[derive(Debug, PartialEq, Eq)]
struct Segments {
    groups: Vec<Vec<Piece>>,
    /// Names of the `*` pieces, each of which matches one or more whole segments.
    rests: Vec<Box<str>>,
}

#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Literal(Box<[u8]>),
    /// `v*` within a pattern that also has parameters: a segment with this prefix.
    Begins(Box<[u8]>),
    /// `:name`: one non-empty segment.
    One(Arc<str>),
}

impl<'a> Pattern<'a> {
    /// Only [`Mode::UriWithParameter`] gives `:` a meaning.
    pub(super) fn parse(path: &'a str, mode: Mode) -> Pattern<'a> {
        let varies = |c: char| c == '*' || (c == ':' && mode == Mode::UriWithParameter);
        match path.find(varies) {
            None => Pattern::Exact(path),
            Some(at) => Pattern::Prefix(&path[..at], Rest::parse(path, at, mode)),
        }
    }
}

impl Rest {
    pub(super) const ANY: Rest = Rest(None);

    fn parse(path: &str, at: usize, mode: Mode) -> Rest {
        let parameters = mode == Mode::UriWithParameter;
        let is_variable =
            |segment: &str| segment.starts_with('*') || (parameters && segment.starts_with(':'));
        if !path.split('/').any(is_variable) {
            return Rest::ANY;
        }
        // `/foo/*` and `/foo/*rest`, by far the most common.
        if let Some(name) = path[at..].strip_prefix('*')
            && !name.contains('/')
        {
            return Rest(Some(match name {
                "" => EXT.clone(),
                name => Arc::new(Varying::Tail(rest_name(name))),
            }));
        }
        let mut segments = Segments { groups: vec![Vec::new()], rests: Vec::new() };
        for segment in path.split('/') {
            let piece = match segment.as_bytes() {
                [b':', ..] if parameters => Piece::One(segment[1..].into()),
                [b'*', ..] => {
                    segments.rests.push(rest_name(&segment[1..]));
                    segments.groups.push(Vec::new());
                    continue;
                }
                _ => match segment.split_once('*') {
                    Some((stem, _)) => Piece::Begins(stem.as_bytes().into()),
                    None => Piece::Literal(segment.as_bytes().into()),
                },
            };
            // There is always a last group.
            if let Some(group) = segments.groups.last_mut() {
                group.push(piece);
            }
        }
        Rest(Some(Arc::new(Varying::Segments(segments))))
    }

    /// Whether any path with the literal prefix matches.
    pub(super) fn takes_all(&self) -> bool {
        !matches!(self.0.as_deref(), Some(Varying::Segments(_)))
    }

    /// Whether the path, which starts with the literal prefix of `prefix` bytes, matches as a
    /// whole. Captures are added to `params` with spans counted from `base`.
    #[inline]
    pub(super) fn matches<'s>(
        &'s self,
        path: &Cut<'_>,
        prefix: usize,
        base: u32,
        params: &mut Params<'s>,
    ) -> bool {
        match self.0.as_deref() {
            None => true,
            Some(Varying::Tail(name)) => {
                params.push((name, span(base, prefix, path.text.len())));
                true
            }
            Some(Varying::Segments(segments)) => segments.matches(path, base, params),
        }
    }
}

/// Captured parameters, as [`Matched`] holds them.
pub(super) type Params<'s> = SmallVec<[(&'s str, Span); 4]>;

/// Both must stay one type.
const _: fn(Matched<'static>) -> Params<'static> = |matched| matched.params;

/// An unnamed rest is `:ext` (lua-resty-radixtree).
fn rest_name(name: &str) -> Box<str> {
    if name.is_empty() { ":ext".into() } else { name.into() }
}

fn span(base: u32, from: usize, to: usize) -> Span {
    Span { start: base + from as u32, len: (to - from) as u32 }
}

/// A path split into segments. It is scanned when a pattern first needs it, once for all patterns
/// of a search: first for the number of segments, which excludes most patterns, and only for the
/// remaining ones for the positions. So a long path costs no more with many patterns than with one.
pub(super) struct Cut<'p> {
    text: &'p [u8],
    len: OnceCell<usize>,
    /// Where each segment starts; a path has less than 4 GiB.
    starts: OnceCell<SmallVec<[u32; 48]>>,
}

impl<'p> Cut<'p> {
    #[inline]
    pub(super) fn new(text: &'p [u8]) -> Cut<'p> {
        Cut { text, len: OnceCell::new(), starts: OnceCell::new() }
    }

    fn len(&self) -> usize {
        *self.len.get_or_init(|| {
            count_scan();
            1 + self.text.iter().filter(|byte| **byte == b'/').count()
        })
    }

    fn starts(&self) -> &[u32] {
        self.starts.get_or_init(|| {
            count_scan();
            let slashes = self.text.iter().enumerate().filter(|(_, byte)| **byte == b'/');
            let mut starts = SmallVec::with_capacity(self.len());
            starts.push(0);
            starts.extend(slashes.map(|(at, _)| at as u32 + 1));
            starts
        })
    }

    fn start(&self, index: usize) -> usize {
        self.starts()[index] as usize
    }

    fn end(&self, index: usize) -> usize {
        self.starts().get(index + 1).map_or(self.text.len(), |next| *next as usize - 1)
    }

    fn segment(&self, index: usize) -> &'p [u8] {
        &self.text[self.start(index)..self.end(index)]
    }

    fn span(&self, base: u32, from: usize, to: usize) -> Span {
        span(base, self.start(from), self.end(to - 1))
    }
}

/// Tests count the scans of a path.
#[inline]
fn count_scan() {
    #[cfg(test)]
    tests::SCANS.set(tests::SCANS.get() + 1);
}

impl Segments {
    /// Each `*` matches as much as possible, the first before the second and so on, as in the
    /// regular expression that lua-resty-radixtree generates. Placing the groups between them from
    /// the right, each as far right as it fits, gives the same result without trying combinations.
    fn matches<'s>(&'s self, cut: &Cut<'_>, base: u32, params: &mut Params<'s>) -> bool {
        let (first, last) = match &self.groups[..] {
            [only] => {
                return only.len() == cut.len() && fits(only, cut, 0) && {
                    capture(only, cut, 0, base, params);
                    true
                };
            }
            [first, .., last] => (first, last),
            [] => return false,
        };
        let left = first.len();
        if left + self.rests.len() + last.len() > cut.len() {
            return false;
        }
        let mut right = cut.len() - last.len();
        if !fits(first, cut, 0) || !fits(last, cut, right) {
            return false;
        }
        let before = params.len();
        capture(first, cut, 0, base, params);
        capture(last, cut, right, base, params);
        for (group, name) in self.groups[1..self.groups.len() - 1].iter().zip(&self.rests[1..]).rev() {
            // At least one segment for the `*` after the group and one for a `*` before it.
            let place =
                (left + 1..(right).saturating_sub(group.len())).rev().find(|&at| fits(group, cut, at));
            let Some(at) = place else {
                params.truncate(before);
                return false;
            };
            params.push((name, cut.span(base, at + group.len(), right)));
            capture(group, cut, at, base, params);
            right = at;
        }
        params.push((&self.rests[0], cut.span(base, left, right)));
        // In path order: among captures with the same name the last one applies.
        params[before..].sort_unstable_by_key(|(_, span)| span.start);
        true
    }
}

fn fits(group: &[Piece], cut: &Cut<'_>, at: usize) -> bool {
    group.iter().enumerate().all(|(i, piece)| {
        let segment = cut.segment(at + i);
        match piece {
            Piece::Literal(text) => **text == *segment,
            Piece::Begins(stem) => segment.starts_with(stem),
            Piece::One(_) => !segment.is_empty(),
        }
    })
}

fn capture<'s>(group: &'s [Piece], cut: &Cut<'_>, at: usize, base: u32, params: &mut Params<'s>) {
    for (i, piece) in group.iter().enumerate() {
        if let Piece::One(name) = piece {
            params.push((name, cut.span(base, at + i, at + i + 1)));
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// Counts the scans of a path.
        pub(in super::super) static SCANS: Cell<usize> = const { Cell::new(0) };
    }

    /// Captures by name in order of name, or `None` if the path does not match.
    fn matched(pattern: &str, path: &str, mode: Mode) -> Option<Vec<(String, String)>> {
        let Pattern::Prefix(prefix, rest) = Pattern::parse(pattern, mode) else {
            panic!("{pattern} is exact")
        };
        if !path.starts_with(prefix) {
            return None;
        }
        let mut params = Params::new();
        if !rest.matches(&Cut::new(path.as_bytes()), prefix.len(), 0, &mut params) {
            assert!(params.is_empty());
            return None;
        }
        let text = |span: Span| path[span.start as usize..][..span.len as usize].to_owned();
        let mut found: Vec<_> = params.iter().map(|(name, span)| (name.to_string(), text(*span))).collect();
        found.sort();
        Some(found)
    }

    #[test]
    fn patterns_match_as_in_radixtree() {
        use Mode::{Uri, UriWithParameter as Param};
        for (pattern, mode, path, expected) in [
            ("/foo*", Uri, "/foo", Some("")),
            ("/foo*", Uri, "/foobar/x", Some("")),
            ("/foo/*", Uri, "/foo/", Some(":ext=")),
            ("/foo/*", Uri, "/foo/a/b", Some(":ext=a/b")),
            ("/foo/*", Uri, "/foo", None),
            ("*", Uri, "/a", Some(":ext=/a")),
            ("/foo/*rest", Uri, "/foo/a/b", Some("rest=a/b")),
            ("/a/*/c", Uri, "/a/b/c", Some(":ext=b")),
            ("/a/*/c", Uri, "/a/b/x/c", Some(":ext=b/x")),
            ("/a/*/c", Uri, "/a//c", Some(":ext=")),
            ("/a/*/c", Uri, "/a/c", None),
            ("/a/*/c", Uri, "/a/b/c/d", None),
            ("/a/b*/c", Uri, "/a/bx", Some("")),
            ("/:a/*", Uri, "/:a/x", Some(":ext=x")),
            ("/:a/*", Uri, "/q/x", None),
            ("/name/:name", Param, "/name/json", Some("name=json")),
            ("/name/:name", Param, "/name/", None),
            ("/name/:name", Param, "/name/json/x", None),
            ("/name/:name/", Param, "/name/json/", Some("name=json")),
            ("/name/:name/", Param, "/name/json", None),
            ("/name/:name/id/:id", Param, "/name/json/id/1", Some("id=1 name=json")),
            ("/name/:name/id/:id", Param, "/name/json/id/", None),
            ("/name/:name/foo", Param, "/name/json/foo", Some("name=json")),
            ("/name/:name/foo", Param, "/name/json/bar", None),
            ("/name/:name/*tail", Param, "/name/json/a/b", Some("name=json tail=a/b")),
            ("/name/:name/*", Param, "/name/json/", Some(":ext= name=json")),
            ("/foo:bar", Param, "/foox", Some("")),
            ("/:x/v*", Param, "/a/v2", Some("x=a")),
            ("/:x/v*", Param, "/a/w", None),
            ("/a/*x/m/*y/n", Uri, "/a/1/m/2/m/3/n", Some("x=1/m/2 y=3")),
            ("/a/*x/*y", Uri, "/a/1/2/3", Some("x=1/2 y=3")),
            ("/a/*x/*y", Uri, "/a/1", None),
            ("/a/*x/m/*y/m/*z", Uri, "/a/m/m/m/m/m", Some("x=m y=m z=m")),
            ("/a/*x/m/*y/m/*z", Uri, "/a/m/m/m/m", None),
        ] {
            let found = matched(pattern, path, mode).map(|list| {
                list.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
            });
            assert_eq!(found.as_deref(), expected, "{pattern} on {path}");
        }
        assert_eq!(Pattern::parse("/a/:b", Uri), Pattern::Exact("/a/:b"));
        assert_eq!(Pattern::parse("/a/b", Param), Pattern::Exact("/a/b"));
    }

    #[test]
    fn many_stars_on_a_long_path_stay_cheap() {
        let pattern = format!("/a{}/z", "/*/b".repeat(20));
        let path = format!("/a{}", "/b".repeat(4_000));
        // A backtracking search would not finish.
        assert_eq!(matched(&pattern, &path, Mode::Uri), None);
    }
}
