//! How long a text a pattern with look-around may search.
//!
//! Such a pattern runs on an engine that tries it at one place after another, and what it looks ahead to may be all
//! that is left of the text each time: the time grows with the square of the text. One that can only match at the
//! beginning is tried there alone, but what stands before the look may still end at any place, as `.*` in
//! `^.*(?=.*[A-Z])`. Where both may vary, or two parts before the look, the time grows with the cube, up to what the
//! steps of a search allow.

/// Bytes of a text that is searched at its beginning only, and looked at from there.
pub const AT_BEGIN: usize = 64 << 10;
/// Bytes of a text that is searched, or looked at, at every place: a tenth of a second at worst. One of 64 KiB took
/// seconds.
pub const ANYWHERE: usize = 8 << 10;
/// Bytes of a text that is searched at every place, and looked at from every other each time: two tenths of a second
/// at worst.
pub const BACK_AND_FORTH: usize = 1 << 10;

/// How the time of a search grows with the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Growth {
    Linear,
    Square,
    Cube,
}

impl Growth {
    pub fn of(pattern: &str) -> Growth {
        let (reading, few) = Reading::of(pattern);
        let once = pattern
            .strip_prefix('^')
            .is_some_and(|rest| !matches!(rest.as_bytes(), [b'*' | b'?' | b'+' | b'{', ..]));
        match (once && !reading.alternates, few) {
            _ if reading.is_strange => Growth::Cube,
            (true, true) => Growth::Linear,
            (true, false) if reading.is_catastrophic => Growth::Cube,
            (true, false) | (false, true) => Growth::Square,
            (false, false) => Growth::Cube,
        }
    }

    /// The bytes of a text that such a pattern may search.
    pub fn longest_text(self) -> usize {
        match self {
            Growth::Linear => AT_BEGIN,
            Growth::Square => ANYWHERE,
            Growth::Cube => BACK_AND_FORTH,
        }
    }
}

/// The bytes of an upstream's text, such as a page, that such a pattern may search: all of it where it is tried at its
/// beginning only, and [`AT_BEGIN`] where no look reads far, as of `(?<=id=)\d+`. Then only a text that is made for it
/// costs more than its length, and an upstream is not a client.
pub fn longest_answer(pattern: &str) -> usize {
    let (reading, _) = Reading::of(pattern);
    match Growth::of(pattern) {
        Growth::Linear => usize::MAX,
        _ if !reading.looks_far && !reading.is_strange => AT_BEGIN,
        growth => growth.longest_text(),
    }
}

/// Whether a search may take more steps than there are bytes, also in a short text: a look, or a group that was taken,
/// stands behind two parts that repeat, such as `\d+-\d+(?!x)`, or behind one in another, such as `(\w+\s?)*(?<!x)`.
pub fn may_be_catastrophic(pattern: &str) -> bool {
    let (reading, _) = Reading::of(pattern);
    reading.is_catastrophic || reading.is_strange
}

/// A pattern, as far as it was read.
#[derive(Default)]
struct Reading<'p> {
    rest: &'p [u8],
    groups: Vec<Group>,
    /// The pattern itself.
    whole: Group,
    /// The group that has just ended.
    last: Option<Group>,
    now: Way,
    /// It has alternatives outside of all groups.
    alternates: bool,
    /// A look may read all that is left, or there is a group whose text is to follow once more.
    looks_far: bool,
    /// As [`may_be_catastrophic`] says.
    is_catastrophic: bool,
    /// There is something in it that is not understood here.
    is_strange: bool,
}

/// How a place in a pattern is come to.
#[derive(Debug, Clone, Copy, Default)]
struct Way {
    /// In many ways: what stands before it takes more or less of the text.
    varies: bool,
    /// Behind something that repeats.
    repeated: bool,
    /// In more ways than there are places: that stands behind another that repeats, or in it.
    multiplied: bool,
    /// With a look behind one that varies: what follows is tried as often as that.
    looked: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Group {
    /// A look-around, or an atomic group: once it is left, nothing in it is tried again.
    looks: bool,
    /// How its beginning is come to.
    begin: Way,
    /// It repeats something, and so may read all that is left.
    repeats: bool,
    /// There are several ways through it, not counting those within a look.
    has_ways: bool,
    /// There is a look-around in it.
    has_look: bool,
}

impl<'p> Reading<'p> {
    /// Reads a pattern, and whether all in it that may read far is tried at few places.
    fn of(pattern: &'p str) -> (Reading<'p>, bool) {
        let mut reading = Reading { rest: pattern.as_bytes(), ..Reading::default() };
        let few = reading.looks_from_few();
        (reading, few)
    }

    fn take(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn group(&mut self) -> &mut Group {
        self.groups.last_mut().unwrap_or(&mut self.whole)
    }

    /// Whether all that may read far is tried at few places.
    fn looks_from_few(&mut self) -> bool {
        let mut few = true;
        while let Some(byte) = self.take() {
            let last = self.last.take();
            match byte {
                b'\\' => self.escape(),
                b'[' => self.class(),
                b'(' => self.open(),
                b')' => few &= self.close(),
                b'*' | b'+' => few &= self.repeat(last),
                b'{' => {
                    if let Some(count) = count(self.rest) {
                        self.rest = &self.rest[count..];
                        few &= self.repeat(last);
                    }
                }
                b'?' => self.now.varies = true,
                b'|' => {
                    self.group().has_ways = true;
                    self.alternates |= self.groups.is_empty();
                }
                _ => {}
            }
        }
        few
    }

    fn escape(&mut self) {
        match self.take() {
            // The text that a group matched.
            Some(b'1'..=b'9' | b'k') => {
                self.looks_far = true;
                self.look();
            }
            // The braces hold a name or a number.
            Some(b'p' | b'P' | b'x' | b'u' | b'U') if self.rest.starts_with(b"{") => {
                while self.take().is_some_and(|byte| byte != b'}') {}
            }
            Some(b'g' | b'K' | b'G') => self.is_strange = true,
            _ => {}
        }
    }

    fn class(&mut self) {
        self.rest = self.rest.strip_prefix(b"^").unwrap_or(self.rest);
        // One of its characters.
        self.rest = self.rest.strip_prefix(b"]").unwrap_or(self.rest);
        while let Some(byte) = self.take() {
            match byte {
                b']' => return,
                b'\\' => _ = self.take(),
                b'[' => match named_class(self.rest) {
                    Some(length) => self.rest = &self.rest[length..],
                    // A class in it, which might end it otherwise.
                    None => self.is_strange = true,
                },
                _ => {}
            }
        }
    }

    fn open(&mut self) {
        let looks = match self.rest {
            [b'?', b'=' | b'!' | b'>', ..] | [b'?', b'<', b'=' | b'!', ..] => true,
            [b'?', b':' | b'<', ..] | [b'?', b'P', b'<', ..] => false,
            [b'?', flags @ ..] => {
                let plain = |byte: &&u8| matches!(byte, b'i' | b'm' | b's' | b'u' | b'U' | b'-');
                let flags = &flags[flags.iter().take_while(plain).count()..];
                self.is_strange |= !matches!(flags, [b':' | b')', ..]);
                false
            }
            _ => false,
        };
        self.rest = self.rest.strip_prefix(b"?").unwrap_or(self.rest);
        self.groups.push(Group { looks, begin: self.now, ..Group::default() });
    }

    fn close(&mut self) -> bool {
        let Some(group) = self.groups.pop() else { return false };
        let above = self.group();
        above.repeats |= group.repeats;
        above.has_look |= group.has_look;
        above.has_ways |= group.has_ways && !group.looks;
        self.last = Some(group);
        if group.looks {
            self.looks_far |= group.repeats;
            self.now = group.begin;
            self.look();
            return !(group.begin.varies && group.repeats);
        }
        true
    }

    /// A look-around has been passed.
    fn look(&mut self) {
        self.group().has_look = true;
        self.now.looked |= self.now.varies;
        self.is_catastrophic |= self.now.multiplied;
    }

    fn repeat(&mut self, last: Option<Group>) -> bool {
        let has_look = last.is_some_and(|last| last.has_look || last.looks);
        let reads_far_each_time = has_look && last.is_some_and(|last| last.repeats);
        let few = !(self.now.looked || reads_far_each_time);
        self.now.varies = true;
        self.now.multiplied |= self.now.repeated || last.is_some_and(|last| last.has_ways && !last.looks);
        self.now.repeated = true;
        let group = self.group();
        group.repeats = true;
        group.has_ways = true;
        // Possessive, which is as an atomic group.
        if has_look || self.rest.starts_with(b"+") {
            self.looks_far = true;
            self.look();
        }
        self.rest = self.rest.strip_prefix(b"+").or(self.rest.strip_prefix(b"?")).unwrap_or(self.rest);
        few
    }
}

/// The bytes of `2}`, `2,}` or `2,3}`; without them, what stands before is a brace and nothing else.
fn count(rest: &[u8]) -> Option<usize> {
    let end = rest.iter().position(|byte| !byte.is_ascii_digit() && *byte != b',')?;
    (end > 0 && rest[end] == b'}').then_some(end + 1)
}

/// The bytes of `:digit:]` or `:^digit:]`.
fn named_class(rest: &[u8]) -> Option<usize> {
    let name = rest.strip_prefix(b":")?;
    let end = name.iter().position(|byte| !byte.is_ascii_alphabetic() && *byte != b'^')?;
    name[end..].starts_with(b":]").then_some(end + 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_the_shorter_the_more_places_it_is_looked_at_from() {
        for (pattern, growth) in [
            ("^(?!tag=)[ -~]*", Growth::Linear),
            ("^(?=.*[A-Z])(?=.*\\d).{8,}$", Growth::Linear),
            ("^(?!a|b)[|)]x\\|y", Growth::Linear),
            ("^/api/(?!v1|v2).*$", Growth::Linear),
            ("^((?!bad).)*$", Growth::Linear),
            ("^(\\w+\\s?)*(?<!x)$", Growth::Linear),
            ("^(?i)\\p{L}(?P<n>a)(?:b)(?<m>[^]*)+(])(?=.*x)", Growth::Linear),
            ("^(.*)\\1x$", Growth::Linear),
            // The part before a look, or the one that repeats it, may be as long as the text.
            ("^.*(?=.{8,})(?=.*[A-Z]).*$", Growth::Square),
            ("^(?:(?!.*bad).)*$", Growth::Square),
            ("^(?=.*(?=.*X)).*", Growth::Square),
            ("^.{1,9}(?!b).*X", Growth::Square),
            ("^.*?(?>a*)b", Growth::Square),
            ("^((?!bad).)*.*X$", Growth::Square),
            ("^((?!bad).)+?.*X$", Growth::Square),
            ("^a?(?=.*X)", Growth::Square),
            ("^a*+.*x", Growth::Square),
            ("^(.*)\\1.*x", Growth::Square),
            ("^a{x(?=.*X).*(?=.*Y).", Growth::Square),
            ("^(?=.*[[:digit:]])[[:^alpha:]-](", Growth::Linear),
            // Or it is tried at every place.
            ("(?=.*\\d).{8,}", Growth::Square),
            ("(?!a)b", Growth::Square),
            ("^(?!a)b|c", Growth::Square),
            ("^(?!a)b(c)|^d", Growth::Square),
            ("^?(?!a)b", Growth::Square),
            ("^*(?=a)b", Growth::Square),
            ("\\^(?=a)", Growth::Square),
            ("(?m)^(?!a)", Growth::Square),
            ("^[](]|(?!a)", Growth::Square),
            ("", Growth::Square),
            // Both.
            (".*(?=.{8,})(?=.*[A-Z]).*$", Growth::Cube),
            ("(?=.*(?=.*X)).*", Growth::Cube),
            ("^a|.*(?=.*X)", Growth::Cube),
            // Or what stands before a look varies twice.
            ("^.*?a.*?(?=.*X).", Growth::Cube),
            ("^(?:a+b?)*(?=.*X).", Growth::Cube),
            // And what is not understood.
            ("^[[a](]|(?!a)", Growth::Cube),
            ("^(?!a)(?x)b#(\n|c", Growth::Cube),
            ("^(?#()|(?!a)", Growth::Cube),
            ("^(a)?(?(1)b|c)", Growth::Cube),
            ("^(a)\\g<1>(?!a)", Growth::Cube),
        ] {
            assert_eq!(Growth::of(pattern), growth, "{pattern}");
        }
        let longest = [Growth::Linear, Growth::Square, Growth::Cube].map(Growth::longest_text);
        assert_eq!(longest, [AT_BEGIN, ANYWHERE, BACK_AND_FORTH]);
    }

    #[test]
    fn an_answer_is_searched_whole_where_no_look_reads_far() {
        for (pattern, longest) in [
            (r"^(?=.*[A-Z])(?=.*\d).{8,}$", usize::MAX),
            (r"(?<=password=)[^&]*", AT_BEGIN),
            (r#""id":\s*(?!0)\d+"#, AT_BEGIN),
            (r"<(?!b|i)(\w+)>", AT_BEGIN),
            (r"(?=.*[A-Z])[a-z]", ANYWHERE),
            (r"<(?>a*)b", ANYWHERE),
            (r"<b*+c", ANYWHERE),
            (r"((?!bad).)*x", ANYWHERE),
            (r"(a)\1", ANYWHERE),
            (r".*(?=.{8,})(?=.*[A-Z]).*$", BACK_AND_FORTH),
            (r"(?!a)(?x)b", BACK_AND_FORTH),
        ] {
            assert_eq!(longest_answer(pattern), longest, "{pattern}");
        }
    }

    #[test]
    fn a_pattern_of_many_ways_is_known() {
        for (pattern, may) in [
            (r"^(\w+\s?)*(?<!x)$", true),
            (r"(\w+\s?)*\1", true),
            (r"(?:(?!x)\w+\s?)*$", true),
            (r"(?:a|a)*(?!x)", true),
            (r"(?=(?:a+)+(?!x)b)", true),
            (r"\d+-\d+(?!x)", true),
            (r"(a){2}{1,}b*+", true),
            (r"^((?x)a)", true),
            // Parts behind the last look, or in it, are searched without backtracking.
            (r"^(?!x)(\w+\s?)*$", false),
            (r"(?=(?:a+)+b)(?!.*(?:c|d)+e)", false),
            (r"^((?!bad).)*$", false),
            (r"^(?:(?!.*bad).)*$", false),
            (r"^a?b?c+(?!x)", false),
            (r"^(a|b)c+(?!x)", false),
            (r"a{b+{,c(?!x)", false),
        ] {
            assert_eq!(may_be_catastrophic(pattern), may, "{pattern}");
        }
    }
}
