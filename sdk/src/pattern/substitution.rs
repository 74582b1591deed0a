//! hot path
//!
//! Replacing matches in a text as long as an upstream likes, slice by slice: a worker does nothing else while it
//! searches, so whoever replaces gives way between slices ([`crate::World::give_way`]).

use model::Invalid;

use super::groups::Threads;
use super::scan::{Caches, Found, Place, Scanner};
use super::{Captures, Engine, Pattern, Replacement, Spent, Unreplaced, earlier};

/// The steps of a search until others have their turn: about a millisecond.
#[derive(Debug)]
pub struct Slice(usize);

/// Bytes that are read, in a slice.
const SLICE: usize = 256 << 10;
/// What a match costs beside its bytes.
const MATCH: usize = 64;
/// What a byte costs where a pattern looks around.
const BACKTRACKING: usize = 16;

/// A pattern and what stands in the place of its matches.
#[derive(Debug)]
pub struct Substitution {
    pattern: Pattern,
    replacement: Replacement,
    global: bool,
    /// None for a pattern that is searched for in one go.
    scanner: Option<Scanner>,
}

/// How far the matches of one text are replaced.
#[derive(Debug, Default)]
pub struct Progress {
    /// What is written of the new text.
    out: Vec<u8>,
    /// So much of the old text is in it.
    copied: usize,
    from: usize,
    count: usize,
    place: Place,
    /// What was found in the whole text, while it is searched without its last newline.
    whole: Option<Option<(usize, usize)>>,
    caches: Option<Box<Caches>>,
    /// A match whose groups are being found, and whether that is in the text without its last newline.
    grouped: Option<((usize, usize), bool)>,
    threads: Option<Box<Threads>>,
}

impl Default for Slice {
    fn default() -> Slice {
        Slice(SLICE)
    }
}

impl Slice {
    #[cfg(test)]
    pub(super) fn of(steps: usize) -> Slice {
        Slice(steps)
    }

    pub(super) fn left(&self) -> usize {
        self.0
    }

    pub(super) fn spend(&mut self, steps: usize) {
        self.0 = self.0.saturating_sub(steps);
    }

    fn is_over(&self) -> bool {
        self.0 == 0
    }
}

impl Progress {
    /// The memory of what is written, and of what the search keeps.
    pub fn held(&self) -> usize {
        let caches = self.caches.as_ref().map_or(0, |caches| caches.held());
        let threads = self.threads.as_ref().map_or(0, |threads| threads.held());
        [self.out.capacity(), caches, threads].into_iter().sum()
    }

    /// The new text, once it is whole; none if it is the old one, in which nothing was replaced.
    pub fn into_text(self) -> Option<Vec<u8>> {
        (self.count > 0).then_some(self.out)
    }
}

impl Substitution {
    /// All matches are replaced, or the first.
    ///
    /// # Errors
    /// The pattern or the replacement cannot be read, or the pattern is too large.
    pub fn new(
        pattern: &str,
        case_insensitive: bool,
        replacement: &str,
        global: bool,
    ) -> Result<Substitution, Invalid> {
        let (source, pattern) = (pattern, Pattern::new(pattern, case_insensitive)?);
        let replacement = Replacement::parse(replacement)?;
        let scanner = match &pattern.engine {
            Engine::Linear(_) => {
                Scanner::new(source, case_insensitive, replacement.max_group().unwrap_or(0) > 0)
            }
            Engine::Backtracking(..) => None,
        };
        Ok(Substitution { pattern, replacement, global, scanner })
    }

    /// Goes on replacing in this text, which is the same each time. None if the slice is used up before all is done;
    /// else how many matches were replaced. The new text may be so many bytes long; where nothing is
    /// replaced, there is none.
    ///
    /// # Errors
    /// As [`Unreplaced`] says.
    pub fn go_on(
        &self,
        progress: &mut Progress,
        text: &[u8],
        most: usize,
        slice: &mut Slice,
    ) -> Option<Result<usize, Unreplaced>> {
        let mut spent = false;
        while progress.from <= text.len() && (self.global || progress.count == 0) {
            if slice.is_over() {
                return None;
            }
            let captures = match self.search(progress, text, slice) {
                Ok(found) => found?,
                Err(Spent) => {
                    spent = true;
                    None
                }
            };
            let Some(captures) = captures else { break };
            slice.spend(MATCH);
            let (start, end) = captures.whole();
            let before = &text[progress.copied..start];
            if progress.out.len() + before.len() + self.replacement.len(&captures) > most {
                return Some(Err(Unreplaced::TooLong));
            }
            if progress.count == 0 {
                progress.out.reserve_exact(text.len());
            }
            progress.out.extend_from_slice(before);
            self.replacement.expand(&captures, &mut progress.out);
            progress.count += 1;
            progress.copied = end;
            // An empty match must not be found again at the same place.
            progress.from = if end == start { end + 1 } else { end };
        }
        let outcome = if spent { Err(Unreplaced::Spent) } else { Ok(progress.count) };
        if progress.count == 0 {
            return Some(outcome);
        }
        let rest = &text[progress.copied..];
        if progress.out.len() + rest.len() > most {
            return Some(Err(Unreplaced::TooLong));
        }
        progress.out.extend_from_slice(rest);
        Some(outcome)
    }

    /// Goes on with the search for the next match; none within none if the slice is used up.
    fn search<'t>(
        &self,
        progress: &mut Progress,
        text: &'t [u8],
        slice: &mut Slice,
    ) -> Result<Option<Option<Captures<'t>>>, Spent> {
        let Some(scanner) = &self.scanner else { return self.in_one_go(progress, text, slice).map(Some) };
        if progress.caches.is_none() {
            let found = self.at_once(scanner, progress.from, text, slice);
            if found.is_some() {
                return Ok(found);
            }
        }
        let before = self.pattern.before_newline(text).filter(|before| progress.from <= before.len());
        if progress.grouped.is_none() {
            let Some(found) = self.find(scanner, progress, text, before, slice)? else { return Ok(None) };
            let Some(found) = found else { return Ok(Some(None)) };
            progress.grouped = Some(found);
        }
        let Some((whole, is_before)) = progress.grouped else { return Ok(None) };
        let within = before.filter(|_| is_before).unwrap_or(text);
        let Some(groups) = scanner.groups(&mut progress.threads, within, whole, slice) else {
            return Ok(None);
        };
        (progress.grouped, progress.threads) = (None, None);
        Ok(Some(Some(Captures { text, groups })))
    }

    /// Goes on to the place of the next match, and whether it is one in the text without its last newline.
    #[expect(clippy::type_complexity, reason = "not yet, none, or a match")]
    fn find(
        &self,
        scanner: &Scanner,
        progress: &mut Progress,
        text: &[u8],
        before: Option<&[u8]>,
        slice: &mut Slice,
    ) -> Result<Option<Option<((usize, usize), bool)>>, Spent> {
        let Progress { from, place, whole, caches, .. } = progress;
        let caches = caches.get_or_insert_with(|| Box::new(scanner.caches()));
        let first = match *whole {
            Some(first) => first,
            None => {
                let Some(Found { whole: first, read }) = scanner.find(caches, place, text, *from, slice)?
                else {
                    return Ok(None);
                };
                *place = Place::Begin;
                // Where the last newline was not seen, a search without it would be the same.
                if before.is_some_and(|before| read >= before.len()) {
                    *whole = Some(first);
                }
                first
            }
        };
        let mut found = first.map(|first| (first, false));
        if let (Some(before), true) = (before, whole.is_some()) {
            let Some(second) = scanner.find(caches, place, before, *from, slice)? else { return Ok(None) };
            (*place, *whole) = (Place::Begin, None);
            if earlier(first, second.whole) != first {
                found = second.whole.map(|second| (second, true));
            }
        }
        Ok(Some(found))
    }

    /// The same for a text that is so short that a search of all of it is within the slice, at worst: `regex` keeps
    /// what it finds out about states from text to text, which costs less than to find it out for each. None if the
    /// text is too long for that.
    fn at_once<'t>(
        &self,
        scanner: &Scanner,
        from: usize,
        text: &'t [u8],
        slice: &mut Slice,
    ) -> Option<Option<Captures<'t>>> {
        let searches = 1 + usize::from(self.pattern.ends);
        let steps = scanner.steps(text.len() - from + 1).saturating_mul(searches);
        if steps.saturating_mul(1 + usize::from(scanner.finds_groups())) > slice.left() {
            return None;
        }
        slice.spend(steps);
        if !scanner.finds_groups() {
            let found = self.pattern.find_from(text, from);
            return Some(found.map(|whole| Captures { text, groups: [Some(whole)].into_iter().collect() }));
        }
        let found = self.pattern.captures_from(text, from).ok()?;
        if let Some((start, end)) = found.as_ref().map(Captures::whole) {
            slice.spend(scanner.steps(end - start));
        }
        Some(found)
    }

    /// The same for a pattern that looks around.
    fn in_one_go<'t>(
        &self,
        progress: &Progress,
        text: &'t [u8],
        slice: &mut Slice,
    ) -> Result<Option<Captures<'t>>, Spent> {
        let captures = self.pattern.captures_of_answer(text, progress.from);
        // How much was read on the way is not known.
        let read = match &captures {
            Ok(Some(captures)) if !self.pattern.may_read_far() => {
                (captures.whole().1 - progress.from).saturating_mul(BACKTRACKING)
            }
            _ => slice.left(),
        };
        slice.spend(read);
        captures
    }
}

#[cfg(test)]
mod tests {
    use model::lookaround::{ANYWHERE, AT_BEGIN, BACK_AND_FORTH};

    use super::super::scan::CACHE;
    use super::*;

    /// What comes of a text, with slices of so many steps, and the new text as far as it is written; and how many
    /// slices that took.
    fn sliced(
        (pattern, replacement, global): (&str, &str, bool),
        text: &[u8],
        most: usize,
        slice: usize,
    ) -> (Result<usize, Unreplaced>, Vec<u8>, usize) {
        let substitution = Substitution::new(pattern, false, replacement, global).unwrap();
        let mut progress = Progress::default();
        for slices in 1.. {
            if let Some(outcome) = substitution.go_on(&mut progress, text, most, &mut Slice(slice)) {
                assert!(progress.count > 0 || progress.out.capacity() == 0);
                let out = match outcome {
                    Err(Unreplaced::TooLong) => progress.out,
                    _ => progress.into_text().unwrap_or_else(|| text.to_vec()),
                };
                return (outcome, out, slices);
            }
        }
        unreachable!("it came to no end");
    }

    /// The same in as few slices as it takes.
    fn replace(what: (&str, &str, bool), text: &[u8], most: usize) -> (Result<usize, Unreplaced>, Vec<u8>) {
        let (outcome, out, _) = sliced(what, text, most, SLICE);
        (outcome, out)
    }

    /// With the first match and with all of them replaced.
    fn replaced(pattern: &str, template: &str, text: &str) -> [String; 2] {
        [false, true].map(|global| {
            let (outcome, out) = replace((pattern, template, global), text.as_bytes(), usize::MAX);
            outcome.unwrap();
            String::from_utf8(out).unwrap()
        })
    }

    #[test]
    fn all_matches_are_counted() {
        for (text, count) in [("axbxcx", 3), ("x", 1), ("abc", 0)] {
            assert_eq!(replace(("x", "-", true), text.as_bytes(), 6).0, Ok(count), "{text}");
        }
    }

    #[test]
    fn what_would_be_too_long_is_not_made() {
        for (text, most, made) in
            [("axx", 11, true), ("axx", 10, false), ("xaaa", 8, true), ("xaaa", 7, false), ("aaaa", 3, true)]
        {
            assert_eq!(
                replace(("x", "-----", true), text.as_bytes(), most).0.is_ok(),
                made,
                "{text}, {most}"
            );
        }
        let (outcome, out) = replace(("x", "-----", true), &[b'x'; 10_000], 100);
        assert_eq!(outcome, Err(Unreplaced::TooLong));
        assert!(out.len() < 110, "{} bytes", out.len());
        // One match may be the whole text, many times.
        for (most, made) in [(33, true), (32, false), (31, false)] {
            for global in [false, true] {
                let (outcome, out) = replace(("x+", "$0$0-$0", global), b"axxxxxxxxxxb", most);
                assert_eq!(outcome, if made { Ok(1) } else { Err(Unreplaced::TooLong) }, "{most}");
                assert!(most > 31 || out.len() < 2, "{out:?}");
            }
        }
        assert_eq!(replace(("x+", "-", false), b"ab", 2).0, Ok(0));
    }

    #[test]
    fn what_a_search_without_an_end_leaves_is_as_it_was() {
        let pattern = r"a(?=b)|x(y|y)*(?=b)\1$";
        let text = [b"ab ".as_slice(), b"x", &[b'y'; 4000]].concat();
        let rest = &text[1..];
        let (outcome, out) = replace((pattern, "-", true), &text, usize::MAX);
        assert_eq!((outcome, out), (Err(Unreplaced::Spent), [b"-", rest].concat()));
        let (outcome, out) = replace((pattern, "-", false), rest, usize::MAX);
        assert_eq!((outcome, &*out), (Err(Unreplaced::Spent), rest));
    }

    #[test]
    fn an_end_holds_before_the_last_newline() {
        for (pattern, text, all) in [
            (r"\w\S+$", "hello world\n", "hello *\n"),
            (r"\w\S+$", "hello world", "hello *"),
            (r"world\s*$", "hello world\n", "hello *"),
            ("b$", "ab\n\n", "ab\n\n"),
            ("b$", "b\nb\n", "b\n*\n"),
            ("$", "a\n", "a*\n*"),
            ("$|a", "a\n", "**\n*"),
            (r"b\z", "ab\n", "ab\n"),
            (r"b$|b\z", "ab\n", "ab\n"),
            (r"b\$", "ab\n", "ab\n"),
            ("[]$]", "a$\n", "a*\n"),
            ("[^]a]$", "ab\n", "a**"),
            ("(?m)b$", "b\nb\n", "*\n*\n"),
            ("(?x) b # not [\n $", "ab\n", "a*\n"),
        ] {
            assert_eq!(replaced(pattern, "*", text)[1], all, "{pattern} in {text:?}");
            let (pattern, found) = (Pattern::new(pattern, false).unwrap(), all.contains('*'));
            assert_eq!(pattern.is_match(text.as_bytes()), found, "{pattern:?} in {text:?}");
        }
    }

    #[test]
    fn an_answer_in_which_every_step_may_read_far_is_searched_if_it_is_short() {
        for (pattern, longest) in [
            ("^(?=a)a", usize::MAX),
            ("(?<=a)b", AT_BEGIN),
            ("(?=.*b)a", ANYWHERE),
            (".*(?=.*b).*a", BACK_AND_FORTH),
        ] {
            // The match is near its beginning.
            let made = |length: usize| {
                let text = [b"ab", &*vec![b'\n'; length - 2]].concat();
                let [first, all] =
                    [false, true].map(|global| replace((pattern, "-", global), &text, usize::MAX).0);
                assert_eq!(first.is_ok(), all.is_ok(), "{pattern:?}, {length}");
                all
            };
            match longest {
                usize::MAX => assert_eq!(made(1 << 20), Ok(1), "{pattern:?}"),
                longest => {
                    assert!(made(longest).is_ok(), "{pattern:?}");
                    assert_eq!(made(longest + 1), Err(Unreplaced::Spent), "{pattern:?}");
                }
            }
        }
    }

    #[test]
    fn groups_stand_in_what_is_put_in_place() {
        assert_eq!(replaced("(b)|(c)", "[$1$2]", "abc"), ["a[b]c", "a[b][c]"]);
        assert_eq!(replaced("x*", "-", "axb")[1], "-a--b-");
        assert_eq!(replaced("(?<!a)b", "$0$0", "abb")[1], "abbb");
        assert_eq!(replaced("^/no$", "/x", "/yes")[0], "/yes");
        assert_eq!(replaced("^/a/(.*)/b/(.*)", "/$2/${1}0$$", "/a/x/b/y")[0], "/y/x0$");
    }

    /// As `regex` does it, in one go.
    fn expected(pattern: &str, replacement: &str, text: &[u8]) -> (usize, Vec<u8>) {
        let (pattern, replacement) =
            (Pattern::new(pattern, false).unwrap(), Replacement::parse(replacement).unwrap());
        let (mut out, mut count, mut copied, mut from) = (Vec::new(), 0, 0, 0);
        while from <= text.len() {
            let Some(captures) = pattern.captures_from(text, from).unwrap() else { break };
            let (start, end) = captures.whole();
            out.extend_from_slice(&text[copied..start]);
            replacement.expand(&captures, &mut out);
            (copied, count, from) = (end, count + 1, end + usize::from(start == end));
        }
        out.extend_from_slice(&text[copied..]);
        (count, out)
    }

    #[test]
    fn slices_make_no_difference_to_what_is_found() {
        let patterns = [
            "a",
            "ab",
            "a|ab",
            "ab|a",
            "a*",
            "a*?",
            "a+b",
            "(a)(b)?",
            "a.*b",
            "a.*?b",
            "(a.*c)|(b)",
            "^a",
            "^",
            "$",
            "a$",
            "(a|b)*$",
            r"\ba",
            r"b\b",
            r"\b",
            r"\B",
            "(?m)^a",
            "(?m)b$",
            "(?m)^",
            "a\nb",
            "[^a]",
            "(?s).",
            ".",
            "",
            "(?i)AB",
            "bab|aba",
            "(?:a|(b))+",
            "c(a*)(b*)",
            "^(.*)b",
            r"(\w+)\s",
            "a{2,3}",
            r"\x80",
            "é",
            "b$|a",
            r"b\z|a",
            "a.{3}c",
            "b{1,4}(a{2}|c{1,2})?",
            "(?:(a){1,3}|(b){2}){2}",
            "(a|ab){2,5}?(c{0,2})",
            r"^(\w{1,3}\s?){2,}$",
        ];
        let mut random = fastrand::Rng::with_seed(7);
        for round in 0..60 {
            let length = random.usize(0..40);
            let mut text: Vec<u8> =
                (0..length).map(|_| *random.choice(b"aaabbbbcc \n\x80").unwrap()).collect();
            if round % 3 == 0 {
                text.push(b'\n');
            }
            for pattern in patterns {
                for replacement in ["-", "<$1|$2>"] {
                    let (count, out) = expected(pattern, replacement, &text);
                    for slice in [1, 3, SLICE] {
                        let found = sliced((pattern, replacement, true), &text, usize::MAX, slice);
                        assert_eq!(
                            (found.0, &found.1),
                            (Ok(count), &out),
                            "{pattern} in {:?}",
                            text.escape_ascii()
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn nothing_is_prepared_for_a_short_text() {
        let page = "hello from behind the gateway\n".repeat(30);
        let prepared = |pattern, replacement, text: &str| {
            let substitution = Substitution::new(pattern, false, replacement, true).unwrap();
            let mut progress = Progress::default();
            let outcome =
                substitution.go_on(&mut progress, text.as_bytes(), usize::MAX, &mut Slice::default());
            assert!(outcome.is_none_or(|outcome| outcome.is_ok()), "{pattern}");
            progress.caches.is_some()
        };
        for (pattern, replacement) in
            [("absent", "-"), ("behind", "afar"), (r"(\w+) the", "$1 a"), ("y\n$", "y"), ("a.{50}c", "-")]
        {
            let page = if replacement == "$1 a" { &page[..300] } else { &page };
            assert!(!prepared(pattern, replacement, page), "{pattern}");
        }
        // What might take longer than a slice is, be it the text or the searches of all matches.
        for (pattern, text) in
            [("absent", page.repeat(100)), ("a.{1000}c", page.clone()), ("a", "a".repeat(4096))]
        {
            assert!(prepared(pattern, "-", &text), "{pattern}");
        }
    }

    #[test]
    fn states_that_have_to_be_made_count() {
        let mut random = fastrand::Rng::with_seed(7);
        let text: Vec<u8> = (0..SLICE / 16).map(|_| *random.choice(b"ab").unwrap()).collect();
        let slices = |pattern, text: &[u8]| sliced((pattern, "-", true), text, usize::MAX, SLICE).2;
        // Hardly a state comes twice, and each costs more the longer the pattern is.
        for (pattern, least) in [("a.{50}c", 4), ("a.{100}c", 8), ("a.{1000}c", 64)] {
            let slices = slices(pattern, &text);
            assert!((least..8 * least).contains(&slices), "{pattern}: {slices}");
        }
        // Backwards, too, where a pattern that takes few states forwards may take many.
        let match_at = [&text[..30], b"a", &text[31..], b"d"].concat();
        for (pattern, text, many) in
            [("(?m)^[ab]{30}a[ab]*d", &match_at, true), ("(?m)^[ab]{30}c[ab]*d", &match_at, false)]
        {
            let slices = slices(pattern, text);
            assert_eq!(slices > 4, many, "{pattern}: {slices}");
        }
        // States that are known cost nothing.
        for pattern in ["c", "[ab]c", "a[ab]{2}c"] {
            assert_eq!(slices(pattern, &text), 1, "{pattern}");
        }
    }

    #[test]
    fn what_a_search_keeps_is_counted_and_bounded() {
        let mut random = fastrand::Rng::with_seed(7);
        let text: Vec<u8> = (0..SLICE).map(|_| *random.choice(b"<ab").unwrap()).collect();
        let held = |pattern, replacement, text: &[u8]| {
            let substitution = Substitution::new(pattern, false, replacement, true).unwrap();
            let (mut progress, mut most) = (Progress::default(), 0);
            while substitution.go_on(&mut progress, text, usize::MAX, &mut Slice(SLICE)).is_none() {
                most = most.max(progress.held() - progress.out.capacity());
            }
            most
        };
        for (pattern, least) in [("<[^>]{0,200}>", CACHE / 2), ("b[^>]{0,20}>", 1000)] {
            let held = held(pattern, "-", &text[..SLICE / 8]);
            assert!((least..=3 * CACHE).contains(&held), "{pattern}: {held}");
        }
        // The places of groups, for each state.
        let (few, many) = (held("(?s)<(.*)b", "$1", &text), held("(?s)<(.*)(.{0,100}b)", "$1", &text));
        assert!(many > few + 100 * 6 * size_of::<usize>(), "{few}, {many}");
    }

    #[test]
    fn a_search_stops_when_its_slice_is_used_up() {
        let text = vec![b'b'; 16 * SLICE];
        let slices = |pattern, replacement, text: &[u8]| {
            sliced((pattern, replacement, true), text, usize::MAX, SLICE).2
        };
        // One search that finds nothing, forwards; one whose match is the text, forwards and backwards.
        for (pattern, least) in [("a", 16), ("ca", 16), ("[ac]b*|cb", 16), ("b+", 32)] {
            let slices = slices(pattern, "-", &text);
            assert!((least..=least + 2).contains(&slices), "{pattern}: {slices}");
        }
        // Where a match can only be at the beginning, no more is read.
        for pattern in ["^abc", r"\Aabc|^bca", "^bbc"] {
            let mut slice = Slice(SLICE);
            let substitution = Substitution::new(pattern, false, "-", true).unwrap();
            assert_eq!(
                substitution.go_on(&mut Progress::default(), &text, usize::MAX, &mut slice),
                Some(Ok(0))
            );
            assert!(slice.left() > SLICE - 1000, "{pattern}: {} steps left", slice.left());
        }
        // A match costs more than its bytes, and most where it is looked at again for its groups.
        assert!(slices("b", "-", &text[..SLICE]) > MATCH);
        assert_eq!(slices("[b]+", "$0", &text[..SLICE / 4]), 1);
        // One whose groups are looked for is not left to the end, however long it is, nor what is tried in vain.
        for pattern in ["(b+)", "(?s)b(.*)b", "(?s)((?:b|bc|.)*)b"] {
            let (short, long) =
                (slices(pattern, "$1", &text[..SLICE / 4]), slices(pattern, "$1", &text[..SLICE]));
            assert!(
                (2..20).contains(&short) && (4 * short - 4..=4 * short + 2).contains(&long),
                "{pattern}: {short}, {long}"
            );
        }
        // What is read in vain behind a match counts: each costs the rest of the text.
        assert!(slices("b.*c|b", "-", &text[..4096]) >= 4096 * 4096 / 2 / SLICE);
        // With what looks around, others have their turn after each search.
        assert_eq!(slices("(?=b.*)b", "-", &text[..100]), 101);
        assert_eq!(slices("(?<=b)b", "-", &text[..100]), 1);
        // A pattern that is searched for in one go is left after each match.
        assert_eq!(slices(r"(?u:\b)b", "-", b"b b b"), 4);
    }

    #[test]
    fn a_short_text_is_searched_at_once_if_the_slice_lasts_for_it() {
        for (pattern, replacement, from, times) in
            [("b", "-", 0, 1), ("b", "-", 2, 1), ("b$", "-", 2, 2), ("(b)", "$1", 2, 1), ("(b)$", "$1", 0, 2)]
        {
            let substitution = Substitution::new(pattern, false, replacement, true).unwrap();
            let scanner = substitution.scanner.as_ref().unwrap();
            let text = b"aaaab";
            // As if every state were looked at before and behind every byte; with groups the match is looked at again.
            let search = times * scanner.steps(text.len() - from + 1);
            let (needed, spent) =
                if replacement == "-" { (search, search) } else { (2 * search, search + scanner.steps(1)) };
            let mut slice = Slice(needed);
            let found = substitution.at_once(scanner, from, text, &mut slice).unwrap().unwrap();
            assert_eq!(found.whole(), (4, 5), "{pattern}");
            assert_eq!(needed - slice.left(), spent, "{pattern}, {from}");
            let mut slice = Slice(needed - 1);
            assert!(substitution.at_once(scanner, from, text, &mut slice).is_none(), "{pattern}, {from}");
            assert_eq!(slice.left(), needed - 1, "{pattern}, {from}");
        }
    }

    #[test]
    fn what_looks_around_spends_what_it_read_from_its_place_on() {
        let substitution = Substitution::new("(?<=b)b", false, "-", true).unwrap();
        let (progress, mut slice) = (Progress { from: 2, ..Progress::default() }, Slice(SLICE));
        let found = substitution.in_one_go(&progress, b"bbbaabb", &mut slice).unwrap().unwrap();
        assert_eq!((found.whole(), SLICE - slice.left()), ((2, 3), BACKTRACKING));
    }

    #[test]
    fn a_new_text_that_is_no_longer_takes_no_more_room() {
        let text = [&[b'a'; 49], b"x".as_slice(), &[b'a'; 50]].concat();
        let substitution = Substitution::new("x", false, "-", true).unwrap();
        let mut progress = Progress::default();
        assert_eq!(substitution.go_on(&mut progress, &text, 100, &mut Slice(SLICE)), Some(Ok(1)));
        assert_eq!(progress.out.capacity(), 100);
    }
}
