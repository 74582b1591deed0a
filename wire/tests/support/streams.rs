//! Invariants of the parsers of stream protocols, for any bytes.

use wire::{dubbo, redis};

/// The result of a parser: the number of bytes used, and the next token.
type ParseResult = Result<(usize, Option<Token>), String>;

enum Token {
    Word(String),
    /// Bytes that may be split differently.
    Bytes(Vec<u8>),
}

/// The parsed tokens are the same in any segmentation, and an error comes after the same tokens.
fn is_steady<R: FnMut(&[u8]) -> ParseResult>(
    bytes: &[u8],
    cut: usize,
    reader: impl Fn() -> R,
) -> Result<(), String> {
    let whole = read(&[bytes], reader());
    for len in [1, cut.max(1)] {
        let pieces: Vec<&[u8]> = bytes.chunks(len).collect();
        let in_pieces = read(&pieces, reader());
        if in_pieces != whole {
            return Err(format!("{in_pieces:?} in pieces of {len}, {whole:?} at once"));
        }
    }
    Ok(())
}

fn read(pieces: &[&[u8]], mut next: impl FnMut(&[u8]) -> ParseResult) -> Vec<String> {
    let (mut words, mut text) = (Vec::new(), Vec::new());
    for piece in pieces {
        let mut rest = *piece;
        while !rest.is_empty() {
            let (used, told) = match next(rest) {
                Ok(said) => said,
                Err(refusal) => {
                    words.push(refusal);
                    return words;
                }
            };
            assert!((1..=rest.len()).contains(&used), "it makes progress within the input");
            rest = &rest[used..];
            match told {
                Some(Token::Word(word)) => words.push(format!("{:?} {word}", std::mem::take(&mut text))),
                Some(Token::Bytes(bytes)) => text.extend(bytes),
                None => {}
            }
        }
    }
    words.push(format!("{text:?}"));
    words
}

pub fn commands(bytes: &[u8], cut: usize) -> Result<(), String> {
    is_steady(bytes, cut, || {
        let mut requests = redis::Requests::default();
        move |rest: &[u8]| {
            let (used, part) = requests.next(rest).map_err(|refusal| refusal.to_string())?;
            let told = part.map(|part| match part {
                redis::Part::Bytes(bytes) => Token::Bytes(bytes.to_vec()),
                part => Token::Word(format!("{part:?}")),
            });
            Ok((used, told))
        }
    })
}

pub fn replies(bytes: &[u8], cut: usize) -> Result<(), String> {
    is_steady(bytes, cut, || {
        let mut replies = redis::Replies::default();
        move |rest: &[u8]| {
            let (used, reply) = replies.next(rest).map_err(|refusal| refusal.to_string())?;
            Ok((used, reply.map(|reply| Token::Word(format!("{reply:?}")))))
        }
    })
}

pub fn frames(bytes: &[u8], cut: usize) -> Result<(), String> {
    is_steady(bytes, cut, || {
        let mut frames = dubbo::Frames::default();
        let mut ended = false;
        move |rest: &[u8]| {
            let (used, part) = frames.next(rest).map_err(|refusal| format!("{refusal:?}"))?;
            let told = part.map(|part| match part {
                dubbo::Part::Head(head) => {
                    ended = head.len == 0;
                    Token::Word(format!("{head:?}"))
                }
                dubbo::Part::Body { bytes, last } => {
                    assert!(!std::mem::replace(&mut ended, last), "no body bytes come after its end");
                    Token::Bytes(bytes.to_vec())
                }
            });
            Ok((used, told))
        }
    })
}
